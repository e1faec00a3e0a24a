#include "support/support.h"

#include <string.h>

#include "base/buffer.h"

static void appended_text_reads_back(void **state)
{
    (void)state;
    struct buffer b = {0};
    for (int i = 0; i < 100; i++)
        assert_true(buffer_printf(&b, "%d,", i));
    assert_int_equal(b.length, strlen(b.data));
    assert_memory_equal(b.data, "0,1,2,", 6);
    buffer_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(appended_text_reads_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
