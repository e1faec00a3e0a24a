#include "run/draft_law.h"

#include <string.h>

#include "base/alloc.h"

struct draft_law {
    int32_t vocab, limit;
    int64_t first;                  /* position of the first draft */
    int32_t drawn;                  /* drafts since `begin` */
    uint32_t tries[DRAFT_LAW_MOST]; /* at each position from `first`, before this step */
    float *q;                       /* [limit][vocab]; NULL: greedy drafts */
};

int64_t draft_law_bytes(int32_t vocab, int32_t limit, bool points)
{
    return (int64_t)sizeof(struct draft_law) + (points ? 0 : (int64_t)limit * vocab * (int64_t)sizeof(float));
}

qr_status draft_law_open(int32_t vocab, int32_t limit, bool points, struct draft_law **out, qr_error *err)
{
    *out = NULL;
    if (limit < 1 || limit > DRAFT_LAW_MOST)
        return qr_fail(err, QR_INTERNAL, "a law of %d drafts, wanted 1 to %d", limit, DRAFT_LAW_MOST);
    struct draft_law *law = qr_calloc(1, sizeof *law);
    if (law && !points)
        law->q = qr_calloc((size_t)limit * (size_t)vocab, sizeof *law->q);
    if (!law || (!points && !law->q)) {
        draft_law_close(law);
        return qr_fail(err, QR_NO_MEMORY, "no memory for what %d drafts of a vocabulary of %d are drawn from", limit, vocab);
    }
    law->vocab = vocab;
    law->limit = limit;
    *out = law;
    return QR_OK;
}

void draft_law_close(struct draft_law *law)
{
    if (!law)
        return;
    qr_free(law->q);
    qr_free(law);
}

/* Tries at a position so far. */
static uint32_t tries_at(const struct draft_law *law, int64_t position)
{
    const int64_t k = position - law->first;
    return k < 0 || k >= law->limit ? 0 : law->tries[k] + (k < law->drawn);
}

void draft_law_begin(struct draft_law *law, int64_t first)
{
    uint32_t tries[DRAFT_LAW_MOST];
    for (int32_t k = 0; k < law->limit; k++)
        tries[k] = tries_at(law, first + k);
    memcpy(law->tries, tries, (size_t)law->limit * sizeof *tries);
    law->first = first;
    law->drawn = 0;
}

static struct keyed_stream stream_of(const struct draft_law *law, int32_t k, uint64_t seed, enum stream_tag purpose)
{
    return (struct keyed_stream){.seed = seed, .position = law->first + k, .tag = purpose + 4 * law->tries[k]};
}

static void keep(struct draft_law *law, const struct distribution *d)
{
    float *row = law->q + (int64_t)law->drawn * law->vocab;
    memset(row, 0, (size_t)law->vocab * sizeof *row);
    for (int32_t i = 0; i < d->count; i++)
        row[d->ids ? d->ids[i] : i] = (float)d->p[i];
}

int32_t draft_law_draw(struct draft_law *law, const struct distribution *d, uint64_t seed)
{
    const struct keyed_stream noise = stream_of(law, law->drawn, seed, STREAM_DRAFT);
    if (law->q)
        keep(law, d);
    law->drawn++;
    return distribution_draw(d, &noise);
}

bool draft_law_holds(const struct draft_law *law, int64_t first, int32_t n)
{
    return law->first == first && law->drawn >= n;
}

/* Rounding left the sum a little off 1; the draw took shares of it. */
const double *draft_law_row(const struct draft_law *law, int32_t k, double *out)
{
    double sum = 0;
    if (!law->q)
        return NULL;
    const float *row = law->q + (int64_t)k * law->vocab;
    for (int32_t v = 0; v < law->vocab; v++)
        sum += (double)row[v];
    for (int32_t v = 0; v < law->vocab; v++)
        out[v] = (double)row[v] / sum;
    return out;
}

void draft_law_uniforms(const struct draft_law *law, uint64_t seed, int32_t n, double *u)
{
    for (int32_t k = 0; k < n; k++) {
        const struct keyed_stream stream = stream_of(law, k, seed, STREAM_ACCEPT);
        u[k] = stream_uniform(stream_word(&stream, 0));
    }
}
