/* What quire.h refuses: structs of another size, values outside their range (naming the field), folders, devices, and
 * models that do not fit, before a shard is opened. */
#define _GNU_SOURCE
#include "support/engines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "support/support.h"
#include "support/scratch.h"

static char *dir;
static struct opened o;

static int set_up(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.max_model_len = 100;
    dir = small_model_folder();
    o = engine_open(dir, NULL, 1, &options);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_close(&o);
    scratch_remove(dir);
    return 0;
}

/* ---- requests ---- */

static const int32_t hello[5] = {104, 101, 108, 108, 111};

static qr_request plain(void)
{
    qr_request q = QR_REQUEST;
    q.tokens = hello;
    q.token_count = 5;
    q.max_tokens = 2;
    return q;
}

static void refused(const qr_request *q, qr_status wanted, const char *field)
{
    qr_handle handle = 0;
    qr_error err = {0};
    assert_refused(qr_submit(o.engine, q, NULL, NULL, &handle, &err), &err, wanted, field);
    assert_int_equal(qr_submit(o.engine, q, NULL, NULL, &handle, NULL), wanted);
}

static void requests_are_refused_by_field(void **state)
{
    (void)state;
    static int32_t long_prompt[100];
    const int32_t outside[2] = {5, 263}, below[1] = {-1};
    const char *const empty[] = {"fine", ""}, *const broken[] = {"\xff"}, *many[17];
    qr_request q = plain();
    refused(NULL, QR_BAD_ARGUMENT, "qr_request");
    for (int i = 0; i < 17; i++)
        many[i] = "x";

#define REFUSE(status, field, ...)     \
    do {                               \
        q = plain();                   \
        __VA_ARGS__;                   \
        refused(&q, status, field);    \
    } while (0)
    REFUSE(QR_BAD_REQUEST, "tokens: the prompt is empty", q.token_count = 0);
    REFUSE(QR_BAD_ARGUMENT, "tokens", q.tokens = NULL);
    REFUSE(QR_BAD_REQUEST, "tokens: entry 1 is token 263", q.tokens = outside, q.token_count = 2);
    REFUSE(QR_BAD_REQUEST, "E39", q.tokens = below, q.token_count = 1);
    REFUSE(QR_BAD_REQUEST, "the prompt has 100 tokens", q.tokens = long_prompt, q.token_count = 100);
    REFUSE(QR_BAD_REQUEST, "max_tokens", q.max_tokens = -1);
    REFUSE(QR_BAD_REQUEST, "min_tokens", q.min_tokens = -1);
    REFUSE(QR_BAD_REQUEST, "logprobs: 21", q.logprobs = 21);
    REFUSE(QR_BAD_REQUEST, "logprobs: -2", q.logprobs = -2);
    REFUSE(QR_BAD_REQUEST, "prompt_logprobs: 21", q.prompt_logprobs = 21);
    REFUSE(QR_BAD_ARGUMENT, "stop", q.stop_count = 1);
    REFUSE(QR_BAD_REQUEST, "stop: string 1 is empty", q.stop = empty, q.stop_count = 2);
    REFUSE(QR_BAD_REQUEST, "stop: string 0 is no UTF-8", q.stop = broken, q.stop_count = 1);
    REFUSE(QR_BAD_REQUEST, "stop: 17 strings", q.stop = many, q.stop_count = 17);
    REFUSE(QR_BAD_ARGUMENT, "stop_tokens", q.stop_token_count = 1);
    REFUSE(QR_BAD_REQUEST, "stop_tokens: entry 1", q.stop_tokens = outside, q.stop_token_count = 2);
    REFUSE(QR_BAD_REQUEST, "stop_tokens: 2000", q.stop_tokens = outside, q.stop_token_count = 2000);
#undef REFUSE
}

