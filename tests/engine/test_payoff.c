/* Whether drafts pay, on steps whose times are made up (speculation.md 6.8). */
#include "support/support.h"

#include "engine/payoff.h"

enum { LIMIT = 5, STEPS = 400 };

/* Times of steps and drafts of a machine: a step takes `step` and `row` a row, a draft pass `draft` a request. */
struct machine {
    double step, row, draft;
};

/* Lives `steps` steps of requests that have `right` drafts of a step right; returns how often each drafted. */
static void live(const struct machine *m, const int32_t *right, int32_t count, int32_t steps, int32_t *drafted)
{
    struct payoff p = {0};
    struct payoff_request requests[4] = {0}, *all[4];
    bool drafts[4];
    for (int32_t i = 0; i < count; i++)
        all[i] = &requests[i];
    for (int32_t s = 0; s < steps; s++) {
        int32_t rows = count, drafting = 0;
        payoff_choose(&p, all, count, LIMIT, drafts);
        for (int32_t i = 0; i < count; i++) {
            drafting += drafts[i];
            drafted[i] += drafts[i];
            if (drafts[i])
                payoff_verified(all[i], right[i]);
        }
        rows += drafting * LIMIT;
        if (drafting > 0)
            payoff_draft(&p, drafting, m->draft * drafting);
        payoff_step(&p, count, rows, m->step + m->row * rows);
    }
}

static void drafts_that_are_right_go_on_where_steps_cost_more_than_rows(void **state)
{
    (void)state;
    const struct machine memory_bound = {.step = 10, .row = 0.1, .draft = 2};
    const int32_t right[] = {4};
    int32_t drafted[1] = {0};
    live(&memory_bound, right, 1, STEPS, drafted);
    assert_in_range(drafted[0], STEPS - 4, STEPS - 3); /* but for the turns in which plain steps are seen */
}

static void drafts_that_fail_rest_and_are_tried_again_ever_more_seldom(void **state)
{
    (void)state;
    const struct machine memory_bound = {.step = 10, .row = 0.1, .draft = 2};
    const int32_t right[] = {0};
    int32_t drafted[1] = {0};
    live(&memory_bound, right, 1, STEPS, drafted);
    assert_in_range(drafted[0], 3, 4 + 4); /* until times are known, then after 32, 64, 128 steps */
    drafted[0] = 0;
    live(&memory_bound, right, 1, 10 * STEPS, drafted);
    assert_in_range(drafted[0], 3, 4 + 9);
}

static void rows_that_cost_as_much_as_steps_stop_drafts_that_are_right(void **state)
{
    (void)state;
    const struct machine compute_bound = {.step = 0.1, .row = 10, .draft = 20};
    const int32_t right[] = {3};
    int32_t drafted[1] = {0};
    live(&compute_bound, right, 1, STEPS, drafted);
    assert_in_range(drafted[0], 3, 4 + 4);
}

static void each_request_is_judged_by_itself(void **state)
{
    (void)state;
    const struct machine m = {.step = 10, .row = 0.6, .draft = 0.5};
    const int32_t right[] = {5, 0, 4, 0};
    int32_t drafted[4] = {0};
    live(&m, right, 4, STEPS, drafted);
    assert_true(drafted[0] > STEPS - 8 && drafted[2] > STEPS - 8);
    assert_true(drafted[1] < 16 && drafted[3] < 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_that_are_right_go_on_where_steps_cost_more_than_rows),
        cmocka_unit_test(drafts_that_fail_rest_and_are_tried_again_ever_more_seldom),
        cmocka_unit_test(rows_that_cost_as_much_as_steps_stop_drafts_that_are_right),
        cmocka_unit_test(each_request_is_judged_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
