/* The ids of golden/parser, which need the published tokenizer. */
#include "support/support.h"

#include <stdio.h>

#include "support/parser_cases.h"
#include "support/tokenizers.h"

static void check_golden(void *user, const struct json *line)
{
    static const char *const cuts[] = {"ids", "ids_cut", "ids_bytes"};
    struct parser_case c;
    (void)user;
    parser_case_open(&c, line, json_equals(json_get(line, "profile"), "v41") ? tokenizer_as_v41 : tokenizer_as_v4);
    for (size_t i = 0; i < 3; i++) {
        struct tok_ids ids = {0};
        const struct json *list = json_get(line, cuts[i]);
        for (const struct json *e = list ? list->child : NULL; e; e = e->next) {
            int64_t id;
            assert_true(json_int64(e, &id) && tok_ids_push(&ids, (int32_t)id));
        }
        if (list)
            parser_case_check(&c, &ids, cuts[i]);
        tok_ids_free(&ids);
    }
    parser_case_close(&c);
}

static void outputs_are_parsed_as_the_goldens_say(void **state)
{
    (void)state;
    assert_int_equal(each_line("tests/golden/parser/outputs.jsonl", check_golden, NULL), 275);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(outputs_are_parsed_as_the_goldens_say)};
    if (!fixture_tokenizer()) {
        printf("skipped: the published tokenizer is not here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, published_begin, published_end);
}