static void samplings_are_refused_by_field(void **state)
{
    (void)state;
    const int32_t outside[1] = {263};
    const qr_logit_bias bias_outside = {.token = 300}, bias_endless = {.token = 1, .bias = INFINITY};
    qr_request q = plain();
    qr_sampling s;
    q.sampling = &s;
#define REFUSE(status, field, ...)     \
    do {                               \
        s = (qr_sampling)QR_SAMPLING;  \
        __VA_ARGS__;                   \
        refused(&q, status, field);    \
    } while (0)
    REFUSE(QR_BAD_REQUEST, "temperature", s.temperature = -1);
    REFUSE(QR_BAD_REQUEST, "temperature", s.temperature = NAN);
    REFUSE(QR_BAD_REQUEST, "top_p", s.top_p = 0);
    REFUSE(QR_BAD_REQUEST, "top_p", s.top_p = 1.01);
    REFUSE(QR_BAD_REQUEST, "top_p", s.top_p = NAN);
    REFUSE(QR_BAD_REQUEST, "min_p", s.min_p = 1.5);
    REFUSE(QR_BAD_REQUEST, "repetition_penalty", s.repetition_penalty = 0);
    REFUSE(QR_BAD_REQUEST, "frequency_penalty", s.frequency_penalty = NAN);
    REFUSE(QR_BAD_REQUEST, "presence_penalty", s.presence_penalty = INFINITY);
    REFUSE(QR_BAD_REQUEST, "logit_bias", s.logit_bias = &bias_outside, s.logit_bias_count = 1);
    REFUSE(QR_BAD_REQUEST, "logit_bias", s.logit_bias = &bias_endless, s.logit_bias_count = 1);
    REFUSE(QR_BAD_REQUEST, "logit_bias: 1000", s.logit_bias = &bias_outside, s.logit_bias_count = 1000);
    REFUSE(QR_BAD_ARGUMENT, "logit_bias", s.logit_bias_count = 1);
    REFUSE(QR_BAD_REQUEST, "banned: entry 0", s.banned = outside, s.banned_count = 1);
    REFUSE(QR_BAD_REQUEST, "banned: 264", s.banned = outside, s.banned_count = 264);
    REFUSE(QR_BAD_ARGUMENT, "banned", s.banned_count = 1);
#undef REFUSE
}

static void structs_of_another_size_are_refused(void **state)
{
    (void)state;
    static const int by[] = {-1, 1, 8};
    qr_sampling s = QR_SAMPLING;
    qr_model *model;
    qr_engine *engine;
    qr_plan_bytes plan;
    qr_error err = {0};
    for (int i = 0; i < 3; i++) {
        qr_request q = plain();
        q.size += (size_t)by[i];
        refused(&q, QR_BAD_ARGUMENT, "qr_request: size");
        q = plain();
        s.size = sizeof s + (size_t)by[i];
        q.sampling = &s;
        refused(&q, QR_BAD_ARGUMENT, "qr_sampling: size");
        qr_model_options model_options = QR_MODEL_OPTIONS;
        model_options.size += (size_t)by[i];
        assert_refused(qr_model_open(dir, &model_options, &model, &err), &err, QR_BAD_ARGUMENT, "qr_model_options: size");
        assert_null(model);
        qr_engine_options options = QR_ENGINE_OPTIONS;
        options.size += (size_t)by[i];
        assert_refused(qr_engine_create(o.model, &options, &engine, &err), &err, QR_BAD_ARGUMENT,
                       "qr_engine_options: size");
        assert_null(engine);
        assert_refused(qr_plan(dir, NULL, &options, &plan, &err), &err, QR_BAD_ARGUMENT, "qr_engine_options: size");
    }
}

static void scores_are_refused_by_argument(void **state)
{
    (void)state;
    double out[200];
    const int32_t outside[2] = {5, 263};
    static int32_t long_text[101];
    qr_error err = {0};
    assert_refused(qr_score(o.engine, hello, 1, 1, out, &err), &err, QR_BAD_ARGUMENT, "qr_score");
    assert_refused(qr_score(o.engine, hello, 5, 0, out, &err), &err, QR_BAD_ARGUMENT, "qr_score");
    assert_refused(qr_score(o.engine, hello, 5, 5, out, &err), &err, QR_BAD_ARGUMENT, "qr_score");
    assert_refused(qr_score(o.engine, NULL, 5, 1, out, &err), &err, QR_BAD_ARGUMENT, "tokens");
    assert_refused(qr_score(o.engine, hello, 5, 1, NULL, &err), &err, QR_BAD_ARGUMENT, "scores");
    assert_refused(qr_score(o.engine, outside, 2, 1, out, &err), &err, QR_BAD_REQUEST, "entry 1 is token 263");
    assert_refused(qr_score(o.engine, long_text, 101, 1, out, &err), &err, QR_BAD_REQUEST, "the context holds 100");
    assert_int_equal(qr_score(o.engine, long_text, 100, 1, out, NULL), QR_OK);
}

