#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/config.h"
#include "support/models.h"

static char *text_of(const char *relative)
{
    char *text;
    size_t size;
    qr_error err = {0};
    if (file_read(source_path(relative), 1 << 20, &text, &size, &err) != QR_OK)
        fail_msg("%s", err.message);
    return text;
}

static struct qr_config accepted(const char *relative)
{
    struct qr_config c;
    qr_error err = {0};
    if (config_read(source_path(relative), &c, &err) != QR_OK)
        fail_msg("%s", err.message);
    return c;
}

/* `text` with the first `from` after `text` replaced; the test fails where there is none. */
static char *edited(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("the file has no %s", from);
    size_t head = (size_t)(at - text);
    char *out = qr_malloc(strlen(text) + strlen(to) + 1);
    memcpy(out, text, head);
    strcpy(out + head, to);
    strcat(out, at + strlen(from));
    return out;
}

static void expect_refused(const char *text, const char *from, const char *to, const char *says)
{
    struct qr_config c;
    qr_error err = {0};
    char *bad = edited(text, from, to);
    qr_status st = config_parse(bad, strlen(bad), "config.json", &c, &err);
    qr_free(bad);
    if (st == QR_OK)
        fail_msg("%s -> %s was accepted", from, to);
    if (!strstr(err.message, says) || strncmp(err.message, "config.json: ", 13))
        fail_msg("%s -> %s: the message is \"%s\", wanted \"%s\" in it", from, to, err.message, says);
}

static void released_v41_is_read_as_published(void **state)
{
    (void)state;
    struct qr_config c = accepted("tests/data/config/v41-flash.json");
    assert_int_equal(c.family, QR_FAMILY_V41);
    assert_int_equal(c.drafter, QR_DRAFTER_DSPARK);
    assert_int_equal(c.hidden_size, 5120);
    assert_int_equal(c.num_draft_layers, 3);
    assert_int_equal(c.n_index_sources, 8);
    assert_int_equal(c.index_source_layers[4], 24);
    assert_int_equal(c.compress_ratios[19], 2);
    assert_int_equal(c.compress_ratios[20], 1);
    assert_true(c.rms_norm_eps == 1e-20f);
    assert_int_equal(c.engram_num_embeddings[1], 384016682);
    assert_int_equal(c.fp8_block, 32);
    assert_int_equal(c.image_token_id, 129264);
    assert_true(c.has_vision);
    assert_int_equal(c.vision.intermediate_size, 2816);
    assert_true(c.rope_factor == 16 && c.rope_original_positions == 65536);
}

static void both_spellings_mean_the_same_config(void **state)
{
    (void)state;
    struct qr_config a = accepted("tests/data/config/v41-flash.json");
    struct qr_config b = accepted("tests/data/config/v41-flash-inference-keys.json");
    assert_memory_equal(&a, &b, sizeof a);
    a = accepted("tests/data/config/v4-flash.json");
    b = accepted("tests/data/config/v4-flash-inference-keys.json");
    assert_memory_equal(&a, &b, sizeof a);
}

static void two_spellings_that_disagree_are_refused(void **state)
{
    (void)state;
    char *v41 = text_of("tests/data/config/v41-flash.json"), *v4 = text_of("tests/data/config/v4-flash.json");
    expect_refused(v41, "\"hidden_size\": 5120", "\"hidden_size\": 5120, \"dim\": 4096", "but dim is 4096");
    expect_refused(v41, "\"factor\": 16", "\"factor\": 16}, \"rope_factor\": 4, \"unused\": {\"a\": 1",
                   "rope_factor is 4");
    expect_refused(v4, "\"sliding_window\": 128", "\"sliding_window\": 128, \"window_size\": 64", "window_size is 64");
    char *same = edited(v4, "\"sliding_window\": 128", "\"sliding_window\": 128, \"window_size\": 128");
    struct qr_config c;
    assert_int_equal(config_parse(same, strlen(same), "config.json", &c, NULL), QR_OK);
    qr_free(same);
    qr_free(v41);
    qr_free(v4);
}

