/* op_layer_arrays.h: rows of the tables of compositions: the weights of a layer by the names of v4-model.md 7.1 (w8a8) and
 * 2.1 (reference, without the layer's prefix), its caches and their tables. EP is "" or "ep ", an axis of ranks; ROWS "B S" or
 * "T"; TABLE "B " or "". */
#ifndef QR_TOOLS_OP_LAYER_ARRAYS_H
#define QR_TOOLS_OP_LAYER_ARRAYS_H

#include "tools/op_harness.h"

#define REF ARRAY_REFERENCE
#define W8 ARRAY_W8A8
#define OPT ARRAY_OPTIONAL
#define TENSOR(NAME, SHAPE, FLAGS) ARRAY(NAME, ARRAY_TENSOR, SHAPE, .flags = FLAGS)
#define NAMED(NAME, ALIAS, SHAPE, FLAGS) ARRAY(NAME, ARRAY_TENSOR, SHAPE, .flags = FLAGS, .alias = ALIAS)
#define INT8(NAME, SHAPE, SCALES, FLAGS) ARRAY(NAME, ARRAY_TENSOR, SHAPE, .flags = FLAGS), ARRAY(NAME "_scale", ARRAY_TENSOR, SCALES, .flags = FLAGS)
#define FP8(NAME, SHAPE, FLAGS) ARRAY(NAME ".weight", ARRAY_TENSOR, SHAPE, .flags = FLAGS), ARRAY(NAME ".scale", ARRAY_TENSOR, "* *", .flags = FLAGS)
#define INTS(NAME, SHAPE, FLAGS) ARRAY(NAME, ARRAY_INT, SHAPE, .flags = FLAGS)

/* The mHC weights of the only sub-block go by the names of operator 3 too. */
#define ATTENTION_WEIGHTS(FN, SCALE, BASE)                                                                             \
    NAMED("hc_attn_fn", FN, "MIX M*D", 0), NAMED("hc_attn_scale", SCALE, "3", 0), NAMED("hc_attn_base", BASE, "MIX", 0),              \
        TENSOR("attn_norm_w", "D", W8), TENSOR("wq_a", "D Qr", W8), INT8("wq_b", "Qr H*d", "H*d", W8), TENSOR("wkv", "D d", W8),        \
        TENSOR("gamma_cq", "Qr", W8), TENSOR("gamma_ckv", "d", W8), TENSOR("attn_sink", "H", W8), TENSOR("wo_a", "G R H*d/G", W8),       \
        INT8("wo_b", "D G*R", "D", W8), TENSOR("attn_norm.weight", "D", REF), FP8("attn.wq_a", "Qr D", REF),                            \
        FP8("attn.wq_b", "H*d Qr", REF), FP8("attn.wkv", "d D", REF), TENSOR("attn.q_norm.weight", "Qr", REF),                          \
        TENSOR("attn.kv_norm.weight", "d", REF), TENSOR("attn.attn_sink", "H", REF), FP8("attn.wo_a", "G*R H*d/G", REF),                \
        FP8("attn.wo_b", "D G*R", REF)
#define HCA_WEIGHTS(FLAG)                                                                                              \
    TENSOR("hca_cmp_wkv", "d D", W8 | FLAG), TENSOR("hca_cmp_wgate", "d D", W8 | FLAG), TENSOR("hca_cmp_ape", "rho d", W8 | FLAG),       \
        TENSOR("hca_cmp_norm_w", "d", W8 | FLAG)
