/* Operators 10 (decode over pages) and 32 (prefill from position 0) of v4-model.md section 10: index queries, scores and
 * the best rows. */
#include <math.h>
#include <string.h>

#include "number/bf16.h"
#include "tools/op_compressor.h"

enum { RATIO = 4, ROWS_PER_PAGE = 128 / RATIO };

static const float lowest_score = -3.4028234663852886e38f;

/* The query side of rows: codes or values by head, and the heads' weights. */
struct index_query {
    struct activation q;
    float *weights;
};

static float head_factor(const struct op_run *r) { return (float)(1 / (sqrt(op_dim(r, "di")) * sqrt(op_dim(r, "Hi")))); }

static qr_status w8a8_query(struct op_run *r, const struct step *step, const struct rope_spec *rope, struct index_query *out,
                            qr_error *err)
{
    int32_t heads = op_dim(r, "Hi"), dim = op_dim(r, "di"), rank = op_dim(r, "Qr");
    struct row_list rows = first_rows_of(step->rows);
    struct activation q, w;
    TRY(op_rows(r, ACT_F32, rows.count, heads * dim, 0, &q, err));
    TRY(op_rows(r, ACT_F32, rows.count, heads, 0, &w, err));
    TRY(op_buffer(r, 4LL * rows.count * heads, &out->weights, err));
    CALL(r, linear, .rows = rows, .in = act_coded(ACT_I8, op_in(r, "qr"), op_in(r, "qr_scale"), rank, rank),
         .weight = op_weight(r, "csa_idx_wq_b"), .out = q);
    CALL(r, linear, .rows = rows, .in = act_rows(ACT_BF16, op_in(r, "x"), op_dim(r, "D")),
         .weight = op_weight(r, "csa_weights_proj"), .out = w);
    CALL(r, index_query, .rows = rows, .step = step, .heads = heads, .dim = dim, .rope = *rope, .hadamard = true,
         .grid = GRID_INT8, .in = q, .out = out->q, .weights_in = w, .weight_factor = head_factor(r), .weights = out->weights);
    return QR_OK;
}

static qr_status reference_query(struct op_run *r, const struct step *step, const struct rope_spec *rope,
                                 struct index_query *out, qr_error *err)
{
    int32_t heads = op_dim(r, "Hi"), dim = op_dim(r, "di"), rank = op_dim(r, "Qr");
    struct row_list rows = first_rows_of(step->rows);
    struct activation qr8, q, w;
    TRY(op_rows(r, ACT_Q8, rows.count, rank, 128, &qr8, err));
    TRY(op_rows(r, ACT_BF16, rows.count, heads * dim, 0, &q, err));
    TRY(op_rows(r, ACT_BF16, rows.count, heads, 0, &w, err));
    TRY(op_buffer(r, 4LL * rows.count * heads, &out->weights, err));
    CALL(r, quantize, .rows = rows, .in = act_rows(ACT_BF16, op_in(r, "qr"), rank), .out = qr8);
    CALL(r, linear, .rows = rows, .in = qr8, .weight = op_weight(r, "wq_b.weight"), .out = q);
    CALL(r, linear, .rows = rows, .in = act_rows(ACT_BF16, op_in(r, "x"), op_dim(r, "D")),
         .weight = op_weight(r, "weights_proj.weight"), .out = w);
    CALL(r, index_query, .rows = rows, .step = step, .heads = heads, .dim = dim, .rope = *rope, .hadamard = true,
         .grid = GRID_FP4_E8M0, .in = q, .out = out->q, .weights_in = w, .weight_factor = head_factor(r), .round_weights = true,
         .weights = out->weights);
    return QR_OK;
}

/* Scores the visible rows of the plane and keeps the best; fills score and topk_idxs of `cols` and `kept` columns, tails
 * with the lowest score and -1, and says what is to be compared. */
