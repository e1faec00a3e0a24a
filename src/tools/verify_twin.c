#include "tools/verify_twin.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "ops/weight_spec.h"
#include "tools/op_cost.h"
#include "tools/op_fields.h"
#include "tools/verify_judge.h"

enum { MOVE_BYTES = 1 << 20 };

/* A piece of the device's memory and of the reference's that stands for it. */
struct memory_pair {
    uint8_t *device, *mirror;
    int64_t bytes;
};

/* What the model holds in place of a weight. */
struct twin_weight {
    struct weight *device, *reference;
    enum weight_format format;
    int64_t bytes;
};

struct twin {
    struct backend base;
    struct backend *device, *reference;
    const struct model_plan *plan;
    struct verify_table *table;
    struct findings *findings;
    struct memory_pair *pairs;
    size_t count, capacity;
    const bool *wanted;
    bool running, watched, lost;
    uint8_t *moved; /* MOVE_BYTES, on their way */
};

static struct twin *twin_of(struct backend *b) { return b->self; }

/* ---- memory ---- */

static struct memory_pair *find_pair(const struct twin *t, const void *p)
{
    const uint8_t *at = p;
    for (size_t i = 0; i < t->count; i++)
        if (at >= t->pairs[i].device && at < t->pairs[i].device + t->pairs[i].bytes)
            return &t->pairs[i];
    for (size_t i = 0; i < t->count; i++) /* an array of no bytes may stand at the end */
        if (at == t->pairs[i].device + t->pairs[i].bytes)
            return &t->pairs[i];
    return NULL;
}

static void *mirror_of(void *user, const void *p)
{
    struct twin *t = user;
    const struct memory_pair *pair = p ? find_pair(t, p) : NULL;
    t->lost |= p && !pair;
    return pair ? pair->mirror + ((const uint8_t *)p - pair->device) : NULL;
}

static void *same_address(void *user, const void *p)
{
    (void)user;
    return (void *)(uintptr_t)p;
}

/* Zeros on both sides: what nothing has written yet is equal. */
static qr_status clear_pair(struct twin *t, const struct memory_pair *pair, qr_error *err)
{
    memset(t->moved, 0, MOVE_BYTES);
    memset(pair->mirror, 0, (size_t)pair->bytes);
    for (int64_t at = 0; at < pair->bytes; at += MOVE_BYTES) {
        int64_t left = pair->bytes - at;
        TRY(t->device->upload(t->device, pair->device + at, t->moved, left < MOVE_BYTES ? left : MOVE_BYTES, err));
    }
    return t->device->fence(t->device, err);
}

static qr_status twin_allocate(struct backend *b, int64_t bytes, void **out, qr_error *err)
{
    struct twin *t = twin_of(b);
    void *device, *mirror;
    if (!array_grow(&t->pairs, &t->capacity, t->count, sizeof *t->pairs))
        return qr_fail(err, QR_NO_MEMORY, "no memory for a list of buffers");
    TRY(t->device->allocate(t->device, bytes, &device, err));
    qr_status st = t->reference->allocate(t->reference, bytes, &mirror, err);
    if (st != QR_OK) {
        t->device->release(t->device, device);
        return st;
    }
    t->pairs[t->count++] = (struct memory_pair){device, mirror, bytes};
    *out = device;
    return clear_pair(t, &t->pairs[t->count - 1], err);
}

static void twin_release(struct backend *b, void *p)
{
    struct twin *t = twin_of(b);
    for (size_t i = 0; i < t->count; i++)
        if (t->pairs[i].device == p) {
            t->reference->release(t->reference, t->pairs[i].mirror);
            t->device->release(t->device, p);
            t->pairs[i] = t->pairs[--t->count];
            return;
        }
}

/* Addresses that a copy or an upload names are the twin's own, or nothing is moved. */
static qr_status whole(struct twin *t, qr_error *err)
{
    bool lost = t->lost;
    t->lost = false;
    return lost ? qr_fail(err, QR_INTERNAL, "an operator was given an address that its backend never gave out") : QR_OK;
}

static qr_status twin_upload(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    struct twin *t = twin_of(b);
    if (bytes == 0)
        return QR_OK;
    void *mirror = mirror_of(t, to);
    TRY(whole(t, err));
    memcpy(mirror, from, (size_t)bytes);
    return t->device->upload(t->device, to, from, bytes, err);
}

static qr_status twin_download(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    struct twin *t = twin_of(b);
    return t->device->download(t->device, to, from, bytes, err);
}

static qr_status twin_copy(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    struct twin *t = twin_of(b);
    if (bytes == 0)
        return QR_OK;
    void *mirror = mirror_of(t, to), *source = mirror_of(t, from);
    TRY(whole(t, err));
    memmove(mirror, source, (size_t)bytes);
    return t->device->copy(t->device, to, from, bytes, err);
}

