#include "support/chains.h"

#include <math.h>
#include <string.h>

#include "support/chi_square.h"
#include "support/support.h"

/* ---- languages ---- */

static double uniform(uint64_t seed, int32_t row, int32_t v)
{
    const struct keyed_stream stream = {.seed = seed, .position = row, .tag = 77};
    return stream_uniform(stream_word(&stream, (uint32_t)v));
}

static void normalise(double *p, int32_t vocab)
{
    double sum = 0;
    for (int32_t v = 0; v < vocab; v++)
        sum += p[v];
    for (int32_t v = 0; v < vocab; v++)
        p[v] /= sum;
}

static int32_t likeliest(const double *p, int32_t vocab)
{
    int32_t best = 0;
    for (int32_t v = 1; v < vocab; v++)
        if (p[v] > p[best])
            best = v;
    return best;
}

static void only(double *p, int32_t vocab, int32_t one)
{
    for (int32_t v = 0; v < vocab; v++)
        p[v] = v == one;
}

static void shape(enum chain_kind kind, int32_t vocab, double *p, double *q)
{
    const int32_t best = likeliest(q, vocab);
    for (int32_t v = 0; v < vocab; v++) {
        if (kind == CHAIN_CLOSE)
            q[v] = p[v] * (1 + q[v] / 2);
        if (kind == CHAIN_SAME)
            q[v] = p[v];
        if (kind == CHAIN_NEARLY)
            q[v] = p[v] * (1 + 1e-9 * (v % 2));
        if (kind == CHAIN_DISJOINT)
            *(v % 2 ? &p[v] : &q[v]) = 0;
        if (kind == CHAIN_PEAKED) {
            p[v] = pow(p[v], 12);
            q[v] = pow(q[v], 12);
        }
    }
    if (kind == CHAIN_ONE_HOT || kind == CHAIN_POINTS)
        only(q, vocab, best);
    normalise(p, vocab);
    normalise(q, vocab);
}

struct chain chain_of(enum chain_kind kind, int32_t vocab, uint64_t seed)
{
    static const char *const names[CHAIN_KINDS] = {"random", "close", "same", "nearly", "disjoint", "one hot", "points", "peaked"};
    struct chain c = {.name = names[kind], .vocab = vocab, .points = kind == CHAIN_POINTS};
    assert_true(vocab <= CHAIN_VOCAB);
    for (int32_t row = 0; row <= vocab; row++) {
        for (int32_t v = 0; v < vocab; v++) {
            c.p[row][v] = pow(uniform(seed, row, v), 2);
            c.q[row][v] = pow(uniform(seed + 1, row, v), 2);
        }
        shape(kind, vocab, c.p[row], c.q[row]);
    }
    return c;
}

/* ---- answers ---- */

struct hand {
    const struct chain *c;
    const struct drawing *how;
    struct verdict_scratch *scratch;
};

static struct draft_law *law_of(const struct hand *h)
{
    struct draft_law *law;
    qr_error err = {0};
    must(draft_law_open(h->c->vocab, h->how->drafts, h->c->points, &law, &err), &err);
    return law;
}

/* Rounded as a sampler does before a draft is drawn. */
static int32_t draft(const struct chain *c, struct draft_law *law, int32_t before, uint64_t seed)
{
    double q[CHAIN_VOCAB];
    int32_t one = likeliest(c->q[before], c->vocab);
    for (int32_t v = 0; v < c->vocab; v++)
        q[v] = (double)(float)c->q[before][v];
    const struct distribution d = {.count = c->vocab, .p = q}, point = {.count = 1, .ids = &one, .p = (const double[]){1}};
    return draft_law_draw(law, c->points ? &point : &d, seed);
}

static int32_t of_target(const struct chain *c, int32_t before, uint64_t seed, int64_t position)
{
    const struct distribution d = {.count = c->vocab, .p = c->p[before]};
    const struct keyed_stream noise = {.seed = seed, .position = position, .tag = STREAM_TARGET};
    return distribution_draw(&d, &noise);
}

static struct verdict match(const struct chain *c, const int32_t *drafts, int32_t n, int32_t before, uint64_t seed, int64_t first)
{
    struct verdict out = {.accepted = 0};
    for (;; out.accepted++) {
        out.next = of_target(c, before, seed, first + out.accepted);
        if (out.accepted == n || out.next != drafts[out.accepted])
            return out;
        before = out.next;
    }
}

