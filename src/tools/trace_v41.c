/* trace_v41.c: the arrays of golden/v41 from a running V4.1 pass: an observer that downloads what each layer leaves,
 * and uploads a golden's streams in front of each layer when a pass is forced. Groups: logits (at `rows`, where those are
 * given); streams: streams (at `picks`), pre, final, taps; selection: sel.L.ptr, sel.L.rows, cand.mask; caches: win.L, main.L, ik.L with their codes and scales;
 * routes: router.idx, router.weight; engram: engram.rows, engram.gate.L; draft: trace_drafts.h. */
#include "tools/trace_recorder.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "tools/trace_download.h"
#include "tools/trace_drafts.h"
#include "tools/trace_rows.h"

/* What is kept of one layer for one sequence. */
struct layer_arrays {
    float *window, *gate;
    uint8_t *window_codes, *window_scales;
    int32_t *selected_ptr;
    int32_t *selected; /* own memory, growing */
    size_t selected_count, selected_capacity;
};

struct sequence_arrays {
    float *logits, *streams, *pre, *final, *taps, *router_weight;
    int32_t *router_idx, *engram_rows;
    uint8_t *candidates;
    struct layer_arrays layer[QR_MAX_LAYERS];
    const float *forced_streams, *forced_pre;
};

struct trace_v41 {
    struct trace_job job;
    struct trace_arrays *arrays;
    struct sequence_arrays *sequences;
    struct trace_download reader;
    struct trace_drafts *drafts; /* NULL: none wanted */

    /* of the step in progress */
    const struct batch *batch;
    const int32_t *sequence;
};

/* One span of the step in progress. */
struct piece {
    const struct trace_sequence *input;
    struct sequence_arrays *out;
    int32_t sequence, first_row, position, count, logits_from, first_logit;
};

static const struct qr_config *config(const struct trace_v41 *t) { return &t->job.plan->config; }
static bool wants(const struct trace_v41 *t, enum trace_group group) { return (t->job.want & group) != 0; }

/* ---- the arrays ---- */

/* Rows of ratio r that a sequence of `count` tokens completes. */
static int64_t completed(int32_t count, int32_t ratio) { return ratio > 0 ? count / ratio : 0; }

