/* label: full once A16 */
/* The sweep of test_rollback at every step parity of V4's groups of 128, and for its DSpark drafter, with blocks of every
 * size at every parity of the groups of 8 (speculation.md 12: T6, T8). */
#include "support/rollback.h"

#include "cli/commands.h"
#include "support/scratch.h"
#include "support/support.h"
#include "support/visible.h"

#define TINY_V4 "tests/golden/v4/tiny/model"

static void hold(const struct rollback_world *w)
{
    struct rollback_counts c;
    rollback(w, &c);
    print_message("%d drafts, bf16 %d: %d cases in %d steps\n", (int)w->width, w->bf16, (int)c.cases, (int)c.steps);
    if (c.logits || c.states || c.drafts)
        fail_msg("%d drafts: of %d steps %d logits, %d states and %d drafts are not those of one row a step", (int)w->width,
                 (int)c.steps, (int)c.logits, (int)c.states, (int)c.drafts);
}

static void a_v4_with_mtp_is_as_if_never_drafted_for(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++)
        hold(&(struct rollback_world){.model = TINY_V4,
                                      .width = 1,
                                      .period = 128,
                                      .prompt = 5,
                                      .tokens = 300,
                                      .bf16 = bf16,
                                      .index_format = ROW_INDEX_FP4});
}

static void a_v4_with_dspark_is_as_if_never_drafted_for(void **state)
{
    (void)state;
    const char *folder = scratch_path(scratch, "v4-dspark");
    char *argv[] = {"synth", "--quiet", "--config", (char *)(uintptr_t)source_path("tests/data/config/v4-tiny-dspark.json"),
                    "--seed", "5", "--out", (char *)(uintptr_t)folder};
    assert_int_equal(tool_synth(8, argv), 0);
    hold(&(struct rollback_world){.model = folder, .width = 5, .period = 128, .prompt = 5, .tokens = 300});
    for (int32_t width = 1; width <= 7; width++)
        hold(&(struct rollback_world){
            .model = folder_with_block(scratch, folder, width), .width = width, .period = 8, .prompt = 120, .tokens = 300});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_v4_with_mtp_is_as_if_never_drafted_for),
        cmocka_unit_test(a_v4_with_dspark_is_as_if_never_drafted_for),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
