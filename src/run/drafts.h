/* drafts.h: rows for the MTP layer become a step of its own (v4-model.md 6.3, 6.4): checks, row lists, where each row's
 * streams come from, one upload. */
#ifndef QR_RUN_DRAFTS_H
#define QR_RUN_DRAFTS_H

#include "model/model.h"
#include "run/assemble.h"

/* Consecutive MTP positions of one request. Row i stands at position first_position + i and holds the token that
 * follows it. Rows before logits_from only leave their window key: what a prompt's rows are needed for. */
struct draft_span {
    int32_t slot;
    int32_t first_position, count;
    const int32_t *tokens;  /* [count] */
    const int32_t *sources; /* [count] row of the last step that stood at the position; -1: kept in the slot */
    int32_t logits_from;    /* 0 .. count */
};

struct drafts;

/* `limits` are those of draft passes (blocks are not looked at). */
qr_status drafts_open(struct backend *backend, const struct assembly_limits *limits, struct drafts **out,
                      qr_error *err);
void drafts_close(struct drafts *d);
int64_t drafts_bytes(const struct drafts *d); /* on the backend */
int64_t drafts_bytes_for(const struct assembly_limits *limits); /* on host and backend */

/* Checks the spans against the limits, and sources against the last step's `rows`; QR_INTERNAL naming the span, the
 * value and the bound. Changes nothing. */
qr_status drafts_check(const struct drafts *d, const struct draft_span *spans, int32_t count, int32_t rows,
                       qr_error *err);
/* Makes the step of checked spans and uploads it; fills all of `out` but cache and observer. Stays until the next call.
 */
qr_status drafts_fill(struct drafts *d, const struct draft_span *spans, int32_t count, struct model_draft *out,
                      qr_error *err);

#endif
