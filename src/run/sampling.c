#include "run/sampling.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "run/candidates.h"

struct sampler_scratch {
    int32_t vocab;
    struct candidates candidates; /* arrays of [vocab] */
    int32_t *work;                /* [vocab] */
};

uint64_t sampler_scratch_bytes(int32_t vocab)
{
    return (uint64_t)vocab * (2 * sizeof(double) + 2 * sizeof(int32_t)) + sizeof(struct sampler_scratch);
}

qr_status sampler_scratch_open(int32_t vocab, struct sampler_scratch **out, qr_error *err)
{
    *out = NULL;
    struct sampler_scratch *s = qr_calloc(1, sizeof *s);
    if (s) {
        s->vocab = vocab;
        s->candidates.ids = qr_calloc((size_t)vocab, sizeof *s->candidates.ids);
        s->candidates.logits = qr_calloc((size_t)vocab, sizeof *s->candidates.logits);
        s->candidates.mass = qr_calloc((size_t)vocab, sizeof *s->candidates.mass);
        s->work = qr_calloc((size_t)vocab, sizeof *s->work);
    }
    if (!s || !s->candidates.ids || !s->candidates.logits || !s->candidates.mass || !s->work) {
        sampler_scratch_close(s);
        return qr_fail(err, QR_NO_MEMORY, "no memory to sample from a vocabulary of %d", vocab);
    }
    *out = s;
    return QR_OK;
}

void sampler_scratch_close(struct sampler_scratch *s)
{
    if (!s)
        return;
    qr_free(s->candidates.ids);
    qr_free(s->candidates.logits);
    qr_free(s->candidates.mass);
    qr_free(s->work);
    qr_free(s);
}

static qr_status check_bias(const struct sampling_params *p, int32_t vocab, qr_error *err)
{
    for (int32_t i = 0; i < p->bias_count; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= vocab)
            return qr_fail(err, QR_BAD_REQUEST, "logit_bias names id %d, the vocabulary has %d", p->bias[i].id, vocab);
        if (!isfinite(p->bias[i].value))
            return qr_fail(err, QR_BAD_REQUEST, "logit_bias of id %d is not finite", p->bias[i].id);
    }
    return QR_OK;
}

qr_status sampling_check(const struct sampling_params *p, int32_t vocab, qr_error *err)
{
    if (!(p->temperature >= 0) || !isfinite(p->temperature))
        return qr_fail(err, QR_BAD_REQUEST, "temperature is %g, wanted 0 or more", p->temperature);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return qr_fail(err, QR_BAD_REQUEST, "top_p is %g, wanted 0 to 1", p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return qr_fail(err, QR_BAD_REQUEST, "min_p is %g, wanted 0 to 1", p->min_p);
    if (!(p->repetition_penalty > 0) || !isfinite(p->repetition_penalty))
        return qr_fail(err, QR_BAD_REQUEST, "repetition_penalty is %g, wanted more than 0", p->repetition_penalty);
    if (!isfinite(p->frequency_penalty))
        return qr_fail(err, QR_BAD_REQUEST, "frequency_penalty is not finite");
    if (!isfinite(p->presence_penalty))
        return qr_fail(err, QR_BAD_REQUEST, "presence_penalty is not finite");
    return check_bias(p, vocab, err);
}

bool sampling_wants_counts(const struct sampling_params *p)
{
    return p->repetition_penalty != 1.0 || p->frequency_penalty != 0.0 || p->presence_penalty != 0.0;
}

static qr_status load_logits(const float *logits, int32_t vocab, double *x, qr_error *err)
{
    bool any = false;
    for (int32_t id = 0; id < vocab; id++) {
        if (!(logits[id] < INFINITY))
            return qr_fail(err, QR_NUMERIC, "the logit of id %d is %g, wanted a finite number", id, (double)logits[id]);
        any |= logits[id] > -INFINITY;
        x[id] = (double)logits[id];
    }
    if (!any)
        return qr_fail(err, QR_NUMERIC, "all %d logits of a row are -infinity", vocab);
    return QR_OK;
}

/* Steps 1 and 2. */
static void apply_penalties(const struct sampling_params *p, const struct token_counts *counts, double *x)
{
    int32_t n;
    const int32_t *ids = token_counts_distinct(counts, &n);
    for (int32_t i = 0; i < n; i++) {
        double *logit = &x[ids[i]];
        int32_t count = token_counts_output(counts, ids[i]);
        *logit = *logit > 0 ? *logit / p->repetition_penalty : *logit * p->repetition_penalty;
        *logit -= p->frequency_penalty * count + p->presence_penalty * (count > 0);
    }
}

/* Steps 3 and 4. The grammar's ids are looked at when the candidates are gathered. */
static void apply_bias_and_bans(const struct sampling_params *p, const struct sampling_row *row, int32_t vocab,
                                double *x)
{
    for (int32_t i = 0; i < p->bias_count; i++)
        x[p->bias[i].id] += p->bias[i].value;
    for (int32_t l = 0; l < row->banned_lists; l++) {
        const struct id_list *banned = &row->banned[l];
        for (int32_t i = 0; i < banned->count; i++)
            if (banned->ids[i] >= 0 && banned->ids[i] < vocab)
                x[banned->ids[i]] = -INFINITY;
    }
}

/* The logits lie by id; what is left moves down to the candidates' places. */
static qr_status gather(const uint32_t *allowed, int32_t vocab, struct candidates *c, qr_error *err)
{
    c->count = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (!(c->logits[id] > -INFINITY) || (allowed && !(allowed[id >> 5] >> (id & 31) & 1)))
            continue;
        c->ids[c->count] = id;
        c->logits[c->count++] = c->logits[id];
    }
    if (c->count == 0)
        return qr_fail(err, QR_BAD_REQUEST, "bans and grammar leave none of the %d ids of the vocabulary", vocab);
    return QR_OK;
}

