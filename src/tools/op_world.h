/* op_world.h: the model's own layers on the arrays of a harness: a plan of those layers, their weights by the names of
 * v4-model.md 7.1 (w8a8) or 2.1 (reference), a pool, a workspace, and steps. Compositions call the functions of model/
 * through it, so that they are the model's. Simulated ranks stand in one step; rows go to experts as op_moe.h says. */
#ifndef QR_TOOLS_OP_WORLD_H
#define QR_TOOLS_OP_WORLD_H

#include "model/block.h"
#include "model/rope.h"
#include "run/assemble.h"
#include "run/block_drafts.h"
#include "run/drafts.h"
#include "tools/op_moe.h"

/* Rows of a prefill dispatch that pass through every layer before the next ones start; the most rows, and requests of a
 * decode step, of a rank (9.1, 9.3, 9.5). */
enum { WORLD_TILE = 128, WORLD_PREFILL_ROWS = 8192, WORLD_REQUESTS = 4, WORLD_PAGE = 128 };

/* The live rows of one request: `count` positions from `first` on, the arrays' rows from `row` on (rank after rank, each
 * of world.rank_rows). A request without any takes no part. */
struct world_request {
    int32_t rank, row, first, count;
};

struct world_options {
    struct qr_config config; /* of the layers; family and storage are set here */
    unsigned parts;          /* enum weight_part: the weights that the file has */
    bool mtp;                /* there is a draft pass */
    bool bare;               /* the MTP layer's weights may stand without "mtp_": the file has no others */
    int32_t ranks, rank_rows;
    enum moe_form form;
    int32_t step_rows;       /* the most rows of a step, of all ranks */
    int32_t count;           /* requests */
    const struct world_request *requests;
};

/* The rows of the step in progress. */
struct world_tile {
    int32_t rows;
    const int32_t *row;      /* [rows] of the arrays */
    const int32_t *position; /* [rows] */
    const int32_t *request;  /* [rows] number in world_options */
    int32_t *first, *live;   /* [ranks] its rows of the step */
};

struct op_world {
    struct op_run *run;
    struct world_options options;
    struct backend recorder; /* what the model calls: every call is kept in the run */
    struct model_plan plan;
    struct geometry geometry;
    struct pool_layout pool;
    uint8_t *base;
    int32_t pages;           /* blocks of a request; its page i is block 1 + request * pages + i */
    struct checkpoint *checkpoint;
    struct weights weights;
    struct workspace ws, draft_ws;
    float frequencies[2][ROPE_MAX_PAIRS];
    struct pass pass;
    struct model_pass args;
    struct model_observer observer;
    struct world_tile tile;
    struct assembly **assemblies; /* one for each step, so that its calls can be called again */
    size_t assembly_count, assembly_capacity;
    struct drafts *drafts;
    struct block_drafts *blocks; /* of a DSpark drafter */
    struct moe_scratch experts;
    uint8_t *bytes;          /* host, of byte_count: what a download goes through */
    int64_t byte_count;
    float *turns[2], *group_turns[2]; /* host [positions]: of the file, by enum rope; see world_tables */
};

/* Opens a world that ends with the run. Refuses weights that are missing or of another shape, by their name. */
qr_status world_open(struct op_run *run, const struct world_options *options, struct op_world **out, qr_error *err);

/* Makes the step of rows [from, from + count) of every request (its own live rows at most) and points the pass at it;
 * tokens: host, by row of the arrays (NULL: 0). *any: whether there was a row. */
qr_status world_step(struct op_world *w, int32_t from, int32_t count, const int32_t *tokens, bool *any, qr_error *err);
/* The same of a draft pass of all live rows, by row of the arrays: the token that follows, and the row of ws.streams, one of
 * `rows`, or -1 for the request's kept streams (sources NULL: the rows of the tile). */
qr_status world_draft_step(struct op_world *w, const int32_t *tokens, const int32_t *sources, int32_t rows, struct model_draft *out,
                           qr_error *err);
/* The same of a pass of the block drafter, one block a request; only where the config has one. */
qr_status world_block_step(struct op_world *w, const struct block_draft *requests, int32_t count, qr_error *err);
/* Keeps streams (host) as a request's own, for a source of -1. */
qr_status world_keep_streams(struct op_world *w, int32_t request, const void *streams, qr_error *err);

/* Rows of the step from backend memory [rows of the arrays][bytes] into rows of the step, kept as calls. */
qr_status world_take(struct op_world *w, const void *from, void *to, int64_t bytes, qr_error *err);
/* Rows of the step from backend memory to rows of a host array. */
qr_status world_give(struct op_world *w, const void *from, void *to, int64_t bytes, qr_error *err);

/* Has the pass of layers of kind `rope` turn by the file's tables at the step's positions: cosines, sines [positions][r or r/2]. */
qr_status world_tables(struct op_world *w, enum rope rope, const float *cosines, const float *sines, int64_t positions,
                       int32_t width, qr_error *err);
/* Host memory of `bytes`, the same in each call: its contents live until the next. */
qr_status world_bytes(struct op_world *w, int64_t bytes, void *pointer, qr_error *err);
/* Points the pass at a layer of the plan. */
qr_status world_enter(struct op_world *w, int32_t layer, qr_error *err);

#endif
