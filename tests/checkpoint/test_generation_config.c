#include "support/support.h"

#include <string.h>

#include "base/alloc.h"
#include "checkpoint/generation_config.h"

static qr_status parse(const char *text, struct generation_config *out, qr_error *err)
{
    return generation_config_parse(text, strlen(text), "g.json", 100, out, err);
}

static void bundled_models_state_their_defaults(void **state)
{
    (void)state;
    struct generation_config g;
    assert_int_equal(generation_config_read(source_path("models/tiny-v41"), 4096, &g, NULL), QR_OK);
    assert_int_equal(g.eos_count, 1);
    assert_int_equal(g.eos[0], 1);
    assert_true(g.temperature == 0.6 && g.top_p == 0.95);
}

static void a_folder_without_the_file_samples_plainly(void **state)
{
    (void)state;
    struct generation_config g;
    assert_int_equal(generation_config_read(source_path("tests/data"), 100, &g, NULL), QR_OK);
    assert_int_equal(g.eos_count, 0);
    assert_true(g.temperature == 1 && g.top_p == 1);
}

static void end_tokens_may_be_a_list(void **state)
{
    (void)state;
    struct generation_config g;
    assert_int_equal(parse("{\"eos_token_id\": [1, 99, 7]}", &g, NULL), QR_OK);
    assert_int_equal(g.eos_count, 3);
    assert_int_equal(g.eos[1], 99);
    assert_int_equal(parse("{\"eos_token_id\": null, \"temperature\": 0}", &g, NULL), QR_OK);
    assert_int_equal(g.eos_count, 0);
    assert_true(g.temperature == 0);
}

static void without_sampling_the_temperature_is_zero(void **state)
{
    (void)state;
    struct generation_config g;
    assert_int_equal(parse("{\"do_sample\": false, \"temperature\": 0.7}", &g, NULL), QR_OK);
    assert_true(g.temperature == 0);
}

static void values_out_of_range_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"{\"eos_token_id\": 100}", "eos_token_id is 100"},   {"{\"eos_token_id\": [1, -1]}", "eos_token_id[1] is -1"},
        {"{\"eos_token_id\": \"1\"}", "eos_token_id is"},     {"{\"temperature\": -1}", "temperature is -1"},
        {"{\"temperature\": 3}", "temperature is 3"},         {"{\"top_p\": 0}", "top_p is 0"},
        {"{\"top_p\": 1.5}", "top_p is 1.5"},                 {"{\"do_sample\": 1}", "do_sample is 1"},
        {"[]", "no JSON object"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct generation_config g;
        qr_error err = {0};
        assert_int_equal(parse(bad[i][0], &g, &err), QR_BAD_CONFIG);
        if (!strstr(err.message, bad[i][1]) || strncmp(err.message, "g.json: ", 8))
            fail_msg("\"%s\" does not say \"%s\"", err.message, bad[i][1]);
    }
}

static void failed_allocations_are_statuses_without_leaks(void **state)
{
    (void)state;
    int64_t live = alloc_live();
    for (int64_t n = 1;; n++) {
        struct generation_config g;
        alloc_fault_at(n, 0);
        qr_status st = generation_config_read(source_path("models/tiny-v41"), 4096, &g, NULL);
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
        cmocka_unit_test(bundled_models_state_their_defaults),
        cmocka_unit_test(a_folder_without_the_file_samples_plainly),
        cmocka_unit_test(end_tokens_may_be_a_list),
        cmocka_unit_test(without_sampling_the_temperature_is_zero),
        cmocka_unit_test(values_out_of_range_are_refused_by_name),
        fault_test(failed_allocations_are_statuses_without_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
