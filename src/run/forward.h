/* forward.h: the runner: owns the pools, the step buffers, the cursors and the model, and runs one step as a
 * transaction (runtime.md 3.10): check, stage Engram rows, assemble, forward, advance the cursors.
 *
 * What fails before the forward (every check, a bad Engram row) leaves everything as it was. A forward that fails
 * midway has overwritten ring rows, so the slots of that step are lost: their next span must start at position 0 or be
 * placed anew. Pages of other requests are never touched. One thread at a time. */
#ifndef QR_RUN_FORWARD_H
#define QR_RUN_FORWARD_H

#include "model/model.h"
#include "run/block_drafts.h"
#include "run/cursor.h"
#include "run/drafts.h"
#include "sched/batch.h"
#include "text/token_map.h"

struct runner_options {
    int64_t blocks, slots; /* of the pool; block 0 is reserved */
    struct model_limits model;
    struct loading *loading; /* told of the weights while the runner is opened; NULL: nobody */
    bool pads;               /* assembly_limits */
};

struct runner;

/* Opens the model and allocates the pools and every buffer of a step. `map` is the compressed
 * token map, needed where the config has Engram layers (ngrams_open). Everything given must outlive the runner. */
qr_status runner_open(const struct checkpoint *ck, const struct model_plan *plan, const struct geometry *geometry,
                      struct backend *backend, const struct token_map *map, const struct runner_options *options,
                      struct runner **out, qr_error *err);
void runner_close(struct runner *r);

/* Runs a step. On success the logits wanted stand in workspace.logits, in the order of the rows. Cursors of a step that
 * is not tentative are advanced; those of a tentative one wait for runner_commit. A cursor that is not at its span's
 * first position is QR_INTERNAL, naming both (unless the span starts at 0 or places it). */
qr_status runner_step(struct runner *r, const struct batch *batch, const struct model_observer *observer,
                      qr_error *err);

/* Advances request b of the tentative step by accepted[b] tokens, 0 (the step is dropped) to its count. The blocks of its spans
 * must still be there: a debug build fills what was rejected with NaN patterns. */
qr_status runner_commit(struct runner *r, const int32_t *accepted, qr_error *err);

/* Runs the MTP layer on rows whose positions and following tokens are committed, before the next step; needs
 * max_draft_rows > 0 and a draft width of the geometry. Logits stand in workspace.logits, in the order of the rows.
 * What is refused (QR_INTERNAL naming the value) changes nothing. A draft pass that fails midway leaves drafts, never
 * results, of those slots undefined. */
qr_status runner_draft(struct runner *r, const struct draft_span *spans, int32_t count,
                       const struct model_observer *observer, qr_error *err);
/* Runs DSpark's stages on the blocks of requests whose cursor stands at their `position`; refusals as above. */
qr_status runner_block_draft(struct runner *r, const struct block_draft *requests, int32_t count,
                             const struct model_observer *observer, qr_error *err);
/* Then, slot by slot, what block_drafts_next says; and where its results stand. */
qr_status runner_block_next(struct runner *r, int32_t k, const int32_t *tokens, qr_error *err);
const struct block_drafts *runner_blocks(const struct runner *r);
/* Keeps the backbone's streams of row `row` of the last step for a later draft row with source -1. */
qr_status runner_keep_streams(struct runner *r, int32_t slot, int32_t row, qr_error *err);

/* The buffers of the last step, in backend memory. */
const struct workspace *runner_workspace(const struct runner *r);
/* Engram rows staged for the last step: [layers with a table][rows][columns], host memory. NULL without Engram. */
const int64_t *runner_engram_rows(const struct runner *r);
struct cursor runner_cursor(const struct runner *r, int32_t slot);
/* Reads the cursor of a slot whose STATE entry was filled from an image. */
qr_status runner_restored(struct runner *r, int32_t slot, qr_error *err);

/* Gives the pools (the model's weights) back; no step may run until they are renewed. Renewed pools are empty, in the size
 * they had; on a backend that lets them rest they are where they were, and what was recorded is good. The buffers of a step
 * stay. QR_NO_MEMORY: still away. */
void runner_release_pools(struct runner *r);
qr_status runner_renew_pools(struct runner *r, qr_error *err);
void runner_release_weights(struct runner *r);
qr_status runner_renew_weights(struct runner *r, const struct checkpoint *ck, struct loading *loading, qr_error *err);

/* As model_expert_uses. */
qr_status runner_expert_uses(const struct runner *r, uint64_t *out, qr_error *err);

/* The pools: for copies of images and tiers, and for traces. */
struct model_cache runner_cache(const struct runner *r);
/* Bytes of draft passes on host and backend, beside the model's buffers; `limits`: of steps. */
int64_t runner_draft_bytes_for(const struct assembly_limits *limits, int32_t max_draft_rows);
/* Bytes taken on the backend beside weights and pools. */
int64_t runner_buffer_bytes(const struct runner *r);

#endif
