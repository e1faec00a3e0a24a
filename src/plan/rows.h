/* rows.h: which rows each layer runs on, so that every later result is that of a cold, untrimmed forward (runtime.md 7.5
 * as generalised by the addendum's rule 1), or that of the bounded replay (7.1, 7.3). Pure. The ranges are functions of
 * absolute positions, the same for every cut into chunks: a chunk runs a layer on those of its rows that lie in the
 * layer's range. */
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
    /* Bounded replay, of plans with rows_bounds. `tail`: the decoder runs the last W rows, which see no row before them;
     * first_logits is end - 1 then, and the boundary is the encoder's alone. `rebuild`: nothing is there below rings_from
     * but compressed rows; the encoder runs every row from there on, and no window reaches below it. */
    bool tail, rebuild;
};

/* Where a layer starts; each range ends at `end`. An empty range starts there. */
struct layer_start {
    int32_t query;    /* D: rows that pass through the whole layer */
    int32_t key;      /* K: rows whose window key is computed; for draft layers, whose context is written */
    int32_t compress; /* P: rows whose compressor inputs are computed; empty where the layer owns no rows */
    int32_t low;      /* no window of the layer reaches below it (swa_replay_start); 0 unless bounded */
    int32_t again;    /* C: rows below it have been run before and are run again for the layers above alone: they see one
                       * another only, and ring and tail stay as they are, which rows from here on read; 0: none */
};

struct row_plan {
    int32_t first; /* S: first row of the forward */
    int32_t end;
    struct layer_start layer[QR_MAX_LAYERS]; /* backbone, then draft layers */
};

void rows_exact(const struct model_plan *plan, const struct rows_request *request, struct row_plan *out);

/* The first layer that reads no compressed row of its own prompt but by what the last KV source made: the decoder of
 * runtime.md 7.1, which starts with that source; -1: bounded replay has nothing to cut (no KV source, no layer behind the
 * last, or an n-gram table behind it). */
int32_t rows_decoder(const struct model_plan *plan);

/* First row of the decoder's tail in bounded replay: s = end - min(W, end). */
int32_t rows_tail(const struct model_plan *plan, int32_t end);

/* The forward of a bounded decoder that does not finish its prompt: no decoder layer and no drafter runs a row. */
void rows_unfinished(const struct model_plan *plan, struct row_plan *rows);

/* The forward of a bounded decoder that finishes a prompt with fewer than W rows behind `again`: it goes back to row
 * `first`, a block boundary, so that the whole tail lies in it (runtime.md 4.6, 7.1). `rows` is the request's plan. */
void rows_back_off(const struct model_plan *plan, const struct row_plan *rows, int32_t first, int32_t again,
                   struct row_plan *out);

/* Every layer on every row from `first` on: what runs where nothing is trimmed. */
void rows_all(const struct model_plan *plan, int32_t first, int32_t end, struct row_plan *out);

/* Rows times layers that pass through a whole backbone layer: the cost of a plan. */
int64_t rows_query_total(const struct model_plan *plan, const struct row_plan *rows);

#endif
