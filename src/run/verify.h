/* verify.h: which drafts stand (speculation.md 4.2 to 4.5). Pure functions on what the rows of one verify step gave.
 *
 * A step with cursor N has drafts d_1..d_n; row r (0..n) predicts position N + r + 1, so draft d_k is judged by row
 * k - 1. Of the n drafts the first `a` are accepted and one token y of the target follows: emitted are d_1..d_a, y, the
 * cursor becomes N + a + 1 and y the new anchor. In arrays d_k is drafts[k - 1]. */
#ifndef QR_RUN_VERIFY_H
#define QR_RUN_VERIFY_H

#include <stdint.h>

/* Greedy and match verification (4.2, 4.3): the drafts that equal the target's own token of their row, up to the first
 * that does not. `row_tokens` [n + 1] are those tokens (sampling_draw); y is row_tokens[a]. Returns a. */
int32_t verify_match(const int32_t *drafts, int32_t n, const int32_t *row_tokens);

/* What ratio and block verification read. */
struct verify_rows {
    int32_t vocab, n;
    const int32_t *drafts;  /* [n] */
    const double *const *p; /* [n + 1] rows of [vocab]: the target after its chain */
    const double *const
        *q; /* [n] rows of [vocab]: what the draft was drawn from; NULL: a greedy draft, all mass on it */
};

/* The acceptance uniforms u_1..u_n (4.6, STREAM_ACCEPT): position N + k for draft d_k. */
void verify_uniforms(uint64_t seed, int64_t cursor, int32_t n, double *u);

/* Ratio test (4.4). Returns a. */
int32_t verify_ratio(const struct verify_rows *rows, const double *u);
/* The probability with which the ratio test accepts draft d_k: min(1, p / q). */
double verify_ratio_chance(const struct verify_rows *rows, int32_t k);

/* Block verification (4.5): P [n + 1] and h [n + 1] (h[0] = 1 is unused); then a from the uniforms. */
void verify_block_levels(const struct verify_rows *rows, double *P, double *h);
int32_t verify_block(const double *h, int32_t n, const double *u);

/* The distribution of y after `a` accepted drafts: max(scale * p - q, 0) normalised, p itself when that mass is at most
 * 1e-8 or all drafts stand. `scale` is 1 for the ratio test and P[a] for block verification. `out` [vocab]; draw from
 * it with STREAM_TARGET at position N + a + 1. */
void verify_next(const struct verify_rows *rows, int32_t a, double scale, double *out);

#endif
