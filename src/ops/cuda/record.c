#include "ops/cuda/record.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"

enum {
    FIRST_ROOM = 1 << 20,
    GRAPHS = 48, /* kept at once */
    SEEN = 256,  /* lists remembered by their hash, to be recorded when they come again */
    FEWEST = 8   /* operators in a list that is worth a graph */
};

/* ---- what an operator holds ---- */

struct op_copy {
    void *to;
    const void *from;
    int64_t bytes;
};

#define NUMBER(NAME) OP_##NAME,
enum op_number { QR_OPERATORS(NUMBER) OP_copy, OPS };
#undef NUMBER

/* Places of a `step` and a rope_spec in an operator; -1: none. */
struct inside {
    size_t bytes;
    int step, rope;
};
#define PLAIN(NAME) [OP_##NAME] = {sizeof(struct op_##NAME), -1, -1}
#define STEP(NAME) [OP_##NAME] = {sizeof(struct op_##NAME), offsetof(struct op_##NAME, step), -1}
#define ROPE(NAME) \
    [OP_##NAME] = {sizeof(struct op_##NAME), offsetof(struct op_##NAME, step), offsetof(struct op_##NAME, rope)}
static const struct inside inside[OPS] = {
    PLAIN(mhc_mix),    PLAIN(collapse),    PLAIN(expand),       PLAIN(norm),       PLAIN(quantize),  PLAIN(linear),
    PLAIN(expert),     PLAIN(combine),     PLAIN(stream_mean),  PLAIN(stream_add), PLAIN(gather),    PLAIN(copy),
    STEP(embed),       STEP(window_write), STEP(position_bias), STEP(compress),    STEP(tail_write), STEP(index_select),
    STEP(attend),      STEP(route),        STEP(engram),        ROPE(query),       ROPE(window_key), ROPE(row_write),
    ROPE(index_query), ROPE(unrotate)};

/* ---- the list ---- */

/* An operator in the list: this, then its struct. What the struct points to on the host stands in the list too; the
 * pointer holds its place there, so that equal lists are equal bytes. */
struct entry {
    uint64_t op;
};

struct kept_graph {
    cudaGraphExec_t graph; /* NULL: empty */
    uint8_t *list;
    size_t used;
    uint64_t hash, stamp;
};

struct recorder {
    uint8_t *list;
    size_t used, room;
    size_t *places; /* of the entries */
    size_t count, most;
    size_t step; /* place of the last step, 0: none */
    struct kept_graph kept[GRAPHS];
    uint64_t seen[SEEN], stamp;
};

static size_t up_8(size_t n) { return (n + 7) / 8 * 8; }

/* Room for n more bytes, zeroed; their place, or 0 without memory. The first 8 bytes are never used. */
static size_t list_take(struct recorder *r, size_t n)
{
    size_t at = r->used;
    n = up_8(n);
    if (r->used + n > r->room) {
        size_t room = 2 * r->room + n;
        uint8_t *more = qr_realloc(r->list, room);
        if (!more)
            return 0;
        r->list = more;
        r->room = room;
    }
    memset(r->list + at, 0, n);
    r->used += n;
    return at;
}

static void list_clear(struct recorder *r)
{
    r->used = 8;
    r->count = 0;
    r->step = 0;
}

static size_t list_put(struct recorder *r, const void *from, size_t n)
{
    size_t at = list_take(r, n);
    if (at)
        memcpy(r->list + at, from, n);
    return at;
}

/* The place of a step; most operators of a list have the same. */
static size_t put_step(struct recorder *r, const struct step *step)
{
    if (!r->step || memcmp(r->list + r->step, step, sizeof *step) != 0)
        r->step = list_put(r, step, sizeof *step);
    return r->step;
}

static void set_pointer(void *member, size_t place)
{
    uintptr_t bits = place;
    memcpy(member, &bits, sizeof bits);
}

static bool count_one(struct recorder *r, size_t place)
{
    if (r->count == r->most) {
        size_t *more = qr_realloc(r->places, (2 * r->most + 1024) * sizeof *more);
        if (!more)
            return false;
        r->places = more;
        r->most = 2 * r->most + 1024;
    }
    r->places[r->count++] = place;
    return true;
}

static qr_status write_down(struct backend *b, enum op_number number, const void *op, qr_error *err)
{
    struct recorder *r = cuda_of(b)->recorder;
    const struct inside *in = &inside[number];
    size_t step = 0, frequencies = 0, before = r->used;
    const struct rope_spec *rope = in->rope >= 0 ? (const void *)((const uint8_t *)op + in->rope) : NULL;
    const struct step *given = NULL;
    bool fits = true;

    if (in->step >= 0)
        memcpy(&given, (const uint8_t *)op + in->step, sizeof given);
    if (given)
        fits = (step = put_step(r, given)) != 0;
    if (fits && rope && !rope->turns && rope->frequencies && rope->dim > 0)
        fits = (frequencies = list_put(r, rope->frequencies, (size_t)(rope->dim / 2) * sizeof(float))) != 0;
    struct entry entry = {number};
    size_t at = fits ? list_take(r, sizeof entry + in->bytes) : 0;
    if (!at || !count_one(r, at)) {
        r->used = before;
        r->step = 0;
        return qr_fail(err, QR_NO_MEMORY, "no memory to write an operator down");
    }
    memcpy(r->list + at, &entry, sizeof entry);
    uint8_t *copy = r->list + at + sizeof entry;
    memcpy(copy, op, in->bytes);
    if (given)
        set_pointer(copy + in->step, step);
    if (rope)
        set_pointer(copy + in->rope + offsetof(struct rope_spec, frequencies), frequencies);
    return QR_OK;
}

/* ---- starting ---- */

union any_op {
#define MEMBER(NAME) struct op_##NAME NAME;
    QR_OPERATORS(MEMBER)
#undef MEMBER
    struct op_copy copy;
    uint8_t bytes[1];
};

static void restore_pointer(const uint8_t *list, void *member)
{
    uintptr_t place;
    const void *at;
    memcpy(&place, member, sizeof place);
    at = place ? list + place : NULL;
    memcpy(member, &at, sizeof at);
}

static qr_status start_one(struct cuda_backend *cuda, const uint8_t *list, const struct entry *e, const uint8_t *stored,
                           qr_error *err)
{
    union any_op op;
    struct backend *b = &cuda->base;
    const struct inside *in = &inside[e->op];
    memcpy(op.bytes, stored, in->bytes);
    if (in->step >= 0)
        restore_pointer(list, op.bytes + in->step);
    if (in->rope >= 0)
        restore_pointer(list, op.bytes + in->rope + offsetof(struct rope_spec, frequencies));
    switch ((enum op_number)e->op) {
#define START(NAME) \
    case OP_##NAME: \
        return cuda_##NAME(b, &op.NAME, err);
        QR_OPERATORS(START)
#undef START
    case OP_copy:
        return cuda_check(
            cudaMemcpyAsync(op.copy.to, op.copy.from, (size_t)op.copy.bytes, cudaMemcpyDeviceToDevice, cuda->stream),
            "copy", err);
    case OPS:
        break;
    }
    return qr_fail(err, QR_INTERNAL, "operator %u of a list", (unsigned)e->op);
}

static qr_status start_all(struct cuda_backend *cuda, qr_error *err)
{
    const struct recorder *r = cuda->recorder;
    for (size_t i = 0; i < r->count; i++) {
        struct entry e;
        const uint8_t *at = r->list + r->places[i];
        memcpy(&e, at, sizeof e);
        TRY(start_one(cuda, r->list, &e, at + sizeof e, err));
    }
    return QR_OK;
}

/* ---- graphs ---- */

static uint64_t hash_of(const uint8_t *bytes, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u, word;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        memcpy(&word, bytes + i, 8);
        h = (h ^ word) * 0x100000001B3u;
        h ^= h >> 29;
    }
    return h ? h : 1;
}

