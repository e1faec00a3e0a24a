/* block.h: a pass in progress, and the pieces of a block that the families share. Each function is one or two boxes of
 * the papers' figures: it names the operators, the weights and the rows, and does no arithmetic itself. */
#ifndef QR_MODEL_BLOCK_H
#define QR_MODEL_BLOCK_H

#include "model/model.h"
#include "model/weights.h"

struct pass {
    struct backend *backend;
    const struct model_plan *plan;
    const struct qr_config *config;
    const struct weights *weights;
    const struct workspace *ws;
    const float *frequencies[2]; /* by enum rope */
    const struct model_pass *args;
    const struct step *step;
    bool w8a8;       /* the arithmetic profile */
    bool plain_keys; /* model_limits */
    /* Rotary tables of the caller's own, by step row (ops.h `turns`): at the row's position, and at the first position of
     * its group. NULL: computed. */
    const float *turns, *group_turns;
    /* A pass of the block drafter (ops.h op_attend `draft_block`): no key of it is kept. `window_low` as there. */
    bool draft_block;
    const int32_t *window_low;
    /* Runs the routed experts elsewhere: from ws->xq, ws->expert_idx and ws->expert_weight to ws->routed, of the query
     * rows. NULL: here. */
    qr_status (*routed)(void *user, struct pass *p, qr_error *err);
    void *routed_user;

    /* of the layer in progress */
    int32_t index;
    const struct layer_plan *layer;
    const struct layer_weights *w;
    const struct layer_rows *rows;
    struct rope_spec rope;
};

/* Points the pass at layer `index`. */
void enter_layer(struct pass *p, int32_t index);
/* Calls the observer, when there is one; the layer is -1 for the backbone's logits. */
qr_status observe(struct pass *p, enum model_point point, qr_error *err);

/* ---- short forms of single operators ---- */

qr_status linear(struct pass *p, struct row_list rows, struct activation in, const struct weight *weight,
                 struct activation out, qr_error *err);
/* out = RMS norm of in; quantized.codes NULL: not wanted. */
qr_status norm(struct pass *p, struct row_list rows, struct activation in, const void *weight, struct activation out,
               struct activation quantized, qr_error *err);
qr_status quantize(struct pass *p, struct row_list rows, struct activation in, struct activation out, qr_error *err);

/* ---- streams ---- */

/* Streams of `rows` = their tokens' embeddings. */
qr_status embed(struct pass *p, struct row_list rows, qr_error *err);
/* Mean of the streams into the taps, where the layer in progress is a target of the drafter (v41-model.md 10.2). */
qr_status tap(struct pass *p, struct row_list rows, qr_error *err);
/* post and comb of a sub-block, and `pre`, from the streams as they stand (v41-model.md 4.4, v4-model.md 3.3). */
qr_status mix(struct pass *p, struct row_list rows, const struct mix_weights *w, float *pre, qr_error *err);
/* An attention sub-block's input: streams collapsed by `pre`, normed, in ws->x, and as codes in ws->xq (reference). */
qr_status collapse(struct pass *p, struct row_list rows, const float *pre, const void *norm_weight, qr_error *err);
/* The same of an FFN sub-block, for the router in ws->ffn_x and for the experts in ws->xq. */
qr_status collapse_ffn(struct pass *p, const float *pre, const void *norm_weight, qr_error *err);
/* streams <- post y + comb streams, with y the sub-block's output in ws->y. */
qr_status expand(struct pass *p, qr_error *err);

/* ---- attention ---- */

/* qr of the query rows: low-rank, before the heads (v41-model.md 5.1, v4-model.md 5.2). */
qr_status low_query(struct pass *p, qr_error *err);
/* Window keys of the key rows, on `grid` (v41-model.md 5.2, v4-model.md 5.2). */
qr_status window_key(struct pass *p, enum key_grid grid, qr_error *err);
/* The rotated heads of the query rows, the attention core over the window and, where the layer has any, its compressed rows
 * (`selected` ones, or all visible ones when NULL), the inverse rotation and grouped wo_a (v41-model.md 5.1, 5.5, 5.6,
 * v4-model.md 5.2, 5.4, 5.5). In cuts of the step's rows, where it has any: what is as wide as all heads lives in a cut. */
qr_status attend(struct pass *p, enum query_norm head_norm, const int32_t *selected, qr_error *err);
/* Keeps the window keys in the ring. After attend, which still reads the keys this overwrites. */
qr_status keep_window(struct pass *p, qr_error *err);
/* The output projection's second half, wo_b (v41-model.md 5.6, v4-model.md 5.5). */
qr_status attention_output(struct pass *p, qr_error *err);

/* The plane of the rows that this layer reads, and of their index keys. */
struct row_plane main_plane(const struct pass *p);
struct row_plane index_plane(const struct pass *p);

/* ---- experts ---- */

/* Router, routed experts, shared expert, sum (v41-model.md 7, v4-model.md 6.1, 6.2). `normalise`: routing weights are
 * divided by their sum + denominator_eps. */
qr_status moe(struct pass *p, bool normalise, float denominator_eps, qr_error *err);

/* ---- end of the pass ---- */

/* `rows` from streams collapsed by `pre` and normed, in ws->x: what the head reads. */
qr_status hidden(struct pass *p, struct row_list rows, const float *pre, const void *norm_weight, qr_error *err);
/* pre of a head of V4 from the streams (v4-model.md 3.5), in ws->pre. */
qr_status v4_head_mix(struct pass *p, const struct head_weights *w, struct row_list rows, qr_error *err);
/* Logits of the rows that want them, whose normed rows stand in ws->x. */
qr_status logits(struct pass *p, qr_error *err);
/* The norm and the head on the rows whose logits are wanted, from streams collapsed by `pre`. */
qr_status head(struct pass *p, const float *pre, const void *norm_weight, qr_error *err);

/* The forward passes of the families and a layer alone, streams to streams; of V4 also its halves. `pre` of V4.1: what
 * the layer before leaves in ws->pre. */
qr_status v41_forward(struct pass *p, qr_error *err);
qr_status v41_block(struct pass *p, const float *pre, qr_error *err);
qr_status v4_forward(struct pass *p, qr_error *err);
qr_status v4_block(struct pass *p, qr_error *err);
qr_status v4_attention_block(struct pass *p, qr_error *err);
qr_status v4_ffn_block(struct pass *p, qr_error *err);
/* What the head of V4 reads, of those rows: in ws->x. */
qr_status v4_hidden(struct pass *p, const struct head_weights *w, struct row_list rows, qr_error *err);
/* The collapse before a head of V4 (v4-model.md 3.5), then the head. */
qr_status v4_head(struct pass *p, const struct head_weights *w, qr_error *err);
/* The block drafter (dspark.c): the keys of its stages for the rows of a step whose taps stand in the workspace, a draft
 * pass, and the Markov head for `count` tokens. */
qr_status dspark_context(struct pass *p, qr_error *err);
qr_status dspark_draft(struct pass *p, qr_error *err);
qr_status dspark_markov(struct pass *p, const int32_t *tokens, int32_t count, qr_error *err);
/* V4's window keys and rows are rounded to this (v4-model.md 4.1). */
enum key_grid v4_key_grid(const struct pass *p);
/* The MTP layer of V4 (v4-model.md 6.3); p->args are the draft's step, rows, cache and observer. */
qr_status mtp_forward(struct pass *p, const struct model_draft *d, qr_error *err);
/* The same up to its head; leaves the pass on `ws`, a copy of its workspace whose streams are the draft's. */
qr_status mtp_streams(struct pass *p, const struct model_draft *d, struct workspace *ws, qr_error *err);

#endif
