#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/plural.h"
#include "cli/print_json.h"
#include "model/w8a8.h"
#include "tools/bench.h"
#include "tools/bench_cache.h"
#include "tools/opened.h"

/* What a layer's time is booked under: its attention by kind, its experts, and what is outside the layers. */
enum kind { KIND_WINDOW, KIND_FULL, KIND_REINDEX, KIND_REUSE, KIND_CSA, KIND_HCA, KIND_EXPERTS, KIND_HEAD, KIND_MTP, KINDS };
static const char *const kind_names[KINDS] = {"window attention",  "full attention", "reindex attention",
                                              "reuse attention",   "CSA attention",  "HCA attention",
                                              "router and experts", "head, embedding and staging",
                                              "MTP layer and its head"};

struct tally {
    double seconds;
    int64_t bytes;  /* read in the steps timed */
    int64_t layers; /* visits */
};

struct bench {
    const struct bench_step *given, *o; /* the command's; of the cell under way */
    struct bench_step cell;
    int64_t numbered;       /* steps of all cells so far */
    struct opened model;
    int32_t *blocks;        /* [batch][blocks_each], of the cell */
    int64_t blocks_each;
    int32_t *tokens;        /* [batch][longest] */
    struct batch_span *spans;
    int32_t *accepted;
    struct draft_span *drafts; /* [batch], of two rows each */
    int32_t *sources;          /* [batch * 2] */
    int64_t attention_bytes[QR_MAX_LAYERS], expert_bytes[QR_MAX_LAYERS], ffn_bytes[QR_MAX_LAYERS], head_bytes;
    int64_t mtp_bytes;         /* of the MTP layer but its routed experts */
    uint8_t *seen;          /* [experts] */
    struct tally tally[KINDS];
    double last, total, rate;
    int64_t steps, cached; /* bytes of the cache, read in the steps timed */
    double unwatched; /* seconds of the steps that nothing watched, */
    int64_t unwatched_steps;
    struct backend_counts experts; /* found and copied in those */
};

/* ---- bytes: what the tensors of each part weigh ---- */

/* Bytes that a step reads of a tensor: those of the file, or of the INT8 form that w8a8 derives from it (v4-model.md 7.1). */
static int64_t bytes_of(const struct bench *b, const struct tensor_view *t)
{
    const size_t length = strlen(t->name);
    int64_t elements = 1;
    if (b->model.plan.profile != QR_PROFILE_W8A8 || t->rank != 2)
        return (int64_t)t->bytes;
    for (int i = 0; i < t->rank; i++)
        elements *= t->shape[i];
    if (length > 6 && strcmp(t->name + length - 6, ".scale") == 0)
        return 0;
    if (t->dtype == DTYPE_I8)
        return 2 * elements + 4 * t->shape[0];
    if (t->dtype != DTYPE_F8_E4M3)
        return (int64_t)t->bytes;
    const bool widened = strstr(t->name, ".wq_a.") || strstr(t->name, "attn.wkv.") || strstr(t->name, ".wo_a.");
    return widened ? 2 * elements : elements + 4 * t->shape[0];
}

/* Books a tensor of a layer (backbone, then the MTP layer; -1: none) by its official name behind the layer's. */
static void add_bytes(struct bench *b, int32_t layer, const char *stem, int64_t bytes)
{
    if (layer < 0)
        b->head_bytes += strncmp(stem, "head.", 5) == 0 ? bytes : 0;
    else if (strncmp(stem, "engram.embed", 12) == 0 || strstr(stem, "tid2eid")) /* a few rows of a table */
        return;
    else if (strncmp(stem, "ffn.experts.", 12) == 0)
        b->expert_bytes[layer] += bytes;
    else if (layer >= b->model.plan.layers)
        b->mtp_bytes += bytes;
    else if (strncmp(stem, "ffn", 3) == 0 || strncmp(stem, "hc_ffn", 6) == 0)
        b->ffn_bytes[layer] += bytes;
    else
        b->attention_bytes[layer] += bytes;
}

/* A tensor of an official folder. The routed experts of a layer are all of one size: the first is booked. */
static void add_tensor(struct bench *b, const struct tensor_view *t)
{
    struct official_name name;
    official_split(&b->model.plan, t->name, &name);
    if (name.layer < QR_MAX_LAYERS && name.expert <= 0)
        add_bytes(b, name.layer, name.stem, bytes_of(b, t));
}