#define ADD(TARGET, DTYPE, NAME, ...)                                                                       \
    TRY(arrays_add(t->arrays, TARGET, DTYPE, (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                   (int64_t[]){__VA_ARGS__}, err, "%s%s", s->prefix, NAME))

static qr_status add_layer(struct trace_v41 *t, const struct trace_sequence *s, struct sequence_arrays *out, int32_t i,
                           qr_error *err)
{
    const struct qr_config *c = config(t);
    const struct layer_plan *layer = &t->job.plan->layer[i];
    struct layer_arrays *l = &out->layer[i];
    char name[64];

    if (wants(t, TRACE_CACHES)) {
        snprintf(name, sizeof name, "win.%d", i);
        ADD(&l->window, DTYPE_F32, name, s->count, c->head_dim);
        snprintf(name, sizeof name, "win.%d.codes", i);
        ADD(&l->window_codes, DTYPE_U8, name, s->count, c->head_dim);
        snprintf(name, sizeof name, "win.%d.scales", i);
        ADD(&l->window_scales, DTYPE_U8, name, s->count, c->head_dim / 32);
    }
    if (wants(t, TRACE_SELECTION) && layer->owns_index) {
        snprintf(name, sizeof name, "sel.%d.ptr", i);
        ADD(&l->selected_ptr, DTYPE_I32, name, s->count + 1);
    }
    if (wants(t, TRACE_SELECTION) && layer->candidate_source)
        ADD(&out->candidates, DTYPE_U8, "cand.mask", s->count, completed(s->count, layer->ratio));
    if (wants(t, TRACE_ENGRAM) && layer->engram >= 0) {
        snprintf(name, sizeof name, "engram.gate.%d", i);
        ADD(&l->gate, DTYPE_F32, name, s->count, c->hc_mult);
    }
    return QR_OK;
}

static qr_status add_sequence(struct trace_v41 *t, const struct trace_sequence *s, struct sequence_arrays *out,
                              qr_error *err)
{
    const struct qr_config *c = config(t);
    int64_t layers = t->job.plan->layers, active = t->job.plan->layer[0].n_active;

    if (wants(t, TRACE_LOGITS))
        ADD(&out->logits, DTYPE_F32, "logits", s->row_count, c->vocab_size);
    if (wants(t, TRACE_STREAMS)) {
        ADD(&out->streams, DTYPE_F32, "streams", layers, s->pick_count, c->hc_mult, c->hidden_size);
        ADD(&out->pre, DTYPE_F32, "pre", layers, s->count, c->hc_mult);
        ADD(&out->final, DTYPE_F32, "final", s->count, c->hidden_size);
        if (c->n_dspark_targets > 0)
            ADD(&out->taps, DTYPE_F32, "taps", s->count, (int64_t)c->n_dspark_targets * c->hidden_size);
    }
    if (wants(t, TRACE_ROUTES)) {
        ADD(&out->router_idx, DTYPE_I32, "router.idx", layers, s->count, active);
        ADD(&out->router_weight, DTYPE_F32, "router.weight", layers, s->count, active);
    }
    if (wants(t, TRACE_ENGRAM) && c->n_engram > 0)
        ADD(&out->engram_rows, DTYPE_I32, "engram.rows", c->n_engram, s->count, engram_columns(c));
    for (int32_t i = 0; i < layers; i++)
        TRY(add_layer(t, s, out, i, err));
    return QR_OK;
}

/* The array `name` of the forced file, as F32 of `wanted` elements. */
static qr_status find_forced(const struct trace_v41 *t, const struct trace_sequence *s, const char *name,
                             int64_t wanted, const float **out, qr_error *err)
{
    const struct tensor_view *view;
    char full[64];
    snprintf(full, sizeof full, "%s%s", s->prefix, name);
    TRY(safetensors_get(t->job.force, full, &view, err));
    if (view->dtype != DTYPE_F32 || tensor_elements(view->rank, view->shape) != wanted)
        return qr_fail(err, QR_BAD_FILE, "%s: %s has %lld values of %s, wanted %lld of F32",
                       safetensors_path(t->job.force), full, (long long)tensor_elements(view->rank, view->shape),
                       dtype_name(view->dtype), (long long)wanted);
    *out = view->data;
    return QR_OK;
}

static qr_status open_sequences(struct trace_v41 *t, qr_error *err)
{
    const struct qr_config *c = config(t);
    int32_t count = t->job.input->count;

    t->sequences = qr_calloc((size_t)count, sizeof *t->sequences);
    if (!t->sequences)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the arrays of %d sequences", count);
    for (int32_t i = 0; i < count; i++) {
        const struct trace_sequence *s = &t->job.input->sequences[i];
        int64_t pre = (int64_t)t->job.plan->layers * s->count * c->hc_mult;
        TRY(add_sequence(t, s, &t->sequences[i], err));
        if (!t->job.force)
            continue;
        TRY(find_forced(t, s, "streams", pre * c->hidden_size, &t->sequences[i].forced_streams, err));
        TRY(find_forced(t, s, "pre", pre, &t->sequences[i].forced_pre, err));
    }
    return QR_OK;
}

static void close(void *self)
{
    struct trace_v41 *t = self;
    if (!t)
        return;
    for (int32_t i = 0; t->sequences && i < t->job.input->count; i++)
        for (int32_t l = 0; l < t->job.plan->layers; l++)
            qr_free(t->sequences[i].layer[l].selected);
    qr_free(t->sequences);
    trace_drafts_close(t->drafts);
    trace_download_free(&t->reader);
    qr_free(t);
}

static qr_status open(const struct trace_job *job, struct trace_arrays *arrays, void **out, qr_error *err)
{
    struct trace_v41 *t = qr_calloc(1, sizeof *t);
    if (!t)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a trace");
    t->job = *job;
    t->arrays = arrays;
    t->reader.backend = job->backend;
    qr_status st = open_sequences(t, err);
    if (st == QR_OK && wants(t, TRACE_DRAFT))
        st = trace_drafts_open(job, arrays, &t->reader, &t->drafts, err);
    if (st != QR_OK) {
        close(t);
        return st;
    }
    *out = t;
    return QR_OK;
}

/* ---- what is recorded where ---- */

static qr_status force_input(struct trace_v41 *t, const struct piece *p, int32_t layer, const struct workspace *ws,
                             qr_error *err)
{
    struct backend *b = t->job.backend;
    int64_t streams = config(t)->hc_mult, width = streams * config(t)->hidden_size;
    int64_t first = (int64_t)(layer - 1) * p->input->count + p->position, values = p->count * width;
    const float *golden = p->out->forced_streams + first * width;

    TRY(trace_write_values(&t->reader, ACT_BF16, ws->streams.data, p->first_row * width, golden, values, err));
    TRY(b->upload(b, ws->pre + p->first_row * streams, p->out->forced_pre + first * streams, p->count * streams * 4,
                  err));
    return b->fence(b, err);
}

static qr_status keep_keys(struct trace_v41 *t, const struct piece *p, int32_t layer, const struct workspace *ws,
                           qr_error *err)
{
    struct layer_arrays *l = &p->out->layer[layer];
    int64_t n = config(t)->head_dim, scales = n / 32, row = p->first_row, at = p->position;
    TRY(trace_halves(&t->reader, ws->keys, n, row, p->count, l->window + at * n, err));
    TRY(trace_bytes(&t->reader, l->window_codes + at * n, (uint8_t *)ws->keys_packed.codes + row * n, p->count * n,
                    err));
    return trace_bytes(&t->reader, l->window_scales + at * scales, (uint8_t *)ws->keys_packed.scales + row * scales,
                       p->count * scales, err);
}

static qr_status append_selected(struct layer_arrays *l, const int32_t *rows, int32_t count, qr_error *err)
{
    for (int32_t i = 0; i < count; i++) {
        if (!array_grow(&l->selected, &l->selected_capacity, l->selected_count, sizeof *rows))
            return qr_fail(err, QR_NO_MEMORY, "no memory for %zu selected rows", l->selected_count);
        l->selected[l->selected_count++] = rows[i];
    }
    return QR_OK;
}

/* Marks the rows of the kept blocks, visible or not, of one token. */
static void mark_candidates(const struct qr_config *c, const int32_t *blocks, int32_t count, int64_t rows,
                            uint8_t *mask)
{
    for (int32_t i = 0; i < count; i++)
        for (int64_t r = (int64_t)blocks[i] * c->candidate_block_size;
             r < rows && r / c->candidate_block_size == blocks[i]; r++)
            mask[r] = 1;
}

static qr_status keep_selected(struct trace_v41 *t, const struct piece *p, int32_t layer, const struct workspace *ws,
                               qr_error *err)
{
    const struct qr_config *c = config(t);
    const struct layer_plan *plan = &t->job.plan->layer[layer];
    struct layer_arrays *l = &p->out->layer[layer];
    int64_t topk = c->index_topk, blocks = c->candidate_topk_blocks;
    int64_t width = topk > blocks ? topk : blocks;

    TRY(trace_room(&t->reader, (size_t)(width + 1) * sizeof(int32_t), err));
    int32_t *list = (int32_t *)(void *)t->reader.scratch, count;
    for (int32_t i = 0; i < p->count; i++) {
        int64_t row = p->first_row + i, position = p->position + i;
        TRY(trace_words(&t->reader, ws->selected_count, 1, row, 1, &count, err));
        TRY(trace_words(&t->reader, ws->selected, topk, row, 1, list, err));
        TRY(append_selected(l, list, count, err));
        l->selected_ptr[position + 1] = (int32_t)l->selected_count;
        if (!plan->candidate_source)
            continue;
        int64_t rows = completed(p->input->count, plan->ratio);
        TRY(trace_words(&t->reader, ws->candidate_count, 1, row, 1, &count, err));
        TRY(trace_words(&t->reader, ws->candidates, blocks, row, 1, list, err));
        mark_candidates(c, list, count, rows, p->out->candidates + position * rows);
    }
    return QR_OK;
}

static qr_status keep_routes(struct trace_v41 *t, const struct piece *p, int32_t layer, const struct workspace *ws,
                             qr_error *err)
{
    int64_t k = t->job.plan->layer[layer].n_active;
    int64_t at = ((int64_t)layer * p->input->count + p->position) * k;
    TRY(trace_words(&t->reader, ws->expert_idx, k, p->first_row, p->count, p->out->router_idx + at, err));
    return trace_words(&t->reader, ws->expert_weight, k, p->first_row, p->count, p->out->router_weight + at, err);
}

/* Rows of a buffer, whose first is `row` of position `position`, at those of the listed positions that it has: neighbours
 * in the list that are neighbours in the buffer go together. */
static qr_status keep_positions(struct trace_v41 *t, const int32_t *list, int32_t listed, enum act_format format,
                                const void *buffer, int64_t cols, int32_t row, int32_t position, int32_t count,
                                float *out, qr_error *err)
{
    for (int32_t i = 0, run = 1; i < listed; i += run, run = 1) {
        int32_t at = list[i] - position;
        if (at < 0 || at >= count)
            continue;
        while (i + run < listed && list[i + run] == list[i] + run && at + run < count)
            run++;
        TRY(trace_values(&t->reader, format, buffer, cols, row + at, run, out + i * cols, err));
    }
    return QR_OK;
}

static qr_status keep_streams(struct trace_v41 *t, const struct piece *p, int32_t layer, const struct workspace *ws,
                              qr_error *err)
{
    const struct trace_sequence *s = p->input;
    int64_t streams = config(t)->hc_mult, width = streams * config(t)->hidden_size;
    int64_t at = (int64_t)layer * s->count + p->position;
    TRY(keep_positions(t, s->picks, s->pick_count, ACT_BF16, ws->streams.data, width, p->first_row, p->position, p->count,
                       p->out->streams + (int64_t)layer * s->pick_count * width, err));
    return trace_words(&t->reader, ws->pre, streams, p->first_row, p->count, p->out->pre + at * streams, err);
}

static qr_status keep_output(struct trace_v41 *t, const struct piece *p, int32_t layer, const struct workspace *ws,
                             qr_error *err)
{
    int64_t streams = config(t)->hc_mult;
    float *gate = p->out->layer[layer].gate;
    if (wants(t, TRACE_STREAMS))
        TRY(keep_streams(t, p, layer, ws, err));
    return gate ? trace_words(&t->reader, ws->engram_gate, streams, p->first_row, p->count,
                              gate + p->position * streams, err)
                : QR_OK;
}

static qr_status keep_logits(struct trace_v41 *t, const struct piece *p, const struct workspace *ws, qr_error *err)
{
    int64_t vocab = config(t)->vocab_size, hidden = config(t)->hidden_size, taps = ws->taps.cols;
    int64_t at = p->position + p->logits_from, count = p->count - p->logits_from;
    if (p->out->logits)
        TRY(keep_positions(t, p->input->rows, p->input->row_count, ACT_F32, ws->logits, vocab, p->first_logit,
                           p->position + p->logits_from, count, p->out->logits, err));
    if (p->out->final)
        TRY(trace_halves(&t->reader, ws->final.codes, hidden, p->first_logit, count, p->out->final + at * hidden, err));
    if (p->out->taps)
        TRY(trace_halves(&t->reader, ws->taps.codes, taps, p->first_row, p->count, p->out->taps + p->position * taps,
                         err));
    return QR_OK;
}

static qr_status keep(struct trace_v41 *t, const struct piece *p, enum model_point point, int32_t layer,
                      const struct workspace *ws, qr_error *err)
{
    switch (point) {
    case POINT_BLOCK_INPUT:
        return layer > 0 && t->job.force ? force_input(t, p, layer, ws, err) : QR_OK;
    case POINT_KEYS:
        if (layer >= t->job.plan->layers)
            return trace_drafts_keys(t->drafts, p->sequence, layer - t->job.plan->layers, p->first_row, p->position,
                                     p->count, ws, err);
        return wants(t, TRACE_CACHES) ? keep_keys(t, p, layer, ws, err) : QR_OK;
    case POINT_TAPS:
        return trace_drafts_force(t->drafts, p->sequence, p->first_row, p->position, p->count, ws, err);
    case POINT_SELECTED:
        return wants(t, TRACE_SELECTION) ? keep_selected(t, p, layer, ws, err) : QR_OK;
    case POINT_ROUTED:
        return wants(t, TRACE_ROUTES) ? keep_routes(t, p, layer, ws, err) : QR_OK;
    case POINT_BLOCK_OUTPUT:
        return keep_output(t, p, layer, ws, err);
    case POINT_LOGITS:
        return keep_logits(t, p, ws, err);
    case POINT_COMPRESSOR_INPUTS: /* kept in the tail, from which they are traced */
    case POINT_INDEX_INPUTS:
        return QR_OK;
    }
    return QR_OK;
}

static qr_status at_point(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err)
{
    struct trace_v41 *t = user;
    struct piece p = {.first_row = 0};

    for (int32_t b = 0; b < t->batch->count; b++) {
        const struct batch_span *span = &t->batch->spans[b];
        p.sequence = t->sequence[b];
        p.input = &t->job.input->sequences[p.sequence];
        p.out = &t->sequences[t->sequence[b]];
        p.position = span->first_position;
        p.count = span->count;
        p.logits_from = span->logits_from;
        TRY(keep(t, &p, point, layer, ws, err));
        p.first_row += span->count;
        p.first_logit += span->count - span->logits_from;
    }
    return QR_OK;
}

/* ---- steps ---- */

static void keep_engram_rows(struct trace_v41 *t, const struct batch *batch)
{
    const struct qr_config *c = config(t);
    const int64_t *staged = runner_engram_rows(t->job.runner);
    int64_t columns = engram_columns(c), rows = 0, row = 0;

    for (int32_t b = 0; b < batch->count; b++)
        rows += batch->spans[b].count;
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *span = &batch->spans[b];
        int64_t length = t->job.input->sequences[t->sequence[b]].count;
        int32_t *out = t->sequences[t->sequence[b]].engram_rows;
        for (int64_t table = 0; out && table < c->n_engram; table++)
            for (int64_t i = 0; i < span->count * columns; i++)
                out[(table * length + span->first_position) * columns + i] =
                    (int32_t)staged[(table * rows + row) * columns + i];
        row += span->count;
    }
}

