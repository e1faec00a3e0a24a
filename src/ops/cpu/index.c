#include "ops/cpu/fast.h"

#include <math.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e8m0.h"
#include "ops/cpu/reference/best.h"
#include "ops/cpu/reference/container.h"
#include "ops/cpu/reference/reference.h"

/* A work item is one row: it walks its visible rows (or its candidate blocks) once and keeps the best in a bounded heap,
 * so that no plane of scores exists. */

struct index_job {
    struct fast *f;
    const struct op_index_select *op;
};

struct index_item {
    const struct op_index_select *op;
    const struct cpu_kernels *kernels;
    int32_t row, request, visible;
    const float *weights;       /* [heads] */
    float *query;               /* [heads][dim] decoded; unused in INT8 */
    const int8_t *codes;        /* INT8 query */
    const float *code_scales;
    float *key;                 /* [dim] */
};

int64_t index_scratch_floats(int32_t heads, int32_t dim, int32_t topk, int32_t topk_blocks)
{
    return (int64_t)(heads + 1) * dim + 2 * ((int64_t)topk + topk_blocks) + 64;
}

/* The stored key as f32 (its codes in INT8); returns its scale (1 where it is in the values). */
static float load_key(const struct index_item *it, const struct row_address *at, const int8_t **codes)
{
    const int32_t n = it->op->dim;
    float scale = 1;
    switch (it->op->plane.format) {
    case ROW_INDEX_FP4:
        it->kernels->decode_fp4(at->values, it->key, n);
        for (int32_t b = 0; b < n; b += 32)
            it->kernels->scale(it->key + b, e8m0_decode(at->scales[b / 32]), 32);
        return 1;
    case ROW_INDEX_FP8:
        memcpy(&scale, at->scales, sizeof scale);
        it->kernels->decode_fp8(at->values, it->key, n);
        it->kernels->scale(it->key, scale, n);
        return 1;
    case ROW_INDEX_INT8:
        memcpy(&scale, at->scales, sizeof scale);
        *codes = (const int8_t *)at->values;
        return scale;
    default:
        it->kernels->decode_bf16((const uint16_t *)(const void *)at->values, it->key, n);
        return 1;
    }
}

/* Score of compressed row j (v41-model.md 6.2; v4-model.md 5.6 and 7.4): heads in ascending order; -inf where the row's
 * block is unmapped. */
static float score_row(const struct index_item *it, int32_t j)
{
    const struct op_index_select *op = it->op;
    const int32_t n = op->dim;
    const int8_t *codes = NULL;
    struct row_address at;
    float sum = 0;
    if (!plane_find(&op->plane, op->step, it->request, j, &at))
        return -INFINITY;
    const float key_scale = load_key(it, &at, &codes);
    for (int32_t h = 0; h < op->heads; h++) {
        if (op->mode == SCORE_INT8) {
            const float dot = (float)it->kernels->dot_i8(it->codes + (int64_t)h * n, codes, n);
            sum += fmaxf(dot, 0) * it->code_scales[h] * it->weights[h];
            continue;
        }
        const float dot = it->kernels->dot(it->query + (int64_t)h * n, it->key, n);
        if (op->mode == SCORE_BF16)
            sum += bf16_round(fmaxf(bf16_round(dot), 0) * it->weights[h]);
        else
            sum += fmaxf(dot, 0) * it->weights[h];
    }
    return op->mode == SCORE_BF16 ? bf16_round(sum) : sum * key_scale;
}

/* Every visible row that is mapped is kept: no score is formed. */
static void keep_all(const struct index_item *it)
{
    int32_t *out = it->op->selected + (int64_t)it->row * it->op->topk, n = 0;
    struct row_address at;
    for (int32_t j = 0; j < it->visible; j++)
        if (plane_find(&it->op->plane, it->op->step, it->request, j, &at))
            out[n++] = j;
    it->op->selected_count[it->row] = n;
}

