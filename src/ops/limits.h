/* limits.h: sizes of the operators of a plan that more than one backend reserves for. */
#ifndef QR_OPS_LIMITS_H
#define QR_OPS_LIMITS_H

#include "plan/plan.h"

static inline int64_t limits_larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* The most input columns of any linear of the plan. */
static inline int64_t limits_widest_input(const struct qr_config *c)
{
    int64_t k = limits_larger(c->hidden_size, (int64_t)c->num_attention_heads * c->head_dim);
    k = limits_larger(k, (int64_t)c->hc_mult * c->hidden_size);
    k = limits_larger(k, (int64_t)c->o_groups * c->o_lora_rank);
    k = limits_larger(k, (int64_t)(c->engram_max_ngram - 1) * c->engram_n_heads * c->engram_head_dim);
    k = limits_larger(k, (int64_t)c->n_dspark_targets * c->hidden_size);
    k = limits_larger(k, (int64_t)c->dspark_markov_rank + c->hidden_size);
    return limits_larger(k, limits_larger(c->q_lora_rank, c->moe_intermediate_size));
}

#endif
