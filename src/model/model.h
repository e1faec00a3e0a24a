/* model.h: a checkpoint opened for one backend, and the forward pass over a step. Knows rows, positions and caches; no
 * request, no scheduler, no sampler. One pass at a time.
 *
 *     model_open -> (fill the Engram buffers of model_workspace) -> model_forward -> ... -> model_close */
#ifndef QR_MODEL_MODEL_H
#define QR_MODEL_MODEL_H

#include "base/loading.h"
#include "checkpoint/checkpoint.h"
#include "model/workspace.h"

struct model;

/* What the largest step asks of a backend. `plan` must outlive it. */
struct op_limits model_op_limits(const struct model_plan *plan, const struct model_limits *limits);

/* Bytes of the buffers that model_open allocates beside the weights (and the backend's own scratch), for the byte plan.
 */
int64_t model_workspace_bytes(const struct model_plan *plan, const struct model_limits *limits);

/* Compares the checkpoint with the schema of its config, prepares every weight of the backbone, reserves the backend's
 * scratch and allocates the workspace. `ck` and `backend` must outlive the model. Fails naming the tensor that is
 * missing, unexpected, of another shape, or holds a scale of 255. */
qr_status model_open(const struct checkpoint *ck, const struct model_plan *plan, struct backend *backend,
                     const struct model_limits *limits, struct loading *loading, struct model **out, qr_error *err);
void model_close(struct model *m);

/* Gives the weights' memory back, and takes it again, each tensor laid out once more; buffers stay where they are. No pass may
 * run in between. `ck` is the checkpoint that the model was opened with, whatever its files hold by now. */
void model_rest(struct model *m);
qr_status model_rise(struct model *m, const struct checkpoint *ck, struct loading *loading, qr_error *err);

/* Visits of each routed expert of the backbone so far, [layers][n_routed_experts]; zeros where the backend counts none. */
qr_status model_expert_uses(const struct model *m, uint64_t *out, qr_error *err);

/* The buffers, in backend memory. Before a pass the caller fills engram[i] for the step's rows. */
const struct workspace *model_workspace(const struct model *m);
const struct model_plan *model_plan_of(const struct model *m);

/* The two pools of the requests, as geometry places them behind `base` (backend memory). */
struct model_cache {
    const struct geometry *geometry;
    const struct pool_layout *pool;
    uint8_t *base;
};

/* Where an observer is called. All rows named are those of the layer's lists. */
enum model_point {
    POINT_BLOCK_INPUT,  /* streams, and pre for layers > 0, enter the layer (`input` rows); the observer may write them
                         */
    POINT_KEYS,         /* `keys` and `keys_packed` are made (`key` rows) */
    POINT_SELECTED,     /* the layer's own `selected` and `candidates` are made (`query` rows) */
    POINT_ROUTED,       /* `expert_idx` and `expert_weight` are made (`query` rows) */
    POINT_BLOCK_OUTPUT, /* streams and pre leave the layer (`query` rows) */
    POINT_COMPRESSOR_INPUTS, /* `compress_values` and `compress_scores` are made (`compress` rows); V4 */
    POINT_INDEX_INPUTS,      /* the same of the indexer's compressor */
    POINT_TAPS, /* `taps` are made, of the rows whose keys the drafter keeps (`key` of its first stage); the observer may
                   write them */
    POINT_LOGITS /* `final` and `logits` are made; layer is -1 behind the backbone, the drafter's behind a draft pass */
};

/* Sees the pass from inside, for traces and tests: downloads, or uploads, buffers of the workspace. A failure ends the
 * pass. With an observer the pass runs operator by operator. */
struct model_observer {
    void *user;
    qr_status (*at)(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err);
};

struct model_pass {
    const struct step *step;
    const struct step_rows *rows;
    struct model_cache cache;
    const struct model_observer *observer; /* or NULL */
};

/* Runs the backbone: writes the caches of the step's rows and leaves the logits of rows->logits, in that order, in
 * workspace.logits, and the taps, when the model has a DSpark drafter, in workspace.taps; with the drafter opened its
 * rings are written too (speculation.md 2.3). Nothing is allocated. After a
 * failure the caches of the step's own rows, and what their rings overwrote, are undefined. */
qr_status model_forward(struct model *m, const struct model_pass *pass, qr_error *err);

/* A pass of the drafter over rows of its own; rows->layer[plan->layers ..] and rows->logits say what is run. MTP
 * (v4-model.md 6.3): row i of `step` is a position p, token_ids[i] the token that follows it. DSpark (speculation.md 2.4):
 * the rows of a request are its block, the anchor and then noise, from the position behind the committed ones. */
struct model_draft {
    const struct step *step;
    const struct step_rows *rows;
    const int32_t *source; /* [step->rows], backend memory: the row of the last model_forward that stood at p */
    const struct draft_kept {
        int32_t row, slot;
    } * kept; /* rows whose streams were kept in a slot instead (model_keep_streams); their source is 0 */
    int32_t kept_count;
    const int32_t *window_low; /* DSpark: [step->rows], backend memory: first position whose ring rows may be read; NULL: 0 */
    struct model_cache cache;  /* with the drafter's rings, and for MTP a draft stream */
    const struct model_observer *observer; /* sees layer plan->layers, with streams of the draft rows; or NULL */
};

/* The model was opened with max_draft_rows > 0. Leaves logits of rows->logits in workspace.logits. MTP predicts the token
 * after the next and writes the layer's ring; the streams of the last model_forward stay. DSpark predicts the tokens of
 * the block, without the Markov head, and leaves draft_hidden and draft_confidence; it writes no ring. */
qr_status model_draft(struct model *m, const struct model_draft *draft, qr_error *err);

/* DSpark's Markov head (speculation.md 2.7) for `count` tokens, at most max_requests, in backend memory: what is added to
 * the logits of the token that follows each, in workspace.markov_bias, and to its confidence, in markov_confidence. */
qr_status model_markov(struct model *m, const int32_t *tokens, int32_t count, qr_error *err);

/* Keeps the streams of row `row` of the last model_forward in the STATE entry of `slot` (v4-model.md 6.4 step 5). */
qr_status model_keep_streams(struct model *m, const struct model_cache *cache, int32_t row, int32_t slot,
                             qr_error *err);

#endif
