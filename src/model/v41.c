/* v41.c: the forward pass of DeepSeek-V4.1 (v41-model.md 4.1), to be read beside the specification. */
#include <math.h>

#include "model/block.h"

/* Added to the sum of the chosen scores before the division (7.1 step 5). */
#define ROUTER_EPS 1e-20f

#define CALL(NAME, ...) p->backend->NAME(p->backend, &(struct op_##NAME){__VA_ARGS__}, err)

static const struct activation none = {.codes = NULL};

/* 8.6, 8.7: the n-gram rows of each token, projected to keys and a value, gated into the streams. */
static qr_status engram(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    struct row_list rows = p->rows->input;

    TRY(quantize(p, rows, ws->engram[p->layer->engram], ws->engram_q, err));
    TRY(linear(p, rows, ws->engram_q, p->w->engram.wkv, ws->engram_kv, err));
    return CALL(engram, .rows = rows, .step = p->step, .x = ws->streams, .kv = ws->engram_kv.codes,
                .q_weight = p->w->engram.q_weight, .k_weight = p->w->engram.k_weight, .gate_out = ws->engram_gate);
}

/* 5.3: the pooled latent of each group that a row of this step completes, before its norm. */
static qr_status pool_group(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    const struct compressor_weights *w = &p->w->compressor;
    const struct model_cache *cache = &p->args->cache;
    int32_t width = p->config->head_dim;
    struct activation values = {.format = ACT_F32, .cols = width, .block = width, .codes = ws->compress_values};
    struct activation scores = {.format = ACT_F32, .cols = width, .block = width, .codes = ws->compress_scores};
    struct ring_plane tail;

    geometry_tail(cache->geometry, cache->pool, cache->base, p->plan->owner_of_layer[p->index], false, &tail);
    TRY(linear(p, p->rows->compress, ws->x, w->wkv, values, err));
    TRY(linear(p, p->rows->compress, ws->x, w->wgate, scores, err));
    TRY(CALL(compress, .rows = p->rows->emit, .step = p->step, .from = p->rows->compress_from,
             .kind = p->layer->compressor, .ratio = p->layer->ratio, .width = width, .values = ws->compress_values,
             .scores = ws->compress_scores, .tail = tail, .out = ws->pooled, .padded = p->rows->emit_padded));
    return CALL(tail_write, .rows = p->rows->tail, .step = p->step, .values = ws->compress_values,
                .scores = ws->compress_scores, .cols = width, .tail = tail);
}

/* 5.3: main rows and index keys of the groups completed. The index key is made from the unrotated latent. */
static qr_status compressor(struct pass *p, qr_error *err)
{
    const struct workspace *ws = p->ws;
    struct row_list emit = p->rows->emit;
    float eps = p->config->rms_norm_eps;

    if (p->layer->compressor == COMPRESSOR_SINGLE)
        TRY(linear(p, emit, ws->x, p->w->compressor.wkv, ws->pooled, err));
    else
        TRY(pool_group(p, err));
    TRY(norm(p, emit, ws->pooled, p->w->compressor.norm, ws->latent, none, err));

    TRY(linear(p, emit, ws->latent, p->w->indexer.wk, ws->ik, err));
    TRY(CALL(row_write, .rows = emit, .step = p->step, .ratio = p->layer->ratio, .in = ws->ik,
             .norm = p->w->indexer.k_norm, .eps = eps, .rope = p->rope, .grid = GRID_FP4_E8M0,
             .plane = index_plane(p), .padded = p->rows->emit_padded));
    return CALL(row_write, .rows = emit, .step = p->step, .ratio = p->layer->ratio, .in = ws->latent, .eps = eps,
                .rope = p->rope, .grid = GRID_FP4_E4M3, .plane = main_plane(p), .padded = p->rows->emit_padded);
}

/* 6: scores of the visible rows by their index keys; the best become this layer's selection, and that of the Reuse
 * layers after it. */
static qr_status indexer(struct pass *p, qr_error *err)
{
    const struct qr_config *c = p->config;
    const struct workspace *ws = p->ws;
    struct row_list rows = p->rows->query;
    int32_t heads = c->index_n_heads, dim = c->index_head_dim;

    TRY(linear(p, rows, ws->qrq, p->w->indexer.wq_b, ws->iq, err));
    TRY(linear(p, rows, ws->x, p->w->indexer.weights_proj, ws->iw, err));
    TRY(CALL(index_query, .rows = rows, .step = p->step, .heads = heads, .dim = dim, .rope = p->rope,
             .grid = GRID_FP4_E8M0, .in = ws->iq, .out = ws->iq, .weights_in = ws->iw,
             .weight_factor = (float)(1.0 / sqrt((double)dim * heads)), .weights = ws->index_weights));
    TRY(CALL(index_select, .rows = rows, .step = p->step, .heads = heads, .dim = dim, .ratio = p->layer->ratio,
             .topk = c->index_topk, .mode = SCORE_F32, .order = p->layer->order, .query = ws->iq,
             .weights = ws->index_weights, .plane = index_plane(p), .make_candidates = p->layer->candidate_source,
             .use_candidates = p->layer->candidate_reader, .block_size = c->candidate_block_size,
             .topk_blocks = c->candidate_topk_blocks, .candidates = ws->candidates,
             .candidate_count = ws->candidate_count, .selected = ws->selected, .selected_count = ws->selected_count));
    return observe(p, POINT_SELECTED, err);
}

/* 5: from ws->x to ws->y. */
static qr_status attention(struct pass *p, qr_error *err)
{
    TRY(low_query(p, err));
    TRY(window_key(p, GRID_FP8_ALL, err));
    if (p->layer->owns_rows)
        TRY(compressor(p, err));
    if (p->layer->owns_index)
        TRY(indexer(p, err));
    TRY(attend(p, QUERY_NORM_NONE, p->ws->selected, err));
    TRY(keep_window(p, err));
    return attention_output(p, err);
}

/* 4.1 step 4. A sub-block's own mix gives its post and comb, but the pre of the next sub-block. */
qr_status v41_block(struct pass *p, const float *pre, qr_error *err)
{
    const struct workspace *ws = p->ws;
    if (p->rows->input.count == 0) /* trimmed away in this step */
        return QR_OK;

    TRY(observe(p, POINT_BLOCK_INPUT, err));
    if (p->layer->engram >= 0)
        TRY(engram(p, err));
    TRY(tap(p, p->rows->input, err)); /* 10.2: the drafter sees this layer's input */

    TRY(mix(p, p->rows->query, &p->w->attn_mix, ws->pre_attn, err));
    TRY(collapse(p, p->rows->input, pre, p->w->attn_norm, err));
    TRY(attention(p, err));
    TRY(expand(p, err));

    TRY(mix(p, p->rows->query, &p->w->ffn_mix, ws->pre, err));
    TRY(collapse_ffn(p, ws->pre_attn, p->w->ffn_norm, err));
    TRY(moe(p, p->config->norm_topk_prob && p->layer->n_active > 1, ROUTER_EPS, err));
    TRY(expand(p, err));
    return observe(p, POINT_BLOCK_OUTPUT, err);
}

qr_status v41_forward(struct pass *p, qr_error *err)
{
    const float *pre = p->ws->pre_first;

    TRY(embed(p, p->args->rows->layer[0].input, err));
    for (int32_t i = 0; i < p->plan->layers; i++) {
        enter_layer(p, i);
        TRY(v41_block(p, pre, err));
        pre = p->ws->pre;
    }
    return head(p, pre, p->weights->final.norm, err);
}
