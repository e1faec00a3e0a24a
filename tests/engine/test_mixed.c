/* label: release */
/* Many requests at once, with shared beginnings, cancelled, preempted, moved and robbed of their cache, give bit for bit
 * what each gives alone and cold (runtime.md 13, law 2); and everything they held comes back. */
#include "support/mixed.h"

#include "support/support.h"

static void requests_of_a_v41_at_once_are_each_alone(void **state)
{
    (void)state;
    mixed("models/tiny-v41", 20, NULL);
}

static void requests_of_a_v4_at_once_are_each_alone(void **state)
{
    (void)state;
    mixed("models/tiny-v4", 20, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_a_v41_at_once_are_each_alone),
        cmocka_unit_test(requests_of_a_v4_at_once_are_each_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
