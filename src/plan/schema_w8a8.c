/* schema_w8a8.c: the INT8 deployment folder (v4-model.md 7.1): tensors of one kind stacked over the layers that have
 * it, INT8 matrices with one f32 scale an output channel. */
#include <stdio.h>
#include <string.h>

#include "plan/schema_builder.h"

/* How many layers share a stack; 0: the tensor has no stack axis. */
struct stack {
    struct schema_builder *b;
    const char *prefix; /* "" or "mtp_" */
    int32_t layers;
};

static void add(const struct stack *s, const char *name, enum dtype dtype, int32_t rank, const int64_t *dims)
{
    int64_t shape[4];
    int32_t axis = s->layers > 0;
    if (axis)
        shape[0] = s->layers;
    memcpy(shape + axis, dims, (size_t)rank * sizeof *dims);
    builder_prefix(s->b, "%s", s->prefix);
    builder_tensor(s->b, name, dtype, rank + axis, shape);
}

static void vector(const struct stack *s, const char *name, enum dtype dtype, int64_t n)
{
    add(s, name, dtype, 1, &n);
}

static void matrix(const struct stack *s, const char *name, enum dtype dtype, int64_t rows, int64_t cols)
{
    int64_t dims[2] = {rows, cols};
    add(s, name, dtype, 2, dims);
}

/* An INT8 matrix of any orientation and the scales of its `out` output channels. */
static void int8_matrix(const struct stack *s, const char *name, int64_t rows, int64_t cols, int64_t out)
{
    char scale[64];
    snprintf(scale, sizeof scale, "%s_scale", name);
    matrix(s, name, DTYPE_I8, rows, cols);
    vector(s, scale, DTYPE_F32, out);
}

static void routed_matrix(const struct stack *s, const char *name, int64_t experts, int64_t rows, int64_t cols)
{
    char scale[64];
    int64_t dims[3] = {experts, rows, cols};
    snprintf(scale, sizeof scale, "%s_scale", name);
    add(s, name, DTYPE_I8, 3, dims);
    matrix(s, scale, DTYPE_F32, experts, rows);
}

static void hyper_connection(const struct stack *s, const char *half, const struct qr_config *c)
{
    int64_t mixes = (int64_t)c->hc_mult * (c->hc_mult + 2);
    char name[32];
    snprintf(name, sizeof name, "hc_%s_fn", half);
    matrix(s, name, DTYPE_F32, mixes, (int64_t)c->hc_mult * c->hidden_size);
    snprintf(name, sizeof name, "hc_%s_scale", half);
    vector(s, name, DTYPE_F32, 3);
    snprintf(name, sizeof name, "hc_%s_base", half);
    vector(s, name, DTYPE_F32, mixes);
}

static void attention(const struct stack *s, const struct qr_config *c)
{
    int64_t d = c->hidden_size, heads = (int64_t)c->num_attention_heads * c->head_dim;
    int64_t group[3] = {c->o_groups, c->o_lora_rank, heads / c->o_groups};
    vector(s, "attn_norm_w", DTYPE_BF16, d);
    matrix(s, "wq_a", DTYPE_BF16, d, c->q_lora_rank);
    int8_matrix(s, "wq_b", c->q_lora_rank, heads, heads);
    matrix(s, "wkv", DTYPE_BF16, d, c->head_dim);
    vector(s, "gamma_cq", DTYPE_BF16, c->q_lora_rank);
    vector(s, "gamma_ckv", DTYPE_BF16, c->head_dim);
    vector(s, "attn_sink", DTYPE_F32, c->num_attention_heads);
    add(s, "wo_a", DTYPE_BF16, 3, group);
    int8_matrix(s, "wo_b", d, (int64_t)c->o_groups * c->o_lora_rank, d);
}

static void experts(const struct stack *s, const struct qr_config *c)
{
    int64_t d = c->hidden_size, inner = c->moe_intermediate_size, n = c->n_routed_experts;
    vector(s, "norm_w", DTYPE_BF16, d);
    matrix(s, "gate_w", DTYPE_F32, n, d);
    vector(s, "gate_bias", DTYPE_F32, n);
    routed_matrix(s, "routed_w1", n, inner, d);
    routed_matrix(s, "routed_w3", n, inner, d);
    routed_matrix(s, "routed_w2", n, d, inner);
    int8_matrix(s, "shared_w1", inner, d, inner);
    int8_matrix(s, "shared_w3", inner, d, inner);
    int8_matrix(s, "shared_w2", d, inner, d);
}

static void layers(const struct stack *s, const struct qr_config *c)
{
    hyper_connection(s, "attn", c);
    hyper_connection(s, "ffn", c);
    attention(s, c);
    experts(s, c);
}

static void head_connection(const struct stack *s, const struct qr_config *c)
{
    matrix(s, "hc_head_fn", DTYPE_F32, c->hc_mult, (int64_t)c->hc_mult * c->hidden_size);
    vector(s, "hc_head_scale", DTYPE_F32, 1);
    vector(s, "hc_head_base", DTYPE_F32, c->hc_mult);
    vector(s, "final_norm_w", DTYPE_BF16, c->hidden_size);
}