static qr_status step(void *self, const struct batch *batch, const int32_t *sequence, qr_error *err)
{
    struct trace_v41 *t = self;
    const struct model_observer observer = {.user = t, .at = at_point};
    t->batch = batch;
    t->sequence = sequence;
    TRY(runner_step(t->job.runner, batch, &observer, err));
    if (wants(t, TRACE_ENGRAM))
        keep_engram_rows(t, batch);
    for (int32_t b = 0; t->drafts && b < batch->count; b++)
        TRY(trace_drafts_at(t->drafts, sequence[b], batch->spans[b].slot,
                            batch->spans[b].first_position + batch->spans[b].count, err));
    return QR_OK;
}

/* ---- after the last step ---- */

static qr_status add_selections(struct trace_v41 *t, const struct trace_sequence *s, const struct sequence_arrays *out,
                                qr_error *err)
{
    for (int32_t i = 0; i < t->job.plan->layers; i++) {
        const struct layer_arrays *l = &out->layer[i];
        char name[64];
        int32_t *rows;
        if (!l->selected_ptr)
            continue;
        snprintf(name, sizeof name, "sel.%d.rows", i);
        ADD(&rows, DTYPE_I32, name, (int64_t)l->selected_count);
        if (l->selected_count > 0)
            memcpy(rows, l->selected, l->selected_count * sizeof *rows);
    }
    return QR_OK;
}

