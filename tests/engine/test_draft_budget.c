/* How many drafts a step verifies, against every choice there is (speculation.md 6.2, 12: T17). */
#include "engine/draft_budget.h"

#include <math.h>

#include "support/support.h"

enum { REQUESTS = 4, DRAFTS = 4, CASES = 2000 };

/* A number of [0, 1). */
static double next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (1 << 24);
}

struct world {
    struct draft_profile profile;
    double survival[REQUESTS][DRAFTS];
    struct draft_offer offers[REQUESTS];
    int32_t count, others;
};

/* Steps of some sizes, as where execution pads; coarse survivals, so that equal ones come up. */
static struct world make(uint64_t seed)
{
    struct world w = {.count = 1 + (int32_t)(seed % REQUESTS), .others = (int32_t)(seed / REQUESTS % 3)};
    uint64_t state = seed * 977 + 3;
    double ms = 1 + 5 * next(&state);
    for (int32_t rows = 1; rows <= REQUESTS * (DRAFTS + 1) + 2; rows++) {
        if (next(&state) < 0.6 || rows == REQUESTS * (DRAFTS + 1) + 2)
            draft_cost_add(&w.profile.steps, rows, ms);
        ms += next(&state) < 0.3 ? 0 : next(&state);
    }
    for (int32_t r = 1; r <= REQUESTS; r++)
        draft_cost_add(&w.profile.drafts, r, 0.2 * r + next(&state));
    draft_cost_settle(&w.profile.drafts);
    for (int32_t i = 0; i < w.count; i++) {
        double left = 1;
        for (int32_t k = 0; k < DRAFTS; k++)
            w.survival[i][k] = left *= floor(5 * next(&state)) / 4;
        w.offers[i] = (struct draft_offer){.made = (int32_t)((DRAFTS + 1) * next(&state))};
    }
    return w;
}

static double rate(const struct world *w, const int32_t *lengths, int32_t *drafts)
{
    double tokens = w->count + w->others;
    *drafts = 0;
    for (int32_t i = 0; i < w->count; i++) {
        for (int32_t k = 0; k < lengths[i]; k++)
            tokens += w->survival[i][k];
        *drafts += lengths[i];
    }
    return tokens / (draft_cost_ms(&w->profile.drafts, w->count) +
                     draft_cost_ms(&w->profile.steps, w->count + w->others + *drafts));
}

/* The best of all choices, and the fewest drafts that reach it. */
static double best_of_all(const struct world *w, int32_t *fewest)
{
    int32_t lengths[REQUESTS] = {0}, drafts, at;
    double best = 0;
    do {
        const double one = rate(w, lengths, &drafts);
        if (one > best + 1e-12 || (one > best - 1e-12 && drafts < *fewest)) {
            best = one > best ? one : best;
            *fewest = drafts;
        }
        for (at = 0; at < w->count && ++lengths[at] > w->offers[at].made; at++)
            lengths[at] = 0;
    } while (at < w->count);
    return best;
}

static void lengths_are_the_best_of_every_choice_with_the_fewest_drafts(void **state)
{
    (void)state;
    int32_t shortened = 0, whole = 0;
    for (uint64_t seed = 0; seed < CASES; seed++) {
        struct world w = make(seed);
        int32_t lengths[REQUESTS], fewest = 0, drafts, made = 0;
        for (int32_t i = 0; i < w.count; i++)
            w.offers[i].survival = w.survival[i];
        const double said = draft_budget(&w.profile, w.offers, w.count, w.others), best = best_of_all(&w, &fewest);
        for (int32_t i = 0; i < w.count; i++) {
            lengths[i] = w.offers[i].length;
            made += w.offers[i].made;
            assert_in_range(lengths[i], 0, w.offers[i].made);
        }
        assert_true(fabs(rate(&w, lengths, &drafts) - best) < 1e-9 && fabs(said - best) < 1e-9);
        assert_int_equal(drafts, fewest);
        shortened += drafts < made;
        whole += drafts == made && made > 0;
    }
    assert_true(shortened > CASES / 10 && whole > CASES / 20); /* both kinds came up */
}

static void equal_drafts_enter_in_the_order_of_requests(void **state)
{
    (void)state;
    static const double half[] = {0.5, 0.5};
    struct draft_profile p = {.steps = {.count = 3, .size = {2, 3, 9}, .ms = {10, 10, 90}},
                              .drafts = {.count = 1, .size = {2}, .ms = {1}}};
    struct draft_offer offers[] = {{.survival = half, .made = 2}, {.survival = half, .made = 2}};
    draft_budget(&p, offers, 2, 0);
    assert_int_equal(offers[0].length, 1);
    assert_int_equal(offers[1].length, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_are_the_best_of_every_choice_with_the_fewest_drafts),
        cmocka_unit_test(equal_drafts_enter_in_the_order_of_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
