/* The indexer: goldens 10 and 32 of golden/ops4, ties, candidate pools against a brute-force twin (v41-model.md 6). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "support/golden.h"
#include "support/ops.h"

#define BAD(share, n) ((int64_t)llround((share) * (double)(n)))

static float head_factor(int32_t heads) { return (float)(1 / (sqrt(128) * sqrt(heads))); }

/* The query side of W8A8 from qr (int8) and x. */
struct query_side {
    struct activation q; /* I8 by head */
    float *weights;
};

static struct query_side w8a8_query(struct ops *o, struct golden *g, const struct one_request *r, int32_t heads)
{
    int32_t rows = r->step.rows;
    float f[32];
    struct rope_spec rope = ops4_rope(f, true, true);
    void *wq_b = ops4_transposed(golden_bytes(g, "in.csa_idx_wq_b", NULL), 128, heads * 128, 1);
    void *proj = ops4_transposed(golden_bf16(g, "in.csa_weights_proj", NULL), 128, heads, 2);
    struct activation qr = {.format = ACT_I8,
                            .cols = 128,
                            .block = 128,
                            .codes = (void *)golden_bytes(g, "in.qr", NULL),
                            .scales = (void *)golden_f32(g, "in.qr_scale", NULL)};
    struct activation q = ops_rows(ACT_F32, rows, heads * 128, 0), w = ops_rows(ACT_F32, rows, heads, 0);
    struct query_side out = {ops_rows(ACT_I8, rows, heads * 128, 128), malloc((size_t)(rows * heads) * 4)};

    RUN(o, linear, .rows = first_rows(rows), .in = qr, .out = q,
        .weight = ops_int8(o, heads * 128, 128, wq_b, golden_f32(g, "in.csa_idx_wq_b_scale", NULL)));
    RUN(o, linear, .rows = first_rows(rows), .in = bf16_rows(golden_bf16(g, "in.x", NULL), 128), .out = w,
        .weight = ops_bf16(o, heads, 128, proj));
    RUN(o, index_query, .rows = first_rows(rows), .step = &r->step, .heads = heads, .dim = 128, .rope = rope,
        .hadamard = true, .grid = GRID_INT8, .in = q, .out = out.q, .weights_in = w,
        .weight_factor = head_factor(heads), .weights = out.weights);
    ops_free_rows(&q);
    ops_free_rows(&w);
    free(wq_b);
    free(proj);
    return out;
}