/* ---- models ---- */

static void options_of_a_model_are_refused_by_name(void **state)
{
    (void)state;
    qr_model_options options;
    qr_model *model;
    qr_error err = {0};
#define REFUSE(status, word, ...)                                                       \
    do {                                                                                \
        options = (qr_model_options)QR_MODEL_OPTIONS;                                   \
        __VA_ARGS__;                                                                    \
        assert_refused(qr_model_open(dir, &options, &model, &err), &err, status, word); \
        assert_null(model);                                                             \
    } while (0)
    REFUSE(QR_BAD_ARGUMENT, "threads: -1", options.threads = -1);
    REFUSE(QR_BAD_ARGUMENT, "threads: 5000", options.threads = 5000);
    REFUSE(QR_BAD_ARGUMENT, "log_level", options.log_level = (qr_log_severity)9);
    REFUSE(QR_BAD_ARGUMENT, "device: \"gpu\"", options.device = "gpu");
    REFUSE(QR_BAD_ARGUMENT, "device: \"\"", options.device = "");
    REFUSE(QR_UNSUPPORTED, "device cuda", options.device = "cuda:1023");
    REFUSE(QR_UNSUPPORTED, "\"sse9\"", options.device = "cpu-sse9");
    REFUSE(QR_BAD_ARGUMENT, "profile: \"int4\"", options.profile = "int4");
    REFUSE(QR_BAD_ARGUMENT, "prompt_profile: \"v5\"", options.prompt_profile = "v5");
    REFUSE(QR_BAD_ARGUMENT, "w8a8", options.profile = "w8a8");
#undef REFUSE
    assert_refused(qr_model_open(NULL, NULL, &model, &err), &err, QR_BAD_ARGUMENT, "wanted the name of a folder");
    assert_refused(qr_model_open("", NULL, &model, &err), &err, QR_BAD_ARGUMENT, "wanted the name of a folder");
    assert_refused(qr_model_open("no/such/folder", NULL, &model, &err), &err, QR_BAD_FILE, "no/such/folder/config.json");
    qr_model_close(NULL);
}

static void the_name_of_the_path_is_told(void **state)
{
    (void)state;
    static const char *const devices[][2] = {{"cpu-reference", "cpu-reference"}, {"cpu-portable", "cpu-portable"}};
    qr_model_info info;
    for (int i = 0; i < 2; i++) {
        qr_model_options options = QR_MODEL_OPTIONS;
        qr_model *model;
        options.device = devices[i][0];
        assert_int_equal(qr_model_open(dir, &options, &model, NULL), QR_OK);
        qr_model_get_info(model, &info);
        assert_string_equal(info.backend, devices[i][1]);
        assert_string_equal(info.family, "DeepSeek-V4.1");
        assert_int_equal(info.layers, 5);
        qr_model_close(model);
    }
    qr_model_get_info(o.model, &info);
    assert_true(strncmp(info.backend, "cpu-", 4) == 0 && strcmp(info.backend, "cpu-reference") != 0);
}

/* A folder that has a config and nothing else. */
static char *config_alone(void)
{
    char *folder = scratch_make(), *from, *to;
    assert_true(asprintf(&from, "%s/config.json", dir) > 0 && asprintf(&to, "%s/config.json", folder) > 0);
    assert_int_equal(symlink(from, to), 0);
    free(from);
    free(to);
    return folder;
}