static qr_status twin_fence(struct backend *b, qr_error *err)
{
    struct twin *t = twin_of(b);
    return t->device->fence(t->device, err);
}

/* Compares a pair with the device, or makes it equal; *different counts bytes. */
static qr_status meet(struct twin *t, const struct memory_pair *pair, bool write, int64_t *different, qr_error *err)
{
    for (int64_t at = 0; at < pair->bytes; at += MOVE_BYTES) {
        int64_t n = pair->bytes - at < MOVE_BYTES ? pair->bytes - at : MOVE_BYTES;
        TRY(t->device->download(t->device, t->moved, pair->device + at, n, err));
        TRY(t->device->fence(t->device, err));
        for (int64_t i = 0; i < n; i++)
            *different += t->moved[i] != pair->mirror[at + i];
        if (write)
            memcpy(pair->mirror + at, t->moved, (size_t)n);
    }
    return QR_OK;
}

qr_status twin_watch(struct twin *t, bool watched, qr_error *err)
{
    int64_t different = 0;
    for (size_t i = 0; watched && !t->watched && i < t->count; i++)
        TRY(meet(t, &t->pairs[i], true, &different, err));
    t->watched = watched;
    return QR_OK;
}

qr_status twin_compare_memory(struct twin *t, qr_error *err)
{
    int64_t different = 0;
    for (size_t i = 0; i < t->count; i++)
        TRY(meet(t, &t->pairs[i], false, &different, err));
    if (different)
        findings_add(t->findings, "%lld bytes of memory differ that no operator is said to write: one wrote where it should not",
                     (long long)different);
    return QR_OK;
}

/* ---- weights ---- */

static void twin_release_weight(struct backend *b, struct weight *w)
{
    struct twin *t = twin_of(b);
    struct twin_weight *both = (struct twin_weight *)(void *)w;
    if (!both)
        return;
    if (both->device)
        t->device->release_weight(t->device, both->device);
    if (both->reference)
        t->reference->release_weight(t->reference, both->reference);
    qr_free(both);
}

static qr_status twin_prepare_weight(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err)
{
    struct twin *t = twin_of(b);
    struct twin_weight *both = qr_calloc(1, sizeof *both);
    if (!both)
        return qr_fail(err, QR_NO_MEMORY, "weight %s: no memory for its handle", spec->name);
    both->format = spec->format;
    both->bytes = weight_spec_bytes(spec);
    qr_status st = t->device->prepare_weight(t->device, spec, &both->device, err);
    if (st == QR_OK)
        st = t->reference->prepare_weight(t->reference, spec, &both->reference, err);
    if (st != QR_OK) {
        twin_release_weight(b, (struct weight *)(void *)both);
        return st;
    }
    *out = (struct weight *)(void *)both;
    return QR_OK;
}

static const struct twin_weight *both_of(const struct weight *w) { return (const struct twin_weight *)(const void *)w; }

static const struct weight *device_weight(void *user, const struct weight *w)
{
    (void)user;
    return both_of(w)->device;
}

static const struct weight *reference_weight(void *user, const struct weight *w)
{
    (void)user;
    return both_of(w)->reference;
}

static int64_t weight_bytes(const void *user, const struct weight *w)
{
    (void)user;
    return both_of(w)->bytes;
}

/* ---- calls ---- */

/* What the table calls an operator: its name and what tells its forms apart. */
static void label_of(enum op_kind kind, const void *p, char *out, size_t size)
{
    static const char *const formats[] = {"bf16", "f32", "fp8", "fp4", "int8"};
    const char *name = op_shape_of(kind)->name;
    if (kind == OP_linear) {
        const struct op_linear *op = p;
        snprintf(out, size, "%s %s%s%s", name, formats[both_of(op->weight)->format], op->groups > 1 ? " grouped" : op->parts > 1 ? " parts" : "",
                 op->out.format == ACT_F32 ? " to f32" : "");
    } else if (kind == OP_expert) {
        const struct op_expert *op = p;
        snprintf(out, size, "%s %s %s", name, formats[both_of(op->w1[0])->format], op->idx ? "routed" : "shared");
    } else if (kind == OP_row_write) {
        const struct op_row_write *op = p;
        snprintf(out, size, "%s %s", name, op->plane.format >= ROW_INDEX_FP8 ? "index" : "main");
    } else if (kind == OP_mhc_mix && ((const struct op_mhc_mix *)p)->head_only) {
        snprintf(out, size, "%s head", name);
    } else if (kind == OP_route && ((const struct op_route *)p)->table) {
        snprintf(out, size, "%s hash", name);
    } else {
        snprintf(out, size, "%s", name);
    }
}

