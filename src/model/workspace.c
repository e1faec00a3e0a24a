#include "model/workspace.h"

#include <string.h>

/* Buffers start on cache lines and, on devices, on whole memory transactions. */
enum { ALIGNMENT = 256 };
/* Columns of a window key that share a scale (v41-model.md 5.2). */
enum { KEY_BLOCK = 32 };

struct layout {
    uint8_t *base;
    int64_t used;
    int64_t rows;
};

static void *take(struct layout *l, int64_t bytes)
{
    void *at = l->base ? l->base + l->used : NULL;
    l->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return at;
}

static float *take_f32(struct layout *l, int64_t cols) { return take(l, l->rows * cols * 4); }
static int32_t *take_i32(struct layout *l, int64_t cols) { return take(l, l->rows * cols * 4); }
static void *take_bf16(struct layout *l, int64_t cols) { return take(l, l->rows * cols * 2); }

static struct activation bf16(struct layout *l, int32_t cols)
{
    return (struct activation){.format = ACT_BF16, .cols = cols, .block = cols, .codes = take_bf16(l, cols)};
}

static struct activation q8(struct layout *l, int32_t cols, int32_t block)
{
    struct activation a = {.format = ACT_Q8, .cols = cols, .block = block};
    a.codes = take(l, l->rows * cols);
    a.scales = take(l, l->rows * (cols / block));
    return a;
}

static void lay_attention(struct layout *l, const struct model_plan *plan, struct workspace *w)
{
    const struct qr_config *c = &plan->config;
    int32_t heads = c->num_attention_heads * c->head_dim, t = c->o_groups * c->o_lora_rank;

    w->qa = bf16(l, c->q_lora_rank);
    w->qr = bf16(l, c->q_lora_rank);
    w->qrq = q8(l, c->q_lora_rank, c->fp8_block);
    w->q = bf16(l, heads);
    w->o = bf16(l, heads);
    w->kv = bf16(l, c->head_dim);
    w->keys = take_bf16(l, c->head_dim);
    w->keys_packed = q8(l, c->head_dim, KEY_BLOCK);
    w->t = bf16(l, t);
    w->tq = q8(l, t, c->fp8_block);
}

static void lay_compressor_and_indexer(struct layout *l, const struct model_plan *plan, struct workspace *w)
{
    const struct qr_config *c = &plan->config;
    if (plan->owners > 0) {
        w->compress_values = take_f32(l, c->head_dim);
        w->compress_scores = take_f32(l, c->head_dim);
        w->pooled = bf16(l, c->head_dim);
        w->latent = bf16(l, c->head_dim);
    }
    if (plan->index_sources > 0) {
        w->ik = bf16(l, c->index_head_dim);
        w->iq = bf16(l, c->index_n_heads * c->index_head_dim);
        w->iw = bf16(l, c->index_n_heads);
        w->index_weights = take_f32(l, c->index_n_heads);
        w->selected = take_i32(l, c->index_topk);
        w->selected_count = take_i32(l, 1);
    }
    if (c->candidate_source_layer >= 0) {
        w->candidates = take_i32(l, c->candidate_topk_blocks);
        w->candidate_count = take_i32(l, 1);
    }
}

static void lay_engram(struct layout *l, const struct model_plan *plan, bool trace, struct workspace *w)
{
    const struct qr_config *c = &plan->config;
    int32_t width = engram_columns(c) * c->engram_head_dim;
    if (c->n_engram == 0)
        return;
    for (int32_t i = 0; i < c->n_engram; i++)
        w->engram[i] = bf16(l, width);
    w->engram_q = q8(l, width, c->fp8_block);
    w->engram_kv = bf16(l, (c->hc_mult + 1) * c->hidden_size);
    if (trace)
        w->engram_gate = take_f32(l, c->hc_mult);
}

/* The widest choice of experts of any layer. */
static int32_t most_active(const struct model_plan *plan)
{
    int32_t most = 0;
    for (int32_t i = 0; i < plan->layers + plan->draft_layers; i++)
        if (plan->layer[i].n_active > most)
            most = plan->layer[i].n_active;
    return most;
}

int64_t workspace_lay(const struct model_plan *plan, const struct model_limits *limits, void *base,
                      struct workspace *out)
{
    const struct qr_config *c = &plan->config;
    struct layout l = {.base = base, .rows = limits->max_rows};
    int32_t streams = c->hc_mult, hidden = c->hidden_size, active = most_active(plan);

    memset(out, 0, sizeof *out);
    out->streams = (struct streams){.format = ACT_BF16, .count = streams, .hidden = hidden};
    out->streams.data = take_bf16(&l, (int64_t)streams * hidden);
    out->pre_first = take_f32(&l, streams);
    out->pre = take_f32(&l, streams);
    out->pre_attn = take_f32(&l, streams);
    out->post = take_f32(&l, streams);
    out->comb = take_f32(&l, (int64_t)streams * streams);
    out->x = bf16(&l, hidden);
    out->xq = q8(&l, hidden, c->fp8_block);
    out->y = take_bf16(&l, hidden);

    lay_attention(&l, plan, out);
    lay_compressor_and_indexer(&l, plan, out);
    out->expert_idx = take_i32(&l, active);
    out->expert_weight = take_f32(&l, active);
    out->routed = take_bf16(&l, (int64_t)active * hidden);
    out->shared = take_bf16(&l, hidden);
    lay_engram(&l, plan, limits->trace, out);
    if (c->n_dspark_targets > 0)
        out->taps = bf16(&l, c->n_dspark_targets * hidden);

    l.rows = limits->max_logits;
    out->final = bf16(&l, hidden);
    out->logits = take_f32(&l, c->vocab_size);
    return l.used;
}
