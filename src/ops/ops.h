/* ops.h: what a backend is: memory, prepared weights and the operators of both families (architecture.md "Operators").
 *
 * Addresses. Every pointer inside an operator's struct that is not itself a struct of this header is an address of the
 * backend's memory (host memory on the CPU): the caller never follows it. Row-major, last index fastest, buffers
 * addressed by step row number (step.h). Structs are read during the call only.
 *
 * Arithmetic. The sections named are normative; `reference` (ops/cpu/reference) is the oracle. A row's result depends
 * on that row's inputs alone: never on the other rows, their number, the thread count or the chunk. Each backend adds
 * along K in an order fixed by the weight's shape (and its k_splits).
 *
 * An empty row list is no work.
 *
 * Calls are ordered: an operator sees what earlier calls of the same backend wrote. Allocation happens in `reserve`
 * only; an operator allocates nothing. An operator fails only on broken arguments (QR_BAD_ARGUMENT), a weight found
 * bad when first prepared, or a device error. */
#ifndef QR_OPS_OPS_H
#define QR_OPS_OPS_H

#include "base/log.h"
#include "base/status.h"
#include "cache/geometry.h"
#include "ops/shortlist.h"
#include "ops/step.h"

/* ---- activations: what travels between operators ---- */

enum act_format {
    ACT_BF16,     /* bf16 */
    ACT_F32,      /* f32 */
    ACT_Q8,       /* E4M3 codes, one E8M0 byte per `block` columns (32: V4.1, 128: V4) */
    ACT_I8        /* int8 codes, one f32 scale per `block` columns (block = cols: one per row) */
};

/* Row r: codes at codes + r * cols * size, scales at scales + r * (cols / block) * (1 or 4) bytes. */
struct activation {
    enum act_format format;
    int32_t cols, block;
    void *codes, *scales;
};

/* Residual streams: [rows][count][hidden], bf16 (reference) or f32 (w8a8). */
struct streams {
    enum act_format format; /* ACT_BF16 or ACT_F32 */
    int32_t count, hidden;
    void *data;
};

/* ---- weights ---- */

enum weight_format {
    WEIGHT_BF16,
    WEIGHT_F32,
    WEIGHT_FP8,   /* E4M3, E8M0 scale per tile x tile */
    WEIGHT_FP4,   /* two E2M1 a byte, low nibble first, E8M0 scale per row and 32 columns */
    WEIGHT_INT8   /* int8, f32 scale per output row (v4-model.md 7.2) */
};

/* A matrix W[n][k] as it lies in host memory (usually the mapping); y = x W^T. `values` and `scales` must outlive the
 * handle on backends that use weights in place. k_splits: 1, or 8 for a row-parallel weight: K is cut into that many
 * contiguous ranges (boundaries at multiples of the scale block: split s starts at block s*blocks/8), each summed by
 * itself, the sums added in ascending order (architecture.md "Accumulation order"). */
struct weight_spec {
    const char *name; /* for messages */
    enum weight_format format;
    int32_t n, k;
    int32_t tile;     /* WEIGHT_FP8: 32 or 128 */
    int32_t k_splits;
    bool on_host;     /* of a routed expert: may stay in host memory (backend.seat_experts) */
    const void *values, *scales;
};
struct weight;        /* backend's handle */

/* Routed experts that a device has no room for lie in host memory, laid out as on the device, which copies those that a step
 * needs into seats: room for `seats` experts, whichever layers they are of. `shape`: w1, w2 and w3 of any of them, all alike. */
struct expert_seating {
    int32_t seats;
    int64_t on_host; /* experts */
    struct weight_spec shape[3];
};

/* ---- rotary tables ---- */

/* cos/sin of angle f32(p * f_i) for one rope kind (v41-model.md 4.3, v4-model.md 5.1), computed on use from the
 * frequencies so that a million positions need no table. bf16_tables: w8a8 rounds cos and sin to bf16. A caller that has
 * its tables gives them by step row as `turns`, and they are used as they are in place of position and frequencies. */
struct rope_spec {
    const float *frequencies; /* host memory, [dim / 2] */
    int32_t dim;              /* rotated trailing channels */
    bool bf16_tables;
    const float *turns;       /* backend memory, [rows][dim]: a row's cosines, then its sines; NULL: computed */
};

