/* label: release A16 */
/* A verify step leaves what one row at a time leaves, whatever was sent and whatever was right, at every step parity; everything
 * that may not be read holds NaN patterns meanwhile (speculation.md 12: T6, T7, T8, T11). Known failures 16 and 17 (runtime.md
 * 15): slack for a fixed number of drafts, and one number in the middle that alone was wrong. */
#include "support/rollback.h"

#include "support/scratch.h"
#include "support/support.h"
#include "support/visible.h"

#define SPEC_V41 "tests/golden/v41/spec-13.1/model"
#define TINY_V4 "tests/golden/v4/tiny/model"

static void hold(const char *what, const struct rollback_world *w)
{
    struct rollback_counts c;
    rollback(w, &c);
    print_message("%s, %d drafts: %d cases in %d steps\n", what, (int)w->width, (int)c.cases, (int)c.steps);
    if (c.logits || c.states || c.drafts)
        fail_msg("%s, %d drafts: of %d steps %d logits, %d states and %d drafts are not those of one row a step", what,
                 (int)w->width, (int)c.steps, (int)c.logits, (int)c.states, (int)c.drafts);
}

static void a_v41_is_as_if_never_drafted_for_with_blocks_of_every_size(void **state)
{
    (void)state;
    for (int32_t width = 1; width <= 7; width++)
        hold(SPEC_V41, &(struct rollback_world){.model = folder_with_block(scratch, SPEC_V41, width),
                                                .width = width,
                                                .period = 2,
                                                .prompt = 3,
                                                .tokens = 100,
                                                .bf16 = width % 2 == 0,
                                                .index_format = ROW_INDEX_FP8});
}

static void a_v4_with_mtp_is_as_if_never_drafted_for(void **state)
{
    (void)state;
    hold(TINY_V4, &(struct rollback_world){.model = TINY_V4, .width = 1, .period = 8, .prompt = 120, .tokens = 180});
}

static void a_ring_with_a_row_less_is_found_out(void **state)
{
    (void)state;
    struct rollback_counts c;
    rollback(&(struct rollback_world){.model = SPEC_V41, .width = 3, .period = 2, .prompt = 3, .tokens = 100, .short_by = 1},
             &c);
    assert_true(c.drafts > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_v41_is_as_if_never_drafted_for_with_blocks_of_every_size),
        cmocka_unit_test(a_v4_with_mtp_is_as_if_never_drafted_for),
        cmocka_unit_test(a_ring_with_a_row_less_is_found_out),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