/* Goldens 10: four requests, two rows each, one at a time over its own pages. */
static void check_decode_indexer(const char *file, bool exact)
{
    struct ops o;
    struct golden *g = golden_open(file);
    int32_t heads = (int32_t)golden_param(g, "index_n_heads"), topk = (int32_t)golden_param(g, "index_topk");
    const struct tensor_view *table = golden_view(g, "in.idx_table"), *score = golden_view(g, "out.score");
    int32_t pages = (int32_t)table->shape[1], capacity = (int32_t)score->shape[2];
    const float *want = golden_f32(g, "out.score", NULL);
    const int32_t *want_ids = golden_i32(g, "out.topk_idxs", NULL);
    struct one_request r;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 8, pages);
    memcpy(r.positions, golden_i32(g, "in.position_ids", NULL), 32);

    /* four requests of two rows */
    int32_t slots[4] = {0}, first_row[5] = {0, 2, 4, 6, 8}, first_position[4];
    for (int row = 0; row < 8; row++)
        r.batch_id[row] = row / 2;
    for (int b = 0; b < 4; b++)
        first_position[b] = r.positions[2 * b];
    r.step.requests = 4;
    r.step.slot = slots;
    r.step.first_row = first_row;
    r.step.first_position = first_position;
    r.step.block_table = golden_i32(g, "in.idx_table", NULL);

    struct query_side q = w8a8_query(&o, g, &r, heads);
    struct row_plane plane = {.format = ROW_INDEX_INT8,
                              .rows_per_block = 32,
                              .tile_rows = 32,
                              .values = (uint8_t *)golden_bytes(g, "in.idx_kv_cache", NULL),
                              .scales = (uint8_t *)(void *)golden_f32(g, "in.idx_kv_scale", NULL),
                              .value_row_stride = 128,
                              .value_tile_stride = 4096,
                              .value_block_stride = 4096,
                              .scale_row_stride = 4,
                              .scale_tile_stride = 128,
                              .scale_block_stride = 128};
    int32_t *ids = calloc((size_t)(8 * topk), 4), count[8];
    float *scores = calloc((size_t)(8 * capacity), 4);
    RUN(&o, index_select, .rows = first_rows(8), .step = &r.step, .heads = heads, .dim = 128, .ratio = 4, .topk = topk,
        .mode = SCORE_INT8, .order = SELECTION_BY_SCORE, .query = q.q, .weights = q.weights, .plane = plane,
        .selected = ids, .selected_count = count, .scores = scores, .score_stride = capacity);

    for (int row = 0; row < 8; row++) {
        int32_t visible = (r.positions[row] + 1) / 4;
        const float *s = want + (int64_t)row * capacity;
        assert_int_equal(count[row], visible < topk ? visible : topk);
        assert_close("score", scores + (int64_t)row * capacity, s, visible, 1e-4, 1 / 128.0, 0);
        for (int k = 0; k < count[row]; k++) {
            int32_t found = ids[row * topk + k], wanted = want_ids[row * capacity + k];
            if (exact)
                assert_int_equal(found, wanted);
            else
                assert_true(fabsf(s[found] - s[wanted]) <= 1e-4f + fabsf(s[wanted]) / 128);
        }
    }
    free(ids), free(scores), free(q.weights);
    ops_free_rows(&q.q);
    r.step.slot = r.slot;
    one_request_free(&r);
    golden_close(g);
    ops_close(&o);
}

static void w8a8_decode_selection_equals_the_goldens(void **state)
{
    (void)state;
    check_decode_indexer("tests/golden/ops4/10-decode_indexer-w8a8-a.safetensors", false);
    check_decode_indexer("tests/golden/ops4/10-decode_indexer-w8a8-b.safetensors", false);
    check_decode_indexer("tests/golden/ops4/10-decode_indexer_pages-w8a8-d.safetensors", true);
}

/* The keys of a prefill: projections, bias, pooling, stored rows. */
static struct row_plane make_keys(struct ops *o, struct golden *g, const struct one_request *r, bool w8a8)
{
    int32_t rows = r->step.rows, n = rows / 4, *list = malloc((size_t)n * 4);
    float f[32];
    struct activation kv = ops_rows(ACT_F32, rows, 256, 0), sc = ops_rows(ACT_F32, rows, 256, 0);
    struct activation pooled = ops_rows(w8a8 ? ACT_F32 : ACT_BF16, rows, 128, 0);
    struct activation x = bf16_rows(golden_bf16(g, "in.x", NULL), 128);
    struct row_plane plane = ops_plane(w8a8 ? ROW_INDEX_INT8 : ROW_INDEX_FP4, 128, 8, 16);
    for (int32_t i = 0; i < n; i++)
        list[i] = 4 * i + 3;
    RUN(o, linear, .rows = first_rows(rows), .in = x, .out = kv,
        .weight = ops_bf16(o, 256, 128, golden_bf16(g, w8a8 ? "in.csa_inner_wkv" : "in.compressor.wkv.weight", NULL)));
    RUN(o, linear, .rows = first_rows(rows), .in = x, .out = sc,
        .weight =
            ops_bf16(o, 256, 128, golden_bf16(g, w8a8 ? "in.csa_inner_wgate" : "in.compressor.wgate.weight", NULL)));
    RUN(o, position_bias, .rows = first_rows(rows), .step = &r->step, .ratio = 4, .cols = 256, .scores = sc.codes,
        .ape = golden_f32(g, w8a8 ? "in.csa_inner_ape" : "in.compressor.ape", NULL));
    RUN(o, compress, .rows = {list, n}, .step = &r->step, .from = r->first_position, .kind = COMPRESSOR_OVERLAP,
        .ratio = 4, .width = 128, .values = kv.codes, .scores = sc.codes, .out = pooled);
    RUN(o, row_write, .rows = {list, n}, .step = &r->step, .ratio = 4, .in = pooled,
        .norm = golden_bf16(g, w8a8 ? "in.csa_inner_norm_w" : "in.compressor.norm.weight", NULL), .eps = 1e-6f,
        .rope = ops4_rope(f, true, w8a8), .hadamard = true, .grid = w8a8 ? GRID_INT8 : GRID_FP4_E8M0, .plane = plane);
    ops_free_rows(&kv), ops_free_rows(&sc), ops_free_rows(&pooled);
    free(list);
    return plane;
}