static void values_that_no_arithmetic_can_use_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *said;
    } odd[] = {
        {"\"routed_scaling_factor\": 1.5", "\"routed_scaling_factor\": 0", "routed_scaling_factor is 0, wanted a positive"},
        {"\"routed_scaling_factor\": 1.5", "\"routed_scaling_factor\": -1", "routed_scaling_factor is -1, wanted"},
        {"\"hc_eps\": 1e-06", "\"hc_eps\": 1", "hc_eps is 1, wanted a number below 1"},
        {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1", "rms_norm_eps is 1, wanted"},
        {"\"max_position_embeddings\": 1048576", "\"max_position_embeddings\": 100",
         "sliding_window is 128, wanted at most max_position_embeddings 100"},
        {"\"original_max_position_embeddings\": 65536", "\"original_max_position_embeddings\": 6.5e129",
         "rope_scaling.original_max_position_embeddings is 6.5e129, wanted a positive number"},
        {"\"original_max_position_embeddings\": 65536", "\"original_max_position_embeddings\": 65536.5",
         "rope_scaling.original_max_position_embeddings is 65536.5, wanted an integer"},
        {"\"beta_fast\": 32", "\"beta_fast\": 1", "rope_scaling.beta_fast is 1, wanted more than beta_slow 1"},
    };
    char *v4 = text_of("tests/data/config/v4-flash.json");
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        expect_refused(v4, odd[i].from, odd[i].to, odd[i].said);
    qr_free(v4);
}

static void released_v4_files_are_recognised(void **state)
{
    (void)state;
    struct qr_config c = accepted("tests/data/config/v4-flash.json");
    assert_int_equal(c.family, QR_FAMILY_V4);
    assert_int_equal(c.drafter, QR_DRAFTER_MTP);
    assert_int_equal(c.num_hash_layers, 3);
    assert_int_equal(c.fp8_block, 128);
    assert_false(c.stored_w8a8);
    c = accepted("tests/data/config/v4-pro.json");
    assert_int_equal(c.num_hidden_layers, 61);
    assert_int_equal(c.compress_ratios[1], 128);
    c = accepted("tests/data/config/v4-flash-base.json");
    assert_int_equal(c.expert_format, QR_EXPERT_FP8);
    c = accepted("tests/data/config/v4-flash-dspark.json");
    assert_int_equal(c.drafter, QR_DRAFTER_DSPARK);
    assert_int_equal(c.num_draft_layers, 3);
    assert_int_equal(c.dspark_n_routed_experts, 256);
    assert_int_equal(c.dspark_target_layers[2], 42);
}

static void small_models_and_goldens_are_accepted(void **state)
{
    (void)state;
    static const char *const folders[] = {"tests/golden/v41/pad/model",
                                          "tests/golden/v41/spec-13.1/model",
                                          "tests/golden/v41/wide/model",
                                          "tests/golden/v4/tiny/model",
                                          "tests/golden/v4/fp8exp/model",
                                          "tests/golden/v4/wide/model",
                                          "models/tiny-v41",
                                          "models/tiny-v4"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/config.json", folders[i]);
        struct qr_config c = accepted(path);
        assert_true(c.vocab_size > 0);
    }
    struct qr_config c = accepted("tests/golden/v41/wide/model/config.json");
    assert_int_equal(c.n_engram, 0);
    assert_int_equal(c.candidate_source_layer, -1);
}

/* "Not checked when candidate_source_layer_id = -1": neither their values nor that they are there. */
static void sizes_of_a_pool_that_nobody_makes_are_not_looked_at(void **state)
{
    (void)state;
    struct qr_config c;
    qr_error err = {0};
    char *t = text_of("tests/golden/v41/wide/model/config.json");
    char *odd = edited(t, "\"candidate_topk_blocks\":", "\"candidate_topk_blocks\": -3, \"was\":");
    char *absent = edited(odd, "\"candidate_block_size\":", "\"was_too\":");
    if (config_parse(absent, strlen(absent), "config.json", &c, &err) != QR_OK)
        fail_msg("%s", err.message);
    qr_free(absent);
    qr_free(odd);
    qr_free(t);
}

