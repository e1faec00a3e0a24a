/* label: release */
/* --json: standard output is one JSON object and nothing else, whatever is said beside it. */
#include "support/program.h"

#include <string.h>

#include "support/scratch.h"
#include "support/support.h"

enum { MOST = 20 };

static void standard_output_is_one_object(void **state)
{
    (void)state;
    const char *model = source_path("models/tiny-v41"), *config = source_path("models/tiny-v41/config.json");
    const char *v4 = source_path("models/tiny-v4"), *made = scratch_path(scratch, "made"),
               *int8 = scratch_path(scratch, "int8");
    const char *const lines[][MOST] = {
        {"run", "--model", model, "--kv-ram-bytes", "9000000", "-n", "3", "--log-level", "debug", "hi"},
        {"eval", "--model", model, "--kv-ram-bytes", "9000000", "--text", config, "--log-level", "debug"},
        {"eval", "--model", model, "--kv-ram-bytes", "9000000", "--requests", "-"},
        {"inspect", "--model", model, "--log-level", "debug"},
        {"verify", "--model", model, "--files-only", "--log-level", "debug"},
        {"bench", "load", "--model", model, "--kv-ram-bytes", "9000000", "--log-level", "debug"},
        {"op", "--list"},
        {"synth", "--config", config, "--out", made, "--values", "none"},
        {"quantize", "--w8a8", "--model", v4, "--out", int8},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const char *words[MOST + 2];
        int n = 0;
        while (n < MOST && lines[i][n]) {
            words[n] = lines[i][n];
            n++;
        }
        words[n] = "--json";
        words[n + 1] = NULL;
        struct ran r = program_run("{\"id\":1,\"tokens\":[5,6]}\n", words);
        assert_status(&r, 0);
        assert_true(r.out_length > 2);
        struct json_document *doc = whole_json(r.out, r.out_length);
        assert_int_equal(json_root(doc)->kind, JSON_OBJECT);
        assert_int_equal(r.out[r.out_length - 1], '\n');
        json_close(doc);
        ran_free(&r);
    }
}

static void what_fails_prints_none(void **state)
{
    (void)state;
    static const char *const lines[][4] = {
        {"run", "--json", "hi"}, {"eval", "--json"}, {"inspect", "--json"}, {"verify", "--json"}, {"synth", "--json"}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct ran r = program_run(NULL, lines[i]);
        assert_status(&r, 2);
        assert_string_equal(r.out, "");
        assert_true(strlen(r.err) > 0);
        ran_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_output_is_one_object),
        cmocka_unit_test(what_fails_prints_none),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
