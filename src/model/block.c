#include "model/block.h"

#include <math.h>

/* Slots of the key list that share one step of the online softmax (v41-model.md 5.5, v4-model.md 5.4, 7.4). */
enum { ATTEND_BLOCK = 64, ATTEND_TILE = 128 };

#define CALL(NAME, ...) p->backend->NAME(p->backend, &(struct op_##NAME){__VA_ARGS__}, err)

static const struct activation none = {.codes = NULL};

void enter_layer(struct pass *p, int32_t index)
{
    p->index = index;
    p->layer = &p->plan->layer[index];
    p->w = &p->weights->layer[index];
    p->rows = &p->args->rows->layer[index];
    p->rope = (struct rope_spec){
        .frequencies = p->frequencies[p->layer->rope], .dim = p->config->rope_head_dim, .bf16_tables = p->w8a8,
        .turns = p->turns};
}

qr_status observe(struct pass *p, enum model_point point, qr_error *err)
{
    const struct model_observer *o = p->args->observer;
    bool backbone = p->index < p->plan->layers;
    return o ? o->at(o->user, point, point == POINT_LOGITS && backbone ? -1 : p->index, p->ws, err) : QR_OK;
}

qr_status linear(struct pass *p, struct row_list rows, struct activation in, const struct weight *weight,
                 struct activation out, qr_error *err)
{
    return CALL(linear, .rows = rows, .in = in, .weight = weight, .groups = 1, .out = out);
}

qr_status norm(struct pass *p, struct row_list rows, struct activation in, const void *weight, struct activation out,
               struct activation quantized, qr_error *err)
{
    return CALL(norm, .rows = rows, .in = in, .weight = weight, .eps = p->config->rms_norm_eps, .out = out,
                .quantized = quantized);
}

qr_status quantize(struct pass *p, struct row_list rows, struct activation in, struct activation out, qr_error *err)
{
    return CALL(quantize, .rows = rows, .in = in, .out = out);
}

/* ---- streams ---- */

qr_status embed(struct pass *p, struct row_list rows, qr_error *err)
{
    return CALL(embed, .rows = rows, .step = p->step, .weight = p->weights->embed, .out = p->ws->streams);
}

qr_status tap(struct pass *p, struct row_list rows, qr_error *err)
{
    if (p->layer->tap < 0 || p->ws->taps.cols == 0)
        return QR_OK;
    return CALL(stream_mean, .rows = rows, .x = p->ws->streams, .out = p->ws->taps,
                .column = p->layer->tap * p->config->hidden_size);
}

qr_status mix(struct pass *p, struct row_list rows, const struct mix_weights *w, float *pre, qr_error *err)
{
    const struct qr_config *c = p->config;
    return CALL(mhc_mix, .rows = rows, .x = p->ws->streams, .fn = w->fn, .base = w->base, .scale = w->scale,
                .norm_eps = c->rms_norm_eps, .hc_eps = c->hc_eps, .iterations = c->hc_sinkhorn_iters, .pre = pre,
                .post = p->ws->post, .comb = p->ws->comb);
}

qr_status collapse(struct pass *p, struct row_list rows, const float *pre, const void *norm_weight, qr_error *err)
{
    return CALL(collapse, .rows = rows, .x = p->ws->streams, .pre = pre, .norm = norm_weight,
                .norm_eps = p->config->rms_norm_eps, .pairwise = p->w8a8, .normed = p->ws->x,
                .quantized = p->w8a8 ? none : p->ws->xq);
}

qr_status collapse_ffn(struct pass *p, const float *pre, const void *norm_weight, qr_error *err)
{
    return CALL(collapse, .rows = p->rows->query, .x = p->ws->streams, .pre = pre, .norm = norm_weight,
                .norm_eps = p->config->rms_norm_eps, .pairwise = p->w8a8, .normed = p->ws->ffn_x,
                .quantized = p->ws->xq, .inverse = p->ws->ffn_factor);
}

qr_status expand(struct pass *p, qr_error *err)
{
    return CALL(expand, .rows = p->rows->query, .y = p->ws->y, .post = p->ws->post, .comb = p->ws->comb,
                .x = p->ws->streams);
}

/* ---- attention ---- */

qr_status low_query(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    TRY(linear(p, p->rows->query, ws->low_in, p->w->wq_a, ws->qa, err));
    return norm(p, p->rows->query, ws->qa, p->w->q_norm, ws->qr, ws->qrq, err);
}

static qr_status query_heads(struct pass *p, enum query_norm head_norm, qr_error *err)
{
    const struct workspace *ws = p->ws;
    struct row_list rows = p->rows->query;

    TRY(linear(p, rows, ws->qrq, p->w->wq_b, ws->q_in, err));
    return CALL(query, .rows = rows, .step = p->step, .heads = p->config->num_attention_heads,
                .head_dim = p->config->head_dim, .norm = head_norm, .eps = p->config->rms_norm_eps, .rope = p->rope,
                .in = ws->q_in, .out = ws->q);
}

