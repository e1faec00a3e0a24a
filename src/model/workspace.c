#include "model/workspace.h"

#include <string.h>

/* Buffers start on cache lines and, on devices, on whole memory transactions. */
enum { ALIGNMENT = 256 };
/* Columns of a window key that share a scale (v41-model.md 5.2). */
enum { KEY_BLOCK = 32 };
/* Tokens of a row that an indexer of V4 scores (v4-model.md 5.6). */
enum { CSA_RATIO = 4 };

struct layout {
    uint8_t *base;
    int64_t used;
    int64_t rows;
    bool w8a8;
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

static struct activation f32_over(float *memory, int32_t cols)
{
    return (struct activation){.format = ACT_F32, .cols = cols, .block = cols, .codes = memory};
}

/* What stands between a product and its norm. */
static struct activation wide(struct layout *l, int32_t cols)
{
    return l->w8a8 ? f32_over(take_f32(l, cols), cols) : bf16(l, cols);
}

static struct activation q8(struct layout *l, int32_t cols, int32_t block)
{
    struct activation a = {.format = ACT_Q8, .cols = cols, .block = block};
    a.codes = take(l, l->rows * cols);
    a.scales = take(l, l->rows * (cols / block));
    return a;
}

static struct activation i8(struct layout *l, int32_t cols, int32_t block)
{
    struct activation a = {.format = ACT_I8, .cols = cols, .block = block};
    a.codes = take(l, l->rows * cols);
    a.scales = take_f32(l, cols / block);
    return a;
}

/* What a product with a quantized weight reads: Q8 in the family's blocks, or INT8 with one scale a `part`. */
static struct activation codes(struct layout *l, const struct qr_config *c, int32_t cols, int32_t part)
{
    return l->w8a8 ? i8(l, cols, part) : q8(l, cols, c->fp8_block);
}

/* The rows of a norm whose quantized form alone is read. */
static struct activation unwritten(int32_t cols)
{
    return (struct activation){.format = ACT_F32, .cols = cols, .block = cols};
}

static void lay_streams(struct layout *l, const struct model_plan *plan, struct workspace *w)
{
    const struct qr_config *c = &plan->config;
    int32_t streams = c->hc_mult, hidden = c->hidden_size;
    w->streams = (struct streams){.format = l->w8a8 ? ACT_F32 : ACT_BF16, .count = streams, .hidden = hidden};
    w->streams.data = take(l, l->rows * streams * hidden * (l->w8a8 ? 4 : 2));
    w->pre_first = take_f32(l, streams);
    w->pre = take_f32(l, streams);
    w->pre_attn = take_f32(l, streams);
    w->post = take_f32(l, streams);
    w->comb = take_f32(l, (int64_t)streams * streams);
    w->x = bf16(l, hidden);
    w->xq = codes(l, c, hidden, hidden);
    w->y = take_bf16(l, hidden);
}

static struct activation bf16_rows(struct layout *l, int64_t rows, int32_t cols)
{
    return (struct activation){.format = ACT_BF16, .cols = cols, .block = cols, .codes = take(l, rows * cols * 2)};
}

/* Rows of an attention call. */
static int64_t attention_rows(const struct model_limits *limits)
{
    const int32_t most = limits->attention_rows;
    return most > 0 && most < limits->max_rows ? most : limits->max_rows;
}

static void lay_attention(struct layout *l, const struct model_plan *plan, const struct model_limits *limits,
                          struct workspace *w)
{
    const struct qr_config *c = &plan->config;
    const int64_t calls = attention_rows(limits);
    int32_t heads = c->num_attention_heads * c->head_dim, t = c->o_groups * c->o_lora_rank;

