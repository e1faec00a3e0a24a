/* config_v4.c: DeepSeek-V4: Flash, Pro, Flash-Base and the DSpark releases (v4-model.md 1). */
#include "checkpoint/config_reader.h"

#include <string.h>

/* The official quantization, or the INT8 folder that `quire quantize --w8a8` writes (7.1). An inference-style file has
 * flat keys instead of the object. */
static void read_quantization(struct config_reader *r, struct qr_config *c)
{
    const struct json *q = json_get(r->root, "quantization_config");
    const struct json *block = json_get(q, "weight_block_size");
    c->fp8_block = 128;
    if (json_equals(json_get(q, "quant_method"), "w8a8-int8")) {
        c->stored_w8a8 = true;
        return;
    }
    if (!q && json_equals(json_get(r->root, "dtype"), "fp8")) {
        config_must_be_text(r, json_get(r->root, "scale_fmt"), NULL, "scale_fmt", "ue8m0", true);
        return;
    }
    if (config_missing(r, q, NULL, "quantization_config"))
        return;
    config_must_be_text(r, json_get(q, "quant_method"), NULL, "quantization_config.quant_method", "fp8", true);
    config_must_be_text(r, json_get(q, "fmt"), NULL, "quantization_config.fmt", "e4m3", false);
    config_must_be_text(r, json_get(q, "activation_scheme"), NULL, "quantization_config.activation_scheme", "dynamic",
                        false);
    config_must_be_text(r, json_get(q, "scale_fmt"), NULL, "quantization_config.scale_fmt", "ue8m0", true);
    if (!block || block->kind != JSON_ARRAY || block->count != 2)
        config_problem(r, NULL, "quantization_config.weight_block_size is no list of two, wanted [128, 128]");
    for (size_t i = 0; block && block->kind == JSON_ARRAY && block->count == 2 && i < 2; i++)
        config_must_be_int(r, json_at(block, i), NULL, "quantization_config.weight_block_size", 128, true);
}

static void read_expert_format(struct config_reader *r, struct qr_config *c)
{
    char room[64];
    const struct json *v = config_find(r, "expert_dtype", NULL);
    c->expert_format = json_equals(v, "fp8") ? QR_EXPERT_FP8 : QR_EXPERT_FP4;
    c->expert_format_stated = v != NULL;
    if (v && !json_equals(v, "fp8") && !json_equals(v, "fp4"))
        config_problem(r, NULL, "expert_dtype is %s, wanted \"fp4\" or \"fp8\"", config_shown(v, room));
}

/* Any dspark_* field marks the releases whose mtp.* are the stages of a block drafter (1.2). */
static bool has_dspark(const struct json *root)
{
    for (const struct json *m = root->child; m; m = m->next)
        if (m->key_length > 7 && !memcmp(m->key, "dspark_", 7))
            return true;
    return false;
}

static void read_schedule(struct config_reader *r, struct qr_config *c)
{
    int32_t layers = c->num_hidden_layers, predicted = 0, n = 0;
    bool dspark = has_dspark(r->root);
    config_int(r, "num_nextn_predict_layers", "n_mtp_layers", 0, QR_MAX_LAYERS - layers, &predicted);
    config_int(r, "num_hash_layers", "n_hash_layers", 0, layers > 0 ? layers : QR_MAX_LAYERS, &c->num_hash_layers);
    if (!config_ints(r, "compress_ratios", NULL, 0, 1 << 16, QR_MAX_LAYERS, c->compress_ratios, &n))
        return;
    /* The DSpark releases state one predicted layer and store three stages: the list has an entry for each. */
    c->num_draft_layers = dspark ? n - layers : predicted;
    c->drafter = dspark ? QR_DRAFTER_DSPARK : predicted > 0 ? QR_DRAFTER_MTP : QR_DRAFTER_NONE;
    if (dspark ? c->num_draft_layers < 1 : n != layers + predicted)
        config_rule(r, NULL,
                    "compress_ratios has %d entries, wanted num_hidden_layers %d plus %s %d", (int)n, (int)layers,
                    dspark ? "one for each draft stage, at least" : "num_nextn_predict_layers",
                    dspark ? 1 : (int)predicted);
    else if (!dspark && predicted > 1)
        config_problem(r, NULL, "num_nextn_predict_layers is %d, wanted 0 or 1", (int)predicted);
    for (int32_t i = layers; i < n; i++)
        if (c->compress_ratios[i] != 0)
            config_rule(r, NULL, "compress_ratios[%d] of a draft layer is %d, wanted 0", (int)i,
                        (int)c->compress_ratios[i]);
}

static void check_multiple(struct config_reader *r, const char *what, int64_t value, int64_t of)
{
    if (value % of)
        config_problem(r, NULL, "%s is %lld, wanted a multiple of %lld", what, (long long)value, (long long)of);
}

/* v4-model.md 1.4. */
static void check_sizes(struct config_reader *r, const struct qr_config *c)
{
    int32_t n = c->index_head_dim;
    check_multiple(r, "hidden_size", c->hidden_size, 128);
    check_multiple(r, "q_lora_rank", c->q_lora_rank, 128);
    check_multiple(r, "head_dim", c->head_dim, 128);
    check_multiple(r, "o_groups * o_lora_rank", (int64_t)c->o_groups * c->o_lora_rank, 128);
    check_multiple(r, "moe_intermediate_size", c->moe_intermediate_size, 128);
    check_multiple(r, "index_n_heads * index_head_dim", (int64_t)c->index_n_heads * n, 128);
    check_multiple(r, "head_dim - qk_rope_head_dim", (int64_t)c->head_dim - c->rope_head_dim, 64);
    if (n % 32 || (n & (n - 1)))
        config_problem(r, NULL, "index_head_dim is %d, wanted a power of two of at least 32", (int)n);
    if (c->rope_head_dim > n)
        config_problem(r, NULL, "qk_rope_head_dim is %d, wanted at most index_head_dim %d", (int)c->rope_head_dim,
                       (int)n);
}

void config_read_v4(struct config_reader *r, struct qr_config *c)
{
    const struct json *dtype = json_get(r->root, "torch_dtype");
    bool normalised = true;
    c->family = QR_FAMILY_V4;
    config_identity(r, "DeepseekV4ForCausalLM", "deepseek_v4");
    if (json_get(r->root, "kv_source_layer_ids") || json_get(r->root, "kv_source_layers"))
        config_problem(r, "E01", "kv_source_layer_ids belongs to DeepSeek-V4.1, wanted a DeepSeek-V4 file");
    config_reader_scope(r, r->root);
    config_must_be_text(r, dtype, NULL, "torch_dtype", "bfloat16", false);
    read_quantization(r, c);
    read_expert_format(r, c);
    config_common(r, c);
    config_bool_or(r, "norm_topk_prob", NULL, &normalised);
    if (!normalised)
        config_problem(r, NULL, "norm_topk_prob is false, wanted true");
    c->norm_topk_prob = true;
    config_int(r, "index_n_heads", NULL, 1, 1 << 16, &c->index_n_heads);
    config_int(r, "index_head_dim", NULL, 2, 1 << 16, &c->index_head_dim);
    config_int(r, "index_topk", NULL, 1, 1 << 20, &c->index_topk);
    read_schedule(r, c);
    if (c->drafter == QR_DRAFTER_DSPARK) {
        config_dspark(r, c);
        c->dspark_n_routed_experts = c->n_routed_experts;
        c->dspark_n_experts_per_tok = c->n_experts_per_tok;
    }
    if (!r->problems)
        check_sizes(r, c);
}
