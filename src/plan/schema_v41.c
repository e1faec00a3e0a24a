/* schema_v41.c: the tensors of v41-model.md 2.3, in the shards of 2.1. */
#include <stdio.h>

#include "plan/schema_builder.h"

static void add_linear(struct schema_builder *b, const char *name, int64_t rows, int64_t cols, bool bias)
{
    char text[64];
    snprintf(text, sizeof text, "%s.weight", name);
    builder_matrix(b, text, DTYPE_BF16, rows, cols);
    snprintf(text, sizeof text, "%s.bias", name);
    if (bias)
        builder_vector(b, text, DTYPE_BF16, rows);
}

static void add_vision_block(struct schema_builder *b, int32_t block)
{
    int64_t d = b->config->vision.hidden_size, inner = b->config->vision.intermediate_size;
    builder_prefix(b, "vision.blocks.%d.", (int)block);
    builder_vector(b, "norm1.weight", DTYPE_BF16, d);
    builder_vector(b, "norm2.weight", DTYPE_BF16, d);
    add_linear(b, "attn.wqkv", 3 * d, d, true);
    add_linear(b, "attn.wo", d, d, true);
    add_linear(b, "mlp.w1", 2 * inner, d, false);
    add_linear(b, "mlp.w2", d, inner, false);
}

static void add_vision(struct schema_builder *b)
{
    const struct qr_config *c = b->config;
    int64_t d = c->vision.hidden_size, patch = c->vision.patch_size, side = c->vision.downsample_ratio;
    builder_next_shard(b);
    builder_prefix(b, "%s", "");
    add_linear(b, "vision.patch_embed.proj", d, 3 * patch * patch, true);
    for (int32_t i = 0; i < c->vision.num_hidden_layers; i++)
        add_vision_block(b, i);
    builder_prefix(b, "%s", "");
    builder_vector(b, "vision.norm.weight", DTYPE_BF16, d);
    add_linear(b, "aligner.w1", c->hidden_size, d * side * side, true);
    add_linear(b, "aligner.w2", c->hidden_size, c->hidden_size, true);
}

static void add_embedding(struct schema_builder *b)
{
    const struct qr_config *c = b->config;
    builder_next_shard(b);
    builder_prefix(b, "%s", "");
    builder_matrix(b, "embed.weight", DTYPE_BF16, c->vocab_size, c->hidden_size);
    if (!c->has_vision)
        return;
    builder_vector(b, "image_start", DTYPE_BF16, c->hidden_size);
    builder_vector(b, "image_end", DTYPE_BF16, c->hidden_size);
    builder_vector(b, "image_newline", DTYPE_BF16, c->hidden_size);
}

/* A layer of the backbone or a draft stage; both route with two biases, for text and for image tokens. */
static void add_block(struct schema_builder *b, int32_t experts)
{
    builder_layer(b, experts);
    builder_vector(b, "ffn.gate.bias", DTYPE_F32, experts);
    builder_vector(b, "ffn.gate.bias_vl", DTYPE_F32, experts);
}

static void add_compressor(struct schema_builder *b, const struct layer_plan *layer)
{
    const struct qr_config *c = b->config;
    builder_matrix(b, "attn.compressor.wkv.weight", DTYPE_BF16, c->head_dim, c->hidden_size);
    if (layer->compressor == COMPRESSOR_PAIR)
        builder_matrix(b, "attn.compressor.wgate.weight", DTYPE_BF16, c->head_dim, c->hidden_size);
    builder_vector(b, "attn.compressor.norm.weight", DTYPE_BF16, c->head_dim);
    builder_matrix(b, "attn.indexer.wk.weight", DTYPE_BF16, c->index_head_dim, c->head_dim);
    builder_vector(b, "attn.indexer.k_norm.weight", DTYPE_BF16, c->index_head_dim);
}

static void add_indexer(struct schema_builder *b)
{
    const struct qr_config *c = b->config;
    builder_fp8(b, "attn.indexer.wq_b", (int64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank, false);
    builder_matrix(b, "attn.indexer.weights_proj.weight", DTYPE_BF16, c->index_n_heads, c->hidden_size);
}

static void add_layer(struct schema_builder *b, int32_t index, const struct layer_plan *layer)
{
    builder_next_shard(b);
    builder_prefix(b, "layers.%d.", (int)index);
    add_block(b, layer->n_experts);
    if (layer->owns_rows)
        add_compressor(b, layer);
    if (layer->owns_index)
        add_indexer(b);
}

static void add_stage(struct schema_builder *b, int32_t stage)
{
    const struct qr_config *c = b->config;
    int64_t d = c->hidden_size, rank = c->dspark_markov_rank;
    builder_next_shard(b);
    builder_prefix(b, "mtp.%d.", (int)stage);
    add_block(b, c->dspark_n_routed_experts);
    if (stage == 0) {
        builder_fp8(b, "main_proj", d, c->n_dspark_targets * d, false);
        builder_vector(b, "main_norm.weight", DTYPE_BF16, d);
    }
    if (stage == c->num_draft_layers - 1) {
        builder_vector(b, "norm.weight", DTYPE_BF16, d);
        builder_matrix(b, "markov_head.embed.weight", DTYPE_BF16, c->vocab_size, rank);
        builder_matrix(b, "markov_head.head.weight", DTYPE_BF16, c->vocab_size, rank);
        builder_matrix(b, "confidence_head.proj.weight", DTYPE_BF16, 1, d + rank);
    }
}

/* Keys of all streams and one value, from the rows of every n-gram size and head. */
static void add_engram(struct schema_builder *b, int32_t table)
{
    const struct qr_config *c = b->config;
    int64_t rows = c->engram_num_embeddings[table], width = c->engram_head_dim, d = c->hidden_size;
    int64_t columns = (int64_t)(c->engram_max_ngram - 1) * c->engram_n_heads;
    builder_next_shard(b);
    builder_prefix(b, "layers.%d.engram.", (int)c->engram_layers[table]);
    builder_matrix(b, "embed.weight", DTYPE_F8_E4M3, rows, width);
    builder_matrix(b, "embed.scale", DTYPE_F8_E8M0, rows, width / 32);
    builder_fp8(b, "wkv", (c->hc_mult + 1) * d, columns * width, false);
    builder_matrix(b, "q_weight", DTYPE_BF16, c->hc_mult, d);
    builder_matrix(b, "k_weight", DTYPE_BF16, c->hc_mult, d);
}

void schema_v41(struct schema_builder *b, const struct model_plan *plan)
{
    const struct qr_config *c = b->config;
    if (c->has_vision)
        add_vision(b);
    add_embedding(b);
    for (int32_t i = 0; i < plan->layers; i++)
        add_layer(b, i, &plan->layer[i]);
    builder_next_shard(b);
    builder_prefix(b, "%s", "");
    builder_matrix(b, "head.weight", DTYPE_BF16, c->vocab_size, c->hidden_size);
    builder_vector(b, "norm.weight", DTYPE_BF16, c->hidden_size);
    for (int32_t i = 0; i < plan->draft_layers; i++)
        add_stage(b, i);
    for (int32_t i = 0; i < c->n_engram; i++)
        add_engram(b, i);
}
