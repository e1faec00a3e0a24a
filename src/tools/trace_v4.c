/* trace_v4.c: the arrays of golden/v4 from a running V4 pass: an observer that downloads what each layer leaves, and
 * uploads a golden's streams in front of each block when a pass is forced. Groups: logits: logits, greedy; streams:
 * layers.L.streams, layers.L.out; selection: layers.L.index_score, .selected; caches: layers.L.window, .compressed,
 * .index_key, .index_key_scale, .state, .index_state; routes: layers.L.route, .route_weight; mtp: mtp_logits, draft,
 * mtp.*; draft: taps, and trace_drafts.h. An array without rows is left out. */
#include "tools/trace_recorder.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "number/bf16.h"
#include "tools/trace_download.h"
#include "tools/trace_drafts.h"
#include "tools/trace_rows.h"

/* Positions whose compressor inputs are written. */
enum { STATE_ROWS = 8 };

/* What is kept of one layer, or of the MTP layer, for one sequence; NULL: not wanted. */
struct layer_arrays {
    float *streams; /* [picks][M * D] */
    void *out;      /* [rows][M * D] in the streams' format */
    float *in;      /* MTP: [picks or rows][M * D] */
    void *in_raw;   /* the same when no picks were given, in the streams' format */
    float *window;  /* [window_count][head_dim], the first of position window_first */
    int32_t window_first, window_count;
    float *score, *route_weight;
    int32_t *selected, *route;
    int32_t selected_width;
    float *forced; /* [rows][M * D] what the block's input is replaced with; own memory */
};

struct sequence_arrays {
    float *logits, *mtp_logits, *taps;
    int32_t *greedy, *draft;
    struct layer_arrays layer[QR_MAX_LAYERS]; /* backbone, then the MTP layer */
};

struct trace_v4 {
    struct trace_job job;
    struct trace_arrays *arrays;
    struct sequence_arrays *sequences;
    struct trace_download reader;
    struct trace_drafts *blocks; /* of a DSpark drafter; NULL: none wanted */
    float *row; /* [vocab] logits on their way */

    /* of the step in progress: its spans, and those of the draft pass behind it */
    const struct batch *batch;
    const int32_t *sequence;
    struct draft_span *drafts; /* [sequences] */
    int32_t *draft_sequence;
    int32_t draft_count;
    int32_t *sources; /* rows of the step; own memory */
    size_t source_capacity;
};

/* One span of the pass in progress. */
struct piece {
    const struct trace_sequence *input;
    struct sequence_arrays *out;
    int32_t sequence, first_row, position, count;
};

static const struct qr_config *config(const struct trace_v4 *t) { return &t->job.plan->config; }
static bool wants(const struct trace_v4 *t, enum trace_group group) { return (t->job.want & group) != 0; }
static bool is_draft(const struct trace_v4 *t, int32_t layer) { return layer >= t->job.plan->layers; }
static bool is_mtp(const struct trace_v4 *t, int32_t layer)
{
    return is_draft(t, layer) && config(t)->drafter == QR_DRAFTER_MTP;
}
static bool w8a8(const struct trace_v4 *t) { return t->job.plan->profile == QR_PROFILE_W8A8; }
static int64_t stream_width(const struct trace_v4 *t) { return (int64_t)config(t)->hc_mult * config(t)->hidden_size; }

/* ---- the arrays ---- */

static int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* How many of the positions are below `end`. */
static int32_t count_below(const int32_t *positions, int32_t count, int32_t end)
{
    int32_t n = 0;
    for (int32_t i = 0; i < count; i++)
        n += positions[i] < end;
    return n;
}

static void layer_name(const struct trace_v4 *t, int32_t layer, const char *what, char out[64])
{
    if (is_mtp(t, layer))
        snprintf(out, 64, "mtp.%s", what);
    else
        snprintf(out, 64, "layers.%d.%s", layer, what);
}

