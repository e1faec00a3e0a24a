/* batch.h: what one step runs, as the scheduler decided it: an immutable snapshot that run/ turns into a step. Prefill
 * chunks, decode rows and verify rows are the same: spans of consecutive positions, each of one request. Knows no
 * weight and no byte. */
#ifndef QR_SCHED_BATCH_H
#define QR_SCHED_BATCH_H

#include "cache/image_copy.h"
#include "plan/rows.h"

/* A token that the step before this one draws on the device: only where steps run ahead (sched_options.depth). */
enum { BATCH_TOKEN_DRAWN = -1 };

/* Consecutive tokens of one request. Everything pointed to is the scheduler's and stays until the step is over. */
struct batch_span {
    uint64_t request;      /* whose span it is; results are told by the span's number in the batch */
    int32_t slot;          /* STATE slot, exclusively the request's */
    const int32_t *blocks; /* its PAGE ids, block i holding positions i*B .. i*B + B-1 */
    int32_t block_count;   /* at least ceil((first_position + count) / B) */
    int32_t first_position, count;
    const int32_t *tokens;     /* [count] */
    const uint8_t *image_mask; /* [count] 1: image-span token; NULL: none */
    int32_t logits_from;       /* tokens from this one on (0 .. count) want logits; count: none */
    bool final;                /* the last row's logits are drawn from: the span ends where the request's tokens end */
    int32_t drafts;            /* the last `drafts` tokens may be rejected; 0 unless the batch is tentative */
    bool draftless;            /* without `rows`: no row leaves anything for the drafter */

    const struct row_plan *rows; /* the part of the request's positions that each layer runs; NULL: every one */
    int32_t write_from;          /* compressed rows of groups that end below it exist: they are read, never written */

    /* The slot is new to this request: its cursor is set to first_position, and the Engram history to the tokens just
     * before it, oldest first. Position 0 does this by itself. */
    bool place;
    int32_t before_count; /* as many as there are, at most the history's length; 0 without `place`: not told. A debug build
                           * holds the cursor's history to them (runtime.md 3.7) */
    const int32_t *before;
    const uint8_t *before_mask; /* [before_count] or NULL */

    /* The batch's copies have filled the slot, cursor included: read the cursor from there. It stands at first_position, or,
     * where `place` puts it there, at most the geometry's draft width behind it (or behind rows that are run again). */
    bool restored;
};

struct batch {
    uint64_t step; /* counts up from 1 */
    int32_t count; /* 0: nothing but copies */
    const struct batch_span *spans;
    bool tentative; /* verify step: tokens after a span's first may be rejected */
    /* State maintenance, done in this order before anything else of the step (runtime.md 3.10). */
    int32_t copy_count;
    const struct cache_copy *copies;
};

#endif