/* A tensor of an INT8 folder (v4-model.md 7.1): a stack of layers, and of their experts. */
static void add_stored(struct bench *b, const struct w8a8_output *o)
{
    const struct tensor_view *values = checkpoint_find(b->model.checkpoint, o->name);
    const struct tensor_view *scales = o->scale_name[0] ? checkpoint_find(b->model.checkpoint, o->scale_name) : NULL;
    const int64_t bytes = (values ? (int64_t)values->bytes : 0) + (scales ? (int64_t)scales->bytes : 0);
    for (int32_t i = 0; i < o->layers && o->recipe->form != FORM_HADAMARD; i++)
        add_bytes(b, o->layer[i], o->recipe->official, bytes / o->members);
}

static void weigh(struct bench *b)
{
    struct w8a8_output o;
    for (int32_t i = 0; b->model.config.stored_w8a8 && w8a8_output(&b->model.plan, i, &o); i++)
        add_stored(b, &o);
    for (int64_t i = 0; !b->model.config.stored_w8a8 && i < checkpoint_count(b->model.checkpoint); i++)
        add_tensor(b, checkpoint_at(b->model.checkpoint, i));
}

/* Different experts that the rows of this layer chose: each is read once. */
static qr_status distinct_experts(struct bench *b, int32_t layer, const struct workspace *ws, int64_t rows, int64_t *out,
                                  qr_error *err)
{
    const struct layer_plan *l = &b->model.plan.layer[layer];
    const int64_t count = rows * l->n_active;
    int32_t *idx = qr_calloc((size_t)count + 1, sizeof *idx);
    *out = 0;
    if (!idx)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %lld choices", (long long)count);
    qr_status st = b->model.backend->download(b->model.backend, idx, ws->expert_idx, count * (int64_t)sizeof *idx, err);
    memset(b->seen, 0, (size_t)l->n_experts);
    for (int64_t i = 0; st == QR_OK && i < count; i++)
        if (idx[i] >= 0 && idx[i] < l->n_experts && !b->seen[idx[i]]) {
            b->seen[idx[i]] = 1;
            ++*out;
        }
    qr_free(idx);
    return st;
}

/* ---- time: from point to point ---- */

static enum kind attention_kind(const struct layer_plan *l)
{
    static const enum kind kinds[] = {[ATTEND_WINDOW] = KIND_WINDOW, [ATTEND_FULL] = KIND_FULL,
                                      [ATTEND_REINDEX] = KIND_REINDEX, [ATTEND_REUSE] = KIND_REUSE,
                                      [ATTEND_CSA] = KIND_CSA, [ATTEND_HCA] = KIND_HCA};
    return kinds[l->attend];
}

static void book(struct bench *b, enum kind kind, int64_t bytes, int64_t visits)
{
    const double now = clock_seconds();
    b->tally[kind].seconds += now - b->last;
    b->tally[kind].bytes += bytes;
    b->tally[kind].layers += visits;
    b->last = clock_seconds();
}

/* What the step reads of the cache in a layer; a prompt's rows read mostly what it makes itself. */
static int64_t cache_bytes(struct bench *b, int32_t layer)
{
    if (b->o->prefill)
        return 0;
    const int64_t bytes =
        b->o->batch * bench_cache_bytes(&b->model.plan, &b->model.geometry, layer, b->spans[0].first_position);
    b->cached += bytes;
    return bytes;
}