static qr_status select_rows(struct op_run *r, const struct step *step, const int32_t *positions, const struct index_query *q,
                             struct row_plane plane, int64_t cols, int64_t kept, qr_error *err)
{
    int32_t rows = step->rows, topk = op_dim(r, "topk"), *ids, *counts;
    float *scores;
    int64_t *visible, *best;
    TRY(op_buffer(r, 4LL * rows * topk, &ids, err));
    TRY(op_buffer(r, 4LL * rows, &counts, err));
    TRY(op_buffer(r, 4LL * rows * (cols > 0 ? cols : 1), &scores, err));
    TRY(op_host_new(r, 8LL * rows, &visible, err));
    TRY(op_host_new(r, 8LL * rows, &best, err));
    CALL(r, index_select, .rows = first_rows_of(rows), .step = step, .heads = op_dim(r, "Hi"), .dim = op_dim(r, "di"),
         .ratio = RATIO, .topk = topk, .mode = r->w8a8 ? SCORE_INT8 : SCORE_BF16, .order = SELECTION_BY_SCORE, .query = q->q,
         .weights = q->weights, .plane = plane, .selected = ids, .selected_count = counts, .scores = scores,
         .score_stride = cols);
    TRY(op_download(r, ids, 4LL * rows * topk, &ids, err));
    TRY(op_download(r, counts, 4LL * rows, &counts, err));
    TRY(op_download(r, scores, 4LL * rows * cols, &scores, err));

    int32_t *out_ids = op_out(r, "topk_idxs");
    void *out_scores = op_out(r, "score");
    for (int64_t row = 0; row < rows; row++) {
        visible[row] = plan_visible(RATIO, positions[row]);
        best[row] = counts[row];
        for (int64_t k = 0; k < kept; k++)
            out_ids[row * kept + k] = k < counts[row] ? ids[row * topk + k] : -1;
        for (int64_t j = 0; j < cols; j++) {
            float s = j < visible[row] ? scores[row * cols + j] : lowest_score;
            if (r->w8a8)
                ((float *)out_scores)[row * cols + j] = s;
            else
                ((uint16_t *)out_scores)[row * cols + j] = j < visible[row] ? bf16_encode(s) : 0;
        }
    }
    op_out_slot(r, "score")->counts = visible;
    op_out_slot(r, "score")->open = !r->w8a8;
    op_out_slot(r, "topk_idxs")->counts = best;
    op_out_slot(r, "topk_idxs")->values = "score";
    op_out_slot(r, "topk_idxs")->values_by_id = true;
    return QR_OK;
}

/* ---- 10 ---- */

static qr_status decode_sizes(struct op_run *r, qr_error *err)
{
    const struct tensor_view *score = op_file_find(r->file, "out.score");
    dims_bind(&r->dims, "C", score && score->rank == 3 ? score->shape[2] : (int64_t)op_dim(r, "n") * ROWS_PER_PAGE);
    if (op_dim(r, "T") != 2 * op_dim(r, "B"))
        return op_refuse(err, BAD_SHAPE, "in.x has %d rows, wanted two for each of %d requests", op_dim(r, "T"), op_dim(r, "B"));
    return QR_OK;
}

/* Positions at which exactly min(kv_len / 4, (p + 1) / 4, C) rows are visible; every page of those must be mapped. */
static qr_status visible_positions(struct op_run *r, int32_t *out, qr_error *err)
{
    const int32_t *positions = op_ints(r, "position_ids"), *lengths = op_ints(r, "kv_seq_lens"), *table = op_ints(r, "idx_table");
    int32_t width = op_dim(r, "n");
    TRY(op_check_entries("idx_table", table, (int64_t)op_dim(r, "B") * width, op_dim(r, "P"), err));
    for (int32_t i = 0; i < op_dim(r, "T"); i++) {
        int32_t visible = plan_visible(RATIO, positions[i]), most = lengths[i / 2] / RATIO;
        if (lengths[i / 2] < 0)
            return op_refuse(err, BAD_POSITION, "kv_seq_lens of request %d is %d", i / 2, lengths[i / 2]);
        visible = visible < most ? visible : most;
        visible = visible < op_dim(r, "C") ? visible : op_dim(r, "C");
        for (int32_t page = 0; page * ROWS_PER_PAGE < visible; page++)
            if (page >= width || table[i / 2 * width + page] < 0)
                return op_refuse(err, BAD_TABLE, "idx_table of request %d has no page %d, which row %d reads", i / 2, page, i);
        out[i] = visible * RATIO - 1;
    }
    return QR_OK;
}

