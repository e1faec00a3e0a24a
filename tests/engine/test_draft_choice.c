/* label: once A22 */
/* What an engine drafts with and how drafts are judged: every combination of the options that is none is refused with its
 * rule (E08, E09), each alone. */
#include "engine/draft_choice.h"

#include <string.h>

#include "support/models.h"
#include "support/support.h"

#define V41 "models/tiny-v41/config.json"
#define MTP "models/tiny-v4/config.json"
#define V4 "tests/data/config/v4-flash-dspark.json"

struct combination {
    const char *config;
    qr_engine_options o;
    const char *says; /* NULL: no rule is broken */
    struct draft_choice chosen;
};

#define DRAFTS(d, w, l) .drafter = QR_DRAFTER_##d, .width = w, .limit = l
#define PROBABILISTIC(v) .verifier = VERIFIER_##v, .sampling = DRAFT_PROBABILISTIC

static const struct combination combinations[] = {
    {V41, {.method = "dspark"}, NULL, {DRAFTS(DSPARK, 5, 5)}},
    {V41, {.method = "auto"}, NULL, {DRAFTS(DSPARK, 5, 5), .rests = true}},
    {V41, {.size = 0}, NULL, {DRAFTS(DSPARK, 5, 5), .rests = true}}, /* by itself */
    {MTP, {.size = 0}, NULL, {DRAFTS(MTP, 1, 1), .rests = true}},
    {V41, {.method = "none"}, NULL, {DRAFTS(NONE, 0, 0)}},
    {V41, {.method = "dspark", .num_speculative_tokens = 2}, NULL, {DRAFTS(DSPARK, 5, 2)}},
    {MTP, {.method = "mtp"}, NULL, {DRAFTS(MTP, 1, 1)}},
    {MTP, {.method = "dspark"}, "E08 method is dspark, the checkpoint's drafter is mtp", {0}},
    {MTP, {.method = "magic"}, "E08 method is \"magic\"", {0}},
    /* the width */
    {V4, {.method = "dspark"}, NULL, {DRAFTS(DSPARK, 5, 5)}},
    {V4, {.method = "dspark", .draft_width = 7}, NULL, {DRAFTS(DSPARK, 7, 7)}},
    {V4, {.method = "dspark", .draft_width = 7, .num_speculative_tokens = 6}, NULL, {DRAFTS(DSPARK, 7, 6)}},
    {V4, {.method = "dspark", .draft_width = 6, .num_speculative_tokens = 7}, "E08 7 drafts in a step, wanted 1 to 6", {0}},
    {V4, {.method = "dspark", .draft_width = 8}, "E08 a draft width of 8, wanted 5 to 7", {0}},
    {V4, {.method = "dspark", .draft_width = 4}, "E08 a draft width of 4, wanted 5 to 7", {0}},
    {V4, {.method = "none", .draft_width = 7}, "E08 a draft width of 7 without a method", {0}},
    {V4, {.draft_width = 7}, NULL, {DRAFTS(DSPARK, 7, 7), .rests = true}},
    {V41, {.method = "dspark", .draft_width = 5}, NULL, {DRAFTS(DSPARK, 5, 5)}},
    {V41, {.method = "dspark", .draft_width = 7}, "E08 a draft width of 7, wanted 5 to 5", {0}},
    {MTP, {.method = "mtp", .draft_width = 2}, "E08 a draft width of 2, wanted 1 to 1", {0}},
    /* the verifier */
    {V41, {.method = "dspark", .verifier = "match"}, NULL, {DRAFTS(DSPARK, 5, 5)}},
    {V41, {.method = "dspark", .verifier = "ratio"}, NULL, {DRAFTS(DSPARK, 5, 5), PROBABILISTIC(RATIO)}},
    {MTP, {.method = "mtp", .verifier = "block"}, NULL, {DRAFTS(MTP, 1, 1), PROBABILISTIC(BLOCK)}},
    {V41, {.method = "dspark", .verifier = "relaxed"}, "E08 verifier is \"relaxed\", wanted match, ratio or block", {0}},
    {V41, {.method = "none", .verifier = "ratio"}, "E08 verifier is ratio without a method", {0}},
    /* how drafts are drawn */
    {V41, {.method = "dspark", .draft_sampling = "greedy"}, NULL, {DRAFTS(DSPARK, 5, 5), .sampling = DRAFT_GREEDY}},
    {V41, {.method = "dspark", .draft_sampling = "coupled"}, NULL, {DRAFTS(DSPARK, 5, 5)}},
    {V41,
     {.method = "dspark", .verifier = "block", .draft_sampling = "greedy"},
     NULL,
     {DRAFTS(DSPARK, 5, 5), .verifier = VERIFIER_BLOCK, .sampling = DRAFT_GREEDY}},
    {V41, {.method = "dspark", .draft_sampling = "probabilistic"}, "with verifier match, wanted coupled or greedy", {0}},
    {V41,
     {.method = "dspark", .verifier = "ratio", .draft_sampling = "coupled"},
     "with verifier ratio, wanted probabilistic or greedy",
     {0}},
    /* forced acceptance; it never rests */
    {V41, {.method = "auto", .forced_acceptance_length = 3.5}, NULL, {DRAFTS(DSPARK, 5, 5), .forced = 3.5}},
    {V41, {.method = "dspark", .forced_acceptance_length = 6}, NULL, {DRAFTS(DSPARK, 5, 5), .forced = 6}},
    {V41, {.method = "none", .forced_acceptance_length = 2}, "E09 a forced acceptance length of 2 without drafts", {0}},
    {V41, {.method = "dspark", .forced_acceptance_length = 6.5}, "E09 a forced acceptance length of 6.5, wanted 1 to 6", {0}},
    {V41, {.method = "dspark", .forced_acceptance_length = 0.5}, "E09 a forced acceptance length of 0.5, wanted 1 to 6", {0}},
    {V41,
     {.method = "dspark", .num_speculative_tokens = 2, .forced_acceptance_length = 4},
     "E09 a forced acceptance length of 4, wanted 1 to 3",
     {0}},
    {V41,
     {.method = "dspark", .verifier = "ratio", .forced_acceptance_length = 2},
     "E09 a forced acceptance length of 2 with verifier ratio",
     {0}},
};

static void assert_choice(const struct draft_choice *found, const struct draft_choice *wanted)
{
    assert_int_equal(found->drafter, wanted->drafter);
    assert_int_equal(found->width, wanted->width);
    assert_int_equal(found->limit, wanted->limit);
    assert_int_equal(found->rests, wanted->rests);
    assert_int_equal(found->verifier, wanted->verifier);
    assert_int_equal(found->sampling, wanted->sampling);
    assert_true(found->forced == wanted->forced);
}

static void every_combination_is_taken_or_refused_by_its_id(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof combinations / sizeof *combinations; i++) {
        const struct combination *c = &combinations[i];
        const struct model_plan plan = plan_of(c->config);
        struct rule_list broken = {.used = 0};
        const struct draft_choice found = draft_choose(&plan, &c->o, &broken);
        if (broken.count != (c->says != NULL) || (c->says && !strstr(broken.text, c->says)))
            fail_msg("combination %zu: %d rules broken: \"%s\", wanted \"%s\"", i, broken.count, broken.text,
                     c->says ? c->says : "");
        if (!c->says)
            assert_choice(&found, &c->chosen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_is_taken_or_refused_by_its_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
