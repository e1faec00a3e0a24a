#include "base/base64.h"

#include <string.h>

#include "support/support.h"

static void the_vectors_of_the_rfc_hold_both_ways(void **state)
{
    static const char *const pairs[][2] = {{"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foobar", "Zm9vYmFy"}};
    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct buffer text = {0}, bytes = {0};
        assert_true(base64_encode(&text, pairs[i][0], strlen(pairs[i][0])));
        assert_string_equal(text.data, pairs[i][1]);
        assert_true(base64_decode(&bytes, text.data, text.length));
        assert_string_equal(bytes.data, pairs[i][0]);
        buffer_free(&text);
        buffer_free(&bytes);
    }
}

static void what_is_no_base64_leaves_the_buffer_as_it_was(void **state)
{
    static const char *const texts[] = {"Zg=", "Z", "Zg==Zg==", "Z!==", "_w=="};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct buffer bytes = {0};
        buffer_puts(&bytes, "a");
        assert_false(base64_decode(&bytes, texts[i], strlen(texts[i])));
        assert_string_equal(bytes.data, "a");
        buffer_free(&bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_vectors_of_the_rfc_hold_both_ways),
        cmocka_unit_test(what_is_no_base64_leaves_the_buffer_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