/* An array of that layer; nothing when it has no rows. */
static qr_status add(struct trace_v4 *t, const struct trace_sequence *s, int32_t layer, const char *what,
                     enum dtype dtype, int32_t rank, const int64_t *shape, void *out_pointer, qr_error *err)
{
    char name[64];
    if (shape[0] == 0 || (rank > 1 && shape[1] == 0))
        return QR_OK;
    layer_name(t, layer, what, name);
    return arrays_add(t->arrays, out_pointer, dtype, rank, shape, err, "%s%s", s->prefix, name);
}

#define ADD(LAYER, WHAT, DTYPE, TARGET, ...)                                                         \
    TRY(add(t, s, LAYER, WHAT, DTYPE, (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
            (int64_t[]){__VA_ARGS__}, TARGET, err))

/* Arrays that a layer of the backbone and the MTP layer have alike; `rows` positions pass through it. */
static qr_status add_block(struct trace_v4 *t, const struct trace_sequence *s, int32_t layer, int32_t rows,
                           struct layer_arrays *l, qr_error *err)
{
    const struct qr_config *c = config(t);
    enum dtype raw = w8a8(t) ? DTYPE_F32 : DTYPE_BF16;
    bool mtp = is_mtp(t, layer);
    int64_t active = t->job.plan->layer[layer].n_active;

    if (mtp || wants(t, TRACE_STREAMS)) {
        ADD(layer, "streams", DTYPE_F32, &l->streams, count_below(s->picks, s->pick_count, rows), c->hc_mult,
            c->hidden_size);
        ADD(layer, "out", raw, &l->out, rows, c->hc_mult, c->hidden_size);
    }
    if (mtp && s->picked)
        ADD(layer, "in", DTYPE_F32, &l->in, count_below(s->picks, s->pick_count, rows), c->hc_mult, c->hidden_size);
    if (mtp && !s->picked)
        ADD(layer, "in", raw, &l->in_raw, rows, c->hc_mult, c->hidden_size);
    if (mtp || wants(t, TRACE_CACHES)) {
        l->window_count = least(rows, c->sliding_window);
        l->window_first = rows - l->window_count;
        ADD(layer, "window", DTYPE_F32, &l->window, l->window_count, c->head_dim);
    }
    if (mtp || wants(t, TRACE_ROUTES)) {
        ADD(layer, "route", DTYPE_I32, &l->route, rows, active);
        ADD(layer, "route_weight", DTYPE_F32, &l->route_weight, rows, active);
    }
    return QR_OK;
}

static qr_status add_selection(struct trace_v4 *t, const struct trace_sequence *s, int32_t layer,
                               struct layer_arrays *l, qr_error *err)
{
    int32_t rows = plan_visible(t->job.plan->layer[layer].ratio, s->count - 1);
    l->selected_width = least(config(t)->index_topk, rows);
    ADD(layer, "index_score", DTYPE_F32, &l->score, s->row_count, rows);
    ADD(layer, "selected", DTYPE_I32, &l->selected, s->count, l->selected_width);
    for (int64_t i = 0; l->selected && i < (int64_t)s->count * l->selected_width; i++)
        l->selected[i] = -1;
    return QR_OK;
}

static qr_status add_sequence(struct trace_v4 *t, const struct trace_sequence *s, struct sequence_arrays *out,
                              qr_error *err)
{
    const struct model_plan *plan = t->job.plan;
    int32_t vocab = config(t)->vocab_size, last = s->count - 1, mtp_rows = count_below(s->rows, s->row_count, last);

    if (wants(t, TRACE_LOGITS)) {
        TRY(arrays_add(t->arrays, &out->logits, DTYPE_F32, 2, (int64_t[]){s->row_count, vocab}, err, "%slogits",
                       s->prefix));
        TRY(arrays_add(t->arrays, &out->greedy, DTYPE_I32, 1, (int64_t[]){s->count}, err, "%sgreedy", s->prefix));
    }
    for (int32_t i = 0; i < plan->layers; i++) {
        TRY(add_block(t, s, i, s->count, &out->layer[i], err));
        if (wants(t, TRACE_SELECTION) && plan->layer[i].owns_index)
            TRY(add_selection(t, s, i, &out->layer[i], err));
    }
    if (wants(t, TRACE_DRAFT))
        TRY(arrays_add(t->arrays, &out->taps, DTYPE_F32, 2,
                       (int64_t[]){s->count, (int64_t)config(t)->n_dspark_targets * config(t)->hidden_size}, err, "%staps",
                       s->prefix));
    if (!wants(t, TRACE_MTP) || last < 1)
        return QR_OK;
    if (mtp_rows > 0)
        TRY(arrays_add(t->arrays, &out->mtp_logits, DTYPE_F32, 2, (int64_t[]){mtp_rows, vocab}, err, "%smtp_logits",
                       s->prefix));
    TRY(arrays_add(t->arrays, &out->draft, DTYPE_I32, 1, (int64_t[]){last}, err, "%sdraft", s->prefix));
    return add_block(t, s, plan->layers, last, &out->layer[plan->layers], err);
}

/* ---- forced inputs ---- */

/* The array `name` of the forced file as f32 [rows][M * D], in memory of its own; left NULL when it is absent and may
 * be. */
static qr_status read_forced(struct trace_v4 *t, const struct trace_sequence *s, const char *name, int64_t rows,
                             bool optional, float **out, qr_error *err)
{
    const struct tensor_view *view;
    int64_t wanted = rows * stream_width(t);
    char full[96];
    snprintf(full, sizeof full, "%s%s", s->prefix, name);
    if (optional && !safetensors_find(t->job.force, full))
        return QR_OK;
    TRY(safetensors_get(t->job.force, full, &view, err));
    if ((view->dtype != DTYPE_F32 && view->dtype != DTYPE_BF16) || tensor_elements(view->rank, view->shape) != wanted)
        return qr_fail(err, QR_BAD_FILE, "%s: %s has %lld values of %s, wanted %lld of BF16 or F32",
                       safetensors_path(t->job.force), full, (long long)tensor_elements(view->rank, view->shape),
                       dtype_name(view->dtype), (long long)wanted);
    *out = qr_calloc((size_t)wanted, sizeof **out);
    if (!*out)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the forced streams %s", full);
    for (int64_t i = 0; i < wanted; i++)
        (*out)[i] =
            view->dtype == DTYPE_F32 ? ((const float *)view->data)[i] : bf16_decode(((const uint16_t *)view->data)[i]);
    return QR_OK;
}

static qr_status read_all_forced(struct trace_v4 *t, const struct trace_sequence *s, struct sequence_arrays *out,
                                 qr_error *err)
{
    int32_t layers = t->job.plan->layers;
    char name[64];
    for (int32_t i = 1; i < layers; i++) {
        snprintf(name, sizeof name, "layers.%d.out", i - 1);
        TRY(read_forced(t, s, name, s->count, wants(t, TRACE_DRAFT), &out->layer[i].forced, err));
    }
    return wants(t, TRACE_MTP) && s->count > 1
               ? read_forced(t, s, "mtp.in", s->count - 1, true, &out->layer[layers].forced, err)
               : QR_OK;
}

/* ---- opening and closing ---- */

static qr_status open_sequences(struct trace_v4 *t, qr_error *err)
{
    size_t count = (size_t)t->job.input->count;
    t->sequences = qr_calloc(count, sizeof *t->sequences);
    t->drafts = qr_calloc(count, sizeof *t->drafts);
    t->draft_sequence = qr_calloc(count, sizeof *t->draft_sequence);
    t->row = qr_calloc((size_t)config(t)->vocab_size, sizeof *t->row);
    if (!t->sequences || !t->drafts || !t->draft_sequence || !t->row)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the arrays of %zu sequences", count);
    for (size_t i = 0; i < count; i++) {
        TRY(add_sequence(t, &t->job.input->sequences[i], &t->sequences[i], err));
        if (t->job.force)
            TRY(read_all_forced(t, &t->job.input->sequences[i], &t->sequences[i], err));
    }
    return QR_OK;
}

static void close(void *self)
{
    struct trace_v4 *t = self;
    if (!t)
        return;
    trace_drafts_close(t->blocks);
    for (int32_t i = 0; t->sequences && i < t->job.input->count; i++)
        for (int32_t l = 0; l <= t->job.plan->layers; l++)
            qr_free(t->sequences[i].layer[l].forced);
    qr_free(t->sequences);
    qr_free(t->drafts);
    qr_free(t->draft_sequence);
    qr_free(t->row);
    qr_free(t->sources);
    trace_download_free(&t->reader);
    qr_free(t);
}

static qr_status open(const struct trace_job *job, struct trace_arrays *arrays, void **out, qr_error *err)
{
    struct trace_v4 *t = qr_calloc(1, sizeof *t);
    if (!t)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a trace");
    t->job = *job;
    t->arrays = arrays;
    t->reader.backend = job->backend;
    qr_status st = open_sequences(t, err);
    if (st == QR_OK && wants(t, TRACE_DRAFT))
        st = trace_drafts_open(job, arrays, &t->reader, &t->blocks, err);
    if (st != QR_OK) {
        close(t);
        return st;
    }
    *out = t;
    return QR_OK;
}

/* ---- what is recorded where ---- */

/* Streams at the picks that lie in the piece. */
static qr_status keep_picks(struct trace_v4 *t, const struct piece *p, const struct streams *x, float *out,
                            qr_error *err)
{
    int64_t width = stream_width(t);
    for (int32_t i = 0; out && i < p->input->pick_count; i++) {
        int32_t at = p->input->picks[i] - p->position;
        if (at >= 0 && at < p->count)
            TRY(trace_values(&t->reader, x->format, x->data, width, p->first_row + at, 1, out + i * width, err));
    }
    return QR_OK;
}

/* Streams of every row as they lie. */
static qr_status keep_raw(struct trace_v4 *t, const struct piece *p, const struct streams *x, void *out, qr_error *err)
{
    int64_t bytes = stream_width(t) * (x->format == ACT_F32 ? 4 : 2);
    return out ? trace_bytes(&t->reader, (uint8_t *)out + p->position * bytes,
                             (uint8_t *)x->data + p->first_row * bytes, p->count * bytes, err)
               : QR_OK;
}

static qr_status at_input(struct trace_v4 *t, const struct piece *p, struct layer_arrays *l, const struct workspace *ws,
                          qr_error *err)
{
    int64_t width = stream_width(t);
    TRY(keep_picks(t, p, &ws->streams, l->in, err));
    TRY(keep_raw(t, p, &ws->streams, l->in_raw, err));
    return l->forced ? trace_write_values(&t->reader, ws->streams.format, ws->streams.data, p->first_row * width,
                                          l->forced + p->position * width, p->count * width, err)
                     : QR_OK;
}

static qr_status at_keys(struct trace_v4 *t, const struct piece *p, struct layer_arrays *l, const struct workspace *ws,
                         qr_error *err)
{
    int64_t n = config(t)->head_dim;
    int32_t end = p->position + p->count, first = p->position > l->window_first ? p->position : l->window_first;
    return l->window && first < end ? trace_halves(&t->reader, ws->keys, n, p->first_row + first - p->position,
                                                   end - first, l->window + (first - l->window_first) * n, err)
                                    : QR_OK;
}

static qr_status at_selected(struct trace_v4 *t, const struct piece *p, int32_t ratio, struct layer_arrays *l,
                             const struct workspace *ws, qr_error *err)
{
    int64_t stride = plan_visible(ratio, p->input->count - 1);
    for (int32_t i = 0; l->score && i < p->input->row_count; i++) {
        int32_t at = p->input->rows[i] - p->position, visible = plan_visible(ratio, p->input->rows[i]);
        if (at >= 0 && at < p->count && visible > 0)
            TRY(trace_bytes(&t->reader, l->score + i * stride,
                            ws->index_scores + (p->first_row + at) * ws->index_score_stride,
                            visible * (int64_t)sizeof *l->score, err));
    }
    for (int32_t at = 0; l->selected && at < p->count; at++) {
        int32_t count, row = p->first_row + at;
        TRY(trace_words(&t->reader, ws->selected_count, 1, row, 1, &count, err));
        TRY(trace_bytes(&t->reader, l->selected + (int64_t)(p->position + at) * l->selected_width,
                        ws->selected + (int64_t)row * config(t)->index_topk, count * (int64_t)sizeof *ws->selected,
                        err));
    }
    return QR_OK;
}

static qr_status at_routed(struct trace_v4 *t, const struct piece *p, int64_t active, struct layer_arrays *l,
                           const struct workspace *ws, qr_error *err)
{
    if (!l->route)
        return QR_OK;
    TRY(trace_words(&t->reader, ws->expert_idx, active, p->first_row, p->count, l->route + p->position * active, err));
    return trace_words(&t->reader, ws->expert_weight, active, p->first_row, p->count,
                       l->route_weight + p->position * active, err);
}

static qr_status at_output(struct trace_v4 *t, const struct piece *p, struct layer_arrays *l,
                           const struct workspace *ws, qr_error *err)
{
    TRY(keep_picks(t, p, &ws->streams, l->streams, err));
    return keep_raw(t, p, &ws->streams, l->out, err);
}

/* Every row wants logits, so they stand as the rows do. */
static qr_status at_logits(struct trace_v4 *t, const struct piece *p, float *out, int32_t *best,
                           const struct workspace *ws, qr_error *err)
{
    int32_t vocab = config(t)->vocab_size;
    for (int32_t at = 0; best && at < p->count; at++) {
        TRY(trace_words(&t->reader, ws->logits, vocab, p->first_row + at, 1, t->row, err));
        best[p->position + at] = trace_best(t->row, vocab);
        for (int32_t i = 0; out && i < p->input->row_count; i++)
            if (p->input->rows[i] == p->position + at)
                memcpy(out + (int64_t)i * vocab, t->row, (size_t)vocab * sizeof *out);
    }
    return QR_OK;
}

/* The taps of every row, as the last layer leaves them. */
static qr_status keep_taps(struct trace_v4 *t, const struct piece *p, const struct workspace *ws, qr_error *err)
{
    const int64_t cols = ws->taps.cols;
    return p->out->taps ? trace_halves(&t->reader, ws->taps.codes, cols, p->first_row, p->count,
                                       p->out->taps + p->position * cols, err)
                        : QR_OK;
}

/* Of a stage of the block drafter, whose arrays are trace_drafts.h's. */
static qr_status keep_stage(struct trace_v4 *t, const struct piece *p, enum model_point point, int32_t layer,
                            const struct workspace *ws, qr_error *err)
{
    if (point == POINT_TAPS)
        return trace_drafts_force(t->blocks, p->sequence, p->first_row, p->position, p->count, ws, err);
    if (point == POINT_KEYS)
        return trace_drafts_keys(t->blocks, p->sequence, layer - t->job.plan->layers, p->first_row, p->position, p->count,
                                 ws, err);
    return QR_OK;
}

static qr_status keep(struct trace_v4 *t, const struct piece *p, enum model_point point, int32_t layer,
                      const struct workspace *ws, qr_error *err)
{
    struct layer_arrays *l = &p->out->layer[layer < 0 ? 0 : layer];
    const struct layer_plan *plan = &t->job.plan->layer[layer < 0 ? 0 : layer];
    if (is_draft(t, layer) && !is_mtp(t, layer))
        return keep_stage(t, p, point, layer, ws, err);
    switch (point) {
    case POINT_BLOCK_INPUT:
        return at_input(t, p, l, ws, err);
    case POINT_KEYS:
        return at_keys(t, p, l, ws, err);
    case POINT_SELECTED:
        return at_selected(t, p, plan->ratio, l, ws, err);
    case POINT_ROUTED:
        return at_routed(t, p, plan->n_active, l, ws, err);
    case POINT_BLOCK_OUTPUT:
        return at_output(t, p, l, ws, err);
    case POINT_TAPS:
        return QR_OK;
    case POINT_LOGITS:
        if (layer < 0)
            TRY(keep_taps(t, p, ws, err));
        return layer < 0 ? at_logits(t, p, p->out->logits, p->out->greedy, ws, err)
                         : at_logits(t, p, p->out->mtp_logits, p->out->draft, ws, err);
    case POINT_COMPRESSOR_INPUTS: /* kept in the tail, from which they are traced */
    case POINT_INDEX_INPUTS:
        return QR_OK;
    }
    return QR_OK;
}

static qr_status at_point(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err)
{
    struct trace_v4 *t = user;
    struct piece p = {.first_row = 0};
    bool mtp = is_mtp(t, layer);

    for (int32_t b = 0; b < (mtp ? t->draft_count : t->batch->count); b++) {
        int32_t sequence = mtp ? t->draft_sequence[b] : t->sequence[b];
        p.sequence = sequence;
        p.input = &t->job.input->sequences[sequence];
        p.out = &t->sequences[sequence];
        p.position = mtp ? t->drafts[b].first_position : t->batch->spans[b].first_position;
        p.count = mtp ? t->drafts[b].count : t->batch->spans[b].count;
        TRY(keep(t, &p, point, layer, ws, err));
        p.first_row += p.count;
    }
    return QR_OK;
}

/* ---- steps ---- */

/* The MTP rows of a step: every position whose following token is known. */
static qr_status find_drafts(struct trace_v4 *t, const struct batch *batch, const int32_t *sequence, qr_error *err)
{
    size_t rows = 0, row = 0;
    for (int32_t b = 0; b < batch->count; b++)
        rows += (size_t)batch->spans[b].count;
    if (rows > t->source_capacity) {
        int32_t *larger = qr_realloc(t->sources, rows * sizeof *larger);
        if (!larger)
            return qr_fail(err, QR_NO_MEMORY, "no memory for %zu draft rows", rows);
        t->sources = larger;
        t->source_capacity = rows;
    }
    t->draft_count = 0;
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *span = &batch->spans[b];
        const struct trace_sequence *s = &t->job.input->sequences[sequence[b]];
        int32_t left = s->count - 1 - span->first_position, count = least(span->count, left);
        for (int32_t i = 0; i < count; i++)
            t->sources[row + (size_t)i] = (int32_t)row + i;
        if (count > 0) {
            t->draft_sequence[t->draft_count] = sequence[b];
            t->drafts[t->draft_count++] = (struct draft_span){.slot = span->slot,
                                                              .first_position = span->first_position,
                                                              .count = count,
                                                              .tokens = span->tokens + 1,
                                                              .sources = t->sources + row};
        }
        row += (size_t)span->count;
    }
    return QR_OK;
}

