/* config_v41.c: DeepSeek-V4.1 (v41-model.md 1, 13.2). */
#include "checkpoint/config_reader.h"
#include "checkpoint/engram_hash.h"

#include <limits.h>

/* A row of a list of layers that must rise strictly. */
static void check_ascending(struct config_reader *r, const char *id, const char *key, const int32_t *ids, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        if (ids[i] <= ids[i - 1]) {
            config_rule(r, id, "%s is not strictly ascending: %d stands before %d", key, (int)ids[i - 1],
                        (int)ids[i]);
            return;
        }
}

static bool contains(const int32_t *ids, int32_t n, int32_t wanted)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == wanted)
            return true;
    return false;
}

/* The largest source at or before `layer`, or -1. */
static int32_t owner_at(const int32_t *sources, int32_t n, int32_t layer)
{
    int32_t owner = -1;
    for (int32_t i = 0; i < n; i++)
        if (sources[i] <= layer && sources[i] > owner)
            owner = sources[i];
    return owner;
}

static void check_multiple(struct config_reader *r, const char *what, int64_t value, int64_t of)
{
    if (value % of)
        config_rule(r, NULL, "%s is %lld, wanted a multiple of %lld", what, (long long)value, (long long)of);
}

static void read_quantization(struct config_reader *r, struct qr_config *c)
{
    const struct json *q = json_get(r->root, "quantization_config");
    const struct json *block = json_get(q, "weight_block_size");
    c->fp8_block = 32;
    c->expert_format = QR_EXPERT_FP4;
    c->expert_format_stated = true;
    if (config_missing(r, q, "E33", "quantization_config"))
        return;
    config_must_be_text(r, json_get(q, "quant_method"), "E33", "quantization_config.quant_method", "fp8", true);
    config_must_be_text(r, json_get(q, "activation_scheme"), "E33", "quantization_config.activation_scheme", "dynamic",
                        true);
    config_must_be_text(r, json_get(q, "scale_fmt"), "E33", "quantization_config.scale_fmt", "ue8m0", true);
    config_must_be_text(r, json_get(q, "expert_dtype"), "E33", "quantization_config.expert_dtype", "fp4", true);
    if (!block || block->kind != JSON_ARRAY || block->count != 2)
        config_problem(r, "E33", "quantization_config.weight_block_size is no list of two, wanted [32, 32]");
    for (size_t i = 0; block && block->kind == JSON_ARRAY && block->count == 2 && i < 2; i++)
        config_must_be_int(r, json_at(block, i), "E33", "quantization_config.weight_block_size", 32, true);
}

static void read_topology(struct config_reader *r, struct qr_config *c)
{
    int32_t layers = c->num_hidden_layers, n = 0;
    int64_t last = layers > 0 ? layers - 1 : QR_MAX_LAYERS - 1;
    config_int(r, "num_nextn_predict_layers", "n_mtp_layers", 0, QR_MAX_LAYERS - layers, &c->num_draft_layers);
    if (config_ints(r, "compress_ratios", NULL, 0, 2, QR_MAX_LAYERS, c->compress_ratios, &n) &&
        n != layers + c->num_draft_layers)
        config_rule(r, NULL,
                    "compress_ratios has %d entries, wanted num_hidden_layers %d plus "
                    "num_nextn_predict_layers %d",
                    (int)n, (int)layers, (int)c->num_draft_layers);
    config_ints(r, "kv_source_layer_ids", "kv_source_layers", 0, last, QR_MAX_LAYERS, c->kv_source_layers,
                &c->n_kv_sources);
    config_ints(r, "index_source_layer_ids", "index_source_layers", 0, last, QR_MAX_LAYERS, c->index_source_layers,
                &c->n_index_sources);
    config_int(r, "index_n_heads", NULL, 1, 1 << 16, &c->index_n_heads);
    config_int(r, "index_head_dim", NULL, 2, 1 << 16, &c->index_head_dim);
    config_int(r, "index_topk", NULL, 1, 1 << 20, &c->index_topk);
    config_int(r, "candidate_source_layer_id", "candidate_source_layer", -1, last, &c->candidate_source_layer);
    if (c->candidate_source_layer < 0) /* then the pool's sizes are not looked at (1.2) */
        return;
    config_int(r, "candidate_topk_blocks", NULL, 1, 1 << 24, &c->candidate_topk_blocks);
    config_int(r, "candidate_block_size", NULL, 1, 1 << 16, &c->candidate_block_size);
}