static qr_status on_device(struct twin *t, enum op_kind kind, const void *op, double *seconds, qr_error *err)
{
    TRY(t->device->fence(t->device, err));
    double start = clock_seconds();
    TRY(op_call_on(t->device, kind, op, err));
    TRY(t->device->fence(t->device, err));
    *seconds = clock_seconds() - start;
    return QR_OK;
}

static qr_status call_both(struct twin *t, enum op_kind kind, const void *op, struct arena *arena, qr_error *err)
{
    const struct op_translation here = {same_address, device_weight, t}, there = {mirror_of, reference_weight, t};
    const struct op_meter meter = {t->device, arena, weight_bytes, t};
    char label[64];
    void *run, *want;
    double seconds;
    int64_t bytes;

    TRY(op_translate(kind, op, &here, arena, &run, err));
    if (!t->watched || ((const struct row_list *)op)->count == 0)
        return op_call_on(t->device, kind, run, err);

    label_of(kind, op, label, sizeof label);
    TRY(op_translate(kind, op, &there, arena, &want, err));
    TRY(whole(t, err));
    struct judge j = {.device = {t->device, arena, t->plan->config.family}, .reference = t->reference, .table = t->table,
                      .findings = t->findings, .mirror = mirror_of, .user = t, .kind = kind, .label = label, .op = run, .want = want};
    TRY(on_device(t, kind, run, &seconds, err));
    TRY(judge_prepare(&j, err));
    TRY(op_call_on(t->reference, kind, want, err));
    TRY(judge_call(&j, err));
    TRY(whole(t, err));
    TRY(op_call_bytes(&meter, kind, op, &bytes, err));
    if (j.first) {
        j.first->timed = true;
        j.first->seconds += seconds;
        j.first->bytes += bytes;
    }
    return QR_OK;
}

static qr_status run(struct twin *t, enum op_kind kind, const void *op, qr_error *err)
{
    struct arena arena;
    if (!t->running)
        return QR_OK;
    arena_init(&arena, 0);
    qr_status st = call_both(t, kind, op, &arena, err);
    arena_free(&arena);
    return st;
}

#define TWIN(NAME)                                                                                                     \
    static qr_status twin_##NAME(struct backend *b, const struct op_##NAME *op, qr_error *err)                         \
    {                                                                                                                  \
        return run(twin_of(b), OP_##NAME, op, err);                                                                    \
    }
QR_OPERATORS(TWIN)
#undef TWIN

/* ---- layers ---- */

static qr_status at_point(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err)
{
    struct twin *t = user;
    (void)ws;
    (void)err;
    if (point == POINT_BLOCK_INPUT)
        t->running = !t->wanted || t->wanted[layer];
    if (point == POINT_BLOCK_OUTPUT)
        t->running = true;
    return QR_OK;
}

void twin_layers(struct twin *t, const bool *wanted) { t->wanted = wanted; }

struct model_observer twin_observer(struct twin *t) { return (struct model_observer){.user = t, .at = at_point}; }

/* ---- opening ---- */

static qr_status twin_reserve(struct backend *b, const struct op_limits *limits, int64_t *bytes, qr_error *err)
{
    struct twin *t = twin_of(b);
    int64_t reference;
    TRY(t->reference->reserve(t->reference, limits, &reference, err));
    return t->device->reserve(t->device, limits, bytes, err);
}

qr_status twin_open(struct backend *device, struct backend *reference, const struct model_plan *plan, struct verify_table *table,
                    struct findings *findings, struct twin **out, qr_error *err)
{
    struct twin *t = qr_calloc(1, sizeof *t);
    uint8_t *moved = qr_malloc(MOVE_BYTES);
    if (!t || !moved) {
        qr_free(t);
        qr_free(moved);
        return qr_fail(err, QR_NO_MEMORY, "no memory for a pair of backends");
    }
    *t = (struct twin){.device = device, .reference = reference, .plan = plan, .table = table, .findings = findings, .running = true,
                       .moved = moved};
    t->base = (struct backend){.name = device->name, .self = t, .reserve = twin_reserve, .allocate = twin_allocate,
                               .release = twin_release, .upload = twin_upload, .download = twin_download, .copy = twin_copy,
                               .fence = twin_fence, .prepare_weight = twin_prepare_weight, .release_weight = twin_release_weight};
#define INSTALL(NAME) t->base.NAME = twin_##NAME;
    QR_OPERATORS(INSTALL)
#undef INSTALL
    *out = t;
    return QR_OK;
}

void twin_close(struct twin *t)
{
    if (!t)
        return;
    while (t->count)
        twin_release(&t->base, t->pairs[t->count - 1].device);
    qr_free(t->pairs);
    qr_free(t->moved);
    qr_free(t);
}

struct backend *twin_backend(struct twin *t) { return &t->base; }