static qr_status run_decode(struct op_run *r, qr_error *err)
{
    int32_t rows = op_dim(r, "T"), heads = op_dim(r, "Hi"), dim = op_dim(r, "di"), *seen;
    struct index_query q;
    struct rope_spec rope;
    struct step *step;
    TRY(op_check_positions(r, op_ints(r, "position_ids"), rows, 2, err));
    TRY(compressor_check_hadamard(r, "csa_hadamard_idx", dim, err));
    TRY(op_host_new(r, 4LL * rows, &seen, err));
    TRY(visible_positions(r, seen, err));
    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = 2, .positions = seen, .table = op_ints(r, "idx_table"),
                                        .width = op_dim(r, "n")}, &step, err));
    TRY(op_turns(r, "rope_cos", "rope_sin", rows, NULL, &rope, err));
    TRY(op_rows(r, ACT_I8, rows, heads * dim, dim, &q.q, err));
    TRY(w8a8_query(r, step, &rope, &q, err));
    return select_rows(r, step, seen, &q, op_plane(ROW_INDEX_INT8, op_in(r, "idx_kv_cache"), op_in(r, "idx_kv_scale"), ROWS_PER_PAGE, dim),
                       op_dim(r, "C"), op_dim(r, "C"), err);
}

/* ---- 32 ---- */

static qr_status prefill_sizes(struct op_run *r, qr_error *err)
{
    int32_t rows = op_dim(r, "T");
    if (rows < 1 || rows > 8192)
        return op_refuse(err, BAD_SHAPE, "a prefill of %d tokens, wanted 1 to 8192", rows);
    dims_bind(&r->dims, "rows", rows / RATIO);
    return QR_OK;
}

/* The index keys of all groups, in one page. */
static qr_status make_keys(struct op_run *r, const struct step *step, struct row_plane *plane, qr_error *err)
{
    int32_t rows = step->rows, groups = op_dim(r, "rows"), dim = op_dim(r, "di"), *list, *start;
    bool w = r->w8a8;
    struct op_compressor c = {.ratio = RATIO, .width = dim, .index = true, .eps = r->config.rms_norm_eps,
                              .wkv = op_weight(r, w ? "csa_inner_wkv" : "compressor.wkv.weight"),
                              .wgate = op_weight(r, w ? "csa_inner_wgate" : "compressor.wgate.weight"),
                              .ape = op_in(r, w ? "csa_inner_ape" : "compressor.ape"),
                              .norm = op_in(r, w ? "csa_inner_norm_w" : "compressor.norm.weight")};
    struct compressor_rows e = {.step = step, .emit.count = groups, .from = step->first_position};
    uint8_t *codes, *scales;

    TRY(op_host_new(r, 4LL * rows, &list, err));
    TRY(op_host_new(r, 4LL * rows, &start, err));
    for (int32_t i = 0; i < groups; i++)
        list[i] = i * RATIO + RATIO - 1;
    for (int32_t i = 0; i < rows; i++)
        start[i] = i - i % RATIO; /* a row turns as the first token of its group */
    TRY(op_upload(r, list, 4LL * groups, &e.emit.index, err));
    if (w) {
        TRY(op_turns(r, "rope_cos", "rope_sin", rows, start, &c.rope, err));
        *plane = op_plane(ROW_INDEX_INT8, op_out(r, "idx_kv_cache"), op_out(r, "idx_kv_scale"), groups > 0 ? groups : 1, dim);
    } else {
        TRY(op_frequencies(r, RATIO, &c.rope, err));
        TRY(op_buffer(r, (int64_t)groups * (dim / 2), &codes, err));
        TRY(op_buffer(r, (int64_t)groups * (dim / 32), &scales, err));
        TRY(op_buffer(r, 2LL * rows * dim, &e.values, err));
        *plane = (struct row_plane){.format = ROW_INDEX_FP4, .rows_per_block = groups > 0 ? groups : 1, .tile_rows = groups > 0 ? groups : 1,
                                    .values = codes, .scales = scales, .value_row_stride = dim / 2, .scale_row_stride = dim / 32};
    }
    e.plane = *plane;
    TRY(compressor_inputs(r, &c, step, first_rows_of(rows), act_rows(ACT_BF16, op_in(r, "x"), op_dim(r, "D")), &e.kv, &e.sc, err));
    TRY(compressor_emit(r, &c, &e, err));
    if (!w && groups)
        CALL(r, gather, .rows = e.emit, .in = act_rows(ACT_BF16, e.values, dim), .out = act_rows(ACT_BF16, op_out(r, "idx_key"), dim));
    return QR_OK;
}

