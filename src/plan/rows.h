/* rows.h: which rows each layer runs on, so that every later result is that of a cold, untrimmed forward (runtime.md 7.5
 * as generalised by the addendum's rule 1). Pure. The ranges are functions of absolute positions, the same for every
 * cut into chunks: a chunk runs a layer on those of its rows that lie in the layer's range. */
#ifndef QR_PLAN_ROWS_H
#define QR_PLAN_ROWS_H

#include "plan/plan.h"

/* What is there before the forward and what must be true after it. All are positions;
 * 0 <= rings_from <= cached < end, rings_from and cached are block boundaries. */
struct rows_request {
    int32_t rings_from;   /* H0: rings, overlapping tails and draft rings hold the rows below it (an image); 0: none */
    int32_t cached;       /* H: compressed rows of all groups below it exist and are not written again; 0: cold */
    int32_t end;          /* T_end: every position below it is known; rings and tails must be complete there */
    int32_t boundary;     /* H' <= end: rings must be complete there too (an image will be taken); -1: none */
    int32_t first_logits; /* first row whose logits are wanted, in [cached, end); end - 1: the last only */
    bool drafting;        /* the drafter's rings must be complete too */
};

/* Where a layer starts; each range ends at `end`. An empty range starts there. */
struct layer_start {
    int32_t query;    /* D: rows that pass through the whole layer */
    int32_t key;      /* K: rows whose window key is computed; for draft layers, whose context is written */
    int32_t compress; /* P: rows whose compressor inputs are computed; empty where the layer owns no rows */
};

struct row_plan {
    int32_t first; /* S: first row of the forward */
    int32_t end;
    struct layer_start layer[QR_MAX_LAYERS]; /* backbone, then draft layers */
};

void rows_exact(const struct model_plan *plan, const struct rows_request *request, struct row_plan *out);

/* Every layer on every row from `first` on: what runs where nothing is trimmed. */
void rows_all(const struct model_plan *plan, int32_t first, int32_t end, struct row_plan *out);

/* Rows times layers that pass through a whole backbone layer: the cost of a plan. */
int64_t rows_query_total(const struct model_plan *plan, const struct row_plan *rows);

#endif
