/* v4.c: the forward pass of DeepSeek-V4 (v4-model.md 3.5, B.1; 7.4 in the W8A8 profile, whose roundings are in the
 * formats of the workspace), to be read beside the specification. */
#include <math.h>

#include "model/block.h"

#define CALL(NAME, ...) p->backend->NAME(p->backend, &(struct op_##NAME){__VA_ARGS__}, err)

static struct activation plain_f32(float *memory, int32_t cols)
{
    return (struct activation){.format = ACT_F32, .cols = cols, .block = cols, .codes = memory};
}

/* 5.7: a compressor of rows of out.cols channels. Projects the rows of this step, pools each group that one of them
 * completes into `out`, and keeps what later groups will need. An overlapping group of four pools eight tokens, each
 * with the half of its channels that belongs to it. */
static qr_status pool_groups(struct pass *p, const struct compressor_weights *w, struct ring_plane tail,
                             struct activation out, enum model_point inputs, qr_error *err)
{
    const struct workspace *ws = p->ws;
    int32_t cols = (p->layer->compressor == COMPRESSOR_OVERLAP ? 2 : 1) * out.cols;
    struct row_list rows = p->rows->compress;

    TRY(linear(p, rows, ws->x, w->wkv, plain_f32(ws->compress_values, cols), err));
    TRY(linear(p, rows, ws->x, w->wgate, plain_f32(ws->compress_scores, cols), err));
    TRY(CALL(position_bias, .rows = rows, .step = p->step, .ape = w->ape, .ratio = p->layer->ratio, .cols = cols,
             .scores = ws->compress_scores));
    TRY(observe(p, inputs, err));
    TRY(CALL(compress, .rows = p->rows->emit, .step = p->step, .from = p->rows->compress_from,
             .kind = p->layer->compressor, .ratio = p->layer->ratio, .width = out.cols, .values = ws->compress_values,
             .scores = ws->compress_scores, .tail = tail, .out = out, .padded = p->rows->emit_padded));
    return CALL(tail_write, .rows = p->rows->tail, .step = p->step, .values = ws->compress_values,
                .scores = ws->compress_scores, .cols = cols, .tail = tail);
}

/* 4.1: what keys and values are rounded to before they are stored. */
enum key_grid v4_key_grid(const struct pass *p) { return p->w8a8 || p->plain_keys ? GRID_NONE : GRID_FP8_NOPE; }

static struct ring_plane tail_of(const struct pass *p, bool index)
{
    const struct model_cache *cache = &p->args->cache;
    struct ring_plane tail;
    geometry_tail(cache->geometry, cache->pool, cache->base, p->plan->owner_of_layer[p->index], index, &tail);
    return tail;
}

/* A group's row turns as its first token. */
static struct rope_spec group_rope(const struct pass *p)
{
    struct rope_spec rope = p->rope;
    rope.turns = p->group_turns;
    return rope;
}

/* 5.7: the layer's compressed rows: key and value of a group of tokens, stored at the position of its first. */
static qr_status compressor(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    TRY(pool_groups(p, &p->w->compressor, tail_of(p, false), ws->pooled, POINT_COMPRESSOR_INPUTS, err));
    return CALL(row_write, .rows = p->rows->emit, .step = p->step, .ratio = p->layer->ratio, .in = ws->pooled,
                .norm = p->w->compressor.norm, .eps = p->config->rms_norm_eps, .rope = group_rope(p), .grid = v4_key_grid(p),
                .plane = main_plane(p), .padded = p->rows->emit_padded);
}

/* 5.6 step 2: the keys that the indexer scores: a compressor of their own, turned by a Hadamard matrix. */
static qr_status index_keys(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    TRY(pool_groups(p, &p->w->indexer.keys, tail_of(p, true), ws->ik, POINT_INDEX_INPUTS, err));
    return CALL(row_write, .rows = p->rows->emit, .step = p->step, .ratio = p->layer->ratio, .in = ws->ik,
                .norm = p->w->indexer.keys.norm, .eps = p->config->rms_norm_eps, .rope = group_rope(p),
                .hadamard = true, .grid = p->w8a8 ? GRID_INT8 : GRID_FP4_E8M0, .plane = index_plane(p),
                .padded = p->rows->emit_padded);
}