    w->qa = wide(l, c->q_lora_rank);
    w->qr = l->w8a8 ? unwritten(c->q_lora_rank) : bf16(l, c->q_lora_rank);
    w->qrq = codes(l, c, c->q_lora_rank, c->q_lora_rank);
    w->q = bf16_rows(l, calls, heads);
    w->kv = wide(l, c->head_dim);
    w->keys = take_bf16(l, c->head_dim);
    if (c->family == QR_FAMILY_V41)
        w->keys_packed = q8(l, c->head_dim, KEY_BLOCK);
    w->t = wide(l, t);
    w->tq = codes(l, c, t, c->o_lora_rank);
    if (l->w8a8) {
        const int64_t in_calls = calls * heads, in_rows = l->rows * c->hidden_size;
        float *shared = take(l, (in_calls > in_rows ? in_calls : in_rows) * 4);
        w->q_in = w->o = f32_over(shared, heads);
        w->o_turned = w->q;
        w->low_in = w->x;
        w->ffn_x = f32_over(shared, c->hidden_size);
        w->ffn_factor = take_f32(l, 1);
        return;
    }
    w->q_in = w->q;
    w->o = w->o_turned = bf16_rows(l, calls, heads);
    w->low_in = w->xq;
    w->ffn_x = w->x;
}

/* Columns of the compressor inputs, of whichever compressor has most. */
static int32_t compressor_columns(const struct model_plan *plan)
{
    int32_t most = 0;
    for (int32_t i = 0; i < plan->owners; i++) {
        const struct owner_plan *o = &plan->owner[i];
        most = o->tail_width > most ? o->tail_width : most;
        most = o->index_tail_width > most ? o->index_tail_width : most;
    }
    return most;
}

static void lay_compressor_and_indexer(struct layout *l, const struct model_plan *plan,
                                       const struct model_limits *limits, struct workspace *w)
{
    const struct qr_config *c = &plan->config;
    int32_t heads = c->index_n_heads, width = heads * c->index_head_dim;
    bool v4 = c->family == QR_FAMILY_V4;
    if (plan->owners > 0) {
        w->compress_values = take_f32(l, compressor_columns(plan));
        w->compress_scores = take_f32(l, compressor_columns(plan));
        w->pooled = wide(l, c->head_dim);
        if (!v4)
            w->latent = bf16(l, c->head_dim);
    }
    if (plan->index_sources > 0) {
        w->ik = wide(l, c->index_head_dim);
        w->iq_in = wide(l, width);
        w->iq = l->w8a8 ? i8(l, width, c->index_head_dim) : w->iq_in;
        w->iw = wide(l, heads);
        w->index_weights = take_f32(l, heads);
        w->selected = take_i32(l, c->index_topk);
        w->selected_count = take_i32(l, 1);
    }
    if (plan->index_sources > 0 && v4 && limits->trace) {
        w->index_score_stride = limits->max_positions / CSA_RATIO + 1;
        w->index_scores = take_f32(l, w->index_score_stride);
    }
    if (c->candidate_source_layer >= 0) {
        w->candidates = take_i32(l, c->candidate_topk_blocks);
        w->candidate_count = take_i32(l, 1);
    }
}

/* l->rows are those of a draft pass here. */
static void lay_mtp(struct layout *l, const struct model_plan *plan, struct workspace *w)
{
    const struct qr_config *c = &plan->config;
    int32_t hidden = c->hidden_size, all = c->hc_mult * hidden;
    w->draft_streams = w->streams;
    w->draft_streams.data = take(l, l->rows * all * (l->w8a8 ? 4 : 2));
    w->draft_h = wide(l, all);
    w->draft_n = l->w8a8 ? unwritten(all) : bf16(l, all);
    w->draft_nq = codes(l, c, all, hidden);
    w->draft_hp = wide(l, all);
    w->draft_e = bf16(l, hidden);
    w->draft_en = l->w8a8 ? unwritten(hidden) : bf16(l, hidden);
    w->draft_eq = codes(l, c, hidden, hidden);
    w->draft_ep = wide(l, hidden);
}

/* The drafter's own buffers, of the rows of a step, of a draft pass, and of its requests. */
static void lay_dspark(struct layout *l, const struct model_plan *plan, const struct model_limits *limits,
                       struct workspace *w)
{
    const struct qr_config *c = &plan->config;
    l->rows = limits->max_rows;
    w->taps_q = l->w8a8 ? w->taps : codes(l, c, w->taps.cols, w->taps.cols); /* main_proj is a bf16 matrix there */
    l->rows = limits->max_draft_rows;
    w->draft_hidden = bf16(l, c->hidden_size);
    w->draft_confidence = f32_over(take_f32(l, 1), 1);
    l->rows = limits->max_requests;
    w->markov = bf16(l, c->dspark_markov_rank);
    w->markov_bias = f32_over(take_f32(l, c->vocab_size), c->vocab_size);
    w->markov_confidence = f32_over(take_f32(l, 1), 1);
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
    struct layout l = {.base = base, .rows = limits->max_rows, .w8a8 = plan->profile == QR_PROFILE_W8A8};
    int32_t active = most_active(plan);

    memset(out, 0, sizeof *out);
    lay_streams(&l, plan, out);
    lay_attention(&l, plan, limits, out);
    lay_compressor_and_indexer(&l, plan, limits, out);
    out->expert_idx = take_i32(&l, active);
    out->expert_weight = take_f32(&l, active);
    out->routed = take_bf16(&l, (int64_t)active * c->hidden_size);
    out->shared = take_bf16(&l, c->hidden_size);
    lay_engram(&l, plan, limits->trace, out);
    if (c->n_dspark_targets > 0 && (limits->max_draft_rows > 0 || limits->trace))
        out->taps = bf16(&l, c->n_dspark_targets * c->hidden_size);

    l.rows = limits->max_draft_rows;
    if (c->drafter == QR_DRAFTER_MTP && l.rows > 0)
        lay_mtp(&l, plan, out);
    if (c->drafter == QR_DRAFTER_DSPARK && l.rows > 0)
        lay_dspark(&l, plan, limits, out);

    l.rows = limits->max_logits;
    out->final = bf16(&l, c->hidden_size);
    out->logits = take_f32(&l, c->vocab_size);
    return l.used;
}