/* Grids a cache row or an index vector is rounded to before it is stored (values, whatever the container). */
enum key_grid {
    GRID_NONE,       /* bf16 as it is */
    GRID_FP8_ALL,    /* Q8, blocks of 32 over all channels (V4.1 window) */
    GRID_FP8_NOPE,   /* Q8, blocks of 64 over the channels before the rope part (V4 reference) */
    GRID_FP4_E4M3,   /* blocks of 16, E4M3 scale (V4.1 main rows) */
    GRID_FP4_E8M0,   /* blocks of 32, E8M0 scale (index vectors) */
    GRID_FP8_ROW,    /* one power-of-two scale a vector: the grid of ROW_INDEX_FP8 itself (`plane` of runtime.md 3.6) */
    GRID_INT8        /* one f32 scale a row (w8a8 index vectors) */
};

/* ---- operators ---- */

/* Streams of a row = its embedding row in every stream (v41-model.md 4.1, v4-model.md 3.1). */
struct op_embed {
    struct row_list rows;
    const struct step *step;
    const struct weight *weight; /* bf16 [vocab][hidden] */
    struct streams out;
};

/* mHC mix (v41-model.md 4.4, v4-model.md 3.3): pre, post, comb from the streams. With head_only only pre is made
 * (v4-model.md 3.5: fn [M][M*D], scale [1], base [M]); post and comb are not touched. */
struct op_mhc_mix {
    struct row_list rows;
    struct streams x;
    const struct weight *fn;    /* f32 [(2+M)M][M*D] */
    const float *base, *scale;  /* backend memory: [(2+M)M], [3] */
    float norm_eps, hc_eps;
    int32_t iterations;
    bool head_only;
    float *pre, *post, *comb;   /* [rows][M], [rows][M], [rows][M][M] (source, destination) */
};

/* u = bf16(sum_j pre_j x_j); then, when `norm` is given, the RMS norm of u. Any of the outputs may have codes NULL.
 * w8a8 adds the four products as (0+1)+(2+3) (v4-model.md 7.4): pairwise. The w8a8 FFN norm is deferred: with `inverse`
 * normed is f32 w u, inverse[row] = rsqrt(mean u^2 + eps), and the scale of quantized is multiplied by it. */
struct op_collapse {
    struct row_list rows;
    struct streams x;
    const float *pre;           /* [rows][M] */
    const void *norm;           /* bf16 [D] in backend memory, or NULL */
    float norm_eps;
    bool pairwise;
    struct activation collapsed; /* bf16 [rows][D]: u */
    struct activation normed;    /* bf16 [rows][D] (f32 when deferred) */
    struct activation quantized; /* Q8 (or I8 by row) of normed */
    float *inverse;              /* f32 [rows] or NULL: the norm is not deferred */
};

/* x[k] <- post_k y + sum_j comb[j][k] x[j], f32, rounded to the streams' format (v41-model.md 4.4, v4-model.md 3.4). */
struct op_expand {
    struct row_list rows;
    const void *y;               /* bf16 [rows][D] */
    const float *post, *comb;
    struct streams x;            /* in and out */
};

/* RMS norm of rows (v41-model.md 4.2): out = round(w (x rsqrt(mean x^2 + eps))). in and out bf16 or f32; weight bf16,
 * or f32 when weight_f32. quantized (codes NULL: none) is the Q8 or I8 form of out; out.codes may be NULL then. parts > 1:
 * a row is that many pieces of cols / parts columns, each normed by itself with the same weight (v4-model.md 6.3 step 2). */
struct op_norm {
    struct row_list rows;
    struct activation in;
    const void *weight;
    bool weight_f32;
    const float *smooth;         /* f32, multiplies after the weight (v4-model.md 7.4 mtp_projection); NULL: none */
    int32_t parts;               /* 0 or 1: the whole row */
    float eps;
    struct activation out, quantized;
};

/* Q8 or I8 form of bf16 or f32 rows (v41-model.md 3.2, v4-model.md 4.1, 7.3). */
struct op_quantize {
    struct row_list rows;
    struct activation in, out;
};

/* out = in W^T (v41-model.md 2.5 and 3.5; v4-model.md 4.3, 7.3). Which product it is follows from the formats:
 * Q8 x FP8|FP4, BF16|F32 x BF16|F32|FP8 (FP8 widened exactly: wo_a), I8 x INT8; out bf16 or f32.
 * groups G > 1: W is [G * n/G][k], in has G * k columns; output block g uses input block g (wo_a).
 * parts P > 1: a row is P pieces of k columns, each multiplied by the whole W; out has P * n columns. */
