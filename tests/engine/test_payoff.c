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
                payoff_verified(&p, all[i], right[i]);
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
    assert_in_range(drafted[0], STEPS - 4 - STEPS / PAYOFF_PLAIN, STEPS - 3); /* but for plain steps, to be timed */
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
    const int32_t learning = 6, plain = STEPS / PAYOFF_PLAIN; /* steps in which it may have to wait */
    assert_true(drafted[0] >= STEPS - learning - plain && drafted[2] >= STEPS - learning - plain);
    assert_true(drafted[1] < 16 && drafted[3] < 16);
}

/* Time of `requests`, one after the other, of `steps` tokens each, whose drafts are right `right` times of a thousand; in
 * `without` that without drafts. */
static double total(const struct machine *m, int32_t requests, int32_t steps, int32_t right, double *without)
{
    struct payoff p = {0};
    double spent = 0;
    uint64_t state = 5;
    *without = 0;
    for (int32_t r = 0; r < requests; r++) {
        struct payoff_request one = {0}, *all = &one;
        for (int32_t s = 0; s < steps; s++) {
            bool drafts = false;
            int32_t a = 0;
            payoff_choose(&p, &all, 1, LIMIT, &drafts);
            const double pass = drafts ? m->draft : 0, step = m->step + m->row * (drafts ? 1 + LIMIT : 1);
            if (drafts)
                payoff_draft(&p, 1, pass);
            payoff_step(&p, 1, drafts ? 1 + LIMIT : 1, step);
            while (drafts && a < LIMIT && (state = state * 6364136223846793005u + 1442695040888963407u) >> 40 <
                                              (uint64_t)right * ((1 << 24) / 1000))
                a++;
            if (drafts)
                payoff_verified(&p, &one, a);
            spent += pass + step;
            *without += (1 + a) * (m->step + m->row);
        }
    }
    return spent;
}

static void drafts_that_fail_cost_no_twentieth_whatever_steps_and_rows_take(void **state)
{
    (void)state;
    static const struct machine machines[] = {{10, 0.1, 2}, {10, 1, 5}, {1, 1, 3}, {0.6, 3.4, 9}, {0.1, 10, 50}};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (int32_t right = 0; right <= 400; right += 100) {
            double without, spent = total(&machines[i], 8, 400, right, &without);
            if (spent > 1.05 * without)
                fail_msg("machine %zu, %d of a thousand right: %g, without %g", i, (int)right, spent, without);
        }
}

/* ---- rows for the drafter ---- */

enum { AT_ONCE = 8, PROMPT = 32, WINDOW = 128, ANSWER = 300, LAYERS = 8 };

struct simulated {
    struct payoff_request payoff;
    int32_t done, gap; /* tokens of the answer, and those of them below which rows for the drafter are missing; -1: none */
    bool draftless;
};

/* A step of `count` requests on a machine where a row for the drafter takes `context`; returns its time. */
static double simulate_step(struct payoff *p, const struct machine *m, double context, struct simulated *r, int32_t count,
                            int32_t right, uint64_t *state, double *tokens)
{
    struct payoff_request *all[AT_ONCE];
    bool drafts[AT_ONCE];
    int32_t drafting = 0, made = 0;
    for (int32_t i = 0; i < count; i++) {
        all[i] = &r[i].payoff;
        all[i]->lacks_rows = r[i].gap >= 0 && r[i].done < r[i].gap + WINDOW;
    }
    payoff_choose(p, all, count, LIMIT, drafts);
    for (int32_t i = 0; i < count; i++) {
        int32_t a = 0;
        assert_false(drafts[i] && all[i]->lacks_rows);
        r[i].draftless = all[i]->spares_rows && !drafts[i];
        drafting += drafts[i];
        while (drafts[i] && a < LIMIT && (*state = *state * 6364136223846793005u + 1442695040888963407u) >> 40 <
                                             (uint64_t)right * ((1 << 24) / 1000))
            a++;
        if (drafts[i])
            payoff_verified(p, all[i], a);
        r[i].done += 1 + a;
        *tokens += 1 + a;
        if (r[i].draftless)
            r[i].gap = r[i].done;
        else
            made += drafts[i] ? 1 + LIMIT : 1;
    }
    const int32_t rows = count + drafting * LIMIT;
    const double step = m->step + m->row * rows, context_seconds = context * made, pass = m->draft * drafting;
    if (drafting > 0)
        payoff_draft(p, drafting, pass + context_seconds);
    else if (made > 0)
        payoff_rows(p, made, context_seconds);
    payoff_step(p, count, rows, step);
    return step + context_seconds + pass;
}