static void every_rule_of_v41_is_enforced(void **state)
{
    (void)state;
    char *t = text_of("tests/data/config/v41-flash.json");
    expect_refused(t, "DeepseekV41ForCausalLM", "LlamaForCausalLM", "E01 architectures");
    expect_refused(t, "\"model_type\": \"deepseek_v41\"", "\"model_type\": \"llama\"", "E01 model_type");
    expect_refused(t, "\"dtype\": \"bfloat16\"", "\"dtype\": \"float16\"", "dtype is \"float16\"");
    expect_refused(t, "\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\"", "E33");
    expect_refused(t, "\"activation_scheme\": \"dynamic\"", "\"activation_scheme\": \"static\"", "E33");
    expect_refused(t, "[32, 32]", "[128, 128]", "E33");
    expect_refused(t, "[32, 32]", "[32]", "E33");
    expect_refused(t, "\"ue8m0\"", "\"float\"", "E33");
    expect_refused(t, "\"expert_dtype\": \"fp4\"", "\"expert_dtype\": \"fp8\"", "E33");
    expect_refused(t, "deepseek_v41_text", "deepseek_text", "text_config.model_type");
    expect_refused(t, "\"text_config\"", "\"text_konfig\"", "text_config is missing");
    expect_refused(t, "\"vocab_size\": 129280", "\"vocab_size\": 0", "vocab_size is 0");
    expect_refused(t, "\"hidden_size\": 5120", "\"hidden_size\": 5121", "hidden_size is 5121, wanted a multiple of 32");
    expect_refused(t, "\"hidden_size\": 5120", "\"hidden_size\": 5e3", "hidden_size is 5e3, wanted an integer");
    expect_refused(t, "\"hidden_size\": 5120,", "", "field hidden_size is missing");
    expect_refused(t, "2304", "2305", "moe_intermediate_size");
    expect_refused(t, "\"num_attention_heads\": 64", "\"num_attention_heads\": 60", "multiple of o_groups");
    expect_refused(t, "\"num_key_value_heads\": 1", "\"num_key_value_heads\": 8", "num_key_value_heads is 8");
    expect_refused(t, "\"head_dim\": 512", "\"head_dim\": 500", "head_dim");
    expect_refused(t, "\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 63", "qk_rope_head_dim");
    expect_refused(t, "\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 256", "at most index_head_dim 128");
    expect_refused(t, "\"q_lora_rank\": 1280", "\"q_lora_rank\": 1281", "q_lora_rank");
    expect_refused(t, "\"o_lora_rank\": 1024", "\"o_lora_rank\": 1023", "o_groups * o_lora_rank");
    expect_refused(t, "\"silu\"", "\"gelu\"", "hidden_act");
    expect_refused(t, "1e-20", "0", "rms_norm_eps is 0");
    expect_refused(t, "1e-20", "1e-60", "rms_norm_eps is 0");
    expect_refused(t, "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias");
    expect_refused(t, "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", "attention_dropout");
    expect_refused(t, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "tie_word_embeddings");
    expect_refused(t, "\"yarn\"", "\"linear\"", "rope_type");
    expect_refused(t, "\"factor\": 16", "\"factor\": -16", "rope_scaling.factor is -16");
    expect_refused(t, "\"n_shared_experts\": 1", "\"n_shared_experts\": 2", "n_shared_experts");
    expect_refused(t, "\"num_experts_per_tok\": 6", "\"num_experts_per_tok\": 385", "num_experts_per_tok");
    expect_refused(t, "\"sqrtsoftplus\"", "\"softmax\"", "scoring_func");
    expect_refused(t, "\"noaux_tc\"", "\"greedy\"", "topk_method");
    expect_refused(t, "[0, 0, 2,", "[0, 2,", "compress_ratios has 42 entries");
    expect_refused(t, "[0, 0, 2,", "[0, 3, 2,", "compress_ratios[1] is 3");
    expect_refused(t, "[0, 0, 2,", "[0, 2, 2,", "E28 layer 1 has ratio 2 but no KV source");
    expect_refused(t, "1, 0, 0, 0]", "1, 0, 1, 0]", "E28 compress_ratios[41]");
    expect_refused(t, "\"kv_source_layer_ids\": [2, 8", "\"kv_source_layer_ids\": [8, 2", "strictly ascending");
    expect_refused(t, "\"kv_source_layer_ids\": [2, 8, 14, 20]", "\"kv_source_layer_ids\": [2, 8, 14]",
                   "E28 layer 20 has ratio 1, its KV source 14 has 2");
    expect_refused(t, "\"kv_source_layer_ids\": [2, 8,", "\"kv_source_layer_ids\": [2, 9,",
                   "E28 KV source 9 is not in index_source_layer_ids");
    expect_refused(t, "\"index_source_layer_ids\": [2,", "\"index_source_layer_ids\": [1, 2,",
                   "index source 1 has ratio 0");
    expect_refused(t, "\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 21", "is no index source");
    expect_refused(t, "\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 14",
                   "E28 layer 20 reads the rows of layer 20, wanted those of the candidate source 14");
    expect_refused(t, "\"candidate_topk_blocks\": 2048", "\"candidate_topk_blocks\": 64",
                   "E28 (candidate_topk_blocks 64");
    expect_refused(t, "\"engram_layer_ids\": [1, 14]", "\"engram_layer_ids\": [14, 1]", "engram_layer_ids");
    expect_refused(t, "\"engram_layer_ids\": [1, 14]", "\"engram_layer_ids\": [1]", "engram_num_embeddings has 2");
    expect_refused(t, "\"engram_num_embeddings\": [384006168, 384016682]",
                   "\"engram_num_embeddings\": [384006168, 384016683]",
                   "engram_num_embeddings[1] is 384016683, wanted 384016682, the sum of the primes of layer 14");
    expect_refused(t, "\"engram_max_ngram_size\": 4", "\"engram_max_ngram_size\": 1", "engram_max_ngram_size");
    expect_refused(t, "\"dspark_target_layer_ids\": [37, 38, 39]", "\"dspark_target_layer_ids\": [37, 38, 40]",
                   "dspark_target_layer_ids[2] is 40");
    expect_refused(t, "\"dspark_num_experts_per_tok\": 3", "\"dspark_num_experts_per_tok\": 129", "dspark_num_experts");
    expect_refused(t, "\"image_token_id\": 129264,", "", "vision_config is given without image_token_id");
    qr_free(t);
}