/* v41-model.md 1.4 and 13.2, runtime.md 0.1: who reads whose rows must have one answer. */
static void check_layer(struct config_reader *r, const struct qr_config *c, int32_t layer)
{
    int32_t ratio = c->compress_ratios[layer];
    if (ratio == 0)
        return;
    int32_t kv = owner_at(c->kv_source_layers, c->n_kv_sources, layer);
    int32_t index = owner_at(c->index_source_layers, c->n_index_sources, layer);
    if (kv < 0) {
        config_problem(r, "E28", "layer %d has ratio %d but no KV source at or before it", (int)layer, (int)ratio);
        return;
    }
    if (c->compress_ratios[kv] != ratio)
        config_problem(r, "E28", "layer %d has ratio %d, its KV source %d has %d", (int)layer, (int)ratio, (int)kv,
                       (int)c->compress_ratios[kv]);
    if (index < kv)
        config_problem(r, "E28", "layer %d takes its selection from layer %d, which precedes its KV source %d",
                       (int)layer, (int)index, (int)kv);
    if (c->candidate_source_layer >= 0 && layer >= c->candidate_source_layer &&
        kv != owner_at(c->kv_source_layers, c->n_kv_sources, c->candidate_source_layer))
        config_problem(r, "E28", "layer %d reads the rows of layer %d, wanted those of the candidate source %d",
                       (int)layer, (int)kv, (int)c->candidate_source_layer);
}

static void check_topology(struct config_reader *r, const struct qr_config *c)
{
    check_ascending(r, "E28", "kv_source_layer_ids", c->kv_source_layers, c->n_kv_sources);
    check_ascending(r, "E28", "index_source_layer_ids", c->index_source_layers, c->n_index_sources);
    for (int32_t i = 0; i < c->n_kv_sources; i++)
        if (!contains(c->index_source_layers, c->n_index_sources, c->kv_source_layers[i]))
            config_problem(r, "E28", "KV source %d is not in index_source_layer_ids", (int)c->kv_source_layers[i]);
    for (int32_t i = 0; i < c->n_index_sources; i++)
        if (c->compress_ratios[c->index_source_layers[i]] == 0)
            config_problem(r, "E28", "index source %d has ratio 0", (int)c->index_source_layers[i]);
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++)
        check_layer(r, c, layer);
    for (int32_t i = c->num_hidden_layers; i < c->num_hidden_layers + c->num_draft_layers; i++)
        if (c->compress_ratios[i] != 0)
            config_problem(r, "E28", "compress_ratios[%d] of a draft stage is %d, wanted 0", (int)i,
                           (int)c->compress_ratios[i]);
    if (c->candidate_source_layer < 0)
        return;
    if (!contains(c->index_source_layers, c->n_index_sources, c->candidate_source_layer))
        config_problem(r, "E28", "candidate_source_layer_id %d is no index source", (int)c->candidate_source_layer);
    int64_t least = ((int64_t)c->candidate_topk_blocks - 1) * c->candidate_block_size + 1;
    if (least < c->index_topk)
        config_problem(r, "E28",
                       "(candidate_topk_blocks %d - 1) * candidate_block_size %d + 1 = %lld, wanted at least "
                       "index_topk %d",
                       (int)c->candidate_topk_blocks, (int)c->candidate_block_size, (long long)least,
                       (int)c->index_topk);
}

/* The tables have as many rows as the primes of 8.3 sum to. */
static void check_engram_rows(struct config_reader *r, const struct qr_config *c)
{
    int64_t last_prime = c->engram_vocab_size - 1;
    for (int32_t i = 0; i < c->n_engram; i++) {
        int64_t rows = engram_layer_rows(&last_prime, (c->engram_max_ngram - 1) * c->engram_n_heads, NULL);
        if (rows != c->engram_num_embeddings[i])
            config_problem(r, NULL, "engram_num_embeddings[%d] is %lld, wanted %lld, the sum of the primes of layer %d",
                           (int)i, (long long)c->engram_num_embeddings[i], (long long)rows, (int)c->engram_layers[i]);
    }
}