static qr_status at_point(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err)
{
    struct bench *b = user;
    const int64_t rows = b->o->prefill ? b->spans[0].count : (int64_t)b->o->batch * b->o->rows;
    int64_t experts = 0;
    qr_status st = b->model.backend->fence(b->model.backend, err);
    if (st != QR_OK)
        return st;
    if (layer >= b->model.plan.layers) { /* the MTP layer is one part */
        if (point == POINT_ROUTED)
            st = distinct_experts(b, layer, ws, rows, &experts, err);
        b->tally[KIND_MTP].bytes += experts * b->expert_bytes[layer];
        return st;
    }
    switch (point) {
    case POINT_BLOCK_INPUT:
        book(b, KIND_HEAD, 0, 0);
        break;
    case POINT_ROUTED:
        book(b, attention_kind(&b->model.plan.layer[layer]), b->attention_bytes[layer] + cache_bytes(b, layer), 1);
        st = distinct_experts(b, layer, ws, rows, &experts, err);
        b->tally[KIND_EXPERTS].bytes += experts * b->expert_bytes[layer];
        b->last = clock_seconds();
        break;
    case POINT_BLOCK_OUTPUT:
        book(b, KIND_EXPERTS, b->ffn_bytes[layer], 1);
        break;
    case POINT_LOGITS:
        book(b, KIND_HEAD, b->head_bytes, 1);
        break;
    default:
        break;
    }
    return st;
}

/* ---- steps ---- */

/* Steps before those that are timed unwatched: a backend may record a step when it comes again. */
enum { UNWATCHED_FIRST = 12 };

/* A verify step needs at least one token before it. */
static int32_t first_position(const struct bench_step *o)
{
    return !o->prefill && o->rows > 1 && o->context == 0 ? 1 : o->context;
}

/* The rate of a device's own memory: large copies on it, bytes read and written. */
static qr_status device_rate(struct bench *b, qr_error *err)
{
    enum { COPIES = 5 };
    const int64_t bytes = (int64_t)1 << 30;
    struct backend *device = b->model.backend;
    void *from = NULL, *to = NULL;
    qr_status st = device->allocate(device, bytes, &from, err);
    b->rate = 0;
    if (st == QR_OK)
        st = device->allocate(device, bytes, &to, err);
    for (int i = 0; st == QR_OK && i < COPIES; i++) {
        st = device->fence(device, err);
        const double start = clock_seconds();
        for (int k = 0; st == QR_OK && k < 4; k++)
            st = device->copy(device, to, from, bytes, err);
        if (st == QR_OK)
            st = device->fence(device, err);
        const double rate = 4 * 2 * (double)bytes / (clock_seconds() - start);
        b->rate = rate > b->rate ? rate : b->rate;
    }
    if (from)
        device->release(device, from);
    if (to)
        device->release(device, to);
    return st;
}

/* What is decoded i-th: what the options say, then what they add. */
static struct bench_step cell_of(const struct bench_step *o, int i)
{
    struct bench_step cell = *o;
    if (i > 0) {
        cell.batch = o->also[i - 1].batch;
        cell.context = o->also[i - 1].context;
        cell.rows = o->also[i - 1].rows;
    }
    return cell;
}

static qr_status check_options(const struct bench *b, int number, qr_error *err)
{
    const struct bench_step cell = cell_of(b->given, number), *o = &cell;
    const int32_t width = geometry_defaults(&b->model.plan).draft_width;
    if (o->mtp && (o->prefill || b->model.config.drafter != QR_DRAFTER_MTP))
        return qr_fail(err, QR_UNSUPPORTED, "%s: --mtp is for decoding with a model that has the MTP layer", o->model.model);
    if (!o->prefill && o->rows > width + 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "--rows %d: this model verifies at most %d rows of a request at once", o->rows,
                       width + 1);
    return QR_OK;
}

/* What the largest cells need. */
struct extent {
    int64_t batch, rows, longest, blocks, tokens;
    int32_t context; /* of the longest */
};

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t longest_of(const struct bench_step *o)
{
    return first_position(o) + (o->prefill ? o->tokens : (int64_t)o->rows * (2 * o->steps + UNWATCHED_FIRST + 2));
}

static int64_t blocks_of(const struct bench *b, const struct bench_step *o)
{
    const int32_t block = b->model.geometry.options.block_tokens;
    return (longest_of(o) + block - 1) / block;
}

static struct extent measure_cells(const struct bench *b)
{
    struct extent most = {.batch = 0};
    for (int i = 0; i <= b->given->also_count; i++) {
        const struct bench_step cell = cell_of(b->given, i);
        const int64_t batch = cell.prefill ? 1 : cell.batch;
        const int64_t chunk = cell.chunk && cell.chunk < cell.tokens ? cell.chunk : cell.tokens;
        if (longest_of(&cell) > most.longest)
            most.context = cell.context;
        most.batch = larger(most.batch, batch);
        most.rows = larger(most.rows, cell.prefill ? chunk : batch * cell.rows);
        most.longest = larger(most.longest, longest_of(&cell));
        most.blocks = larger(most.blocks, batch * blocks_of(b, &cell));
        most.tokens = larger(most.tokens, batch * longest_of(&cell));
    }
    return most;
}