static qr_status step(void *self, const struct batch *batch, const int32_t *sequence, qr_error *err)
{
    struct trace_v4 *t = self;
    const struct model_observer observer = {.user = t, .at = at_point};
    t->batch = batch;
    t->sequence = sequence;
    TRY(runner_step(t->job.runner, batch, &observer, err));
    for (int32_t b = 0; t->blocks && b < batch->count; b++)
        TRY(trace_drafts_at(t->blocks, sequence[b], batch->spans[b].slot,
                            batch->spans[b].first_position + batch->spans[b].count, err));
    if (!wants(t, TRACE_MTP))
        return QR_OK;
    TRY(find_drafts(t, batch, sequence, err));
    return t->draft_count > 0 ? runner_draft(t->job.runner, t->drafts, t->draft_count, &observer, err) : QR_OK;
}

/* ---- after the last step ---- */

static qr_status add_compressed(struct trace_v4 *t, const struct trace_sequence *s, int32_t owner,
                                const int32_t *blocks, qr_error *err)
{
    struct model_cache cache = runner_cache(t->job.runner);
    const struct owner_plan *o = &t->job.plan->owner[owner];
    struct trace_plane rows = {.backend = t->job.backend,
                               .blocks = blocks,
                               .n = config(t)->head_dim,
                               .count = plan_visible(o->ratio, s->count - 1)};
    if (rows.count == 0)
        return QR_OK;
    geometry_main_plane(cache.geometry, cache.pool, cache.base, owner, &rows.plane);
    ADD(o->layer, "compressed", DTYPE_F32, &rows.values, rows.count, rows.n);
    TRY(trace_plane_read(&rows, err));
    if (!o->has_index)
        return QR_OK;

    struct trace_plane keys = {
        .backend = t->job.backend, .blocks = blocks, .n = config(t)->index_head_dim, .count = rows.count};
    geometry_index_plane(cache.geometry, cache.pool, cache.base, owner, &keys.plane);
    if (w8a8(t)) {
        ADD(o->layer, "index_key", DTYPE_I8, &keys.codes, keys.count, keys.n);
        ADD(o->layer, "index_key_scale", DTYPE_F32, &keys.scales, keys.count, 1);
    } else {
        ADD(o->layer, "index_key", DTYPE_F32, &keys.values, keys.count, keys.n);
    }
    return trace_plane_read(&keys, err);
}