static void read_engram(struct config_reader *r, struct qr_config *c)
{
    int32_t tables = 0;
    int64_t last = c->num_hidden_layers > 0 ? c->num_hidden_layers - 1 : QR_MAX_LAYERS - 1;
    config_ints(r, "engram_layer_ids", NULL, 0, last, QR_MAX_ENGRAM, c->engram_layers, &c->n_engram);
    if (c->n_engram == 0)
        return;
    int problems = r->problems;
    check_ascending(r, NULL, "engram_layer_ids", c->engram_layers, c->n_engram);
    if (config_int64s(r, "engram_num_embeddings", NULL, 1, (int64_t)1 << 40, QR_MAX_ENGRAM, c->engram_num_embeddings,
                      &tables) &&
        tables != c->n_engram)
        config_rule(r, NULL, "engram_num_embeddings has %d entries, engram_layer_ids has %d", (int)tables,
                    (int)c->n_engram);
    config_int(r, "engram_max_ngram_size", NULL, 2, QR_MAX_NGRAM, &c->engram_max_ngram);
    config_int64(r, "engram_vocab_size", NULL, 2, INT32_MAX, &c->engram_vocab_size);
    config_int(r, "engram_n_heads", NULL, 1, 64, &c->engram_n_heads);
    config_int(r, "engram_head_dim", NULL, 32, 1 << 16, &c->engram_head_dim);
    config_int(r, "engram_pad_token_id", "engram_pad_id", 0, c->vocab_size > 0 ? c->vocab_size - 1 : INT32_MAX,
               &c->engram_pad_token_id);
    config_int(r, "engram_compressed_vocab_size", NULL, 1, c->vocab_size > 0 ? c->vocab_size : INT32_MAX,
               &c->engram_compressed_vocab_size);
    check_multiple(r, "engram_head_dim", c->engram_head_dim, 32);
    if (r->problems == problems)
        check_engram_rows(r, c);
}

static void sort(int32_t *ids, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        for (int32_t j = i; j > 0 && ids[j] < ids[j - 1]; j--) {
            int32_t swap = ids[j];
            ids[j] = ids[j - 1];
            ids[j - 1] = swap;
        }
}

/* Also the V4 releases with DSpark: their stages route like the backbone. */
void config_dspark(struct config_reader *r, struct qr_config *c)
{
    int64_t last = c->num_hidden_layers > 0 ? c->num_hidden_layers - 1 : QR_MAX_LAYERS - 1;
    config_int(r, "dspark_block_size", NULL, 1, 64, &c->dspark_block_size);
    config_int(r, "dspark_noise_token_id", NULL, 0, c->vocab_size > 0 ? c->vocab_size - 1 : INT32_MAX,
               &c->dspark_noise_token_id);
    config_int(r, "dspark_markov_rank", NULL, 1, 1 << 16, &c->dspark_markov_rank);
    config_ints(r, "dspark_target_layer_ids", NULL, 0, last, QR_MAX_LAYERS, c->dspark_target_layers,
                &c->n_dspark_targets);
    /* The taps are joined by ascending layer, whatever the order of the list (speculation.md 2.2). */
    sort(c->dspark_target_layers, c->n_dspark_targets);
    check_ascending(r, NULL, "dspark_target_layer_ids", c->dspark_target_layers, c->n_dspark_targets);
    if (c->n_dspark_targets == 0)
        config_rule(r, NULL, "dspark_target_layer_ids is empty");
}

static void read_drafter(struct config_reader *r, struct qr_config *c)
{
    c->drafter = c->num_draft_layers > 0 ? QR_DRAFTER_DSPARK : QR_DRAFTER_NONE;
    if (c->drafter == QR_DRAFTER_NONE)
        return;
    config_dspark(r, c);
    config_int(r, "dspark_n_routed_experts", NULL, 1, 4096, &c->dspark_n_routed_experts);
    config_int(r, "dspark_num_experts_per_tok", "dspark_n_activated_experts", 1, 4096, &c->dspark_n_experts_per_tok);
    if (c->dspark_n_experts_per_tok > c->dspark_n_routed_experts)
        config_rule(r, NULL, "dspark_num_experts_per_tok is %d, wanted at most dspark_n_routed_experts %d",
                    (int)c->dspark_n_experts_per_tok, (int)c->dspark_n_routed_experts);
}