struct op_linear {
    struct row_list rows;
    struct activation in;
    const struct weight *weight;
    int32_t groups, parts;       /* 0 or 1: one; not both above 1 */
    struct activation out;
};

/* Per head: norm of the family, then rotation of the last channels at the row's position, in place.
 * norm: none (V4.1); bf16 chain (v4-model.md 5.2 step 3); f32 (w8a8). in f32 or bf16 -> out bf16 (f32: not rounded). */
enum query_norm { QUERY_NORM_NONE, QUERY_NORM_BF16, QUERY_NORM_F32 };
struct op_query {
    struct row_list rows;
    const struct step *step;
    int32_t heads, head_dim;
    enum query_norm norm;
    float eps;
    struct rope_spec rope;
    struct activation in, out;   /* [rows][heads * head_dim]; may be the same buffer when both are bf16 */
};

/* Window keys: norm over head_dim, rotation at the row's position, grid; bf16 values (v41-model.md 5.2, v4-model.md 5.2). */
struct op_window_key {
    struct row_list rows;
    const struct step *step;
    struct activation in;        /* projection: bf16 (reference) or f32 (w8a8) [rows][head_dim] */
    const void *norm;            /* bf16 [head_dim] */
    float eps;
    struct rope_spec rope;
    enum key_grid grid;
    void *out;                   /* bf16 [rows][head_dim] */
    struct activation packed;    /* Q8 [rows][head_dim], the codes and scales behind `out` (GRID_FP8_ALL); codes NULL: not
                                    wanted. Values alone do not tell them: a block may have two scales of equal values */
};

/* Stores window keys of rows into their rings (slot = position mod ring rows), packed to the ring's format. */
struct op_window_write {
    struct row_list rows;
    const struct step *step;
    const void *keys;            /* bf16 [rows][head_dim], values already on the grid */
    struct activation packed;    /* from op_window_key; needed when the ring is ROW_FP8_E8M0 */
    int32_t head_dim;
    struct ring_plane ring;
};

/* scores[row][c] += ape[position mod ratio][c] (v4-model.md 5.7). */
struct op_position_bias {
    struct row_list rows;
    const struct step *step;
    const float *ape;            /* f32 [ratio][cols] */
    int32_t ratio, cols;
    float *scores;               /* [rows][cols] */
};

/* Pools the members of one compressed row per listed row (the last token of its group): PAIR (v41-model.md 5.3),
 * OVERLAP and PLAIN (v4-model.md 5.7). A member at position q comes from this forward's arrays when
 * q >= from[request], else from the tail ring (q mod tail rows). A member before position 0, or in a tail slot whose
 * table entry is missing, is value 0 and score -inf. The result is f32, or rounded once to bf16 as out.format says. */
struct op_compress {
    struct row_list rows;
    const struct step *step;
    const int32_t *from;         /* [requests] */
    enum compressor kind;
    int32_t ratio, width;        /* width of the pooled row; inputs have 2*width columns for OVERLAP, else width */
    const float *values, *scores;
    struct ring_plane tail;
    struct activation out;       /* [rows][width] at the listed rows */
    bool padded;                 /* rows that end no group stand in the list: passed over; else they are refused */
};

/* Keeps compressor inputs of the listed rows in the tail ring (position mod tail rows). */
struct op_tail_write {
    struct row_list rows;
    const struct step *step;
    const float *values, *scores;
    int32_t cols;
    struct ring_plane tail;
};

/* Stores compressed rows: optional norm, rotation at the group's first position (row j = position div ratio, rotated at
 * j*ratio), optional Hadamard (v4-model.md 5.6), grid, container. Main rows and index keys alike (v41-model.md 5.3). */
struct op_row_write {
    struct row_list rows;
    const struct step *step;
    int32_t ratio;
    struct activation in;        /* bf16 or f32 [rows][cols] */
    const void *norm;            /* bf16 [cols] or NULL: in is normed already */
    float eps;
    struct rope_spec rope;
    bool hadamard;
    enum key_grid grid;
    struct row_plane plane;      /* a row whose block is unmapped is not stored */
    void *values_out;            /* bf16 [rows][cols] on the grid (INT8: rounded to bf16), for traces; NULL: not wanted */
    bool padded;                 /* as in op_compress */
};

