/* label: release A16 */
/* Drafts that are known to be right and wrong, for every place in a block, while requests are preempted, turned around,
 * moved and cancelled: answers are those alone and without drafts, bit for bit (speculation.md 12: T1, T2, T14, T15, T16). */
#include "support/injected.h"

#include "support/support.h"

static void drafts_of_a_v41_may_be_wrong_at_any_place(void **state)
{
    (void)state;
    injected("tests/golden/v41/spec-13.1/model", "dspark", 3, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_of_a_v41_may_be_wrong_at_any_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