static void every_rule_of_v4_is_enforced(void **state)
{
    (void)state;
    char *t = text_of("tests/data/config/v4-flash.json");
    expect_refused(t, "\"deepseek_v4\"", "\"deepseek_v3\"", "E01 model_type");
    expect_refused(t, "\"bos_token_id\": 0", "\"kv_source_layer_ids\": [2]", "E01 kv_source_layer_ids");
    expect_refused(t, "\"fp8\"", "\"gptq\"", "quant_method");
    expect_refused(t, "[128, 128]", "[32, 32]", "weight_block_size is 32");
    expect_refused(t, "\"expert_dtype\": \"fp4\"", "\"expert_dtype\": \"int4\"", "expert_dtype");
    expect_refused(t, "4, 0]", "4]", "compress_ratios has 43 entries");
    expect_refused(t, "4, 0]", "4, 4]", "of a draft layer is 4, wanted 0");
    expect_refused(t, "\"num_hash_layers\": 3", "\"num_hash_layers\": 44", "num_hash_layers is 44");
    expect_refused(t, "\"head_dim\": 512", "\"head_dim\": 480", "head_dim");
    expect_refused(t, "\"index_head_dim\": 128", "\"index_head_dim\": 96", "index_head_dim is 96");
    expect_refused(t, "\"num_attention_heads\": 64", "\"num_attention_heads\": 63", "multiple of o_groups");
    expect_refused(t, "\"hidden_size\": 4096", "\"hidden_size\": 4100",
                   "hidden_size is 4100, wanted a multiple of 128");
    expect_refused(t, "\"norm_topk_prob\": true", "\"norm_topk_prob\": false", "norm_topk_prob");
    expect_refused(t, "\"n_shared_experts\": 1", "\"n_shared_experts\": 0", "n_shared_experts");
    expect_refused(t, "\"num_nextn_predict_layers\": 1", "\"num_nextn_predict_layers\": 2", "compress_ratios has 44");
    expect_refused(t, "\"max_position_embeddings\": 1048576", "\"max_position_embeddings\": 4000000000",
                   "max_position_embeddings");
    qr_free(t);
}

