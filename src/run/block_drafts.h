/* block_drafts.h: the blocks of a DSpark drafter (speculation.md 2.4 to 2.7) become a step of their own, and their tokens
 * are found one after another: the Markov head adds to each row what the token before it says. The caller draws. */
#ifndef QR_RUN_BLOCK_DRAFTS_H
#define QR_RUN_BLOCK_DRAFTS_H

#include "model/model.h"
#include "run/assemble.h"

/* A request that drafts behind `position` committed tokens, of which `anchor` is the next, already drawn. */
struct block_draft {
    int32_t slot, position, anchor;
    int32_t valid_from; /* first position whose ring rows are the request's (speculation.md 3): none below it is read */
};

struct block_drafts;

/* `limits` are those of steps; a pass has up to max_requests blocks of the geometry's draft_width rows. */
qr_status block_drafts_open(struct backend *backend, const struct assembly_limits *limits, struct block_drafts **out,
                            qr_error *err);
void block_drafts_close(struct block_drafts *d);
int64_t block_drafts_bytes(const struct block_drafts *d); /* on the backend */
int64_t block_drafts_bytes_for(const struct assembly_limits *limits); /* on host and backend */

/* QR_INTERNAL naming the request, the value and the bound. Changes nothing. */
qr_status block_drafts_check(const struct block_drafts *d, const struct block_draft *requests, int32_t count,
                             qr_error *err);
/* Makes the pass of checked requests and uploads it; fills all of `out` but cache and observer. */
qr_status block_drafts_fill(struct block_drafts *d, const struct block_draft *requests, int32_t count,
                            struct model_draft *out, qr_error *err);

/* Slot k (0-based) of every request of the pass just run, after tokens[count], what stands before each in the chain: the
 * anchors for k = 0, else the draft of slot k - 1. Leaves their logits on the backend, their confidences on the host. */
qr_status block_drafts_next(struct block_drafts *d, struct model *m, int32_t k, const int32_t *tokens, qr_error *err);
/* Where they stand, until the next call: those of request b are row first + b * step of `logits`, and row b of `bias`, the
 * Markov head's part, added. */
struct block_rows {
    const float *logits, *bias; /* [..][vocab] */
    int64_t first, step;
};
struct block_rows block_drafts_rows(const struct block_drafts *d);
/* The sum of request b on the host, [vocab], until the next call of any; and the confidence before its sigmoid. */
qr_status block_drafts_logits(const struct block_drafts *d, int32_t b, const float **out, qr_error *err);
float block_drafts_confidence(const struct block_drafts *d, int32_t b);

#endif