#define CSA_WEIGHTS(FLAG)                                                                                              \
    TENSOR("csa_cmp_wkv", "2*d D", W8 | FLAG), TENSOR("csa_cmp_wgate", "2*d D", W8 | FLAG), TENSOR("csa_cmp_ape", "4 2*d", W8 | FLAG),   \
        TENSOR("csa_cmp_norm_w", "d", W8 | FLAG), INT8("csa_idx_wq_b", "Qr Hi*di", "Hi*di", W8 | FLAG),                                 \
        TENSOR("csa_weights_proj", "D Hi", W8 | FLAG), TENSOR("csa_hadamard_idx", "di di", W8 | FLAG),                                  \
        TENSOR("csa_inner_wkv", "2*di D", W8 | FLAG), TENSOR("csa_inner_wgate", "2*di D", W8 | FLAG),                                   \
        TENSOR("csa_inner_ape", "4 2*di", W8 | FLAG), TENSOR("csa_inner_norm_w", "di", W8 | FLAG),                                      \
        FP8("attn.indexer.wq_b", "Hi*di Qr", REF | FLAG), TENSOR("attn.indexer.weights_proj.weight", "Hi D", REF | FLAG),               \
        TENSOR("attn.indexer.compressor.wkv.weight", "2*di D", REF | FLAG),                                                        \
        TENSOR("attn.indexer.compressor.wgate.weight", "2*di D", REF | FLAG), TENSOR("attn.indexer.compressor.ape", "4 2*di", REF | FLAG), \
        TENSOR("attn.indexer.compressor.norm.weight", "di", REF | FLAG)
/* In the reference both compressors go by one name. */
#define REFERENCE_COMPRESSOR(COLS, FLAG)                                                                               \
    TENSOR("attn.compressor.wkv.weight", COLS " D", REF | FLAG), TENSOR("attn.compressor.wgate.weight", COLS " D", REF | FLAG),           \
        TENSOR("attn.compressor.ape", "rho " COLS, REF | FLAG), TENSOR("attn.compressor.norm.weight", "d", REF | FLAG)
#define FFN_WEIGHTS                                                                                                    \
    TENSOR("hc_ffn_fn", "MIX M*D", 0), TENSOR("hc_ffn_scale", "3", 0), TENSOR("hc_ffn_base", "MIX", 0), TENSOR("norm_w", "D", W8),         \
        TENSOR("gate_w", "E D", W8), TENSOR("gate_bias", "E", W8 | OPT), TENSOR("tid2eid", "V K", W8 | OPT),                             \
        INT8("routed_w1", "E I D", "E I", W8), INT8("routed_w3", "E I D", "E I", W8), INT8("routed_w2", "E D I", "E D", W8),             \
        INT8("shared_w1", "I D", "I", W8), INT8("shared_w3", "I D", "I", W8), INT8("shared_w2", "D I", "D", W8),                         \
        TENSOR("ffn_norm.weight", "D", REF), TENSOR("ffn.gate.weight", "E D", REF), TENSOR("ffn.gate.bias", "E", REF | OPT),             \
        TENSOR("ffn.gate.tid2eid", "V K", REF | OPT), FP8("ffn.experts.#.w1", "I *", REF), FP8("ffn.experts.#.w3", "I *", REF),          \
        FP8("ffn.experts.#.w2", "D *", REF), FP8("ffn.shared_experts.w1", "I D", REF), FP8("ffn.shared_experts.w3", "I D", REF),         \
        FP8("ffn.shared_experts.w2", "D I", REF)

#define WINDOW(EP, ROWS, TABLE, SLOTS, TABLES)                                                                         \
    ARRAY("x_hc", ARRAY_STREAM, EP "T M D"), INTS("position_ids", EP ROWS, 0), ARRAY("num_tokens", ARRAY_INT, "ep", .flags = OPT),       \
        ARRAY("freqs_cos", ARRAY_F32, "* *", .flags = W8 | ARRAY_HOST | OPT),                                                      \
        ARRAY("freqs_sin", ARRAY_F32, "* *", .flags = W8 | ARRAY_HOST | OPT), ARRAY("kv_cache", ARRAY_BF16, EP "P 128 1 d", .flags = ARRAY_HOST, .alias = "mtp_kv_cache"), \
        ARRAY("slots", ARRAY_INT, EP ROWS, .flags = SLOTS, .alias = "ori_slot"),                                                   \
        ARRAY("block_table", ARRAY_INT, EP TABLE "bn", .flags = TABLES, .alias = "ori_table"), INTS("swa_indices", EP "T W", SLOTS),     \
        INTS("swa_lens", EP "T", OPT)
