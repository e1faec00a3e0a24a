/* label: release A23 */
/* Random lives of many requests (runtime.md 13, A23; with drafts speculation.md 12, T26): every row read is checked, every
 * invariant after every pass, every token counted. */
#include "support/soak.h"
#include "support/support.h"

static void everything_at_once_is_each_alone(void **state)
{
    (void)state;
    soak_all(120000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_at_once_is_each_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