/* Index queries in place: rotation, optional Hadamard, grid (v41-model.md 6.1, v4-model.md 5.6, 7.4). */
struct op_index_query {
    struct row_list rows;
    const struct step *step;
    int32_t heads, dim;
    struct rope_spec rope;
    bool hadamard;
    enum key_grid grid;
    struct activation in;        /* bf16 or f32 [rows][heads * dim] */
    struct activation out;       /* bf16 values on the grid, or I8 with block = dim */
    /* head weights: out = f32(projection) * factor, rounded to bf16 when round_weights (v4 reference) */
    struct activation weights_in; /* bf16 or f32 [rows][heads] */
    float weight_factor;
    bool round_weights;
    float *weights;              /* f32 [rows][heads] */
};

/* How index scores are rounded. */
enum score_mode {
    SCORE_F32,   /* mode P of v41-model.md 6.2 */
    SCORE_BF16,  /* mode R; the V4 reference (v4-model.md 5.6) */
    SCORE_INT8   /* w8a8 decode form: key scale after the head sum (v4-model.md 7.4) */
};

/* Scores the visible rows of one plane and keeps the best (v41-model.md 6.2-6.6, v4-model.md 5.6): min(topk, visible)
 * rows, larger score first, then smaller row; written ascending or by score. When all visible rows are kept and nothing
 * else is asked the scores need not be formed. Exactly min(topk, visible) ids per row unless a pool is smaller. */
struct op_index_select {
    struct row_list rows;
    const struct step *step;
    int32_t heads, dim, ratio, topk;
    enum score_mode mode;
    enum selection_order order;
    struct activation query;     /* from op_index_query */
    const float *weights;        /* [rows][heads] */
    struct row_plane plane;
    /* candidate pool: blocks of `block_size` rows, the best `topk_blocks` (v41-model.md 6.4); source writes, readers read */
    bool make_candidates, use_candidates;
    int32_t block_size, topk_blocks;
    int32_t *candidates;         /* [rows][topk_blocks] kept blocks, ascending */
    int32_t *candidate_count;    /* [rows] */
    int32_t *selected;           /* [rows][topk] */
    int32_t *selected_count;     /* [rows] */
    float *scores;               /* [rows][score_stride] of every visible row, for traces; NULL: not wanted */
    int64_t score_stride;
};

/* The attention core over a row's key list (v41-model.md 5.5, v4-model.md 5.4, 7.4; runtime.md 3.3): window_size window
 * slots (oldest first, missing ones at the end), then compressed rows: `selected` ids in their order, or with
 * selected NULL the range [0, visible). A window row of position q comes from `fresh` when q >= key_from[request], else
 * from the ring. Blocks of `block` slots; probabilities rounded to bf16 for the value product; sink in the denominator
 * only. w8a8 merges tiles with the two-sided rescale and leaves o in f32. draft_block (speculation.md 2.6): every row of
 * a request has the window before the request's first position, from the ring, then all rows of the request, from `fresh`. */
struct op_attend {
    struct row_list rows;
    const struct step *step;
    int32_t heads, head_dim, window_size, block, ratio;
    float scale;
    bool w8a8;
    const void *q;               /* bf16 [rows][heads][head_dim] */
    const void *fresh;           /* bf16 [rows][head_dim] */
    const int32_t *key_from;     /* [requests] */
    const int32_t *window_low;   /* [rows] lowest position of the row's window (`lo` of runtime.md 3.3); NULL: 0 */
    bool draft_block;
    struct ring_plane ring;
    bool has_plane;
    struct row_plane plane;
    const int32_t *selected;     /* [rows][selected_stride] or NULL */
    int32_t selected_stride;
    const int32_t *selected_count;
    const float *sinks;          /* [heads] */
    struct activation out;       /* bf16 or f32 [rows][heads * head_dim] */
};

/* Inverse rotation of each head at the row's position, in place or bf16/f32 -> bf16 (v41-model.md 5.6). */
struct op_unrotate {
    struct row_list rows;
    const struct step *step;
    int32_t heads, head_dim;
    struct rope_spec rope;
    struct activation in, out;
};

/* Router (v41-model.md 7.1, v4-model.md 6.1): logits = x W^T in f32, sqrt(softplus), top-k of score + bias (ties to the
 * smaller expert) or the token's table row, weights normalised and scaled. idx in falling order of score + bias (table
 * order when hashed). denominator_eps: 1e-20 (V4.1) or 0. */
