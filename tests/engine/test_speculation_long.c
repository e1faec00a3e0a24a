/* label: full once */
/* Five hundred requests with drafts, with shared beginnings, cancelled, preempted, moved and robbed of their cache, give bit
 * for bit what each gives alone, cold and without drafts (speculation.md 4.9, 12: T14). */
#include "support/mixed.h"

#include "support/support.h"

static void requests_of_a_v41_with_dspark_are_each_alone_without(void **state)
{
    (void)state;
    assert_true(mixed("models/tiny-v41", 500, "dspark") > 0);
}

static void requests_of_a_v4_with_mtp_are_each_alone_without(void **state)
{
    (void)state;
    assert_true(mixed("models/tiny-v4", 500, "mtp") > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_a_v41_with_dspark_are_each_alone_without),
        cmocka_unit_test(requests_of_a_v4_with_mtp_are_each_alone_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
