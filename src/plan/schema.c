#include "plan/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "plan/schema_builder.h"

void builder_prefix(struct schema_builder *b, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(b->prefix, sizeof b->prefix, format, ap);
    va_end(ap);
}

void builder_next_shard(struct schema_builder *b) { b->shard = b->schema->shards; }

static const char *full_name(struct schema_builder *b, const char *name, const char *suffix)
{
    char text[256];
    int n = snprintf(text, sizeof text, "%s%s%s", b->prefix, name, suffix);
    return arena_strndup(&b->schema->names, text, (size_t)n);
}

static void add(struct schema_builder *b, const char *name, const char *suffix, struct tensor_spec spec)
{
    struct schema *s = b->schema;
    spec.name = full_name(b, name, suffix);
    spec.optional = b->optional;
    if (b->failed || !spec.name || !array_grow(&s->tensors, &s->tensor_room, s->count, sizeof *s->tensors) ||
        !array_grow(&s->shard, &s->shard_room, s->count, sizeof *s->shard)) {
        b->failed = true;
        return;
    }
    s->tensors[s->count] = spec;
    s->shard[s->count] = b->shard;
    s->count++;
    s->shards = b->shard + 1;
}

void builder_tensor(struct schema_builder *b, const char *name, enum dtype dtype, int32_t rank, const int64_t *shape)
{
    struct tensor_spec spec = {.dtype = dtype, .rank = rank};
    memcpy(spec.shape, shape, (size_t)rank * sizeof *shape);
    add(b, name, "", spec);
}

void builder_vector(struct schema_builder *b, const char *name, enum dtype dtype, int64_t n)
{
    builder_tensor(b, name, dtype, 1, &n);
}

void builder_matrix(struct schema_builder *b, const char *name, enum dtype dtype, int64_t rows, int64_t cols)
{
    int64_t shape[2] = {rows, cols};
    builder_tensor(b, name, dtype, 2, shape);
}

void builder_fp8(struct schema_builder *b, const char *name, int64_t rows, int64_t cols, bool or_bf16)
{
    int64_t side = b->config->fp8_block;
    struct tensor_spec weight = {.dtype = DTYPE_F8_E4M3, .rank = 2, .shape = {rows, cols}, .or_bf16 = or_bf16};
    struct tensor_spec scale = {
        .dtype = DTYPE_F8_E8M0, .rank = 2, .shape = {(rows + side - 1) / side, (cols + side - 1) / side}};
    add(b, name, ".weight", weight);
    add(b, name, ".scale", scale);
}

void builder_fp4(struct schema_builder *b, const char *name, int64_t rows, int64_t cols)
{
    struct tensor_spec weight = {.dtype = DTYPE_I8, .rank = 2, .shape = {rows, cols / 2}};
    struct tensor_spec scale = {.dtype = DTYPE_F8_E8M0, .rank = 2, .shape = {rows, cols / 32}};
    add(b, name, ".weight", weight);
    add(b, name, ".scale", scale);
}

static void add_hyper_connection(struct schema_builder *b, const char *half)
{
    const struct qr_config *c = b->config;
    int64_t mixes = (int64_t)c->hc_mult * (c->hc_mult + 2); /* pre, post and the square of comb */
    char name[32];
    snprintf(name, sizeof name, "hc_%s_fn", half);
    builder_matrix(b, name, DTYPE_F32, mixes, (int64_t)c->hc_mult * c->hidden_size);
    snprintf(name, sizeof name, "hc_%s_base", half);
    builder_vector(b, name, DTYPE_F32, mixes);
    snprintf(name, sizeof name, "hc_%s_scale", half);
    builder_vector(b, name, DTYPE_F32, 3);
}

static void add_attention(struct schema_builder *b)
{
    const struct qr_config *c = b->config;
    int64_t d = c->hidden_size, heads = (int64_t)c->num_attention_heads * c->head_dim;
    int64_t low = (int64_t)c->o_groups * c->o_lora_rank;
    builder_vector(b, "attn.attn_sink", DTYPE_F32, c->num_attention_heads);
    builder_vector(b, "attn.q_norm.weight", DTYPE_BF16, c->q_lora_rank);
    builder_vector(b, "attn.kv_norm.weight", DTYPE_BF16, c->head_dim);
    builder_fp8(b, "attn.wq_a", c->q_lora_rank, d, false);
    builder_fp8(b, "attn.wq_b", heads, c->q_lora_rank, false);
    builder_fp8(b, "attn.wkv", c->head_dim, d, false);
    builder_fp8(b, "attn.wo_a", low, heads / c->o_groups, c->family == QR_FAMILY_V4);
    builder_fp8(b, "attn.wo_b", d, low, false);
}