static void read_vision(struct config_reader *r, struct qr_config *c)
{
    const struct json *vision = json_get(r->root, "vision_config");
    if (!vision || vision->kind == JSON_NULL)
        return;
    struct config_reader v = *r;
    v.scopes = 0;
    v.prefix = "vision_config.";
    config_reader_scope(&v, vision);
    config_must_be_text(&v, config_find(&v, "model_type", NULL), NULL, "model_type", "deepseek_v41_vision", true);
    config_int(&v, "num_hidden_layers", NULL, 1, 1024, &c->vision.num_hidden_layers);
    config_int(&v, "hidden_size", NULL, 1, 1 << 16, &c->vision.hidden_size);
    config_int(&v, "num_attention_heads", NULL, 1, 1 << 12, &c->vision.num_attention_heads);
    config_int(&v, "intermediate_size", NULL, 1, 1 << 20, &c->vision.intermediate_size);
    config_int(&v, "patch_size", NULL, 1, 1024, &c->vision.patch_size);
    config_int(&v, "downsample_ratio", NULL, 1, 64, &c->vision.downsample_ratio);
    config_int(&v, "max_image_tokens", NULL, 4, 1 << 20, &c->vision.max_image_tokens);
    config_int(&v, "min_pixels", NULL, 1, INT32_MAX, &c->vision.min_pixels);
    config_double(&v, "rope_theta", NULL, 1.0000001, 1e18, &c->vision.rope_theta);
    if (config_find(&v, "max_wh_ratio", NULL))
        config_double(&v, "max_wh_ratio", NULL, 1, 1e9, &c->vision.max_wh_ratio);
    if (c->vision.num_attention_heads > 0 && c->vision.hidden_size % (4 * c->vision.num_attention_heads))
        config_rule(&v, NULL, "vision_config.hidden_size is %d, wanted a multiple of 4 * num_attention_heads %d",
                    (int)c->vision.hidden_size, (int)c->vision.num_attention_heads);
    if (c->image_token_id < 0)
        config_problem(&v, NULL, "vision_config is given without image_token_id");
    v.prefix = r->prefix;
    v.scopes = r->scopes;
    for (int i = 0; i < r->scopes; i++)
        v.scope[i] = r->scope[i];
    *r = v;
    c->has_vision = true;
}

void config_read_v41(struct config_reader *r, struct qr_config *c)
{
    const struct json *text = json_get(r->root, "text_config");
    const struct json *dtype = json_get(r->root, "dtype");
    char room[64];
    c->family = QR_FAMILY_V41;
    config_identity(r, "DeepseekV41ForCausalLM", "deepseek_v41");
    config_must_be_text(r, dtype ? dtype : json_get(r->root, "torch_dtype"), NULL, "dtype", "bfloat16", true);
    read_quantization(r, c);
    if (config_missing(r, text, NULL, "text_config"))
        return;
    if (text->kind != JSON_OBJECT) {
        config_problem(r, NULL, "text_config is %s, wanted an object", config_shown(text, room));
        return;
    }
    config_must_be_text(r, json_get(text, "model_type"), NULL, "text_config.model_type", "deepseek_v41_text", true);
    config_reader_scope(r, text);
    config_reader_scope(r, r->root);
    config_common(r, c);
    double dropout;
    if (config_find(r, "attention_dropout", NULL))
        config_double(r, "attention_dropout", NULL, 0, 0, &dropout);
    c->norm_topk_prob = true;
    config_bool_or(r, "norm_topk_prob", NULL, &c->norm_topk_prob);
    read_topology(r, c);
    read_engram(r, c);
    read_drafter(r, c);
    read_vision(r, c);
    if (r->problems) /* the rules between fields would only repeat what is said */
        return;
    check_topology(r, c);
    check_multiple(r, "hidden_size", c->hidden_size, 32);
    check_multiple(r, "moe_intermediate_size", c->moe_intermediate_size, 32);
    check_multiple(r, "head_dim", c->head_dim, 32);
    check_multiple(r, "q_lora_rank", c->q_lora_rank, 32);
    check_multiple(r, "o_groups * o_lora_rank", (int64_t)c->o_groups * c->o_lora_rank, 32);
    check_multiple(r, "index_head_dim", c->index_head_dim, 32);
    if (c->rope_head_dim > c->index_head_dim)
        config_problem(r, NULL, "qk_rope_head_dim is %d, wanted at most index_head_dim %d", (int)c->rope_head_dim,
                       (int)c->index_head_dim);
}