static void drop_graph(struct kept_graph *k)
{
    if (k->graph)
        (void)cudaGraphExecDestroy(k->graph);
    qr_free(k->list);
    *k = (struct kept_graph){.graph = NULL};
}

static struct kept_graph *find_graph(struct recorder *r, uint64_t hash)
{
    for (int i = 0; i < GRAPHS; i++) {
        struct kept_graph *k = &r->kept[i];
        if (k->graph && k->hash == hash && k->used == r->used && memcmp(k->list, r->list, r->used) == 0)
            return k;
    }
    return NULL;
}

/* The list as a graph, in the place of the one that was not used for longest. NULL with `err` set on failure. */
static struct kept_graph *record_graph(struct cuda_backend *cuda, uint64_t hash, qr_error *err)
{
    struct recorder *r = cuda->recorder;
    struct kept_graph *k = r->kept;
    cudaGraph_t graph = NULL;
    for (int i = 1; i < GRAPHS; i++)
        k = r->kept[i].stamp < k->stamp ? &r->kept[i] : k;
    drop_graph(k);
    if (cuda_check(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), "graph", err) != QR_OK)
        return NULL;
    qr_status st = start_all(cuda, err);
    cudaError_t ended = cudaStreamEndCapture(cuda->stream, &graph);
    if (st == QR_OK)
        st = cuda_check(ended, "graph", err);
    if (st == QR_OK)
        st = cuda_check(cudaGraphInstantiate(&k->graph, graph, 0), "graph", err);
    if (graph)
        (void)cudaGraphDestroy(graph);
    k->list = st == QR_OK ? qr_malloc(r->used) : NULL;
    if (!k->list) {
        if (st == QR_OK)
            qr_fail(err, QR_NO_MEMORY, "no memory to keep a graph");
        drop_graph(k);
        return NULL;
    }
    memcpy(k->list, r->list, r->used);
    k->used = r->used;
    k->hash = hash;
    return k;
}

