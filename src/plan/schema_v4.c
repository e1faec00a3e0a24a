/* schema_v4.c: the tensors of v4-model.md 2.1: Flash, Pro, Flash-Base, and the releases with a DSpark drafter
 * (speculation.md 2.10). */
#include "plan/schema_builder.h"

static void add_head_connection(struct schema_builder *b)
{
    const struct qr_config *c = b->config;
    builder_matrix(b, "hc_head_fn", DTYPE_F32, c->hc_mult, (int64_t)c->hc_mult * c->hidden_size);
    builder_vector(b, "hc_head_base", DTYPE_F32, c->hc_mult);
    builder_vector(b, "hc_head_scale", DTYPE_F32, 1);
}

static void add_block(struct schema_builder *b, const struct layer_plan *layer)
{
    const struct qr_config *c = b->config;
    builder_layer(b, layer->n_experts);
    if (layer->router == ROUTER_HASH)
        builder_matrix(b, "ffn.gate.tid2eid", DTYPE_I64, c->vocab_size, layer->n_active);
    else
        builder_vector(b, "ffn.gate.bias", DTYPE_F32, layer->n_experts);
}

static void add_compressor(struct schema_builder *b, const struct layer_plan *layer)
{
    const struct qr_config *c = b->config;
    int64_t width = (layer->compressor == COMPRESSOR_OVERLAP ? 2 : 1) * (int64_t)c->head_dim;
    builder_matrix(b, "attn.compressor.wkv.weight", DTYPE_BF16, width, c->hidden_size);
    builder_matrix(b, "attn.compressor.wgate.weight", DTYPE_BF16, width, c->hidden_size);
    builder_matrix(b, "attn.compressor.ape", DTYPE_F32, layer->ratio, width);
    builder_vector(b, "attn.compressor.norm.weight", DTYPE_BF16, c->head_dim);
}

static void add_indexer(struct schema_builder *b, const struct layer_plan *layer)
{
    const struct qr_config *c = b->config;
    int64_t width = 2 * (int64_t)c->index_head_dim;
    builder_fp8(b, "attn.indexer.wq_b", (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank, false);
    builder_matrix(b, "attn.indexer.weights_proj.weight", DTYPE_BF16, c->index_n_heads, c->hidden_size);
    builder_matrix(b, "attn.indexer.compressor.wkv.weight", DTYPE_BF16, width, c->hidden_size);
    builder_matrix(b, "attn.indexer.compressor.wgate.weight", DTYPE_BF16, width, c->hidden_size);
    builder_matrix(b, "attn.indexer.compressor.ape", DTYPE_F32, layer->ratio, width);
    builder_vector(b, "attn.indexer.compressor.norm.weight", DTYPE_BF16, c->index_head_dim);
}

static void add_layer(struct schema_builder *b, int32_t index, const struct layer_plan *layer)
{
    builder_next_shard(b);
    builder_prefix(b, "layers.%d.", (int)index);
    add_block(b, layer);
    if (layer->owns_rows)
        add_compressor(b, layer);
    if (layer->owns_index)
        add_indexer(b, layer);
}

/* The serial MTP layer (6.3). */
static void add_mtp(struct schema_builder *b)
{
    int64_t d = b->config->hidden_size;
    builder_fp8(b, "e_proj", d, d, true);
    builder_fp8(b, "h_proj", d, d, true);
    builder_vector(b, "enorm.weight", DTYPE_BF16, d);
    builder_vector(b, "hnorm.weight", DTYPE_BF16, d);
    builder_vector(b, "norm.weight", DTYPE_BF16, d);
    add_head_connection(b);
}

static void add_dspark(struct schema_builder *b, int32_t stage)
{
    const struct qr_config *c = b->config;
    int64_t d = c->hidden_size, rank = c->dspark_markov_rank;
    if (stage == 0) {
        builder_fp8(b, "main_proj", d, c->n_dspark_targets * d, true);
        builder_vector(b, "main_norm.weight", DTYPE_BF16, d);
    }
    if (stage == c->num_draft_layers - 1) {
        builder_vector(b, "norm.weight", DTYPE_BF16, d);
        add_head_connection(b);
        builder_matrix(b, "markov_head.markov_w1.weight", DTYPE_BF16, c->vocab_size, rank);
        builder_matrix(b, "markov_head.markov_w2.weight", DTYPE_BF16, c->vocab_size, rank);
        builder_matrix(b, "confidence_head.proj.weight", DTYPE_BF16, 1, d + rank);
    }
}

void schema_v4(struct schema_builder *b, const struct model_plan *plan)
{
    const struct qr_config *c = b->config;
    builder_next_shard(b);
    builder_matrix(b, "embed.weight", DTYPE_BF16, c->vocab_size, c->hidden_size);
    for (int32_t i = 0; i < plan->layers; i++)
        add_layer(b, i, &plan->layer[i]);
    builder_next_shard(b);
    builder_prefix(b, "%s", "");
    builder_matrix(b, "head.weight", DTYPE_BF16, c->vocab_size, c->hidden_size);
    builder_vector(b, "norm.weight", DTYPE_BF16, c->hidden_size);
    add_head_connection(b);
    for (int32_t i = 0; i < plan->draft_layers; i++) {
        builder_next_shard(b);
        builder_prefix(b, "mtp.%d.", (int)i);
        add_block(b, &plan->layer[plan->layers + i]);
        if (c->drafter == QR_DRAFTER_MTP)
            add_mtp(b);
        else
            add_dspark(b, i);
    }
}
