/* draft_budget.h: how many drafts of each request a step verifies (speculation.md 6.2, the form with costs). It reads
 * confidences, which under match and greedy verification cannot change what comes out (6.3). Pure. */
#ifndef QR_ENGINE_DRAFT_BUDGET_H
#define QR_ENGINE_DRAFT_BUDGET_H

#include "engine/draft_profile.h"

/* A request with drafts for the next step. */
struct draft_offer {
    const double *survival; /* [made] estimates that draft k and all before it are accepted: none larger than the one before */
    int32_t made;
    int32_t length;         /* out: drafts to verify */
};

/* The lengths with the most tokens a millisecond: (all + the survivals of what is verified) / (the draft pass + the step),
 * where a step has a row for each of the offers and of `others`, requests that decode without drafts, and one for each
 * draft. Of equals the one with the fewest drafts; drafts enter by their survival, of equal ones the earlier request's, then
 * the earlier. Returns those tokens a millisecond. */
double draft_budget(const struct draft_profile *p, struct draft_offer *offers, int32_t count, int32_t others);

#endif