/* What the requests of the run hold, and the blocks they hold it in. */
static qr_status make_requests(struct bench *b, const struct extent *most, qr_error *err)
{
    const size_t batch = (size_t)most->batch;
    b->blocks = qr_calloc((size_t)most->blocks, sizeof *b->blocks);
    b->tokens = qr_calloc((size_t)most->tokens, sizeof *b->tokens);
    b->spans = qr_calloc(batch, sizeof *b->spans);
    b->accepted = qr_calloc(batch, sizeof *b->accepted);
    b->seen = qr_calloc((size_t)b->model.config.n_routed_experts + 1, 1);
    b->drafts = qr_calloc(batch, sizeof *b->drafts);
    b->sources = qr_calloc(2 * batch, sizeof *b->sources);
    if (!b->blocks || !b->tokens || !b->spans || !b->accepted || !b->seen || !b->drafts || !b->sources)
        return qr_fail(err, QR_NO_MEMORY, "bench: no memory for %lld requests of %lld tokens", (long long)most->batch,
                       (long long)most->longest);
    for (int64_t i = 0; i < most->blocks; i++)
        b->blocks[i] = (int32_t)(i + 1);
    uint32_t random = 1;
    for (int64_t i = 0; i < most->tokens; i++) {
        random = random * 1664525 + 1013904223;
        b->tokens[i] = (int32_t)((random >> 8) % (uint32_t)b->model.config.vocab_size);
    }
    return QR_OK;
}

static qr_status open_all(struct bench *b, qr_error *err)
{
    const struct bench_step *o = b->given;
    TRY(opened_config(&o->model, &b->model, err));
    for (int i = 0; i <= o->also_count; i++)
        TRY(check_options(b, i, err));
    TRY(opened_geometry(&o->model, true, &b->model, err));
    const struct extent most = measure_cells(b);
    const int64_t positions = larger(o->model.max_model_len, most.longest);
    const int32_t block = b->model.geometry.options.block_tokens; /* one request of --max-model-len must have room */
    const struct runner_options steps = {
        .blocks = larger(most.blocks, (positions + block - 1) / block) + 1, .slots = most.batch,
        .model = {.max_rows = (int32_t)most.rows, .max_requests = (int32_t)most.batch,
                  .max_logits = o->prefill ? 1 : (int32_t)most.rows, .max_positions = (int32_t)positions,
                  .max_draft_rows = o->mtp ? 2 * (int32_t)most.batch : 0}};
    qr_status st = opened_plan(&b->model, &o->model, &steps, err);
    if (st == QR_BAD_REQUEST)
        return qr_fail_in(err, st, "--context %d with %lld tokens behind it", most.context,
                          (long long)most.longest - most.context);
    if (st != QR_OK)
        return st;
    TRY(opened_load(&b->model, &o->model, &steps, err));
    return make_requests(b, &most, err);
}

/* The two MTP rows of each request, behind a step whose drafts all stood (v4-model.md 6.4). */
static qr_status draft(struct bench *b, int32_t position, const struct model_observer *observer, qr_error *err)
{
    const int32_t batch = b->o->batch;
    for (int32_t i = 0; i < batch; i++) {
        b->sources[2 * i] = 2 * i;
        b->sources[2 * i + 1] = 2 * i + 1;
        b->drafts[i] = (struct draft_span){.slot = i, .first_position = position, .count = 2,
                                           .tokens = b->tokens + 2 * i, .sources = b->sources + 2 * i, .logits_from = 1};
    }
    b->last = clock_seconds();
    qr_status st = runner_draft(b->model.runner, b->drafts, batch, observer, err);
    for (int32_t i = 0; st == QR_OK && i < batch; i++)
        st = runner_keep_streams(b->model.runner, i, 2 * i + 1, err);
    if (st == QR_OK)
        st = b->model.backend->fence(b->model.backend, err);
    book(b, KIND_MTP, b->mtp_bytes + b->head_bytes, 1);
    return st;
}