/* Goldens 32. Selections as sets, at most `moved` positions with another one. */
static void check_prefill_indexer(const char *file, bool w8a8, double bad_scores, int moved)
{
    struct ops o;
    struct golden *g = golden_open(file);
    int32_t rows = (int32_t)golden_param(g, "T"), heads = 4, topk = (int32_t)golden_param(g, "index_topk"),
            n = rows / 4;
    struct one_request r;
    struct query_side q;
    ops_open(&o, "reference", 2);
    one_request_make(&r, 0, rows, 16);
    struct row_plane keys = make_keys(&o, g, &r, w8a8);

    if (w8a8) {
        q = w8a8_query(&o, g, &r, heads);
    } else {
        float f[32];
        struct activation qr8 = ops_rows(ACT_Q8, rows, 128, 128), in = ops_rows(ACT_BF16, rows, 512, 0);
        struct activation w = ops_rows(ACT_BF16, rows, heads, 0);
        q = (struct query_side){ops_rows(ACT_BF16, rows, 512, 0), malloc((size_t)(rows * heads) * 4)};
        RUN(&o, quantize, .rows = first_rows(rows), .in = bf16_rows(golden_bf16(g, "in.qr", NULL), 128), .out = qr8);
        RUN(&o, linear, .rows = first_rows(rows), .in = qr8, .out = in,
            .weight = ops_fp8(&o, 512, 128, 128, golden_bytes(g, "in.wq_b.weight", NULL),
                              golden_bytes(g, "in.wq_b.scale", NULL)));
        RUN(&o, linear, .rows = first_rows(rows), .in = bf16_rows(golden_bf16(g, "in.x", NULL), 128), .out = w,
            .weight = ops_bf16(&o, heads, 128, golden_bf16(g, "in.weights_proj.weight", NULL)));
        RUN(&o, index_query, .rows = first_rows(rows), .step = &r.step, .heads = heads, .dim = 128,
            .rope = ops4_rope(f, true, false), .hadamard = true, .grid = GRID_FP4_E8M0, .in = in, .out = q.q,
            .weights_in = w, .weight_factor = head_factor(heads), .round_weights = true, .weights = q.weights);
        ops_free_rows(&qr8), ops_free_rows(&in), ops_free_rows(&w);
    }
    int32_t *ids = calloc((size_t)(rows * topk), 4), *count = calloc((size_t)rows, 4);
    float *scores = calloc((size_t)(rows * n), 4);
    RUN(&o, index_select, .rows = first_rows(rows), .step = &r.step, .heads = heads, .dim = 128, .ratio = 4,
        .topk = topk, .mode = w8a8 ? SCORE_INT8 : SCORE_BF16, .order = SELECTION_BY_SCORE, .query = q.q,
        .weights = q.weights, .plane = keys, .selected = ids, .selected_count = count, .scores = scores,
        .score_stride = n);

    const float *want = golden_f32(g, "out.score", NULL);
    const int32_t *want_ids = golden_i32(g, "out.topk_idxs", NULL);
    int64_t off = 0, total = 0, other = 0;
    for (int32_t row = 0; row < rows; row++) {
        int32_t visible = (row + 1) / 4, differs = 0;
        for (int32_t t = 0; t < visible; t++, total++) {
            float s = scores[row * n + t], e = want[row * n + t];
            off += fabsf(s - e) > 1e-4f + fabsf(e) / 128;
        }
        assert_int_equal(count[row], visible < topk ? visible : topk);
        for (int32_t k = 0; k < count[row]; k++) {
            bool found = false;
            for (int32_t i = 0; i < count[row]; i++)
                found |= ids[row * topk + i] == want_ids[row * topk + k];
            differs |= !found;
        }
        other += differs;
    }
    assert_true(off <= BAD(bad_scores, total));
    assert_true(other <= moved);
    free(ids), free(count), free(scores), free(q.weights);
    ops_free_rows(&q.q);
    ops_free_plane(&keys);
    one_request_free(&r);
    golden_close(g);
    ops_close(&o);
}