static void what_does_not_fit_is_refused_before_a_shard_is_opened(void **state)
{
    (void)state;
    char *folder = config_alone();
    qr_engine_options options = QR_ENGINE_OPTIONS;
    qr_plan_bytes plan;
    qr_engine *engine;
    qr_error err = {0};
    options.kv_ram_bytes = 5000;
    assert_refused(qr_plan(folder, NULL, &options, &plan, &err), &err, QR_REFUSED, "E31");
    assert_refused(qr_engine_create(o.model, &options, &engine, &err), &err, QR_REFUSED, "E31");
    assert_null(engine);
    options.kv_ram_bytes = 1 << 20;
    assert_refused(qr_plan(folder, NULL, &options, &plan, &err), &err, QR_BAD_FILE, "model.safetensors");
    options.max_model_len = 65536;
    assert_refused(qr_plan(folder, NULL, &options, &plan, &err), &err, QR_REFUSED, "E31");
    options.max_model_len = 65537;
    assert_refused(qr_plan(folder, NULL, &options, &plan, &err), &err, QR_REFUSED, "max_position_embeddings");
    scratch_remove(folder);
}

static void every_violated_rule_is_named_at_once(void **state)
{
    (void)state;
    char *folder = config_alone();
    qr_engine_options options = QR_ENGINE_OPTIONS;
    qr_plan_bytes plan;
    qr_error err = {0};
    options.block_size = 33;
    options.kv_cache_dtype = "int3";
    options.index_cache_dtype = "int8";
    assert_int_equal(qr_plan(folder, NULL, &options, &plan, &err), QR_REFUSED);
    static const char *const rules[] = {"E02", "E03", "E05", "E06"};
    for (int i = 0; i < 4; i++)
        assert_non_null(strstr(err.message, rules[i]));
    scratch_remove(folder);
}

static void a_plan_is_what_an_engine_takes(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    qr_plan_bytes planned, taken;
    options.kv_ram_bytes = 3 << 20;
    options.max_num_seqs = 3;
    options.block_size = 32;
    qr_model_options model = QR_MODEL_OPTIONS;
    model.threads = 1;
    struct opened other = engine_open(dir, NULL, 1, &options);
    assert_int_equal(qr_plan(dir, &model, &options, &planned, NULL), QR_OK);
    qr_engine_get_plan(other.engine, &taken);
    assert_memory_equal(&planned, &taken, sizeof planned);
    assert_true(planned.pages + planned.states <= options.kv_ram_bytes);
    assert_int_equal(planned.slots, 3);
    assert_true(planned.max_model_len > 0 && planned.workspace > 0 && planned.weights > 0 && planned.tables > 0);
    engine_close(&other);

    /* the rows of an attention call bound its scratch: two rows of bf16 as wide as all heads for each row of a step */
    const int64_t rows = planned.max_model_len < 682 ? 3 * planned.max_model_len : 2048, width = 2 * 2 * 2 * 32;
    options.attn_prefill_chunk_size = 32;
    assert_int_equal(qr_plan(dir, &model, &options, &taken, NULL), QR_OK);
    const int64_t less = (int64_t)(planned.workspace - taken.workspace), wanted = (rows - 32) * width;
    assert_true(less < wanted && less > wanted * 9 / 10); /* a number for each row, and a few for each cut */
    assert_true(taken.pages == planned.pages && taken.max_model_len == planned.max_model_len);
}

static void engines_come_and_go_without_a_trace(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    const int64_t live = alloc_live();
    options.kv_ram_bytes = 8 << 20;
    for (int i = 0; i < 30; i++) {
        qr_engine *engine;
        assert_int_equal(qr_engine_create(o.model, &options, &engine, NULL), QR_OK);
        qr_engine_destroy(engine);
        assert_int_equal(alloc_live(), live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_refused_by_field),
        cmocka_unit_test(samplings_are_refused_by_field),
        cmocka_unit_test(structs_of_another_size_are_refused),
        cmocka_unit_test(scores_are_refused_by_argument),
        cmocka_unit_test(options_of_a_model_are_refused_by_name),
        cmocka_unit_test(the_name_of_the_path_is_told),
        cmocka_unit_test(what_does_not_fit_is_refused_before_a_shard_is_opened),
        cmocka_unit_test(every_violated_rule_is_named_at_once),
        cmocka_unit_test(a_plan_is_what_an_engine_takes),
        cmocka_unit_test(engines_come_and_go_without_a_trace),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