/* A step behind `before`, the token at `first` - 1: writes its tokens, returns how many. */
static int32_t step(const struct hand *h, struct draft_law *law, int32_t before, uint64_t seed, int64_t first, int32_t *out)
{
    const struct chain *c = h->c;
    int32_t n = h->how->drafts, last = before;
    draft_law_begin(law, first);
    for (int32_t k = 0; k < n; k++)
        last = out[k] = draft(c, law, last, seed);
    if (h->how->schedule)
        n = h->how->schedule(c, out, n);
    for (int32_t k = 0; k <= n; k++)
        memcpy(verdict_target(h->scratch, k), c->p[k == 0 ? before : out[k - 1]], (size_t)c->vocab * sizeof c->p[0][0]);
    const struct verdict said = h->how->verifier == VERIFIER_MATCH
                                    ? match(c, out, n, before, seed, first)
                                    : verdict_take(h->scratch, h->how->verifier, law, out, n, false, seed, first);
    out[said.accepted] = said.next;
    return said.accepted + 1;
}

static int answer(const struct hand *h, uint64_t seed, struct drawn *out)
{
    int32_t tokens[CHAIN_VOCAB], count = 0, before = h->c->vocab;
    struct draft_law *law = law_of(h);
    while (count < h->how->tokens) {
        const int32_t made = step(h, law, before, seed, 100 + count, tokens + count);
        if (count == 0) {
            out->steps++;
            out->accepted += made - 1;
            out->accepted_squares += (made - 1) * (made - 1);
        }
        count += made;
        before = tokens[count - 1];
        if (h->how->stale) {
            draft_law_close(law);
            law = law_of(h);
        }
    }
    draft_law_close(law);
    int bin = 0;
    for (int32_t i = 0; i < h->how->tokens; i++)
        bin = bin * h->c->vocab + tokens[i];
    return bin;
}

void chain_draw(const struct chain *c, const struct drawing *how, int rounds, struct drawn *out)
{
    struct hand h = {.c = c, .how = how};
    qr_error err = {0};
    memset(out, 0, sizeof *out);
    assert_true(how->tokens + how->drafts < CHAIN_VOCAB && pow(c->vocab, how->tokens) <= CHAIN_BINS);
    must(verdict_open(c->vocab, how->drafts, &h.scratch, &err), &err);
    for (int round = 0; round < rounds; round++)
        out->counts[answer(&h, (uint64_t)round * 0x9E3779B97F4A7C15u + 1, out)]++;
    verdict_close(h.scratch);
}

static double chance(const struct chain *c, int bin, int32_t tokens)
{
    int32_t digits[CHAIN_VOCAB], before = c->vocab;
    double out = 1;
    for (int32_t i = tokens - 1; i >= 0; i--, bin /= c->vocab)
        digits[i] = bin % c->vocab;
    for (int32_t i = 0; i < tokens; before = digits[i++])
        out *= c->p[before][digits[i]];
    return out;
}

bool chain_follows(const struct chain *c, const struct drawing *how, int rounds, const struct drawn *found)
{
    bool all = true;
    for (int32_t tokens = how->tokens, merged = 1; tokens > 0; tokens--, merged *= c->vocab) {
        const int bins = (int)pow(c->vocab, tokens);
        struct fit fit = {0};
        for (int bin = 0; bin < bins; bin++) {
            double counted = 0;
            for (int i = 0; i < merged; i++)
                counted += found->counts[bin * merged + i];
            fit_add(&fit, chance(c, bin, tokens) * rounds, counted);
        }
        all &= fit_holds(&fit);
    }
    return all;
}

void assert_no_fewer(const char *name, const struct drawn *block, const struct drawn *ratio)
{
    const double b = block->accepted / block->steps, r = ratio->accepted / ratio->steps;
    const double variance = block->accepted_squares / block->steps - b * b + ratio->accepted_squares / ratio->steps - r * r;
    if (b < r - 3 * sqrt(variance / block->steps))
        fail_msg("%s: block verification keeps %g drafts a step, the ratio test %g", name, b, r);
}
