/* op_dspark.h: the Markov head of the DSpark drafter (speculation.md 2.7), for the operators alone and in the whole. */
#ifndef QR_TOOLS_OP_DSPARK_H
#define QR_TOOLS_OP_DSPARK_H

#include "tools/op_adapters.h"

/* Rows of the table for some tokens, and what they add to logits. */
struct markov_rows {
    struct activation rows; /* BF16 [count][rank] */
    struct activation bias; /* F32 [count][V] */
};
/* `tokens`: host, as long as the run. Refuses one outside [0, V). */
qr_status op_markov(struct op_run *run, const struct weight *w1, const struct weight *w2, const int32_t *tokens, int32_t count,
                    struct markov_rows *out, qr_error *err);

/* logits = base + added; *id: the lowest of the largest. */
void markov_choose(const float *added, const float *base, int64_t vocab, float *logits, int32_t *id);

#endif