struct op_route {
    struct row_list rows;
    const struct step *step;
    struct activation x;         /* bf16 [rows][D]; w8a8: f32 w u of op_collapse, */
    const float *x_scale;        /* and its `inverse` [rows], which multiplies the logits; NULL: none */
    const struct weight *gate;   /* bf16 or f32 [E][D] */
    const float *bias, *bias_image; /* [E]; bias_image for rows of image_mask, may be NULL */
    const int32_t *table;        /* [vocab][k] hash layers, else NULL */
    int32_t experts, active;
    bool normalise;
    float scaling, denominator_eps;
    int32_t *idx;                /* [rows][k] */
    float *weight;               /* [rows][k] */
};

/* Routed experts of the listed rows (v41-model.md 7.2, v4-model.md 6.2, 7.4), or with idx NULL one shared expert for all.
 * g = w1 x, u = w3 x; clamps; silu(g) u; times the routing weight before w2's quantizer (reference) or after w2 (w8a8);
 * out bf16. */
struct op_expert {
    struct row_list rows;
    struct activation x;                   /* Q8 or I8 [rows][D] */
    const int32_t *idx;                    /* [rows][active] or NULL */
    const float *weight;                   /* [rows][active] or NULL */
    int32_t experts, active;
    const struct weight *const *w1, *const *w2, *const *w3; /* host arrays [experts] (1 when shared) */
    float swiglu_limit;
    bool w8a8;
    void *out;                             /* bf16 [rows][active or 1][D] */
};

/* y = bf16( sum of the routed outputs in ascending expert id + shared ) (v41-model.md 7.3); w8a8: shared first, then k
 * order (v4-model.md 8.3). */
struct op_combine {
    struct row_list rows;
    const int32_t *idx;
    int32_t active, hidden;
    const void *routed, *shared; /* bf16 [rows][active][D], [rows][D] */
    bool w8a8;
    void *out;                   /* bf16 [rows][D] */
};

/* Engram gate and injection into the streams (v41-model.md 8.7). kv: [rows][(M+1)*D] bf16, keys of the streams then the
 * shared value; image rows pass unchanged. gate_out: f32 [rows][M] or NULL. */
struct op_engram {
    struct row_list rows;
    const struct step *step;
    struct streams x;
    const void *kv, *q_weight, *k_weight; /* bf16 */
    float *gate_out;
};

/* Mean of the streams, bf16 (v41-model.md 10.2), into columns [column, column + D) of out. */
struct op_stream_mean {
    struct row_list rows;
    struct streams x;
    struct activation out;       /* bf16 [rows][targets * D] */
    int32_t column;
};

/* out = bf16 or f32 sum a + broadcast b over streams (v4-model.md 6.3 step 3): out[j] = e + h[j]. */
struct op_stream_add {
    struct row_list rows;
    struct activation e;         /* [rows][D] bf16 or f32 */
    struct activation h;         /* [rows][M*D] */
    struct streams out;
};

/* Row i of out = row rows.index[i] of in: brings the listed rows together (the rows whose logits are wanted). Any format
 * without scales. */
struct op_gather {
    struct row_list rows;
    struct activation in;        /* [rows][cols] */
    struct activation out;       /* [rows.count][cols] */
};

/* ---- a backend ---- */

/* The largest step; `reserve` sizes scratch from it. */
struct op_limits {
    const struct model_plan *plan;
    int32_t max_rows, max_requests, max_positions;
};

/* How a backend that records runs lists of operators (runtime.md 8); the bits are the same. */
enum graph_mode {
    GRAPHS_FULL,   /* a step's list is one graph when it comes again */
    GRAPHS_HYBRID, /* the lists between attention's operators are; those are started one by one */
    GRAPHS_NONE    /* everything is started one by one */
};
struct run_mode {
    enum graph_mode graphs;
    bool fused; /* level 3: operators are joined where a kernel can do several, and side by side where they may; else level 0,
                 * one by one in their order */
};

/* What a backend has done and holds, for metrics and tests. */
struct backend_counts {
    int64_t bytes, most_bytes;   /* of its memory that are taken, and were at most */
    int64_t weights_laid;        /* tensors brought into the backend's layout: each once, and once more behind a rest */
    int64_t graphs_recorded, graphs_replayed, lists_eager; /* lists of operators recorded, replayed, and started one by one */
    /* With experts in host memory: those that steps found on the device, those that they did not, and bytes copied for these. */
    int64_t experts_found, experts_copied, expert_bytes;
};