static int32_t largest(const struct candidates *c)
{
    int32_t best = 0;
    for (int32_t i = 1; i < c->count; i++)
        if (c->logits[i] > c->logits[best])
            best = i;
    return best;
}

static void only(struct candidates *c, int32_t index)
{
    c->ids[0] = c->ids[index];
    c->mass[0] = 1.0;
    c->count = 1;
}

/* Softmax numerators: the largest is 1, so nothing overflows and the sum is at least 1. */
static void weigh(struct candidates *c, double temperature)
{
    double top = c->logits[largest(c)];
    for (int32_t i = 0; i < c->count; i++)
        c->mass[i] = exp((c->logits[i] - top) / temperature);
}

static void normalise(struct candidates *c)
{
    double sum = 0;
    for (int32_t i = 0; i < c->count; i++)
        sum += c->mass[i];
    for (int32_t i = 0; i < c->count; i++)
        c->mass[i] /= sum;
}

/* Steps 5 to 9 for a temperature above 0. */
static void shape(const struct sampling_params *p, struct sampler_scratch *s)
{
    struct candidates *c = &s->candidates;
    if (p->top_k > 0 && p->top_k < c->count)
        candidates_cut(c, false, p->top_k, s->work);
    weigh(c, p->temperature);
    if (p->top_p < 1.0) {
        normalise(c);
        candidates_cut(c, true, p->top_p, s->work);
    }
    if (p->min_p > 0.0)
        candidates_drop_light(c, p->min_p * c->mass[largest(c)]);
    normalise(c);
}

qr_status sampling_distribution(const struct sampling_params *params, const struct sampling_row *row,
                                struct sampler_scratch *s, struct distribution *out, qr_error *err)
{
    struct candidates *c = &s->candidates;
    qr_status st = load_logits(row->logits, s->vocab, c->logits, err);
    if (st != QR_OK)
        return st;
    if (row->counts && sampling_wants_counts(params))
        apply_penalties(params, row->counts, c->logits);
    apply_bias_and_bans(params, row, s->vocab, c->logits);
    if ((st = gather(row->allowed, s->vocab, c, err)) != QR_OK)
        return st;
    int32_t best = largest(c);
    if (!(c->logits[best] < INFINITY))
        return qr_fail(err, QR_NUMERIC, "penalties make the logit of id %d infinite", c->ids[best]);
    if (params->temperature == 0)
        only(c, best);
    else
        shape(params, s);
    *out = (struct distribution){.count = c->count, .ids = c->ids, .p = c->mass};
    return QR_OK;
}

void sampling_among(const struct sampling_params *params, const int32_t *ids, const float *logits, int32_t count,
                    struct sampler_scratch *s, struct distribution *out)
{
    struct candidates *c = &s->candidates;
    for (int32_t i = 0; i < count; i++) {
        c->ids[i] = ids[i];
        c->logits[i] = (double)logits[i];
    }
    c->count = count;
    shape(params, s);
    *out = (struct distribution){.count = c->count, .ids = c->ids, .p = c->mass};
}

void sampling_round(struct sampler_scratch *s)
{
    for (int32_t i = 0; i < s->candidates.count; i++)
        s->candidates.mass[i] = (double)(float)s->candidates.mass[i];
}

/* 1 - U is at most E; the factor keeps rounding from skipping a candidate that would have won. Most candidates end
 * here, without a logarithm. */
static bool cannot_win(double uniform, double p, double best)
{
    const double safety = 1.0 - 0x1p-50;
    return (1.0 - uniform) * safety > best * p;
}

int32_t distribution_draw(const struct distribution *d, const struct keyed_stream *stream)
{
    int32_t winner = -1;
    double best = INFINITY;
    uint32_t words[4] = {0};
    int64_t group = -1;
    for (int32_t i = 0; i < d->count; i++) {
        int32_t id = d->ids ? d->ids[i] : i;
        if (!(d->p[i] > 0))
            continue;
        if (id >> 2 != group) {
            group = id >> 2;
            stream_words(stream, (uint32_t)group, words);
        }
        uint32_t word = words[id & 3];
        if (winner >= 0 && cannot_win(stream_uniform(word), d->p[i], best))
            continue;
        double arrival = stream_exponential(word) / d->p[i];
        if (winner < 0 || arrival < best) {
            best = arrival;
            winner = id;
        }
    }
    return winner;
}

qr_status sampling_draw(const struct sampling_params *params, const struct sampling_row *row, int64_t position,
                        struct sampler_scratch *scratch, int32_t *token, qr_error *err)
{
    struct distribution d;
    qr_status st = sampling_distribution(params, row, scratch, &d, err);
    if (st != QR_OK)
        return st;
    const struct keyed_stream stream = {.seed = params->seed, .position = position, .tag = STREAM_TARGET};
    *token = d.count == 1 ? d.ids[0] : distribution_draw(&d, &stream);
    return QR_OK;
}

void distribution_dense(const struct distribution *d, double *p, int32_t vocab)
{
    memset(p, 0, (size_t)vocab * sizeof *p);
    for (int32_t i = 0; i < d->count; i++)
        p[d->ids ? d->ids[i] : i] = d->p[i];
}
