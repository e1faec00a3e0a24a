#include "run/logprobs.h"

#include <math.h>

/* The log softmax of x is x - top - log_sum, in this order: neither large logits nor small ones lose digits. */
struct denominator {
    double top, log_sum;
};

static qr_status measure(const float *logits, int32_t vocab, struct denominator *out, qr_error *err)
{
    double top = -INFINITY, sum = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (!(logits[id] < INFINITY))
            return qr_fail(err, QR_NUMERIC, "the logit of id %d is %g, wanted a finite number", id, (double)logits[id]);
        if (logits[id] > top)
            top = logits[id];
    }
    if (!(top > -INFINITY))
        return qr_fail(err, QR_NUMERIC, "all %d logits of a row are -infinity", vocab);
    for (int32_t id = 0; id < vocab; id++)
        sum += exp(logits[id] - top);
    *out = (struct denominator){top, log(sum)};
    return QR_OK;
}

static double logprob_of(float logit, const struct denominator *d) { return logit - d->top - d->log_sum; }

static int32_t rank_of(const float *logits, int32_t vocab, int32_t token)
{
    int32_t rank = 1;
    for (int32_t id = 0; id < vocab; id++)
        rank += logits[id] > logits[token] || (logits[id] == logits[token] && id < token);
    return rank;
}

/* Keeps the best `top` ids sorted; ids arrive in ascending order, so an equal one goes behind. */
static void list_best(const float *logits, int32_t vocab, int32_t top, struct token_logprob *best)
{
    int32_t held = 0;
    for (int32_t id = 0; id < vocab; id++) {
        if (held == top && !(logits[id] > logits[best[held - 1].id]))
            continue;
        int32_t place = held < top ? held++ : top - 1;
        for (; place > 0 && logits[id] > logits[best[place - 1].id]; place--)
            best[place].id = best[place - 1].id;
        best[place].id = id;
    }
}

qr_status logprobs_of_row(const float *logits, int32_t vocab, int32_t token, int32_t top, struct token_logprob *chosen,
                          struct token_logprob *best, qr_error *err)
{
    struct denominator denominator = {0};
    if (chosen && (token < 0 || token >= vocab))
        return qr_fail(err, QR_BAD_ARGUMENT, "the logprob of id %d is asked for, the vocabulary has %d", token, vocab);
    qr_status st = measure(logits, vocab, &denominator, err);
    if (st != QR_OK)
        return st;
    if (chosen)
        *chosen = (struct token_logprob){token, rank_of(logits, vocab, token), logprob_of(logits[token], &denominator)};
    if (top > vocab)
        top = vocab;
    if (top > 0)
        list_best(logits, vocab, top, best);
    for (int32_t i = 0; i < top; i++) {
        best[i].rank = i + 1;
        best[i].logprob = logprob_of(logits[best[i].id], &denominator);
    }
    return QR_OK;
}