/* Time of AT_ONCE requests, `count` at once, in an engine that knows nothing, over that without drafts. */
static double simulated_cost(const struct machine *m, double context, int32_t count, int32_t right)
{
    struct payoff p = {.window = WINDOW};
    double spent = 0, tokens = 0, prompts = 0;
    uint64_t state = 5;
    for (int32_t round = 0; round < AT_ONCE / count; round++) {
        struct simulated r[AT_ONCE] = {0};
        for (int32_t i = 0; i < count; i++) {
            r[i].draftless = payoff_starts_without(&p, LIMIT);
            r[i].gap = r[i].draftless ? 0 : -1;
            spent += PROMPT * (m->row + (r[i].draftless ? 0 : m->row / LAYERS + context)); /* a layer runs rows for the drafter alone */
            prompts += PROMPT * m->row;
        }
        for (int32_t s = 0; s < ANSWER; s++)
            spent += simulate_step(&p, m, context, r, count, right, &state, &tokens);
    }
    return spent / (prompts + tokens * (m->step / count + m->row));
}

/* The first machines are those of the trained models on a CPU, where a row takes what a step takes. */
static void drafts_that_fail_cost_no_twentieth_with_their_drafters_rows_alone_and_in_a_batch(void **state)
{
    (void)state;
    static const struct {
        struct machine m;
        double context;
    } machines[] = {{{0.1, 4.7, 4}, 0.13}, {{0.1, 4.7, 1}, 0.2}, {{1, 4, 3}, 0.2}, {{10, 0.1, 2}, 0.2}, {{10, 1, 5}, 0.3}};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (int32_t count = 1; count <= AT_ONCE; count *= 2)
            for (int32_t right = 0; right <= 200; right += 100) {
                const double cost = simulated_cost(&machines[i].m, machines[i].context, count, right);
                if (cost > 1.05)
                    fail_msg("machine %zu, %d at once, %d of a thousand right: %g of the time without", i, (int)count, (int)right,
                             cost);
            }
}

static void drafts_that_are_right_are_found_again_behind_requests_where_they_failed(void **state)
{
    (void)state;
    const struct machine m = {10, 0.5, 2};
    struct payoff p = {0};
    int32_t drafted = 0;
    for (int32_t r = 0; r < 12; r++) {
        struct payoff_request one = {0}, *all = &one;
        for (int32_t s = 0; s < STEPS; s++) {
            bool drafts = false;
            payoff_choose(&p, &all, 1, LIMIT, &drafts);
            if (drafts) {
                payoff_draft(&p, 1, m.draft);
                payoff_verified(&p, &one, r < 6 ? 0 : 4);
            }
            payoff_step(&p, 1, drafts ? 1 + LIMIT : 1, m.step + m.row * (drafts ? 1 + LIMIT : 1));
            drafted += r >= 6 && drafts;
        }
    }
    assert_true(drafted > 6 * STEPS * 9 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_that_are_right_go_on_where_steps_cost_more_than_rows),
        cmocka_unit_test(drafts_that_fail_rest_and_are_tried_again_ever_more_seldom),
        cmocka_unit_test(rows_that_cost_as_much_as_steps_stop_drafts_that_are_right),
        cmocka_unit_test(each_request_is_judged_by_itself),
        cmocka_unit_test(drafts_that_fail_cost_no_twentieth_whatever_steps_and_rows_take),
        cmocka_unit_test(drafts_that_fail_cost_no_twentieth_with_their_drafters_rows_alone_and_in_a_batch),
        cmocka_unit_test(drafts_that_are_right_are_found_again_behind_requests_where_they_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