#define COMPRESSED(EP, ROWS, TABLE, FLAG)                                                                              \
    ARRAY("cmp_kv", ARRAY_BF16, EP "CP cr 1 d", .flags = ARRAY_HOST | FLAG, .alias = "cmp_kv_cache"),                                  \
        INTS("cmp_table", EP TABLE "cn", FLAG), INTS("cmp_slot", EP ROWS, OPT),                                                    \
        ARRAY("state", ARRAY_F32, EP "SP pg SW", .flags = ARRAY_HOST | FLAG, .alias = "compress_state"),                              \
        INTS("state_table", EP TABLE "sn", FLAG), INTS("state_slot", EP ROWS, OPT)
#define INDEXED(EP, ROWS, TABLE, FLAG)                                                                                 \
    ARRAY("idx_kv_cache", ARRAY_I8, EP "IP 32 1 di", .flags = W8 | ARRAY_HOST | FLAG),                                                 \
        ARRAY("idx_kv_cache", ARRAY_BF16, EP "IP 32 1 di", .flags = REF | ARRAY_HOST | FLAG),                                          \
        ARRAY("idx_kv_scale", ARRAY_F32, EP "IP 32 1 1", .flags = W8 | ARRAY_HOST | FLAG), INTS("idx_table", EP TABLE "in", FLAG),       \
        INTS("idx_slot", EP ROWS, OPT),                                                                                        \
        ARRAY("inner_state", ARRAY_F32, EP "JP jg JW", .flags = ARRAY_HOST | FLAG, .alias = "inner_compress_state"),                  \
        INTS("inner_state_table", EP TABLE "jn", FLAG), INTS("inner_state_slot", EP ROWS, OPT)

#define OUT(NAME, KIND, SHAPE, FLAGS, TOLERANCE) ARRAY(NAME, KIND, SHAPE, .flags = ARRAY_HOST | FLAGS, .tolerance = TOLERANCE)
#define KV_OUT(EP, TOLERANCE) OUT("kv_cache", ARRAY_BF16, EP "P 128 1 d", 0, TOLERANCE)
#define COMPRESSED_OUT(EP, ROWS, STATES) OUT("cmp_kv", ARRAY_BF16, EP "CP cr 1 d", 0, ROWS), OUT("state", ARRAY_F32, EP "SP pg SW", 0, STATES)
#define INDEXED_OUT(EP, CODES, SCALES, STATES)                                                                         \
    OUT("idx_kv_cache", ARRAY_I8, EP "IP 32 1 di", W8, CODES), OUT("idx_kv_cache", ARRAY_BF16, EP "IP 32 1 di", REF, SCALES),            \
        OUT("idx_kv_scale", ARRAY_F32, EP "IP 32 1 1", W8, SCALES), OUT("inner_state", ARRAY_F32, EP "JP jg JW", 0, STATES)

#define REST "AC(1e-2,1e-2)"
#define KEYS "RA(1e-4,1/128,0.005)"
#define HC_NAMES ATTENTION_WEIGHTS("hc_fn", "hc_scale", "hc_base")
#define HC_ATTN ATTENTION_WEIGHTS(NULL, NULL, NULL)

#define DECODE(EP) EP, "B S", "B "
#define PREFILL(EP) EP, "T", ""
#define EXPAND(MACRO, ...) MACRO(__VA_ARGS__)

/* Parameters that a file must have. */
#define COMPOSITION_NEEDS "num_attention_heads head_dim qk_rope_head_dim q_lora_rank o_groups o_lora_rank sliding_window rms_norm_eps hc_eps hc_sinkhorn_iters"
#define COMPOSITION_EXPERT_NEEDS COMPOSITION_NEEDS " swiglu_limit num_experts_per_tok n_routed_experts moe_intermediate_size"

#endif
