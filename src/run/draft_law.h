/* draft_law.h: what a request's drafts were drawn from (speculation.md 2.8, 4.4 to 4.6), for ratio and block verification.
 *
 * The noise of a draft may decide about nothing but that draft. Block verification looks at every draft of the step before
 * it says how many stand, and so may a schedule that reads confidences; drafting the positions behind the first rejected
 * one again with the noise that was looked at would bias what comes next. So each further try at a position has streams of
 * its own: the purposes of drafts plus 4 for each try before it. First tries have the streams of 4.6. */
#ifndef QR_RUN_DRAFT_LAW_H
#define QR_RUN_DRAFT_LAW_H

#include "run/sampling.h"

enum { DRAFT_LAW_MOST = 8 /* drafts of a step */ };

struct draft_law;

/* For up to `limit` drafts a step. `points`: all are greedy, and no row is kept. QR_NO_MEMORY, QR_INTERNAL: more than
 * DRAFT_LAW_MOST. */
qr_status draft_law_open(int32_t vocab, int32_t limit, bool points, struct draft_law **out, qr_error *err);
void draft_law_close(struct draft_law *law); /* NULL is fine */
int64_t draft_law_bytes(int32_t vocab, int32_t limit, bool points);

/* Begins the drafts of a step; the first one's position is `first`, no smaller than before. */
void draft_law_begin(struct draft_law *law, int64_t first);
/* The next draft, drawn from `d`, whose probabilities must be floats (sampling_round): they are kept, as q. With `points`
 * `d` has one id. Not more than `limit` of them. */
int32_t draft_law_draw(struct draft_law *law, const struct distribution *d, uint64_t seed);

/* Whether the drafts drawn last begin at `first` and are `n` at least. */
bool draft_law_holds(const struct draft_law *law, int64_t first, int32_t n);
/* q of draft k (0-based), written to out[vocab]; NULL: a greedy one, all mass on it. */
const double *draft_law_row(const struct draft_law *law, int32_t k, double *out);
/* The acceptance uniforms of the first n drafts. */
void draft_law_uniforms(const struct draft_law *law, uint64_t seed, int32_t n, double *u);

#endif
