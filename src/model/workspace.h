/* workspace.h: the buffers of a forward pass, one block of backend memory laid out when the model is opened, so that a
 * step allocates nothing. Buffers are addressed by step row number; shapes are given in rows. */
#ifndef QR_MODEL_WORKSPACE_H
#define QR_MODEL_WORKSPACE_H

#include "ops/ops.h"
#include "plan/placement.h"
#include "plan/plan.h"

/* The largest step, and what a pass keeps besides. */
struct model_limits {
    int32_t max_rows; /* rows of a step */
    int32_t max_requests;
    int32_t max_logits;     /* rows of a step whose logits are wanted */
    int32_t max_positions;  /* longest request */
    int32_t attention_rows; /* query rows of an attention call at most, to which its buffers are sized; 0: those of a step */
    int32_t max_draft_rows; /* rows of a draft pass; 0: the drafter is not opened, its rings are not written */
    bool trace;             /* also keep what only a trace reads */
    bool plain_keys;        /* V4 reference: window and main rows keep their bf16 values, as in the first official code
                               (v4-model.md 4.1 "kv_fp8_sim=off"); a debugging aid, another model */
    const struct expert_placement *placement; /* read while the model is opened; NULL: every expert lies on the device */
};

/* Formats that depend on the arithmetic profile are in the activations: "wide" is bf16 in the reference and f32 in
 * w8a8, "codes" is Q8 or I8. Buffers whose lives do not meet share memory in w8a8: q_in, o and ffn_x; q and o_turned.
 */

struct workspace {
    struct streams streams;   /* [rows][M][D]: X */
    float *pre_first;         /* [rows][M]: the one-hot pre of layer 0, never written */
    float *pre, *pre_attn;    /* [rows][M]: of the last FFN sub-block, of the layer's attention sub-block */
    float *post, *comb;       /* [rows][M], [rows][M][M]: of the sub-block in progress */
    struct activation x, xq;  /* [rows][D]: its normed input, bf16, and as codes */
    struct activation low_in; /* what wq_a and wkv read: xq, or x in w8a8 */
    struct activation ffn_x;  /* what the router reads: x, or the norm without its factor (v4-model.md 7.4 gate) */
    float *ffn_factor;        /* [rows] that factor; NULL in the reference */
    void *y;                  /* bf16 [rows][D]: its output */

    struct activation qa, qr, qrq; /* [rows][q_lora_rank]: wide before the norm, bf16 after (reference), codes */
    struct activation q_in, q;     /* [rows of an attention call][heads * head_dim]: wide, then bf16 */
    struct activation o, o_turned; /* the same: attention's wide output, bf16 when turned back */
    struct activation kv;          /* wide [rows][head_dim]: window key before its norm */
    void *keys;                    /* bf16 [rows][head_dim]: window keys, on their grid */
    struct activation keys_packed; /* Q8: the codes behind them, for packed rings and traces; V4.1 */
    struct activation t, tq;       /* [rows][o_groups * o_lora_rank]: wide, codes */

    float *compress_values, *compress_scores; /* f32 [rows][widest compressor]: compressor inputs */
    struct activation pooled, latent;         /* wide [rows][head_dim], bf16 [rows][head_dim] (V4.1) */
    struct activation ik;                     /* wide [rows][index_head_dim]: index key before its norm */
    struct activation iq_in, iq, iw;          /* [rows][index heads * index_head_dim]: wide, then bf16 or codes by head;
                                                 wide [rows][index heads] */
    float *index_weights;                     /* [rows][index heads] */
    float *index_scores;                      /* [rows][index_score_stride]; traces of V4 only */
    int64_t index_score_stride;
    int32_t *selected, *selected_count;    /* [rows][topk], [rows]: of the last index source */
    int32_t *candidates, *candidate_count; /* [rows][candidate blocks], [rows]: of the candidate source */

    int32_t *expert_idx;   /* [rows][active] */
    float *expert_weight;  /* [rows][active] */
    void *routed, *shared; /* bf16 [rows][active][D], [rows][D] */

    struct activation
        engram[QR_MAX_ENGRAM];   /* bf16 [rows][columns * engram_head_dim]: table rows, filled before the pass */
    struct activation engram_q;  /* the same quantized */
    struct activation engram_kv; /* bf16 [rows][(M + 1) * D] */
    float *engram_gate;          /* [rows][M]; traces only */
    struct activation taps;      /* bf16 [rows][targets * D]; cols 0 where no DSpark drafter is opened and nothing traced */

    /* The MTP layer (v4-model.md 6.3), [draft rows]; cols 0 where it is not opened. */
    struct streams draft_streams;        /* [rows][M][D] */
    struct activation draft_h;           /* [rows][M * D]: streams that enter, in their format */
    struct activation draft_n, draft_nq; /* the same, bf16 after the norm (reference), codes by stream */
    struct activation draft_hp;          /* wide [rows][M * D]: projected */
    struct activation draft_e, draft_en, draft_eq,
        draft_ep; /* [rows][D]: embedding bf16, normed bf16, codes, wide projected */

    /* The block drafter (speculation.md 2); cols 0 where it is not opened. */
    struct activation taps_q;           /* [rows]: taps as codes */
    struct activation draft_hidden;     /* bf16 [draft rows][D]: what the confidence head reads */
    struct activation draft_confidence; /* f32 [draft rows][1]: its part of that head's sum */
    struct activation markov;           /* bf16 [requests][rank]: rows of the Markov head's table */
    struct activation markov_bias;      /* f32 [requests][vocab] */
    struct activation markov_confidence; /* f32 [requests][1] */

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