/* Whether a step is watched from inside, part by part, and timed. */
enum watch { WATCHED_UNTIMED, WATCHED, UNWATCHED_UNTIMED, UNWATCHED };

/* With experts in host memory: adds, or with a sign of -1 takes, what has been found and copied so far. */
static void count_experts(struct bench *b, int64_t sign)
{
    struct backend_counts n = {.bytes = 0};
    if (b->model.backend->count)
        b->model.backend->count(b->model.backend, &n);
    b->experts.experts_found += sign * n.experts_found;
    b->experts.experts_copied += sign * n.experts_copied;
    b->experts.expert_bytes += sign * n.expert_bytes;
}

/* One step of all requests at `position`. */
static qr_status step(struct bench *b, int64_t number, int32_t position, int32_t count, enum watch watch, qr_error *err)
{
    const struct bench_step *o = b->o;
    const int32_t batch = o->prefill ? 1 : o->batch;
    const bool tentative = !o->prefill && count > 1;
    const struct model_observer observer = {.user = b, .at = at_point};
    /* where experts may lie in host memory other tokens each step, or those that they choose would all be on the device soon */
    const int64_t first = o->model.expert_memory > 0 && !o->prefill ? number * batch * count : position % 7;
    for (int32_t i = 0; i < batch; i++)
        b->spans[i] = (struct batch_span){
            .request = (uint64_t)i + 1, .slot = i, .blocks = b->blocks + i * b->blocks_each,
            .block_count = (int32_t)b->blocks_each, .first_position = position, .count = count,
            .tokens = b->tokens + (int64_t)i * count + first, .logits_from = o->prefill ? count - 1 : 0, .final = true,
            .drafts = tentative ? count - 1 : 0, .place = number == 0 && position > 0};
    const struct batch work = {.step = (uint64_t)++b->numbered, .count = batch, .spans = b->spans, .tentative = tentative};
    struct tally before[KINDS];
    const int64_t cached = b->cached;
    memcpy(before, b->tally, sizeof before);
    if (watch == UNWATCHED)
        count_experts(b, -1);
    const double start = b->last = clock_seconds();
    const bool watched = watch == WATCHED_UNTIMED || watch == WATCHED;
    qr_status st = runner_step(b->model.runner, &work, watched ? &observer : NULL, err);
    if (st == QR_OK)
        st = b->model.backend->fence(b->model.backend, err);
    double spent = clock_seconds() - start;
    if (st == QR_OK && tentative) {
        for (int32_t i = 0; i < batch; i++)
            b->accepted[i] = count;
        st = runner_commit(b->model.runner, b->accepted, err);
    }
    if (st == QR_OK && o->mtp) {
        const double drafting = clock_seconds();
        st = draft(b, position, watched ? &observer : NULL, err);
        spent += clock_seconds() - drafting;
    }
    if (watch == WATCHED) {
        b->total += spent;
        b->steps++;
    } else {
        memcpy(b->tally, before, sizeof before);
        b->cached = cached;
    }
    if (watch == UNWATCHED) {
        b->unwatched += spent;
        b->unwatched_steps++;
        count_experts(b, 1);
    }
    return st;
}

static void begin_cell(struct bench *b, int number)
{
    b->cell = cell_of(b->given, number);
    b->o = &b->cell;
    b->blocks_each = blocks_of(b, b->o);
    memset(b->tally, 0, sizeof b->tally);
    b->total = b->unwatched = 0;
    b->steps = b->cached = b->unwatched_steps = 0;
    b->experts = (struct backend_counts){.bytes = 0};
}

static qr_status run_steps(struct bench *b, qr_error *err)
{
    const struct bench_step *o = b->o;
    int32_t position = first_position(o);
    qr_status st = QR_OK;
    if (o->prefill) {
        const int32_t chunk = o->chunk && o->chunk < o->tokens ? o->chunk : o->tokens;
        for (int32_t done = 0; st == QR_OK && done < o->tokens; done += chunk) {
            const int32_t left = o->tokens - done;
            st = step(b, done / chunk, position + done, left < chunk ? left : chunk, WATCHED, err);
        }
        return st;
    }
    int64_t i = 0;
    for (; st == QR_OK && i <= o->steps; i++, position += o->rows)
        st = step(b, i, position, o->rows, i > 0 ? WATCHED : WATCHED_UNTIMED, err);
    for (int64_t n = 0; st == QR_OK && n < UNWATCHED_FIRST + o->steps; n++, i++, position += o->rows)
        st = step(b, i, position, o->rows, n < UNWATCHED_FIRST ? UNWATCHED_UNTIMED : UNWATCHED, err);
    return st;
}

