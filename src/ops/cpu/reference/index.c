#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/best.h"
#include "ops/cpu/reference/container.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/rotation.h"
#include "ops/cpu/reference/scalar.h"

#include <string.h>

#include "number/quantize.h"

/* The indexer: v41-model.md 6, v4-model.md 5.6, 7.4. */

/* rotation -> Hadamard -> grid, per head. bf16 after the rotation; the transform of the reference profile rounds to
 * bf16 too, that of w8a8 goes on to int8 in f32. */
static void index_query_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_index_query *op = job->op;
    int64_t row = row_at(&op->rows, i), n = op->dim;
    bool w8a8 = op->grid == GRID_INT8;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *q = take_floats(&scratch, n), *table = take_floats(&scratch, op->rope.dim);
    double *sums = take(&scratch, n * (int64_t)sizeof *sums);
    uint16_t *values = take(&scratch, 2 * n);

    rope_table_of(&op->rope, row, op->step->positions[row], table);
    for (int32_t h = 0; h < op->heads; h++) {
        act_load(&op->in, row, h * n, n, q);
        rope_turn(&op->rope, table, q, n);
        bf16_round_all(q, n);
        if (op->hadamard)
            hadamard(q, n, w8a8, sums);
        if (w8a8) {
            act_quantize(&op->out, row, h * n, q, n);
            continue;
        }
        bf16_store(q, n, values);
        if (op->grid == GRID_FP4_E8M0)
            q4_e8m0_round(values, n);
        if (op->grid == GRID_FP8_ROW)
            index_fp8_round(values, n);
        memcpy((uint16_t *)op->out.codes + row * op->out.cols + h * n, values, (size_t)n * sizeof *values);
    }

    for (int32_t h = 0; h < op->heads; h++) {
        float w;
        act_load(&op->weights_in, row, h, 1, &w);
        w *= op->weight_factor;
        op->weights[row * op->heads + h] = op->round_weights ? bf16_round(w) : w;
    }
}

qr_status reference_index_query(struct backend *b, const struct op_index_query *op, qr_error *err)
{
    bool w8a8 = op->grid == GRID_INT8;
    bool grid = op->grid == GRID_NONE || op->grid == GRID_FP8_ROW || w8a8 ||
                (op->grid == GRID_FP4_E8M0 && op->dim % Q4_E8M0_BLOCK == 0);
    bool out = w8a8 ? op->out.format == ACT_I8 && op->out.block == op->dim : op->out.format == ACT_BF16;
    if (!act_is_float(&op->in) || !act_is_float(&op->weights_in) || !grid || !out || op->rope.dim > op->dim ||
        op->in.cols != op->heads * op->dim || op->out.cols != op->in.cols || op->weights_in.cols != op->heads)
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "index_query: %d heads of %d, formats %d to %d, %d columns to %d, %d weights, grid %d",
                       op->heads, op->dim, op->in.format, op->out.format, op->in.cols, op->out.cols,
                       op->weights_in.cols, op->grid);
    if (op->hadamard && (op->dim & (op->dim - 1)))
        return qr_fail(err, QR_BAD_ARGUMENT, "index_query: Hadamard of %d channels, wanted a power of two", op->dim);
    qr_status st = cpu_need((struct cpu_backend *)b, "index_query", 5 * piece_bytes(op->dim, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, index_query_row);
}

/* What one row of a selection works with. */
struct selection {
    const struct op_index_select *op;
    int64_t row;
    int32_t request, visible;
    float *query; /* [heads][dim]; int8 codes under SCORE_INT8 */
    float *key;   /* [dim] */
    struct scored *kept, *kept_blocks;
};

static int64_t select_bytes(const struct op_index_select *op)
{
    int64_t blocks = op->make_candidates ? op->topk_blocks : 0;
    return piece_bytes((int64_t)op->heads * op->dim, sizeof(float)) + piece_bytes(op->dim, sizeof(float)) +
           piece_bytes(op->topk, sizeof(struct scored)) + piece_bytes(blocks, sizeof(struct scored));
}

/* F32:  sum_h w_h max(0, q_h k)                                      (v41-model.md 6.2, mode P)
 * BF16: bf(sum_h bf(bf(max(0, bf(q_h k))) w_h))                      (mode R; v4-model.md 5.6 step 4)
 * INT8: (sum_h max(0, f32(q_h k) sigma_h) w_h) sigma of the key      (v4-model.md 7.4)
 * -inf for a row whose block is not mapped. */
static float score_of(const struct selection *s, int32_t t)
{
    const struct op_index_select *op = s->op;
    const float *w = op->weights + s->row * op->heads;
    const float *sigma = op->mode == SCORE_INT8 ? (const float *)op->query.scales + s->row * op->heads : NULL;
    struct row_address at;
    double sum = 0;

    if (!plane_find(&op->plane, op->step, s->request, t, &at))
        return -INFINITY;
    container_load(op->plane.format, at.values, at.scales, op->dim, s->key);
    for (int32_t h = 0; h < op->heads; h++) {
        float d = (float)dot(s->query + (int64_t)h * op->dim, s->key, op->dim);
        if (op->mode == SCORE_BF16)
            d = bf16_round(d);
        if (op->mode == SCORE_INT8)
            d *= sigma[h];
        float v = fmaxf(d, 0.0f) * w[h];
        sum += (double)(op->mode == SCORE_BF16 ? bf16_round(v) : v);
    }
    if (op->mode == SCORE_BF16)
        return bf16_round((float)sum);
    return (float)sum * container_scale(op->plane.format, at.scales);
}