/* 5.6: which compressed rows a query attends: the best of those visible to it, by score. */
static qr_status indexer(struct pass *p, qr_error *err)
{
    const struct qr_config *c = p->config;
    const struct workspace *ws = p->ws;
    struct row_list rows = p->rows->query;
    int32_t heads = c->index_n_heads, dim = c->index_head_dim;

    TRY(linear(p, rows, ws->qrq, p->w->indexer.wq_b, ws->iq_in, err));
    TRY(linear(p, rows, ws->x, p->w->indexer.weights_proj, ws->iw, err));
    TRY(CALL(index_query, .rows = rows, .step = p->step, .heads = heads, .dim = dim, .rope = p->rope, .hadamard = true,
             .grid = p->w8a8 ? GRID_INT8 : GRID_FP4_E8M0, .in = ws->iq_in, .out = ws->iq, .weights_in = ws->iw,
             .weight_factor = (float)(1.0 / sqrt((double)dim * heads)), .round_weights = !p->w8a8,
             .weights = ws->index_weights));
    TRY(CALL(index_select, .rows = rows, .step = p->step, .heads = heads, .dim = dim, .ratio = p->layer->ratio,
             .topk = c->index_topk, .mode = p->w8a8 ? SCORE_INT8 : SCORE_BF16, .order = p->layer->order,
             .query = ws->iq, .weights = ws->index_weights, .plane = index_plane(p), .selected = ws->selected,
             .selected_count = ws->selected_count, .scores = ws->index_scores, .score_stride = ws->index_score_stride));
    return observe(p, POINT_SELECTED, err);
}

/* 5: from ws->x to ws->y. A window alone, or also the best compressed rows (CSA), or all of them (HCA). */
static qr_status attention(struct pass *p, qr_error *err)
{
    TRY(low_query(p, err));
    TRY(window_key(p, v4_key_grid(p), err));
    if (p->layer->owns_rows)
        TRY(compressor(p, err));
    if (p->layer->owns_index) {
        TRY(index_keys(p, err));
        TRY(indexer(p, err));
    }
    TRY(attend(p, p->w8a8 ? QUERY_NORM_F32 : QUERY_NORM_BF16, p->layer->owns_index ? p->ws->selected : NULL, err));
    TRY(keep_window(p, err));
    return attention_output(p, err);
}

/* 3.5, and its two halves. */
qr_status v4_attention_block(struct pass *p, qr_error *err)
{
    TRY(mix(p, p->rows->input, &p->w->attn_mix, p->ws->pre, err));
    TRY(collapse(p, p->rows->input, p->ws->pre, p->w->attn_norm, err));
    TRY(attention(p, err));
    return expand(p, err);
}

qr_status v4_ffn_block(struct pass *p, qr_error *err)
{
    TRY(mix(p, p->rows->query, &p->w->ffn_mix, p->ws->pre, err));
    TRY(collapse_ffn(p, p->ws->pre, p->w->ffn_norm, err));
    TRY(moe(p, true, 0, err));
    return expand(p, err);
}

qr_status v4_block(struct pass *p, qr_error *err)
{
    TRY(observe(p, POINT_BLOCK_INPUT, err));
    TRY(v4_attention_block(p, err));
    TRY(v4_ffn_block(p, err));
    return observe(p, POINT_BLOCK_OUTPUT, err);
}

qr_status v4_head_mix(struct pass *p, const struct head_weights *w, struct row_list rows, qr_error *err)
{
    const struct qr_config *c = p->config;
    return CALL(mhc_mix, .rows = rows, .x = p->ws->streams, .fn = w->mix.fn, .base = w->mix.base,
                .scale = w->mix.scale, .norm_eps = c->rms_norm_eps, .hc_eps = c->hc_eps, .head_only = true,
                .pre = p->ws->pre);
}

qr_status v4_hidden(struct pass *p, const struct head_weights *w, struct row_list rows, qr_error *err)
{
    TRY(v4_head_mix(p, w, rows, err));
    return hidden(p, rows, p->ws->pre, w->norm, err);
}

qr_status v4_head(struct pass *p, const struct head_weights *w, qr_error *err)
{
    TRY(v4_head_mix(p, w, p->args->rows->logits, err));
    return head(p, p->ws->pre, w->norm, err);
}

qr_status v4_forward(struct pass *p, qr_error *err)
{
    TRY(embed(p, p->args->rows->layer[0].input, err));
    for (int32_t i = 0; i < p->plan->layers; i++) {
        enter_layer(p, i);
        TRY(v4_block(p, err));
        TRY(tap(p, p->rows->query, err)); /* speculation.md 2.2: the drafter sees this layer's output */
    }
    return v4_head(p, &p->weights->final, err);
}