static void prefill_selection_equals_the_goldens(void **state)
{
    (void)state;
    check_prefill_indexer("tests/golden/ops4/32-prefill_indexer-ref-a.safetensors", false, 0.02, 0);
    check_prefill_indexer("tests/golden/ops4/32-prefill_indexer-w8a8-a.safetensors", true, 0.005, 0);
    check_prefill_indexer("tests/golden/ops4/32-prefill_indexer_ties-ref-d.safetensors", false, 0.005, 1);
}

/* ---- laws ---- */

enum { DIM = 32, HEADS = 3, VISIBLE = 61 };

/* One row at position VISIBLE-1 over VISIBLE keys of ratio 1, blocks of 4 rows. */
struct scene {
    struct ops o;
    struct one_request r;
    struct row_plane keys;
    uint16_t q[HEADS * DIM];
    float weights[HEADS], scores[VISIBLE];
};

static void scene_make(struct scene *s, enum row_format format, uint64_t seed)
{
    struct dice d = {seed};
    struct one_request all;
    uint16_t in[VISIBLE * DIM];
    ops_open(&s->o, "reference", 1);
    s->keys = ops_plane(format, DIM, 4, 16);
    dice_bf16(&d, in, VISIBLE * DIM, 1);
    dice_bf16(&d, s->q, HEADS * DIM, 1);
    dice_f32(&d, s->weights, HEADS, 1);
    one_request_make(&all, 0, VISIBLE, 16);
    RUN(&s->o, row_write, .rows = first_rows(VISIBLE), .step = &all.step, .ratio = 1, .in = bf16_rows(in, DIM),
        .rope = test_rope(0), .grid = format == ROW_BF16 ? GRID_NONE : GRID_FP4_E8M0, .plane = s->keys);
    one_request_free(&all);
    one_request_make(&s->r, VISIBLE - 1, 1, 16);
}

static void scene_free(struct scene *s)
{
    one_request_free(&s->r);
    ops_free_plane(&s->keys);
    ops_close(&s->o);
}

/* Runs a selection of the scene; `op` gives what differs from a plain one. */
static int32_t scene_select(struct scene *s, struct op_index_select op, int32_t *ids)
{
    int32_t count;
    qr_error err = {0};
    op.rows = first_rows(1);
    op.step = &s->r.step;
    op.heads = HEADS;
    op.dim = DIM;
    op.ratio = 1;
    op.query = bf16_rows(s->q, HEADS * DIM);
    op.weights = s->weights;
    op.plane = s->keys;
    op.selected = ids;
    op.selected_count = &count;
    op.scores = s->scores;
    op.score_stride = VISIBLE;
    if (s->o.b->index_select(s->o.b, &op, &err) != QR_OK)
        fail_msg("%s", err.message);
    return count;
}

/* The best `topk` allowed rows by looking at all, larger score first, then smaller row. */
static int32_t brute_force(const float *scores, const bool *allowed, int32_t n, int32_t topk, int32_t *ids)
{
    bool taken[VISIBLE] = {false};
    int32_t count = 0;
    while (count < topk) {
        int32_t best = -1;
        for (int32_t t = 0; t < n; t++)
            if (!taken[t] && (!allowed || allowed[t]) && (best < 0 || scores[t] > scores[best]))
                best = t;
        if (best < 0)
            break;
        taken[best] = true;
        ids[count++] = best;
    }
    return count;
}

static void ascending(int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = i + 1; j < n; j++)
            if (ids[j] < ids[i]) {
                int32_t t = ids[i];
                ids[i] = ids[j];
                ids[j] = t;
            }
}