static void add_expert(struct schema_builder *b, int32_t expert)
{
    const struct qr_config *c = b->config;
    char name[64];
    for (int w = 1; w <= 3; w++) {
        int64_t rows = w == 2 ? c->hidden_size : c->moe_intermediate_size;
        int64_t cols = w == 2 ? c->moe_intermediate_size : c->hidden_size;
        snprintf(name, sizeof name, "ffn.experts.%d.w%d", (int)expert, w);
        if (c->expert_format == QR_EXPERT_FP8)
            builder_fp8(b, name, rows, cols, false);
        else
            builder_fp4(b, name, rows, cols);
    }
}

void builder_layer(struct schema_builder *b, int32_t experts)
{
    const struct qr_config *c = b->config;
    builder_vector(b, "attn_norm.weight", DTYPE_BF16, c->hidden_size);
    builder_vector(b, "ffn_norm.weight", DTYPE_BF16, c->hidden_size);
    add_hyper_connection(b, "attn");
    add_hyper_connection(b, "ffn");
    add_attention(b);
    builder_matrix(b, "ffn.gate.weight", DTYPE_BF16, experts, c->hidden_size);
    builder_fp8(b, "ffn.shared_experts.w1", c->moe_intermediate_size, c->hidden_size, false);
    builder_fp8(b, "ffn.shared_experts.w2", c->hidden_size, c->moe_intermediate_size, false);
    builder_fp8(b, "ffn.shared_experts.w3", c->moe_intermediate_size, c->hidden_size, false);
    for (int32_t e = 0; e < experts; e++)
        add_expert(b, e);
}

qr_status schema_make(const struct qr_config *config, struct schema **out, qr_error *err)
{
    struct model_plan plan;
    qr_status st = plan_make(config, config_profile(config, NULL), &plan, err);
    if (st != QR_OK)
        return st;
    struct schema *s = qr_calloc(1, sizeof *s);
    struct schema_builder b = {.schema = s, .config = config};
    if (!s)
        return qr_fail(err, QR_NO_MEMORY, "the list of tensors");
    arena_init(&s->names, 256 << 10);
    if (config->stored_w8a8)
        schema_w8a8(&b, &plan);
    else if (config->family == QR_FAMILY_V41)
        schema_v41(&b, &plan);
    else
        schema_v4(&b, &plan);
    if (b.failed) {
        schema_free(s);
        return qr_fail(err, QR_NO_MEMORY, "the list of tensors");
    }
    *out = s;
    return QR_OK;
}

void schema_free(struct schema *schema)
{
    if (!schema)
        return;
    arena_free(&schema->names);
    qr_free(schema->tensors);
    qr_free(schema->shard);
    qr_free(schema);
}

int64_t schema_count(const struct schema *schema) { return (int64_t)schema->count; }

const struct tensor_spec *schema_tensors(const struct schema *schema) { return schema->tensors; }

int32_t schema_shard(const struct schema *schema, int64_t index) { return schema->shard[index]; }

int32_t schema_shards(const struct schema *schema) { return schema->shards; }

int64_t schema_tensor_bytes(const struct tensor_spec *spec)
{
    int64_t n = tensor_elements(spec->rank, spec->shape);
    return n < 0 ? 0 : n * (int64_t)dtype_size(spec->dtype);
}

qr_status schema_total(const struct qr_config *config, int64_t *bytes, qr_error *err)
{
    struct schema *schema;
    qr_status st = schema_make(config, &schema, err);
    if (st != QR_OK)
        return st;
    *bytes = 0;
    for (size_t i = 0; i < schema->count; i++)
        *bytes += schema_tensor_bytes(&schema->tensors[i]);
    schema_free(schema);
    return QR_OK;
}