qr_status window_key(struct pass *p, enum key_grid grid, qr_error *err)
{
    const struct workspace *ws = p->ws;
    struct row_list rows = p->rows->key;

    TRY(linear(p, rows, ws->low_in, p->w->wkv, ws->kv, err));
    TRY(CALL(window_key, .rows = rows, .step = p->step, .in = ws->kv, .norm = p->w->kv_norm,
             .eps = p->config->rms_norm_eps, .rope = p->rope, .grid = grid, .out = ws->keys,
             .packed = ws->keys_packed));
    return observe(p, POINT_KEYS, err);
}

static struct ring_plane window_ring(const struct pass *p)
{
    const struct model_cache *cache = &p->args->cache;
    struct ring_plane ring;
    geometry_window(cache->geometry, cache->pool, cache->base, p->index, &ring);
    return ring;
}

struct row_plane main_plane(const struct pass *p)
{
    const struct model_cache *cache = &p->args->cache;
    struct row_plane plane;
    geometry_main_plane(cache->geometry, cache->pool, cache->base, p->plan->owner_of_layer[p->index], &plane);
    return plane;
}

struct row_plane index_plane(const struct pass *p)
{
    const struct model_cache *cache = &p->args->cache;
    struct row_plane plane;
    geometry_index_plane(cache->geometry, cache->pool, cache->base, p->plan->owner_of_layer[p->index], &plane);
    return plane;
}

/* The attention core. */
static qr_status attend_keys(struct pass *p, const int32_t *selected, qr_error *err)
{
    const struct qr_config *c = p->config;
    struct op_attend a = {.rows = p->rows->once, .step = p->step};

    a.heads = c->num_attention_heads;
    a.head_dim = c->head_dim;
    a.window_size = c->sliding_window;
    a.block = p->w8a8 ? ATTEND_TILE : ATTEND_BLOCK;
    a.w8a8 = p->w8a8;
    a.ratio = p->layer->ratio;
    a.scale = (float)(1.0 / sqrt((double)c->head_dim));
    a.q = p->ws->q.codes;
    a.fresh = p->ws->keys;
    a.key_from = p->rows->key_from;
    a.draft_block = p->draft_block;
    a.window_low = p->draft_block ? p->window_low : p->rows->window_low;
    a.ring = window_ring(p);
    a.has_plane = p->layer->ratio > 0;
    if (a.has_plane)
        a.plane = main_plane(p);
    if (a.has_plane && selected) {
        a.selected = selected;
        a.selected_stride = c->index_topk;
        a.selected_count = p->ws->selected_count;
    }
    a.sinks = p->w->sinks;
    a.out = p->ws->o;
    if (p->rows->again.count == 0)
        return p->backend->attend(p->backend, &a, err);
    if (a.rows.count > 0)
        TRY(p->backend->attend(p->backend, &a, err));
    a.rows = p->rows->again;
    a.key_from = p->step->first_position;
    return p->backend->attend(p->backend, &a, err);
}

/* What wo_a leaves, and its codes. Under W8A8 a stage of the block drafter rounds it to bf16 and quantizes whole rows
 * (v4-model.md appendix D), where other layers quantize groups (7.4). */
static struct activation low_output(const struct pass *p)
{
    struct activation t = p->ws->t;
    if (p->w8a8 && p->draft_block)
        t.format = ACT_BF16;
    return t;
}

static struct activation low_output_codes(const struct pass *p)
{
    struct activation tq = p->ws->tq;
    if (p->w8a8 && p->draft_block)
        tq.block = tq.cols;
    return tq;
}

/* From the low-rank queries of the query rows to the grouped output projection's first half. */
static qr_status attend_rows(struct pass *p, enum query_norm head_norm, const int32_t *selected, qr_error *err)
{
    const struct qr_config *c = p->config;
    const struct workspace *ws = p->ws;
    struct row_list rows = p->rows->query;

    TRY(query_heads(p, head_norm, err));
    TRY(attend_keys(p, selected, err));
    TRY(CALL(unrotate, .rows = rows, .step = p->step, .heads = c->num_attention_heads, .head_dim = c->head_dim,
             .rope = p->rope, .in = ws->o, .out = ws->o_turned));
    return CALL(linear, .rows = rows, .in = ws->o_turned, .weight = p->w->wo_a, .groups = c->o_groups, .out = low_output(p));
}

/* A buffer that begins with row `from` of the step, as one that is addressed by step row. Rows before are not touched. */
static struct activation beginning_with(struct activation a, int32_t from)
{
    const int64_t bytes = (int64_t)from * a.cols * (a.format == ACT_F32 ? 4 : 2);
    a.codes = (void *)((uintptr_t)a.codes - (uintptr_t)bytes);
    return a;
}

/* The entries of a list between two cuts. */
static struct row_list rows_of_cut(const struct step_rows *all, struct row_list list, const int32_t *cut)
{
    return (struct row_list){.index = (list.index ? list.index : all->numbers) + cut[0], .count = cut[1] - cut[0]};
}

