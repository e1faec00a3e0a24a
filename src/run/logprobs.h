/* logprobs.h: log probabilities of a row as they are reported: the log softmax of the model's own logits, before
 * penalties, bans and temperature (speculation.md 4.8, protocol.md 4.3). */
#ifndef QR_RUN_LOGPROBS_H
#define QR_RUN_LOGPROBS_H

#include "base/status.h"

struct token_logprob {
    int32_t id;
    int32_t rank;   /* 1 is the largest logit; equal logits rank by id */
    double logprob; /* <= 0; -INFINITY where the logit is */
};

/* The logprob of `token` (unless `chosen` is NULL) and the `top` largest ones, by rank, in `best` [top]; where the
 * vocabulary has fewer ids than `top`, all of them. Sums in double in order of id. QR_NUMERIC: a logit is NaN or
 * +infinity, or all are -infinity; QR_BAD_ARGUMENT: `token` is outside the vocabulary. */
qr_status logprobs_of_row(const float *logits, int32_t vocab, int32_t token, int32_t top, struct token_logprob *chosen,
                          struct token_logprob *best, qr_error *err);

#endif