static qr_status start_list(struct cuda_backend *cuda, qr_error *err)
{
    struct recorder *r = cuda->recorder;
    if (r->count < FEWEST)
        return start_all(cuda, err);
    uint64_t hash = hash_of(r->list, r->used);
    struct kept_graph *k = find_graph(r, hash);
    if (!k && r->seen[hash % SEEN] != hash) {
        r->seen[hash % SEEN] = hash;
        return start_all(cuda, err);
    }
    if (!k && !(k = record_graph(cuda, hash, err)))
        return err ? err->status : QR_INTERNAL;
    k->stamp = ++r->stamp;
    return cuda_check(cudaGraphLaunch(k->graph, cuda->stream), "graph", err);
}

qr_status record_flush(struct cuda_backend *cuda, qr_error *err)
{
    struct recorder *r = cuda->recorder;
    if (!r || r->count == 0)
        return QR_OK;
    qr_status st = cuda_enter(cuda, err);
    if (st == QR_OK)
        st = start_list(cuda, err);
    list_clear(r);
    return st;
}

void record_forget(struct cuda_backend *cuda)
{
    struct recorder *r = cuda->recorder;
    for (int i = 0; r && i < GRAPHS; i++)
        drop_graph(&r->kept[i]);
    if (r)
        memset(r->seen, 0, sizeof r->seen);
}

qr_status record_open(struct recorder **out, qr_error *err)
{
    struct recorder *r = qr_calloc(1, sizeof *r);
    if (r && (r->list = qr_calloc(FIRST_ROOM, 1))) {
        r->room = FIRST_ROOM;
        list_clear(r);
        *out = r;
        return QR_OK;
    }
    qr_free(r);
    return qr_fail(err, QR_NO_MEMORY, "no memory for the CUDA backend");
}

void record_close(struct recorder *r)
{
    if (!r)
        return;
    for (int i = 0; i < GRAPHS; i++)
        drop_graph(&r->kept[i]);
    qr_free(r->list);
    qr_free(r->places);
    qr_free(r);
}

/* ---- what the backend is called with ---- */

/* An empty list of rows is no work: only its arguments are looked at, now. */
#define RECORD(NAME)                                                                             \
    static qr_status record_##NAME(struct backend *b, const struct op_##NAME *op, qr_error *err) \
    {                                                                                            \
        if (op->rows.count == 0)                                                                 \
            return cuda_##NAME(b, op, err);                                                      \
        return write_down(b, OP_##NAME, op, err);                                                \
    }
#define RECORDED(X)                                                                                                  \
    X(embed)                                                                                                         \
    X(mhc_mix) X(collapse) X(expand) X(norm) X(quantize) X(linear) X(query) X(window_key) X(window_write)            \
        X(position_bias) X(compress) X(tail_write) X(row_write) X(index_query) X(index_select) X(attend) X(unrotate) \
            X(route) X(combine) X(engram) X(stream_mean) X(stream_add) X(gather)
RECORDED(RECORD)

/* The caller's lists of weights are read now; the list holds those of the table made from them. */
static qr_status record_expert(struct backend *b, const struct op_expert *op, qr_error *err)
{
    if (op->rows.count == 0)
        return cuda_expert(b, op, err);
    const struct expert_table *t = cuda_expert_table(cuda_of(b), op->experts, op->w1, op->w2, op->w3, err);
    if (!t)
        return err ? err->status : QR_INTERNAL;
    struct op_expert copy = *op;
    copy.w1 = t->w1;
    copy.w2 = t->w2;
    copy.w3 = t->w3;
    return write_down(b, OP_expert, &copy, err);
}

qr_status record_copy(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    struct op_copy op = {to, from, bytes};
    return bytes > 0 ? write_down(b, OP_copy, &op, err) : QR_OK;
}

void record_install(struct backend *b)
{
#define INSTALL(NAME) b->NAME = record_##NAME;
    QR_OPERATORS(INSTALL)
#undef INSTALL
    b->copy = record_copy;
}