static void selection_equals_brute_force_in_both_orders(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct scene s;
        int32_t found[VISIBLE], want[VISIBLE];
        scene_make(&s, ROW_INDEX_FP4, seed);
        if (seed % 2) /* all scores zero: every choice is a tie */
            memset(s.weights, 0, sizeof s.weights);
        for (int32_t topk = 1; topk <= VISIBLE + 3; topk += 7) {
            struct op_index_select op = {.topk = topk, .mode = SCORE_F32, .order = SELECTION_BY_SCORE};
            int32_t n = scene_select(&s, op, found), m = brute_force(s.scores, NULL, VISIBLE, topk, want);
            assert_int_equal(n, topk < VISIBLE ? topk : VISIBLE);
            assert_int_equal(n, m);
            assert_memory_equal(found, want, (size_t)n * 4);
            op.order = SELECTION_ASCENDING;
            assert_int_equal(scene_select(&s, op, found), n);
            ascending(want, n);
            assert_memory_equal(found, want, (size_t)n * 4);
        }
        scene_free(&s);
    }
}

/* Mode P and mode R by their formulas (v41-model.md 6.2), negative weights and ReLU included. */
static void scores_follow_their_mode(void **state)
{
    (void)state;
    struct scene s;
    int32_t ids[VISIBLE];
    scene_make(&s, ROW_INDEX_FP4, 31);
    for (int mode = 0; mode < 2; mode++) {
        scene_select(&s, (struct op_index_select){.topk = 4, .mode = mode ? SCORE_BF16 : SCORE_F32}, ids);
        int negative = 0;
        for (int t = 0; t < VISIBLE; t++) {
            const uint8_t *row = s.keys.values + t * DIM / 2;
            float scale = ldexpf(1, s.keys.scales[t] - 127);
            double sum = 0;
            for (int h = 0; h < HEADS; h++) {
                double d = 0;
                for (int c = 0; c < DIM; c++)
                    d += (double)bf16_decode(s.q[h * DIM + c]) * e2m1_decode(e2m1_at(row, c)) * scale;
                float v = mode ? bf16_round((float)d) : (float)d;
                v = fmaxf(v, 0) * s.weights[h];
                sum += mode ? bf16_round(v) : v;
            }
            float want = mode ? bf16_round((float)sum) : (float)sum;
            /* the oracle to the bit; another path within the rounding of its f32 sums, or one step of bf16 */
            bool oracle = strcmp(s.o.b->name, "cpu-reference") == 0;
            assert_true(fabsf(s.scores[t] - want) <= (oracle ? 0 : mode ? fabsf(want) / 128 : 1e-5f));
            negative += want < 0;
        }
        assert_true(negative > 0);
    }
    scene_free(&s);
}

static void index_containers_score_alike(void **state)
{
    (void)state;
    struct scene fp4, fp8;
    int32_t ids[VISIBLE];
    scene_make(&fp4, ROW_INDEX_FP4, 41);
    scene_make(&fp8, ROW_INDEX_FP8, 41);
    scene_select(&fp4, (struct op_index_select){.topk = 4, .mode = SCORE_F32}, ids);
    scene_select(&fp8, (struct op_index_select){.topk = 4, .mode = SCORE_F32}, ids);
    assert_memory_equal(fp4.scores, fp8.scores, sizeof fp4.scores);
    scene_free(&fp4);
    scene_free(&fp8);
}