/* ---- printing ---- */

static double rows_run(const struct bench *b)
{
    return b->o->prefill ? b->o->tokens : (double)b->o->batch * b->o->rows * (double)b->steps;
}

static int64_t bytes_read(const struct bench *b)
{
    int64_t bytes = 0;
    for (int k = 0; k < KINDS; k++)
        bytes += b->tally[k].bytes;
    return bytes;
}

static void write_figures(const struct bench *b, struct json_writer *w)
{
    const double steps = (double)b->steps, bytes = (double)bytes_read(b);
    json_w_object(w);
    json_w_member_string(w, "what", b->o->prefill ? "prefill" : "decode");
    json_w_member_string(w, "backend", b->model.backend->name);
    if (!b->o->prefill) {
        json_w_member_int(w, "batch", b->o->batch);
        json_w_member_int(w, "rows", b->o->rows);
    }
    json_w_member_int(w, "context", b->o->context);
    json_w_member_int(w, "steps", b->steps);
    json_w_member_number(w, "seconds_per_step", b->total / steps);
    json_w_member_number(w, "rows_per_second", rows_run(b) / b->total);
    json_w_member_number(w, "bytes_per_step", bytes / steps);
    if (!b->o->prefill)
        json_w_member_number(w, "cache_bytes_per_step", (double)b->cached / steps);
    json_w_member_number(w, "read_bytes_per_second", b->rate);
    json_w_member_number(w, "share_of_bound", bytes / b->rate / b->total);
    json_w_member_number(w, "seconds_unwatched", b->unwatched_steps ? b->unwatched / (double)b->unwatched_steps : 0.0);
    if (b->model.bytes.host_experts > 0) {
        const double each = b->unwatched_steps ? (double)b->unwatched_steps : 1.0;
        json_w_member_uint(w, "experts_on_device", b->model.bytes.device_experts);
        json_w_member_uint(w, "experts_on_host", b->model.bytes.host_experts);
        json_w_member_uint(w, "seats", b->model.bytes.seats);
        json_w_member_number(w, "experts_found", (double)b->experts.experts_found / each);
        json_w_member_number(w, "experts_copied", (double)b->experts.experts_copied / each);
        json_w_member_number(w, "expert_bytes_copied", (double)b->experts.expert_bytes / each);
    }
    json_w_key(w, "parts");
    json_w_array(w);
    for (int k = 0; k < KINDS; k++) {
        if (b->tally[k].layers == 0)
            continue;
        json_w_object(w);
        json_w_member_string(w, "part", kind_names[k]);
        json_w_member_number(w, "seconds", b->tally[k].seconds / steps);
        json_w_member_number(w, "bytes", (double)b->tally[k].bytes / steps);
        json_w_end_object(w);
    }
    json_w_end_array(w);
    json_w_end_object(w);
}

/* Of the steps that nothing watched. */
static void print_experts(const struct bench *b)
{
    const struct backend_counts *n = &b->experts;
    const double steps = (double)b->unwatched_steps, needed = (double)(n->experts_found + n->experts_copied);
    if (b->model.bytes.host_experts == 0 || b->unwatched_steps == 0 || needed == 0)
        return;
    printf("experts: %llu on the device, %llu in host memory, %llu seats; a step finds %.2f and copies %.2f, %.3f MB; %.2f %% found\n",
           (unsigned long long)b->model.bytes.device_experts, (unsigned long long)b->model.bytes.host_experts,
           (unsigned long long)b->model.bytes.seats, (double)n->experts_found / steps, (double)n->experts_copied / steps,
           (double)n->expert_bytes / steps / 1e6, (double)n->experts_found / needed * 100);
}