/* Scores rows [from, to), offers them to `best`, and returns the largest of them. */
static float offer_rows(const struct index_item *it, int32_t from, int32_t to, struct best *best)
{
    float largest = -INFINITY;
    for (int32_t j = from; j < to; j++) {
        const float s = score_row(it, j);
        if (it->op->scores)
            it->op->scores[it->row * it->op->score_stride + j] = s;
        if (s > largest)
            largest = s;
        best_offer(best, s, j);
    }
    return largest;
}

static int32_t write_ids(const struct best *b, int32_t *out)
{
    for (int32_t i = 0; i < b->count; i++)
        out[i] = b->kept[i].id;
    return b->count;
}

static void select_row(void *user, int64_t item, int thread)
{
    const struct index_job *job = user;
    const struct op_index_select *op = job->op;
    struct fast *f = job->f;
    const int32_t row = op->rows.index ? op->rows.index[item] : (int32_t)item;
    float *scratch = f->thread_scratch + thread * f->thread_floats;
    struct index_item it = {
        .op = op, .kernels = f->kernels, .row = row, .request = op->step->batch_id[row],
        .visible = plan_visible(op->ratio, op->step->positions[row]),
        .weights = op->weights + (int64_t)row * op->heads,
        .query = scratch, .key = scratch + (int64_t)op->heads * op->dim,
    };
    float *after = it.key + op->dim;
    struct best best = {.kept = (struct scored *)(void *)after, .capacity = op->topk};
    struct best blocks = {.kept = best.kept + op->topk, .capacity = op->topk_blocks};

    if (op->order == SELECTION_ASCENDING && it.visible <= op->topk && !op->scores && !op->make_candidates &&
        !op->use_candidates) {
        keep_all(&it);
        return;
    }
    if (op->mode == SCORE_INT8) {
        it.codes = (const int8_t *)op->query.codes + (int64_t)row * op->heads * op->dim;
        it.code_scales = (const float *)op->query.scales + (int64_t)row * op->heads;
    } else {
        f->kernels->decode_bf16((const uint16_t *)op->query.codes + (int64_t)row * op->heads * op->dim, it.query,
                                op->heads * op->dim);
    }
    for (int32_t j = 0; op->scores && op->use_candidates && j < it.visible; j++)
        op->scores[row * op->score_stride + j] = -INFINITY; /* outside the pool */
    if (op->use_candidates) {
        const int32_t *kept = op->candidates + (int64_t)row * op->topk_blocks;
        for (int32_t i = 0; i < op->candidate_count[row]; i++) {
            const int32_t from = kept[i] * op->block_size, to = from + op->block_size;
            offer_rows(&it, from, to < it.visible ? to : it.visible, &best);
        }
    } else if (op->make_candidates) {
        const int32_t newest = (it.visible - 1) / op->block_size;
        for (int32_t from = 0; from < it.visible; from += op->block_size) {
            const int32_t to = from + op->block_size < it.visible ? from + op->block_size : it.visible;
            const float largest = offer_rows(&it, from, to, &best);
            best_offer(&blocks, from / op->block_size == newest ? INFINITY : largest, from / op->block_size);
        }
        best_sort_by_id(&blocks);
        op->candidate_count[row] = write_ids(&blocks, op->candidates + (int64_t)row * op->topk_blocks);
    } else {
        offer_rows(&it, 0, it.visible, &best);
    }
    (op->order == SELECTION_ASCENDING ? best_sort_by_id : best_sort_by_score)(&best);
    op->selected_count[row] = write_ids(&best, op->selected + (int64_t)row * op->topk);
}

qr_status fast_index_select(struct backend *b, const struct op_index_select *op, qr_error *err)
{
    struct fast *f = fast_of(b);
    if (op->query.format == ACT_F32)
        return reference_index_select(b, op, err);
    qr_status st = index_select_check(op, err);
    if (st != QR_OK)
        return st;
    struct index_job job = {.f = f, .op = op};
    pool_run(f->pool, op->rows.count, select_row, &job);
    return QR_OK;
}