/* v41-model.md 6.4, 6.5: blocks by their best row, the newest always; the reader stays inside the pool. */
static void candidate_pools_equal_brute_force(void **state)
{
    (void)state;
    enum { SIZE = 8, BLOCKS = (VISIBLE + SIZE - 1) / SIZE };
    for (uint64_t seed = 50; seed < 58; seed++)
        for (int32_t topk_blocks = 1; topk_blocks <= BLOCKS + 1; topk_blocks++) {
            struct scene s;
            int32_t ids[VISIBLE], want[VISIBLE], pool[BLOCKS + 1], count, kept[BLOCKS + 1], n;
            float best[BLOCKS];
            bool allowed[VISIBLE];
            scene_make(&s, ROW_INDEX_FP4, seed);
            if (seed % 4 == 0)
                memset(s.weights, 0, sizeof s.weights);
            struct op_index_select source = {.topk = 5,
                                             .mode = SCORE_F32,
                                             .make_candidates = true,
                                             .block_size = SIZE,
                                             .topk_blocks = topk_blocks,
                                             .candidates = pool,
                                             .candidate_count = &count};
            n = scene_select(&s, source, ids);
            assert_int_equal(brute_force(s.scores, NULL, VISIBLE, 5, want), n);
            ascending(want, n);
            assert_memory_equal(ids, want, (size_t)n * 4); /* the source's own selection ignores the pool */

            for (int b = 0; b < BLOCKS; b++) {
                best[b] = -INFINITY;
                for (int t = b * SIZE; t < (b + 1) * SIZE && t < VISIBLE; t++)
                    best[b] = fmaxf(best[b], s.scores[t]);
            }
            best[(VISIBLE - 1) / SIZE] = INFINITY;
            n = brute_force(best, NULL, BLOCKS, topk_blocks, kept);
            ascending(kept, n);
            assert_int_equal(count, n);
            assert_memory_equal(pool, kept, (size_t)n * 4);

            for (int t = 0; t < VISIBLE; t++) {
                allowed[t] = false;
                for (int i = 0; i < n; i++)
                    allowed[t] |= kept[i] == t / SIZE;
            }
            float all[VISIBLE];
            memcpy(all, s.scores, sizeof all);
            struct op_index_select reader = {.topk = 9,
                                             .mode = SCORE_F32,
                                             .use_candidates = true,
                                             .block_size = SIZE,
                                             .topk_blocks = topk_blocks,
                                             .candidates = pool,
                                             .candidate_count = &count};
            n = scene_select(&s, reader, ids);
            assert_int_equal(brute_force(all, allowed, VISIBLE, 9, want), n);
            ascending(want, n);
            assert_memory_equal(ids, want, (size_t)n * 4);
            for (int t = 0; t < VISIBLE; t++)
                assert_true(allowed[t] ? s.scores[t] == all[t] : s.scores[t] == -INFINITY);
            scene_free(&s);
        }
}

static void nothing_is_selected_before_the_first_row(void **state)
{
    (void)state;
    struct scene s;
    int32_t ids[4] = {7, 7, 7, 7}, pool[2] = {7, 7}, count = 7, selected = 7;
    scene_make(&s, ROW_INDEX_FP4, 61);
    s.r.positions[0] = 0;
    RUN(&s.o, index_select, .rows = first_rows(1), .step = &s.r.step, .heads = HEADS, .dim = DIM, .ratio = 2, .topk = 4,
        .mode = SCORE_F32, .query = bf16_rows(s.q, HEADS * DIM), .weights = s.weights, .plane = s.keys,
        .make_candidates = true, .block_size = 4, .topk_blocks = 2, .candidates = pool, .candidate_count = &count,
        .selected = ids, .selected_count = &selected);
    assert_int_equal(selected, 0);
    assert_int_equal(count, 0);
    scene_free(&s);
}

static void rows_of_unmapped_blocks_are_never_chosen(void **state)
{
    (void)state;
    struct scene s;
    int32_t ids[VISIBLE];
    scene_make(&s, ROW_INDEX_FP4, 71);
    s.r.table[2] = -1; /* rows 8 to 11 */
    assert_int_equal(scene_select(&s, (struct op_index_select){.topk = VISIBLE, .mode = SCORE_F32}, ids), VISIBLE - 4);
    for (int32_t i = 0; i < VISIBLE - 4; i++)
        assert_int_equal(ids[i], i < 8 ? i : i + 4);
    scene_free(&s);
}

/* ---- long rows ---- */

/* One row at the end of n keys of any codes, and its scores as the operator gives them. */
struct long_scene {
    struct ops o;
    struct one_request r;
    struct row_plane keys;
    int32_t n, dim;
    uint16_t *q;
    float weights[HEADS], *scores;
};