/* Compressor inputs of the last positions: value columns, then score columns. */
static qr_status add_state(struct trace_v4 *t, const struct trace_sequence *s, int32_t owner, bool index, int32_t slot,
                           qr_error *err)
{
    struct model_cache cache = runner_cache(t->job.runner);
    const struct owner_plan *o = &t->job.plan->owner[owner];
    int64_t cols = index ? o->index_tail_width : o->tail_width, bytes = cols * (int64_t)sizeof(float);
    int32_t count = least(s->count, STATE_ROWS);
    struct ring_plane tail;
    float *out;

    if (cols == 0)
        return QR_OK;
    geometry_tail(cache.geometry, cache.pool, cache.base, owner, index, &tail);
    ADD(o->layer, index ? "index_state" : "state", DTYPE_F32, &out, count, 2 * cols);
    for (int32_t i = 0; i < count; i++) {
        int64_t at = slot * tail.slot_stride + (s->count - count + i) % tail.rows * tail.value_row_stride;
        TRY(trace_bytes(&t->reader, out + i * 2 * cols, tail.values + at, bytes, err));
        TRY(trace_bytes(&t->reader, out + (i * 2 + 1) * cols, tail.scales + at, bytes, err));
    }
    return QR_OK;
}

static qr_status finish(void *self, const int32_t *const *blocks, const int32_t *slots, qr_error *err)
{
    struct trace_v4 *t = self;
    for (int32_t i = 0; wants(t, TRACE_CACHES) && i < t->job.input->count; i++) {
        const struct trace_sequence *s = &t->job.input->sequences[i];
        for (int32_t owner = 0; owner < t->job.plan->owners; owner++) {
            TRY(add_compressed(t, s, owner, blocks[i], err));
            TRY(add_state(t, s, owner, false, slots[i], err));
            TRY(add_state(t, s, owner, true, slots[i], err));
        }
    }
    return QR_OK;
}

const struct trace_recorder trace_v4_recorder = {.groups = TRACE_LOGITS | TRACE_STREAMS | TRACE_SELECTION |
                                                           TRACE_CACHES | TRACE_ROUTES | TRACE_MTP | TRACE_DRAFT,
                                                 .open = open,
                                                 .close = close,
                                                 .step = step,
                                                 .finish = finish};
