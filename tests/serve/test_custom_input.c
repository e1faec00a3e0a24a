/* The text of a free-form call, out of the JSON that the model writes. */
#include "support/support.h"

#include <string.h>

#include "serve/custom_input.h"

static const struct {
    const char *json, *text;
    bool whole; /* the JSON is, and begins with the text */
} cases[] = {
    {"{\"input\": \"*** Begin Patch\\n+a \\\"b\\\" \\\\ \\t\\/\"}", "*** Begin Patch\n+a \"b\" \\ \t/", true},
    {" {\n \"input\"\t:  \"\"}", "", true},
    {"{\"input\":\"\\u00e9\\u20AC \\ud83d\\ude00 \xC3\xA9\"}", "\xC3\xA9\xE2\x82\xAC \xF0\x9F\x98\x80 \xC3\xA9", true},
    {"{\"input\":\"a\\ud83d b\\ude00\\ud83d\\u0041\"}", "a\xEF\xBF\xBD b\xEF\xBF\xBD\xEF\xBF\xBD" "A", true},
    {"{\"input\":\"a\\ud83d\"}", "a\xEF\xBF\xBD", true},
    {"{\"input\":\"a\",\"more\":1}", "a", true},
    {"{\"input\":\"cut \\u00", "cut ", true},
    {"{\"input\":\"a\\u66\xCF\x9A\"", "a\xEF\xBF\xBD\xCF\x9A", true},
    {"{\"more\":1,\"input\":\"a\"}", "a", false},
    {"{\"input\":{\"a\":1}}", "{\"input\":{\"a\":1}}", false},
    {"{\"in put\":\"a\"}", "{\"in put\":\"a\"}", false},
    {"{}", "{}", false},
    {"{\"city\": ", "{\"city\": ", false},
    {"", "", false},
};
enum { CASES = sizeof cases / sizeof *cases };

static void assert_text(const struct buffer *b, const char *text)
{
    assert_string_equal(b->data ? b->data : "", text);
    assert_int_equal(b->length, strlen(text));
}

static void the_string_is_told_raw_and_anything_else_as_it_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        struct buffer out = {0};
        custom_input_of(cases[i].json, strlen(cases[i].json), &out);
        assert_text(&out, cases[i].text);
        buffer_free(&out);
    }
}

static void any_split_gives_the_same_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        const size_t length = strlen(cases[i].json);
        for (size_t split = 0; split <= length; split++) {
            struct custom_input c = {0};
            custom_input_push(&c, cases[i].json, split);
            custom_input_push(&c, cases[i].json + split, length - split);
            assert_text(&c.text, cases[i].whole ? cases[i].text : "");
            buffer_free(&c.text);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_string_is_told_raw_and_anything_else_as_it_is),
        cmocka_unit_test(any_split_gives_the_same_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