static qr_status run_prefill(struct op_run *r, qr_error *err)
{
    int32_t rows = op_dim(r, "T"), heads = op_dim(r, "Hi"), dim = op_dim(r, "di"), *positions;
    const int32_t first_page = 0;
    struct index_query q;
    struct rope_spec rope;
    struct row_plane plane;
    struct step *step;
    TRY(op_host_new(r, 4LL * rows, &positions, err));
    for (int32_t i = 0; i < rows; i++)
        positions[i] = i;
    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = rows, .positions = positions, .table = &first_page, .width = 1},
                &step, err));
    TRY(make_keys(r, step, &plane, err));
    if (r->w8a8) {
        TRY(compressor_check_hadamard(r, "csa_hadamard_idx", dim, err));
        TRY(op_turns(r, "rope_cos", "rope_sin", rows, NULL, &rope, err));
        q.q = act_coded(ACT_I8, op_out(r, "q_i8"), op_out(r, "q_scale"), heads * dim, dim);
        TRY(w8a8_query(r, step, &rope, &q, err));
    } else {
        TRY(op_frequencies(r, RATIO, &rope, err));
        TRY(op_rows(r, ACT_BF16, rows, heads * dim, 0, &q.q, err));
        TRY(reference_query(r, step, &rope, &q, err));
    }
    return select_rows(r, step, positions, &q, plane, op_dim(r, "rows"), op_dim(r, "topk"), err);
}

/* ---- the tables ---- */

#define QUERY_IN                                                                                                       \
    ARRAY("x", ARRAY_BF16, "T D"), ARRAY("qr", ARRAY_I8, "T Qr", .flags = ARRAY_W8A8), ARRAY("qr_scale", ARRAY_F32, "T 1", .flags = ARRAY_W8A8),        \
        ARRAY("csa_idx_wq_b", WEIGHT_OF_I8_IN_OUT, "Qr Hi*di", .flags = ARRAY_W8A8, .scales = "csa_idx_wq_b_scale"),                           \
        ARRAY("csa_weights_proj", WEIGHT_OF_BF16_IN_OUT, "D Hi", .flags = ARRAY_W8A8),                                               \
        ARRAY("csa_hadamard_idx", WEIGHT_OF_BF16, "di di", .flags = ARRAY_W8A8),                                                     \
        ARRAY("rope_cos", ARRAY_F32, "T *", .flags = ARRAY_W8A8 | ARRAY_HOST),                                                       \
    ARRAY("rope_sin", ARRAY_F32, "T *", .flags = ARRAY_W8A8 | ARRAY_HOST)