static void long_scene_make(struct long_scene *s, enum row_format format, int32_t dim, int32_t n, uint64_t seed)
{
    enum { PER_BLOCK = 64 };
    struct dice d = {seed};
    const int32_t blocks = (n + PER_BLOCK - 1) / PER_BLOCK;
    ops_open(&s->o, "reference", 1);
    s->n = n;
    s->dim = dim;
    s->q = malloc((size_t)(HEADS * dim) * sizeof *s->q);
    s->scores = malloc((size_t)n * sizeof *s->scores);
    dice_bf16(&d, s->q, HEADS * dim, 1);
    dice_f32(&d, s->weights, HEADS, 1);
    s->keys = ops_plane(format, dim, PER_BLOCK, blocks);
    for (int64_t i = 0; i < blocks * s->keys.value_block_stride; i++)
        s->keys.values[i] = (uint8_t)(dice_next(&d) & 0xBB); /* E4M3: no NaN */
    if (format == ROW_INDEX_FP8)
        for (int64_t i = 0; i < (int64_t)blocks * PER_BLOCK; i++)
            ((float *)(void *)s->keys.scales)[i] = 0.25f + (float)(dice_next(&d) % 64);
    else
        for (int64_t i = 0; i < blocks * s->keys.scale_block_stride; i++)
            s->keys.scales[i] = (uint8_t)(125 + dice_next(&d) % 4);
    one_request_make(&s->r, n - 1, 1, blocks);
}

static void long_scene_free(struct long_scene *s)
{
    free(s->q);
    free(s->scores);
    one_request_free(&s->r);
    ops_free_plane(&s->keys);
    ops_close(&s->o);
}

static int32_t long_select(struct long_scene *s, struct op_index_select op, bool scored, int32_t *ids)
{
    int32_t count;
    qr_error err = {0};
    op.rows = first_rows(1);
    op.step = &s->r.step;
    op.heads = HEADS;
    op.dim = s->dim;
    op.ratio = 1;
    op.query = bf16_rows(s->q, HEADS * s->dim);
    op.weights = s->weights;
    op.plane = s->keys;
    op.selected = ids;
    op.selected_count = &count;
    op.scores = scored ? s->scores : NULL;
    op.score_stride = s->n;
    if (s->o.b->index_select(s->o.b, &op, &err) != QR_OK)
        fail_msg("%s", err.message);
    return count;
}