/* `kind` is "hca_cmp", "csa_cmp" or "csa_inner". */
static void compressor(const struct stack *s, const char *kind, int64_t ratio, int64_t width, int64_t row, int64_t d)
{
    char name[32];
    snprintf(name, sizeof name, "%s_wkv", kind);
    matrix(s, name, DTYPE_BF16, width, d);
    snprintf(name, sizeof name, "%s_wgate", kind);
    matrix(s, name, DTYPE_BF16, width, d);
    snprintf(name, sizeof name, "%s_ape", kind);
    matrix(s, name, DTYPE_F32, ratio, width);
    snprintf(name, sizeof name, "%s_norm_w", kind);
    vector(s, name, DTYPE_BF16, row);
}

/* Layers that compress, by kind; HCA layers of one model share one ratio. */
static void compressors(struct schema_builder *b, const struct model_plan *plan)
{
    const struct qr_config *c = b->config;
    struct stack csa = {b, "", 0}, hca = {b, "", 0};
    int64_t plain_ratio = 0, d = c->hidden_size, n = c->index_head_dim;
    for (int32_t i = 0; i < plan->layers; i++) {
        csa.layers += plan->layer[i].attend == ATTEND_CSA;
        hca.layers += plan->layer[i].attend == ATTEND_HCA;
        if (plan->layer[i].attend == ATTEND_HCA)
            plain_ratio = plan->layer[i].ratio;
    }
    if (hca.layers > 0)
        compressor(&hca, "hca_cmp", plain_ratio, c->head_dim, c->head_dim, d);
    if (csa.layers == 0)
        return;
    compressor(&csa, "csa_cmp", 4, 2 * (int64_t)c->head_dim, c->head_dim, d);
    int8_matrix(&csa, "csa_idx_wq_b", c->q_lora_rank, c->index_n_heads * n, c->index_n_heads * n);
    matrix(&csa, "csa_weights_proj", DTYPE_BF16, d, c->index_n_heads);
    matrix(&csa, "csa_hadamard_idx", DTYPE_BF16, n, n);
    compressor(&csa, "csa_inner", 4, 2 * n, n, d);
}

static void mtp(struct schema_builder *b)
{
    const struct qr_config *c = b->config;
    struct stack stacked = {b, "mtp_", 1}, single = {b, "mtp_", 0};
    int64_t d = c->hidden_size;
    layers(&stacked, c);
    vector(&single, "enorm_w", DTYPE_F32, d);
    vector(&single, "hnorm_w", DTYPE_F32, d);
    for (int i = 0; i < 2; i++) {
        char name[32];
        char side = "eh"[i];
        snprintf(name, sizeof name, "%c_proj_w", side);
        matrix(&single, name, DTYPE_I8, d, d);
        snprintf(name, sizeof name, "%c_proj_scale", side);
        vector(&single, name, DTYPE_F32, d);
        snprintf(name, sizeof name, "%c_proj_smooth", side);
        vector(&single, name, DTYPE_F32, d);
    }
    head_connection(&single, c);
}

/* The stages of a DSpark drafter as window layers, and what the first and the last have beside (speculation.md 2.3, 2.7). */
static void dspark(struct schema_builder *b, int32_t stages)
{
    const struct qr_config *c = b->config;
    struct stack stacked = {b, "mtp_", stages}, single = {b, "mtp_", 0};
    const int64_t d = c->hidden_size, rank = c->dspark_markov_rank;
    layers(&stacked, c);
    matrix(&single, "main_proj_w", DTYPE_BF16, d, c->n_dspark_targets * d);
    vector(&single, "main_norm_w", DTYPE_BF16, d);
    matrix(&single, "markov_w1", DTYPE_BF16, c->vocab_size, rank);
    matrix(&single, "markov_w2", DTYPE_BF16, c->vocab_size, rank);
    matrix(&single, "confidence_w", DTYPE_BF16, 1, d + rank);
    head_connection(&single, c);
}

/* How many positions they cover is the writer's choice; a reader may compute them. */
static void rope_tables(struct schema_builder *b)
{
    int64_t shape[3] = {2, -1, b->config->rope_head_dim};
    builder_prefix(b, "%s", "");
    b->optional = true;
    builder_tensor(b, "freqs_cos", DTYPE_BF16, 3, shape);
    builder_tensor(b, "freqs_sin", DTYPE_BF16, 3, shape);
}

void schema_w8a8(struct schema_builder *b, const struct model_plan *plan)
{
    const struct qr_config *c = b->config;
    struct stack all = {b, "", plan->layers}, single = {b, "", 0};
    builder_next_shard(b);
    matrix(&single, "embed_weight", DTYPE_BF16, c->vocab_size, c->hidden_size);
    matrix(&single, "lm_head_weight", DTYPE_BF16, c->vocab_size, c->hidden_size);
    layers(&all, c);
    matrix(&all, "tid2eid", DTYPE_I32, c->vocab_size, c->n_experts_per_tok);
    compressors(b, plan);
    head_connection(&single, c);
    if (c->drafter == QR_DRAFTER_MTP)
        mtp(b);
    if (c->drafter == QR_DRAFTER_DSPARK)
        dspark(b, plan->draft_layers);
    rope_tables(b);
}