static const struct op_array decode_in[] = {QUERY_IN,
                                            ARRAY("idx_kv_cache", ARRAY_I8, "P 32 1 di"),
                                            ARRAY("idx_kv_scale", ARRAY_F32, "P 32 1 1"),
                                            ARRAY("idx_table", ARRAY_INT, "B n"),
                                            ARRAY("kv_seq_lens", ARRAY_INT, "B"),
                                            ARRAY("position_ids", ARRAY_INT, "B S"),
                                            {0}};
static const struct op_array decode_out[] = {ARRAY("score", ARRAY_F32, "B S C", .flags = ARRAY_HOST, .tolerance = "RA(1e-4,1/128,0.005)"),
                                             ARRAY("topk_idxs", ARRAY_INT, "B S C", .also = "topk", .tolerance = "TK(score)"),
                                             {0}};

static const struct op_array prefill_in[] = {QUERY_IN,
                                             ARRAY("csa_inner_wkv", WEIGHT_OF_BF16, "2*di D", .flags = ARRAY_W8A8),
                                             ARRAY("csa_inner_wgate", WEIGHT_OF_BF16, "2*di D", .flags = ARRAY_W8A8),
                                             ARRAY("csa_inner_ape", ARRAY_F32, "4 2*di", .flags = ARRAY_W8A8),
                                             ARRAY("csa_inner_norm_w", ARRAY_BF16, "di", .flags = ARRAY_W8A8),
                                             ARRAY("qr", ARRAY_BF16, "T Qr", .flags = ARRAY_REFERENCE),
                                             ARRAY("wq_b.weight", WEIGHT_OF_FP8, "Hi*di Qr", .flags = ARRAY_REFERENCE, .scales = "wq_b.scale"),
                                             ARRAY("weights_proj.weight", WEIGHT_OF_BF16, "Hi D", .flags = ARRAY_REFERENCE),
                                             ARRAY("compressor.wkv.weight", WEIGHT_OF_BF16, "2*di D", .flags = ARRAY_REFERENCE),
                                             ARRAY("compressor.wgate.weight", WEIGHT_OF_BF16, "2*di D", .flags = ARRAY_REFERENCE),
                                             ARRAY("compressor.ape", ARRAY_F32, "4 2*di", .flags = ARRAY_REFERENCE),
                                             ARRAY("compressor.norm.weight", ARRAY_BF16, "di", .flags = ARRAY_REFERENCE),
                                             {0}};
static const struct op_array prefill_out[] = {
    ARRAY("score", ARRAY_STREAM, "T rows", .flags = ARRAY_HOST, .tolerance = "RA(1e-4,1/128,0.005)"),
    ARRAY("topk_idxs", ARRAY_INT, "T topk", .also = "topk", .tolerance = "TK(score)"),
    ARRAY("idx_key", ARRAY_BF16, "rows di", .flags = ARRAY_REFERENCE, .tolerance = "RA(1e-4,1/128,0.005)"),
    ARRAY("q_i8", ARRAY_I8, "T Hi di", .flags = ARRAY_W8A8, .tolerance = "RA(1,0,.01)"),
    ARRAY("q_scale", ARRAY_F32, "T Hi 1", .flags = ARRAY_W8A8, .tolerance = "RA(1e-4,1/128,.01)"),
    ARRAY("idx_kv_cache", ARRAY_I8, "rows di", .flags = ARRAY_W8A8, .also = "cache", .tolerance = "RA(1,0,.01)"),
    ARRAY("idx_kv_scale", ARRAY_F32, "rows 1", .flags = ARRAY_W8A8, .also = "scale", .tolerance = "RA(1e-4,1/128,.01)"),
    {0}};

#define NEEDS "index_n_heads index_head_dim index_topk qk_rope_head_dim rms_norm_eps"

const struct op_harness op_indexer_harnesses[] = {
    {"decode_indexer", 10, "index scores over pages and the best rows", NEEDS, decode_in, decode_out, "T", decode_sizes, run_decode, NULL},
    {"prefill_indexer", 32, "index keys, scores and the best rows from position 0", NEEDS, prefill_in, prefill_out, "T",
     prefill_sizes, run_prefill, NULL},
    {0}};