/* The candidate pool being made: the largest score of each block of rows, the newest visible block always (6.4). */
struct block_pool {
    struct best best;
    float largest;
};

static void pool_take(struct block_pool *pool, const struct selection *s, int32_t t, float score)
{
    int32_t size = s->op->block_size;
    pool->largest = t % size == 0 ? score : fmaxf(pool->largest, score);
    bool newest = t == s->visible - 1;
    if (newest)
        best_offer(&pool->best, INFINITY, t / size);
    else if (t % size == size - 1)
        best_offer(&pool->best, pool->largest, t / size);
}

static void pool_publish(struct block_pool *pool, const struct selection *s)
{
    const struct op_index_select *op = s->op;
    best_sort_by_id(&pool->best);
    for (int32_t i = 0; i < pool->best.count; i++)
        op->candidates[s->row * op->topk_blocks + i] = pool->best.kept[i].id;
    op->candidate_count[s->row] = pool->best.count;
}

/* Scores every visible row, or with a pool those of its blocks (ascending either way). */
static void select_scored(const struct selection *s)
{
    const struct op_index_select *op = s->op;
    struct best best = {s->kept, 0, op->topk};
    struct block_pool pool = {.best = {s->kept_blocks, 0, op->topk_blocks}};
    const int32_t *block = op->use_candidates ? op->candidates + s->row * op->topk_blocks : NULL;
    const int32_t *end = block ? block + op->candidate_count[s->row] : NULL;
    float *trace = op->scores ? op->scores + s->row * op->score_stride : NULL;

    for (int32_t t = 0; t < s->visible; t++) {
        float score = -INFINITY;
        while (block && block < end && *block < t / op->block_size)
            block++;
        if (!op->use_candidates || (block < end && *block == t / op->block_size))
            score = score_of(s, t);
        if (trace)
            trace[t] = score;
        if (op->make_candidates)
            pool_take(&pool, s, t, score);
        best_offer(&best, score, t);
    }

    if (op->order == SELECTION_ASCENDING)
        best_sort_by_id(&best);
    else
        best_sort_by_score(&best);
    for (int32_t i = 0; i < best.count; i++)
        op->selected[s->row * op->topk + i] = best.kept[i].id;
    op->selected_count[s->row] = best.count;
    if (op->make_candidates)
        pool_publish(&pool, s);
}

static void load_query(const struct selection *s)
{
    const struct op_index_select *op = s->op;
    int64_t n = (int64_t)op->heads * op->dim;
    if (op->mode != SCORE_INT8) {
        act_load(&op->query, s->row, 0, n, s->query);
        return;
    }
    const int8_t *codes = (const int8_t *)op->query.codes + s->row * n;
    for (int64_t i = 0; i < n; i++)
        s->query[i] = codes[i];
}

static void index_select_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_index_select *op = job->op;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    struct selection s = {.op = op, .row = row_at(&op->rows, i)};

    s.request = op->step->batch_id[s.row];
    s.visible = plan_visible(op->ratio, op->step->positions[s.row]);
    s.query = take_floats(&scratch, (int64_t)op->heads * op->dim);
    s.key = take_floats(&scratch, op->dim);
    s.kept = take(&scratch, op->topk * (int64_t)sizeof *s.kept);
    s.kept_blocks = take(&scratch, (op->make_candidates ? op->topk_blocks : 0) * (int64_t)sizeof *s.kept_blocks);

    load_query(&s);
    select_scored(&s);
}

qr_status index_select_check(const struct op_index_select *op, qr_error *err)
{
    bool int8 = op->mode == SCORE_INT8;
    if (int8 != (op->plane.format == ROW_INDEX_INT8) || int8 != (op->query.format == ACT_I8) ||
        (!int8 && !act_is_float(&op->query)) || op->query.cols != op->heads * op->dim)
        return qr_fail(err, QR_BAD_ARGUMENT, "index_select: query format %d, %d columns, row format %d, score mode %d",
                       op->query.format, op->query.cols, op->plane.format, op->mode);
    if ((op->make_candidates || op->use_candidates) && (op->block_size < 1 || op->topk_blocks < 1))
        return qr_fail(err, QR_BAD_ARGUMENT, "index_select: a pool of %d blocks of %d rows", op->topk_blocks,
                       op->block_size);
    if (op->topk < 1 || op->ratio < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "index_select: top %d of rows of ratio %d", op->topk, op->ratio);
    return QR_OK;
}

qr_status reference_index_select(struct backend *b, const struct op_index_select *op, qr_error *err)
{
    qr_status st = index_select_check(op, err);
    if (st == QR_OK)
        st = cpu_need((struct cpu_backend *)b, "index_select", select_bytes(op), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, index_select_row);
}