static void print_figures(const struct bench *b)
{
    const struct bench_step *o = b->o;
    const double steps = (double)b->steps;
    const int64_t bytes = bytes_read(b);
    const double bound = (double)bytes / b->rate;
    printf("%s on %s: ", o->prefill ? "prefill" : "decode", b->model.backend->name);
    if (o->prefill)
        printf("%d token%s after %d, %lld step%s\n", o->tokens, plural(o->tokens), o->context, (long long)b->steps,
               plural(b->steps));
    else
        printf("%d request%s of %d row%s after %d token%s, %lld step%s\n", o->batch, plural(o->batch), o->rows, plural(o->rows),
               o->context, plural(o->context), (long long)b->steps, plural(b->steps));
    printf("%-30s %10s %12s %10s %8s\n", "part", "ms a step", "MB a step", "GB/s", "of bound");
    for (int k = 0; k < KINDS; k++) {
        const struct tally *t = &b->tally[k];
        if (t->layers)
            printf("%-30s %10.3f %12.3f %10.2f %8.3f\n", kind_names[k], t->seconds / steps * 1e3,
                   (double)t->bytes / steps / 1e6, (double)t->bytes / t->seconds / 1e9,
                   (double)t->bytes / b->rate / t->seconds);
    }
    printf("%-30s %10.3f %12.3f %10.2f %8.3f\n", "all", b->total / steps * 1e3, (double)bytes / steps / 1e6,
           (double)bytes / b->total / 1e9, bound / b->total);
    if (b->unwatched_steps) {
        const double each = b->unwatched / (double)b->unwatched_steps;
        printf("%-30s %10.3f %12.3f %10.2f %8.3f\n", "all, nothing watching", each * 1e3, (double)bytes / steps / 1e6,
               (double)bytes / steps / each / 1e9, (double)bytes / steps / b->rate / each);
    }
    print_experts(b);
    if (b->cached > 0)
        printf("of these %.3f MB a step are the cache's\n", (double)b->cached / steps / 1e6);
    printf("%.1f rows/s; memory of this machine, same run: %.2f GB/s read\n", rows_run(b) / b->total, b->rate / 1e9);
}

/* Each cell, one behind the other. `w` NULL: as text. */
static qr_status run_cells(struct bench *b, struct json_writer *w, qr_error *err)
{
    qr_status st = QR_OK;
    for (int i = 0; st == QR_OK && i <= b->given->also_count; i++) {
        begin_cell(b, i);
        st = run_steps(b, err);
        if (st == QR_OK && w)
            write_figures(b, w);
        else if (st == QR_OK)
            print_figures(b);
    }
    return st;
}

/* One object; with further cells one that holds them all. */
static qr_status run_cells_json(struct bench *b, qr_error *err)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the figures");
    if (b->given->also_count > 0) {
        json_w_object(w);
        json_w_key(w, "cells");
        json_w_array(w);
    }
    const qr_status st = run_cells(b, w, err);
    if (st != QR_OK) {
        json_writer_close(w);
        return st;
    }
    if (b->given->also_count > 0) {
        json_w_end_array(w);
        json_w_end_object(w);
    }
    return print_json(w, err);
}

qr_status bench_step_run(const struct bench_step *options, qr_error *err)
{
    struct bench *b = qr_calloc(1, sizeof *b);
    struct worker_pool *pool = NULL;
    if (!b)
        return qr_fail(err, QR_NO_MEMORY, "bench: no memory");
    b->given = b->o = options;
    qr_status st = open_all(b, err);
    if (st == QR_OK)
        st = pool_open(options->model.threads, &pool, err);
    if (st == QR_OK)
        st = bench_read_rate(pool, (int64_t)1 << 28, &b->rate, err);
    pool_close(pool);
    if (st == QR_OK && strncmp(b->model.backend->name, "cpu", 3) != 0)
        st = device_rate(b, err);
    if (st == QR_OK)
        weigh(b);
    if (st == QR_OK)
        st = options->json ? run_cells_json(b, err) : run_cells(b, NULL, err);
    opened_close(&b->model);
    qr_free(b->blocks);
    qr_free(b->tokens);
    qr_free(b->spans);
    qr_free(b->accepted);
    qr_free(b->seen);
    qr_free(b->drafts);
    qr_free(b->sources);
    qr_free(b);
    return st;
}
