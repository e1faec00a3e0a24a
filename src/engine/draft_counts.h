/* draft_counts.h: what became of drafts, over an engine's life (speculation.md 7). Spans of prompts never enter. Pure. */
#ifndef QR_ENGINE_DRAFT_COUNTS_H
#define QR_ENGINE_DRAFT_COUNTS_H

#include "quire.h"

enum { DRAFT_BINS = 15 }; /* of [0, 1], of a confidence's expected calibration error */

/* Zero-initialise. */
struct draft_counts {
    qr_draft_metrics sums; /* all of it but the ratios */
    struct draft_bin {
        uint64_t count, hits;
        double estimate; /* sum */
    } bins[QR_MAX_DRAFTS][DRAFT_BINS];
};

/* A decode span of one request. */
struct draft_verdict {
    int32_t proposed;       /* drafts that were there for it, */
    int32_t verified;       /* of which it ran that many */
    int32_t accepted;       /* and the target agreed with that many of the first, whether or not the answer had ended by then */
    int32_t emitted;        /* tokens that the answer got */
    qr_rest rest;           /* why nothing was verified, where nothing was */
    const double *survival; /* [verified] the drafter's estimate that draft k and all before it are accepted; NULL: none */
};
void draft_counts_verdict(struct draft_counts *c, const struct draft_verdict *v);
/* Drafts that no step will see: their request was preempted, cancelled or failed. */
void draft_counts_discard(struct draft_counts *c, int32_t drafts);
/* A draft pass over `requests` requests that made `drafts` tokens. */
void draft_counts_pass(struct draft_counts *c, int32_t requests, int32_t drafts, double seconds);
/* A step in which drafts were verified. */
void draft_counts_step(struct draft_counts *c, double seconds);

/* With the ratios. */
void draft_counts_told(const struct draft_counts *c, qr_draft_metrics *out);

#endif
