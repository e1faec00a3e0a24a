/* draft_choice.h: what an engine drafts with and how its drafts are judged, from its options (runtime.md 12.1). */
#ifndef QR_ENGINE_DRAFT_CHOICE_H
#define QR_ENGINE_DRAFT_CHOICE_H

#include "engine/draft_profile.h"
#include "engine/rules.h"
#include "run/verdict.h"

enum draft_sampling { /* of requests with a temperature; those without draft greedily (speculation.md 2.8) */
    DRAFT_COUPLED,
    DRAFT_GREEDY,
    DRAFT_PROBABILISTIC
};

struct draft_choice {
    enum qr_drafter drafter; /* QR_DRAFTER_NONE: nothing */
    int32_t width;           /* tokens that the drafter makes at once: the block, 1 for MTP; 0 */
    int32_t limit;           /* of which a step verifies that many at most; 0 */
    int32_t least;           /* drafts below which a step does without; 0 */
    bool rests;              /* requests whose drafts do not pay go on without (payoff.h) */
    enum verifier verifier;
    enum draft_sampling sampling;
    double forced;           /* tokens of a step under forced acceptance; 0: off */
    bool scheduled;          /* a step verifies as many as `profile` says (draft_budget.h) */
    struct draft_profile profile;
};

/* Broken rules (E08, E09) are added to the list. */
struct draft_choice draft_choose(const struct model_plan *plan, const qr_engine_options *o, struct rule_list *broken);

#endif