/* The rows of one plane under "main.L" or "ik.L"; codes and scales where the container holds the model's own. */
static qr_status add_plane(struct trace_v41 *t, const struct trace_sequence *s, const struct row_plane *plane,
                           const char *kind, int32_t owner, int32_t n, const int32_t *blocks, qr_error *err)
{
    const struct owner_plan *o = &t->job.plan->owner[owner];
    struct trace_plane rows = {
        .backend = t->job.backend, .plane = *plane, .blocks = blocks, .n = n, .count = completed(s->count, o->ratio)};
    char name[64];

    snprintf(name, sizeof name, "%s.%d", kind, o->layer);
    ADD(&rows.values, DTYPE_F32, name, rows.count, n);
    if (trace_plane_code_bytes(&rows) > 0) {
        snprintf(name, sizeof name, "%s.%d.codes", kind, o->layer);
        ADD(&rows.codes, DTYPE_U8, name, rows.count, trace_plane_code_bytes(&rows));
        snprintf(name, sizeof name, "%s.%d.scales", kind, o->layer);
        ADD(&rows.scales, DTYPE_U8, name, rows.count, trace_plane_scale_bytes(&rows));
    }
    return trace_plane_read(&rows, err);
}

static qr_status add_planes(struct trace_v41 *t, const struct trace_sequence *s, const int32_t *blocks, qr_error *err)
{
    struct model_cache cache = runner_cache(t->job.runner);
    struct row_plane plane;

    for (int32_t owner = 0; owner < t->job.plan->owners; owner++) {
        geometry_main_plane(cache.geometry, cache.pool, cache.base, owner, &plane);
        TRY(add_plane(t, s, &plane, "main", owner, config(t)->head_dim, blocks, err));
        geometry_index_plane(cache.geometry, cache.pool, cache.base, owner, &plane);
        TRY(add_plane(t, s, &plane, "ik", owner, config(t)->index_head_dim, blocks, err));
    }
    return QR_OK;
}

static qr_status finish(void *self, const int32_t *const *blocks, const int32_t *slots, qr_error *err)
{
    struct trace_v41 *t = self;
    (void)slots;
    for (int32_t i = 0; i < t->job.input->count; i++) {
        const struct trace_sequence *s = &t->job.input->sequences[i];
        TRY(add_selections(t, s, &t->sequences[i], err));
        if (wants(t, TRACE_CACHES))
            TRY(add_planes(t, s, blocks[i], err));
    }
    return QR_OK;
}

const struct trace_recorder trace_v41_recorder = {.groups = TRACE_LOGITS | TRACE_STREAMS | TRACE_SELECTION |
                                                            TRACE_CACHES | TRACE_ROUTES | TRACE_ENGRAM |
                                                            TRACE_DRAFT,
                                                  .open = open,
                                                  .close = close,
                                                  .step = step,
                                                  .finish = finish};