/* What would follow from the field is not said again. */
static void a_missing_field_is_named_once_and_nothing_else(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text, *field;
    } cases[] = {
        {V41_FLASH, "\"num_hidden_layers\": 40,", "num_hidden_layers"},
        {V41_FLASH, "\"vocab_size\": 129280,", "vocab_size"},
        {V41_FLASH, "\"num_experts_per_tok\": 6,", "num_experts_per_tok"},
        {V41_FLASH, "\"o_groups\": 8,", "o_groups"},
        {V41_FLASH, "\"head_dim\": 512,", "head_dim"},
        {V41_FLASH, "\"hc_mult\": 4,", "hc_mult"},
        {V41_FLASH, "\"rope_theta\": 10000,", "rope_theta"},
        {V41_FLASH, "\"patch_size\": 14,", "vision_config.patch_size"},
        {V4_FLASH, "\"num_hidden_layers\": 43,", "num_hidden_layers"},
        {V4_FLASH, "\"n_routed_experts\": 256,", "n_routed_experts"},
        {V4_FLASH, "\"rope_scaling\"", "rope_scaling"},
        {V4_FLASH, "\"quantization_config\"", "quantization_config"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct qr_config c;
        qr_error err = {0};
        char wanted[100], *text = text_of(cases[i].file);
        char *bad = edited(text, cases[i].text, strchr(cases[i].text, ',') ? "" : "\"of_no_name\"");
        snprintf(wanted, sizeof wanted, "config.json: field %s is missing", cases[i].field);
        assert_int_equal(config_parse(bad, strlen(bad), "config.json", &c, &err), QR_BAD_CONFIG);
        assert_string_equal(err.message, wanted);
        qr_free(text);
        qr_free(bad);
    }
}

static void all_violated_rules_stand_in_one_message(void **state)
{
    (void)state;
    char *t = text_of("tests/data/config/v41-flash.json");
    char *a = edited(t, "\"ue8m0\"", "\"e\"");
    char *b = edited(a, "\"silu\"", "\"relu\"");
    struct qr_config c;
    qr_error err = {0};
    assert_int_equal(config_parse(b, strlen(b), "f", &c, &err), QR_REFUSED);
    assert_non_null(strstr(err.message, "E33 quantization_config.scale_fmt is \"e\", wanted \"ue8m0\"; "));
    assert_non_null(strstr(err.message, "hidden_act is \"relu\", wanted \"silu\""));
    qr_free(a);
    qr_free(b);
    qr_free(t);
}

static void a_file_of_many_problems_says_how_many_are_left_out(void **state)
{
    (void)state;
    const char *t = "{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_v4\"}";
    struct qr_config c;
    qr_error err = {0};
    assert_int_equal(config_parse(t, strlen(t), "f", &c, &err), QR_BAD_CONFIG);
    assert_non_null(strstr(err.message, " more"));
}

static void what_is_no_config_is_refused(void **state)
{
    (void)state;
    struct qr_config c;
    qr_error err = {0};
    assert_int_not_equal(config_parse("[]", 2, "f", &c, &err), QR_OK);
    assert_int_not_equal(config_parse("", 0, "f", &c, &err), QR_OK);
    assert_int_not_equal(config_parse("{}", 2, "f", &c, &err), QR_OK);
    assert_non_null(strstr(err.message, "E01"));
    assert_int_not_equal(config_parse("{\"model_type\":\"a\",\"model_type\":\"b\"}", 35, "f", &c, &err), QR_OK);
    assert_int_equal(config_read(source_path("tests/no-such-file"), &c, &err), QR_BAD_FILE);
}

static void every_failed_allocation_is_a_status(void **state)
{
    (void)state;
    int64_t live = alloc_live();
    for (int64_t n = 1;; n++) {
        struct qr_config c;
        qr_error err = {0};
        alloc_fault_at(n, 0);
        qr_status st = config_read(source_path("models/tiny-v41/config.json"), &c, &err);
        alloc_fault_at(0, 0);
        assert_int_equal(alloc_live(), live);
        if (st == QR_OK)
            break;
        assert_int_equal(st, QR_NO_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_v41_is_read_as_published),
        cmocka_unit_test(both_spellings_mean_the_same_config),
        cmocka_unit_test(two_spellings_that_disagree_are_refused),
        cmocka_unit_test(values_that_no_arithmetic_can_use_are_refused),
        cmocka_unit_test(released_v4_files_are_recognised),
        cmocka_unit_test(small_models_and_goldens_are_accepted),
        cmocka_unit_test(sizes_of_a_pool_that_nobody_makes_are_not_looked_at),
        cmocka_unit_test(every_rule_of_v41_is_enforced),
        cmocka_unit_test(every_rule_of_v4_is_enforced),
        cmocka_unit_test(a_missing_field_is_named_once_and_nothing_else),
        cmocka_unit_test(all_violated_rules_stand_in_one_message),
        cmocka_unit_test(a_file_of_many_problems_says_how_many_are_left_out),
        cmocka_unit_test(what_is_no_config_is_refused),
        fault_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
