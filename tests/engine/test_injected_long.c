/* label: full once A16 */
/* test_injected for blocks of every size and both families (speculation.md 12: T1, T2, T14, T15, T16). Known failure 17 (runtime.md
 * 15): one number of drafts in the middle that alone was wrong. */
#include "support/injected.h"

#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"
#include "support/visible.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model"

static void drafts_of_a_v41_may_be_wrong_at_any_place(void **state)
{
    (void)state;
    for (int32_t width = 1; width <= 7; width++)
        injected(folder_with_block(scratch, SPEC_V41, width), "dspark", width, width);
}

static void drafts_of_a_v4_with_mtp_may_be_wrong(void **state)
{
    (void)state;
    injected("tests/golden/v4/tiny/model", "mtp", 1, 1);
}

static void drafts_of_a_v4_with_dspark_may_be_wrong_at_any_place(void **state)
{
    (void)state;
    char *folder = small_folder_of("tests/data/config/v4-tiny-dspark.json");
    for (int32_t width = 1; width <= 7; width += 2)
        injected(folder_with_block(scratch, folder, width), "dspark", width, 2);
    scratch_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_of_a_v41_may_be_wrong_at_any_place),
        cmocka_unit_test(drafts_of_a_v4_with_mtp_may_be_wrong),
        cmocka_unit_test(drafts_of_a_v4_with_dspark_may_be_wrong_at_any_place),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