struct placed {
    float score;
    int32_t id;
};
static int by_rank(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : (x->id > y->id) - (x->id < y->id);
}
static int by_id(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The best k of n by sorting all, those of -inf left out. */
static int32_t by_sorting(const float *scores, int32_t n, int32_t k, bool ascending, int32_t *ids)
{
    struct placed *all = malloc((size_t)n * sizeof *all);
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        if (scores[i] > -INFINITY)
            all[count++] = (struct placed){scores[i], i};
    qsort(all, (size_t)count, sizeof *all, by_rank);
    count = count < k ? count : k;
    for (int32_t i = 0; i < count; i++)
        ids[i] = all[i].id;
    if (ascending)
        qsort(ids, (size_t)count, sizeof *ids, by_id);
    free(all);
    return count;
}

static void the_best_of_long_rows_are_those_of_sorting(void **state)
{
    (void)state;
    static const struct {
        enum row_format format;
        int32_t dim, n, topk;
        enum { OF_ANY_SIGN, BELOW_ZERO, ALL_ZERO } scores;
    } cases[] = {
        {ROW_INDEX_FP4, 32, 40001, 2048, OF_ANY_SIGN}, {ROW_INDEX_FP4, 32, 8193, 512, OF_ANY_SIGN},
        {ROW_INDEX_FP4, 32, 24600, 1500, ALL_ZERO},    {ROW_INDEX_FP4, 32, 9000, 2048, BELOW_ZERO},
        {ROW_INDEX_FP4, 128, 20000, 512, OF_ANY_SIGN}, {ROW_INDEX_FP8, 128, 16400, 512, OF_ANY_SIGN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct long_scene s;
        long_scene_make(&s, cases[i].format, cases[i].dim, cases[i].n, 90 + i);
        for (int h = 0; h < HEADS; h++)
            s.weights[h] = cases[i].scores == ALL_ZERO     ? 0
                           : cases[i].scores == BELOW_ZERO ? -fabsf(s.weights[h])
                                                           : s.weights[h];
        int32_t *found = malloc((size_t)cases[i].topk * 4), *want = malloc((size_t)cases[i].topk * 4);
        for (int round = 0; round < 4; round++) {
            const bool by_score = round % 2;
            struct op_index_select op = {.topk = cases[i].topk,
                                         .mode = SCORE_BF16, /* many are alike */
                                         .order = by_score ? SELECTION_BY_SCORE : SELECTION_ASCENDING};
            if (round == 2) { /* the first row becomes one of the best */
                memcpy(s.keys.values, s.keys.values + found[0] * s.keys.value_row_stride,
                       (size_t)s.keys.value_row_stride);
                memcpy(s.keys.scales, s.keys.scales + found[0] * s.keys.scale_row_stride,
                       (size_t)s.keys.scale_row_stride);
            }
            int32_t n = long_select(&s, op, true, found);
            assert_int_equal(by_sorting(s.scores, s.n, op.topk, !by_score, want), n);
            assert_memory_equal(found, want, (size_t)n * 4);
            if (by_score)
                assert_true(cases[i].scores != BELOW_ZERO || s.scores[found[n - 1]] < 0);
        }
        free(found), free(want);
        long_scene_free(&s);
    }
}

/* A pool of more blocks than one contest holds, and a reader whose scores nobody asks for. */
static void readers_of_a_long_pool_choose_within_it(void **state)
{
    (void)state;
    enum { N = 33001, SIZE = 4, BLOCKS = (N + SIZE - 1) / SIZE, KEPT = 1000, TOPK = 300 };
    struct long_scene s;
    int32_t *pool = malloc((KEPT + 1) * 4), *want = malloc(KEPT * 4), *ids = malloc(TOPK * 4),
            *again = malloc(TOPK * 4), count;
    float *best = malloc(BLOCKS * sizeof *best);
    long_scene_make(&s, ROW_INDEX_FP4, 32, N, 99);
    struct op_index_select op = {.topk = TOPK,
                                 .mode = SCORE_F32,
                                 .make_candidates = true,
                                 .block_size = SIZE,
                                 .topk_blocks = KEPT,
                                 .candidates = pool,
                                 .candidate_count = &count};
    long_select(&s, op, true, ids);
    for (int b = 0; b < BLOCKS; b++) {
        best[b] = -INFINITY;
        for (int t = b * SIZE; t < (b + 1) * SIZE && t < N; t++)
            best[b] = fmaxf(best[b], s.scores[t]);
    }
    best[(N - 1) / SIZE] = INFINITY;
    assert_int_equal(by_sorting(best, BLOCKS, KEPT, true, want), count);
    assert_memory_equal(pool, want, (size_t)count * 4);

    op.make_candidates = false;
    op.use_candidates = true;
    for (int order = 0; order < 2; order++) {
        op.order = order ? SELECTION_BY_SCORE : SELECTION_ASCENDING;
        int32_t n = long_select(&s, op, true, ids);
        assert_int_equal(by_sorting(s.scores, N, TOPK, !order, want), n);
        assert_memory_equal(ids, want, (size_t)n * 4);
        assert_int_equal(long_select(&s, op, false, again), n);
        assert_memory_equal(again, ids, (size_t)n * 4);
    }
    free(pool), free(want), free(ids), free(again), free(best);
    long_scene_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(w8a8_decode_selection_equals_the_goldens),
        cmocka_unit_test(prefill_selection_equals_the_goldens),
        cmocka_unit_test(selection_equals_brute_force_in_both_orders),
        cmocka_unit_test(scores_follow_their_mode),
        cmocka_unit_test(index_containers_score_alike),
        cmocka_unit_test(candidate_pools_equal_brute_force),
        cmocka_unit_test(nothing_is_selected_before_the_first_row),
        cmocka_unit_test(rows_of_unmapped_blocks_are_never_chosen),
        cmocka_unit_test(the_best_of_long_rows_are_those_of_sorting),
        cmocka_unit_test(readers_of_a_long_pool_choose_within_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
