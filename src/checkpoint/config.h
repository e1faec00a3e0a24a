/* config.h: config.json of both families as one struct. Reads the official keys and the inference-style spellings
 * (v41-model.md 1.2, v4-model.md 1.1); every constraint between fields is checked here, so that later floors trust
 * the numbers. Knows no tensor. */
#ifndef QR_CHECKPOINT_CONFIG_H
#define QR_CHECKPOINT_CONFIG_H

#include "base/status.h"

enum { QR_MAX_LAYERS = 160, QR_MAX_ENGRAM = 8, QR_MAX_NGRAM = 8, QR_MAX_STREAMS = 8 };

enum qr_family { QR_FAMILY_V41, QR_FAMILY_V4 };
/* What drafts: nothing, the serial MTP layer of V4 (v4-model.md 6.3) or DSpark's block drafter. */
enum qr_drafter { QR_DRAFTER_NONE, QR_DRAFTER_MTP, QR_DRAFTER_DSPARK };
enum qr_expert_format { QR_EXPERT_FP4, QR_EXPERT_FP8 };
/* The arithmetic (v4-model.md "Two arithmetic profiles"); V4.1 has the reference only. */
enum qr_profile { QR_PROFILE_REFERENCE, QR_PROFILE_W8A8 };

struct qr_config {
    enum qr_family family;
    enum qr_drafter drafter;
    bool stored_w8a8; /* quant_method "w8a8-int8": a folder written by `quire quantize --w8a8` */

    int32_t vocab_size, hidden_size;
    int32_t num_hidden_layers;          /* backbone */
    int32_t num_draft_layers;           /* MTP layers or DSpark stages in the file */
    int32_t num_attention_heads, head_dim, rope_head_dim;
    int32_t q_lora_rank, o_lora_rank, o_groups;
    int32_t moe_intermediate_size, n_routed_experts, n_experts_per_tok;
    int32_t num_hash_layers;            /* V4: layers 0 .. n-1 route by token id */
    float routed_scaling_factor, swiglu_limit; /* swiglu_limit 0: no clamp */
    bool norm_topk_prob;
    float rms_norm_eps;
    int32_t max_position_embeddings;

    double rope_theta, compress_rope_theta;
    double rope_factor, rope_beta_fast, rope_beta_slow;
    int32_t rope_original_positions;

    int32_t sliding_window;
    int32_t compress_ratios[QR_MAX_LAYERS]; /* [num_hidden_layers + num_draft_layers] */
    int32_t n_kv_sources, kv_source_layers[QR_MAX_LAYERS];       /* V4.1 */
    int32_t n_index_sources, index_source_layers[QR_MAX_LAYERS]; /* V4.1 */
    int32_t index_n_heads, index_head_dim, index_topk;
    int32_t candidate_source_layer;     /* V4.1; -1: none */
    int32_t candidate_topk_blocks, candidate_block_size;

    int32_t hc_mult, hc_sinkhorn_iters;
    float hc_eps;

    int32_t n_engram, engram_layers[QR_MAX_ENGRAM]; /* V4.1 */
    int64_t engram_num_embeddings[QR_MAX_ENGRAM];
    int32_t engram_max_ngram, engram_n_heads, engram_head_dim;
    int64_t engram_vocab_size;
    int32_t engram_pad_token_id, engram_compressed_vocab_size;

    int32_t dspark_block_size, dspark_noise_token_id, dspark_markov_rank;
    int32_t n_dspark_targets, dspark_target_layers[QR_MAX_LAYERS];
    int32_t dspark_n_routed_experts, dspark_n_experts_per_tok;

    int32_t fp8_block;                  /* side of a weight scale tile: 32 (V4.1), 128 (V4) */
    enum qr_expert_format expert_format;
    bool expert_format_stated;          /* false: V4's first file has no expert_dtype; the shard headers decide */

    int32_t bos_token_id, eos_token_id, pad_token_id, image_token_id; /* -1: absent */
    bool has_vision;
    struct {
        int32_t num_hidden_layers, hidden_size, num_attention_heads, intermediate_size, patch_size, downsample_ratio;
        int32_t max_image_tokens, min_pixels;
        double rope_theta, max_wh_ratio; /* max_wh_ratio 0: none */
    } vision;
};

/* Reads and checks `path` (a config.json). Every violated rule is listed in the one message, with its admission id
 * where it has one (E01, E28, E33 of runtime.md 11), up to the room there is. Fails with QR_REFUSED when an admission
 * rule is among them, else QR_BAD_CONFIG; QR_BAD_FILE for what is no JSON. Values are as in the file, lists sorted
 * where the order has no meaning (dspark_target_layers). That engram_num_embeddings are sums of primes is checked
 * here too. */
qr_status config_read(const char *path, struct qr_config *out, qr_error *err);
/* The same from memory; `name` is quoted in errors. */
qr_status config_parse(const char *json, size_t size, const char *name, struct qr_config *out, qr_error *err);

/* "reference" or "w8a8". */
const char *config_profile_name(enum qr_profile profile);
/* The arithmetic that a name asks for, any other than "w8a8" the reference; NULL: that of the weights as they are stored. */
enum qr_profile config_profile(const struct qr_config *config, const char *name);

/* "DeepSeek-V4" or "DeepSeek-V4.1". */
const char *config_family_title(const struct qr_config *config);

#endif