struct backend {
    const char *name;            /* "cpu-reference", "cpu-avx2", ... part of the arithmetic identity */
    void *self;

    qr_status (*reserve)(struct backend *, const struct op_limits *, int64_t *bytes, qr_error *);
    void (*close)(struct backend *);

    /* Memory of the backend. upload/download are ordered with the operators; fence waits until everything is done. */
    qr_status (*allocate)(struct backend *, int64_t bytes, void **out, qr_error *);
    void (*release)(struct backend *, void *p);
    qr_status (*upload)(struct backend *, void *to, const void *from, int64_t bytes, qr_error *);
    qr_status (*download)(struct backend *, void *to, const void *from, int64_t bytes, qr_error *);
    qr_status (*copy)(struct backend *, void *to, const void *from, int64_t bytes, qr_error *);
    qr_status (*fence)(struct backend *, qr_error *);

    /* Makes a handle from a checkpoint tensor, once. Refuses E8M0 255 and shapes the kernels cannot take, naming the
     * tensor and the index. */
    qr_status (*prepare_weight)(struct backend *, const struct weight_spec *, struct weight **out, qr_error *);
    void (*release_weight)(struct backend *, struct weight *);

    /* A backend with memory of its own; NULL elsewhere. `hold`: bytes that it may take at most, what would be more is
     * refused, and of them bytes that index scores may take at once (0, 0: its own bounds). Pools and weights can rest: their
     * bytes are given back and their addresses stay, and with them whatever was recorded. rise_pool takes a pool's bytes
     * again, of any content; renew_weight lays a weight that rested out again, where it was (QR_INTERNAL for one that did
     * not rest, or of another shape). A pool is released like any memory. */
    void (*hold)(struct backend *, int64_t bytes, int64_t score_bytes);
    qr_status (*allocate_pool)(struct backend *, int64_t bytes, void **out, qr_error *);
    void (*rest_pool)(struct backend *, void *pool);
    qr_status (*rise_pool)(struct backend *, void *pool, qr_error *);
    void (*rest_weights)(struct backend *);
    qr_status (*renew_weight)(struct backend *, struct weight *, const struct weight_spec *, qr_error *);
    void (*count)(const struct backend *, struct backend_counts *out);
    /* Before any weight that is on_host is prepared, once: makes the seats and takes the host memory. Changes no bit of any
     * result. expert_uses: visits of each expert of a layer since then, by its w1; zeros where no step has run. NULL: every
     * weight lies where the backend has it. */
    qr_status (*seat_experts)(struct backend *, const struct expert_seating *, qr_error *);
    qr_status (*expert_uses)(struct backend *, int32_t experts, const struct weight *const *w1, uint64_t *out, qr_error *);
    /* Lists that follow run so; what is recorded is forgotten. At first: FULL, fused. NULL: it records nothing. */
    void (*run_as)(struct backend *, const struct run_mode *mode);
    /* What a draw needs of rows of logits (shortlist.h). NULL: the rows are read whole. */
    qr_status (*shortlist)(struct backend *, const struct op_shortlist *, qr_error *);

#define QR_OPERATORS(X)                                                                                                \
    X(embed) X(mhc_mix) X(collapse) X(expand) X(norm) X(quantize) X(linear) X(query) X(window_key) X(window_write)     \
    X(position_bias) X(compress) X(tail_write) X(row_write) X(index_query) X(index_select) X(attend) X(unrotate)       \
    X(route) X(expert) X(combine) X(engram) X(stream_mean) X(stream_add) X(gather)
#define QR_OPERATOR(NAME) qr_status (*NAME)(struct backend *, const struct op_##NAME *, qr_error *);
    QR_OPERATORS(QR_OPERATOR)
#undef QR_OPERATOR
};

/* Opens the CPU backend. `path`: "reference" (scalar, the oracle), or NULL/"auto" for the best instruction set of this
 * machine, or "avx512", "avx2", "portable". threads as pool_open. */
qr_status backend_cpu_open(const char *path, int threads, const struct qr_log *log, struct backend **out, qr_error *err);
/* The name of the backend that the call above opens for `path`: part of the arithmetic identity. NULL, with QR_UNSUPPORTED
 * in `err`, where this build or processor does not have it. */
const char *backend_cpu_name(const char *path, qr_error *err);
/* Bytes of scratch that its `reserve` will take. */
qr_status backend_cpu_scratch(const char *path, int threads, const struct op_limits *limits, int64_t *bytes, qr_error *err);

#endif