/* One cut: its query rows, in buffers that begin with its first row. */
static qr_status attend_cut(struct pass *p, int32_t cut, enum query_norm head_norm, const int32_t *selected, qr_error *err)
{
    const struct step_rows *all = p->args->rows;
    const struct workspace *ws = p->ws;
    const struct layer_rows *rows = p->rows;
    const int32_t from = cut * all->attention_rows;
    struct layer_rows part = *rows;
    struct workspace own = *ws;

    part.query = rows_of_cut(all, rows->query, rows->query_cut + cut);
    part.once = rows_of_cut(all, rows->once, rows->once_cut + cut);
    part.again = rows_of_cut(all, rows->again, rows->again_cut + cut);
    if (part.query.count == 0)
        return QR_OK;
    own.q_in = beginning_with(ws->q_in, from);
    own.q = beginning_with(ws->q, from);
    own.o = beginning_with(ws->o, from);
    own.o_turned = beginning_with(ws->o_turned, from);
    p->rows = &part;
    p->ws = &own;
    const qr_status st = attend_rows(p, head_norm, selected, err);
    p->rows = rows;
    p->ws = ws;
    return st;
}

qr_status attend(struct pass *p, enum query_norm head_norm, const int32_t *selected, qr_error *err)
{
    if (!p->rows->query_cut)
        return attend_rows(p, head_norm, selected, err);
    for (int32_t cut = 0; cut < p->args->rows->cuts; cut++)
        TRY(attend_cut(p, cut, head_norm, selected, err));
    return QR_OK;
}

qr_status keep_window(struct pass *p, qr_error *err)
{
    if (p->draft_block)
        return QR_OK;
    return CALL(window_write, .rows = p->rows->ring, .step = p->step, .keys = p->ws->keys, .packed = p->ws->keys_packed,
                .head_dim = p->config->head_dim, .ring = window_ring(p));
}

qr_status attention_output(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    const int32_t hidden = p->config->hidden_size;
    struct activation y = {.format = ACT_BF16, .cols = hidden, .block = hidden, .codes = ws->y};

    TRY(quantize(p, p->rows->query, low_output(p), low_output_codes(p), err));
    return linear(p, p->rows->query, low_output_codes(p), p->w->wo_b, y, err);
}

/* ---- experts ---- */

static qr_status experts(struct pass *p, const struct expert_weights *w, const int32_t *idx, const float *weight,
                         void *out, qr_error *err)
{
    return CALL(expert, .rows = p->rows->query, .x = p->ws->xq, .idx = idx, .weight = weight, .experts = w->count,
                .active = idx ? p->layer->n_active : 1, .w1 = w->w1, .w2 = w->w2, .w3 = w->w3,
                .swiglu_limit = p->config->swiglu_limit, .w8a8 = p->w8a8, .out = out);
}

qr_status moe(struct pass *p, bool normalise, float denominator_eps, qr_error *err)
{
    const struct qr_config *c = p->config;
    const struct workspace *ws = p->ws;
    int32_t active = p->layer->n_active;

    TRY(CALL(route, .rows = p->rows->query, .step = p->step, .x = ws->ffn_x, .x_scale = ws->ffn_factor,
             .gate = p->w->gate, .bias = p->w->gate_bias, .bias_image = p->w->gate_bias_image,
             .table = p->w->expert_table, .experts = p->layer->n_experts, .active = active, .normalise = normalise,
             .scaling = c->routed_scaling_factor, .denominator_eps = denominator_eps, .idx = ws->expert_idx,
             .weight = ws->expert_weight));
    TRY(observe(p, POINT_ROUTED, err));
    TRY(p->routed ? p->routed(p->routed_user, p, err)
                  : experts(p, &p->w->routed, ws->expert_idx, ws->expert_weight, ws->routed, err));
    TRY(experts(p, &p->w->shared, NULL, NULL, ws->shared, err));
    return CALL(combine, .rows = p->rows->query, .idx = ws->expert_idx, .active = active, .hidden = c->hidden_size,
                .routed = ws->routed, .shared = ws->shared, .w8a8 = p->w8a8, .out = ws->y);
}

/* ---- end of the pass ---- */

qr_status hidden(struct pass *p, struct row_list rows, const float *pre, const void *norm_weight, qr_error *err)
{
    return CALL(collapse, .rows = rows, .x = p->ws->streams, .pre = pre, .norm = norm_weight,
                .norm_eps = p->config->rms_norm_eps, .normed = p->ws->x, .quantized = none);
}

qr_status logits(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    struct row_list wanted = p->args->rows->logits, gathered = {.index = NULL, .count = wanted.count};
    struct activation out = {
        .format = ACT_F32, .cols = p->config->vocab_size, .block = p->config->vocab_size, .codes = ws->logits};

    TRY(CALL(gather, .rows = wanted, .in = ws->x, .out = ws->final));
    TRY(linear(p, gathered, ws->final, p->weights->head, out, err));
    return observe(p, POINT_LOGITS, err);
}

qr_status head(struct pass *p, const float *pre, const void *norm_weight, qr_error *err)
{
    struct row_list wanted = p->args->rows->logits;
    if (wanted.count == 0)
        return QR_OK;
    TRY(hidden(p, wanted, pre, norm_weight, err));
    return logits(p, err);
}
