/* workspace.h: the buffers of a forward pass, one block of backend memory laid out when the model is opened, so that a
 * step allocates nothing. Buffers are addressed by step row number; shapes are given in rows. */
#ifndef QR_MODEL_WORKSPACE_H
#define QR_MODEL_WORKSPACE_H

#include "ops/ops.h"
#include "plan/plan.h"

/* The largest step, and what a pass keeps besides. */
struct model_limits {
    int32_t max_rows; /* rows of a step */
    int32_t max_requests;
    int32_t max_logits;    /* rows of a step whose logits are wanted */
    int32_t max_positions; /* longest request */
    bool trace;            /* also keep what only a trace reads */
};

struct workspace {
    struct streams streams;  /* [rows][M][D]: X */
    float *pre_first;        /* [rows][M]: the one-hot pre of layer 0, never written */
    float *pre, *pre_attn;   /* [rows][M]: of the last FFN sub-block, of the layer's attention sub-block */
    float *post, *comb;      /* [rows][M], [rows][M][M]: of the sub-block in progress */
    struct activation x, xq; /* [rows][D]: its normed input, bf16 and quantized */
    void *y;                 /* bf16 [rows][D]: its output */

    struct activation qa, qr, qrq; /* [rows][q_lora_rank]: before the norm, after, quantized */
    struct activation q, o;        /* bf16 [rows][heads * head_dim] */
    struct activation kv;          /* bf16 [rows][head_dim]: window key before its norm */
    void *keys;                    /* bf16 [rows][head_dim]: window keys, on their grid */
    struct activation keys_packed; /* Q8: the codes behind them, for packed rings and traces */
    struct activation t, tq;       /* [rows][o_groups * o_lora_rank] */

    float *compress_values, *compress_scores; /* f32 [rows][head_dim]: compressor inputs */
    struct activation pooled, latent;         /* bf16 [rows][head_dim] */
    struct activation ik;                     /* bf16 [rows][index_head_dim]: index key before its norm */
    struct activation iq, iw;                 /* bf16 [rows][index heads * index_head_dim], [rows][index heads] */
    float *index_weights;                     /* [rows][index heads] */
    int32_t *selected, *selected_count;       /* [rows][topk], [rows]: of the last index source */
    int32_t *candidates, *candidate_count;    /* [rows][candidate blocks], [rows]: of the candidate source */

    int32_t *expert_idx;   /* [rows][active] */
    float *expert_weight;  /* [rows][active] */
    void *routed, *shared; /* bf16 [rows][active][D], [rows][D] */

    struct activation
        engram[QR_MAX_ENGRAM];   /* bf16 [rows][columns * engram_head_dim]: table rows, filled before the pass */
    struct activation engram_q;  /* the same quantized */
    struct activation engram_kv; /* bf16 [rows][(M + 1) * D] */
    float *engram_gate;          /* [rows][M]; traces only */
    struct activation taps;      /* bf16 [rows][targets * D]; cols 0 without a DSpark drafter */

    struct activation final; /* bf16 [logits][D]: input of the head, rows brought together */
    float *logits;           /* [logits][vocab] */
};

/* Widths that several files need. */
static inline int32_t engram_columns(const struct qr_config *c)
{
    return (c->engram_max_ngram - 1) * c->engram_n_heads;
}

/* Lays the buffers out from `base` (NULL: only counts) and returns the bytes they take. Pure. */
int64_t workspace_lay(const struct model_plan *plan, const struct model_limits *limits, void *base,
                      struct workspace *out);

#endif
