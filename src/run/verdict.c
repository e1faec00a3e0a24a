#include "run/verdict.h"

#include "base/alloc.h"
#include "run/verify.h"

struct verdict_scratch {
    int32_t vocab, limit;
    double *p;    /* [limit + 1][vocab] */
    double *q;    /* [limit][vocab] */
    double *next; /* [vocab] */
};

int64_t verdict_bytes(int32_t vocab, int32_t limit)
{
    return (int64_t)sizeof(struct verdict_scratch) + (2 * (int64_t)limit + 2) * vocab * (int64_t)sizeof(double);
}

qr_status verdict_open(int32_t vocab, int32_t limit, struct verdict_scratch **out, qr_error *err)
{
    const size_t row = (size_t)vocab, rows = (size_t)limit;
    *out = NULL;
    if (limit < 1 || limit > DRAFT_LAW_MOST)
        return qr_fail(err, QR_INTERNAL, "a verdict on %d drafts, wanted 1 to %d", limit, DRAFT_LAW_MOST);
    struct verdict_scratch *s = qr_calloc(1, sizeof *s);
    if (s) {
        s->vocab = vocab;
        s->limit = limit;
        s->p = qr_calloc((rows + 1) * row, sizeof *s->p);
        s->q = qr_calloc(rows * row, sizeof *s->q);
        s->next = qr_calloc(row, sizeof *s->next);
    }
    if (!s || !s->p || !s->q || !s->next) {
        verdict_close(s);
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d distributions of a vocabulary of %d", 2 * limit + 2, vocab);
    }
    *out = s;
    return QR_OK;
}

void verdict_close(struct verdict_scratch *s)
{
    if (!s)
        return;
    qr_free(s->p);
    qr_free(s->q);
    qr_free(s->next);
    qr_free(s);
}

double *verdict_target(struct verdict_scratch *s, int32_t row) { return s->p + (int64_t)row * s->vocab; }

struct verdict verdict_take(struct verdict_scratch *s, enum verifier verifier, const struct draft_law *law,
                            const int32_t *drafts, int32_t n, bool last_missing, uint64_t seed, int64_t first)
{
    const double *p[DRAFT_LAW_MOST + 1], *q[DRAFT_LAW_MOST];
    double u[DRAFT_LAW_MOST], P[DRAFT_LAW_MOST + 1], h[DRAFT_LAW_MOST + 1];
    const struct verify_rows rows = {.vocab = s->vocab, .n = n, .drafts = drafts, .p = p, .q = q};
    struct verdict out = {.next = -1};
    for (int32_t k = 0; k <= n; k++)
        p[k] = verdict_target(s, k);
    for (int32_t k = 0; k < n; k++)
        q[k] = draft_law_row(law, k, s->q + (int64_t)k * s->vocab);
    draft_law_uniforms(law, seed, n, u);
    P[0] = 1;
    if (verifier == VERIFIER_BLOCK) {
        verify_block_levels(&rows, P, h);
        out.accepted = verify_block(h, n, u);
    } else {
        out.accepted = verify_ratio(&rows, u);
    }
    if (last_missing && out.accepted == n)
        return out;
    verify_next(&rows, out.accepted, verifier == VERIFIER_BLOCK ? P[out.accepted] : 1.0, s->next);
    const struct distribution d = {.count = s->vocab, .p = s->next};
    const struct keyed_stream noise = {.seed = seed, .position = first + out.accepted, .tag = STREAM_TARGET};
    out.next = distribution_draw(&d, &noise);
    return out;
}
