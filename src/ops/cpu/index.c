#include "ops/cpu/fast.h"

#include <math.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e8m0.h"
#include "ops/cpu/reference/best.h"
#include "ops/cpu/reference/container.h"
#include "ops/cpu/reference/reference.h"

/* A work item is one row: it walks its visible rows (or its candidate blocks) once and keeps the best in a bounded heap,
 * so that no plane of scores exists. Keys are scored INDEX_KEYS at a time by all heads with attention's product, whose f64
 * sums choose as the reference does; KEY_PAD as there. */
enum { INDEX_KEYS = 32, KEY_PAD = 8 };

struct index_job {
    struct fast *f;
    const struct op_index_select *op;
};

struct index_item {
    const struct op_index_select *op;
    const struct cpu_kernels *kernels;
    int32_t row, request, visible;
    const float *weights;       /* [heads] */
    double *query, *keys;       /* [heads][dim], [INDEX_KEYS][dim + KEY_PAD]; unused in INT8 */
    float *product;             /* [heads][INDEX_KEYS] query . key */
    float key_scale[INDEX_KEYS];
    bool mapped[INDEX_KEYS];
    const int8_t *codes;        /* INT8 query */
    const float *code_scales;
    float *decoded;             /* [heads][dim] */
};

int64_t index_scratch_floats(int32_t heads, int32_t dim, int32_t topk, int32_t topk_blocks)
{
    const int64_t doubles = (int64_t)heads * dim + (int64_t)INDEX_KEYS * (dim + KEY_PAD);
    const int64_t floats = (int64_t)heads * (INDEX_KEYS + dim);
    return 2 * doubles + floats + 2 * ((int64_t)topk + topk_blocks) + 64;
}

/* The stored key as f32 in `out`. */
static void load_key(const struct index_item *it, const struct row_address *at, float *out)
{
    const int32_t n = it->op->dim;
    float scale;
    switch (it->op->plane.format) {
    case ROW_INDEX_FP4:
        it->kernels->decode_fp4(at->values, out, n);
        for (int32_t b = 0; b < n; b += 32)
            it->kernels->scale(out + b, e8m0_decode(at->scales[b / 32]), 32);
        break;
    case ROW_INDEX_FP8:
        memcpy(&scale, at->scales, sizeof scale);
        it->kernels->decode_fp8(at->values, out, n);
        it->kernels->scale(out, scale, n);
        break;
    default:
        it->kernels->decode_bf16((const uint16_t *)(const void *)at->values, out, n);
        break;
    }
}

/* it->product, and key_scale of it, of rows [from, from + count). */
static void multiply_keys(struct index_item *it, int32_t from, int32_t count)
{
    const struct op_index_select *op = it->op;
    const int32_t n = op->dim;
    struct row_address at;
    for (int32_t i = 0; i < count; i++) {
        it->mapped[i] = plane_find(&op->plane, op->step, it->request, from + i, &at);
        it->key_scale[i] = 1;
        if (op->mode != SCORE_INT8) {
            if (it->mapped[i])
                load_key(it, &at, it->decoded);
            else
                memset(it->decoded, 0, (size_t)n * sizeof *it->decoded);
            it->kernels->widen(it->decoded, it->keys + (int64_t)i * (n + KEY_PAD), n);
        } else if (it->mapped[i]) {
            memcpy(&it->key_scale[i], at.scales, sizeof it->key_scale[i]);
            for (int32_t h = 0; h < op->heads; h++)
                it->product[(int64_t)h * INDEX_KEYS + i] =
                    (float)it->kernels->dot_i8(it->codes + (int64_t)h * n, (const int8_t *)at.values, n);
        }
    }
    if (op->mode != SCORE_INT8)
        it->kernels->scores(it->query, op->heads, it->keys, count, n + KEY_PAD, n, it->product, INDEX_KEYS);
}

/* Score of key i of those multiplied (v41-model.md 6.2; v4-model.md 5.6 and 7.4): heads in ascending order; -inf where
 * the row's block is unmapped. */
static float score_of(const struct index_item *it, int32_t i)
{
    const struct op_index_select *op = it->op;
    double sum = 0;
    if (!it->mapped[i])
        return -INFINITY;
    for (int32_t h = 0; h < op->heads; h++) {
        float d = it->product[(int64_t)h * INDEX_KEYS + i];
        if (op->mode == SCORE_BF16)
            d = bf16_round(d);
        if (op->mode == SCORE_INT8)
            d *= it->code_scales[h];
        const float v = fmaxf(d, 0) * it->weights[h];
        sum += (double)(op->mode == SCORE_BF16 ? bf16_round(v) : v);
    }
    return op->mode == SCORE_BF16 ? bf16_round((float)sum) : (float)sum * it->key_scale[i];
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
static float offer_rows(struct index_item *it, int32_t from, int32_t to, struct best *best)
{
    float largest = -INFINITY;
    for (; from < to; from += INDEX_KEYS) {
        const int32_t count = to - from < INDEX_KEYS ? to - from : INDEX_KEYS;
        multiply_keys(it, from, count);
        for (int32_t i = 0; i < count; i++) {
            const float s = score_of(it, i);
            if (it->op->scores)
                it->op->scores[it->row * it->op->score_stride + from + i] = s;
            if (s > largest)
                largest = s;
            best_offer(best, s, from + i);
        }
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
        .query = (double *)(void *)scratch,
    };
    const int64_t query = (int64_t)op->heads * op->dim;
    it.keys = it.query + query;
    it.product = (float *)(void *)(it.keys + (int64_t)INDEX_KEYS * (op->dim + KEY_PAD));
    it.decoded = it.product + (int64_t)op->heads * INDEX_KEYS;
    float *after = it.decoded + query;
    struct best best = {.kept = (struct scored *)(void *)after, .capacity = op->topk};
    struct best blocks = {.kept = best.kept + op->topk, .capacity = op->topk_blocks};

    if (op->order == SELECTION_ASCENDING && it.visible <= op->topk && !op->scores && !op->make_candidates &&
        !op->use_candidates) {
        keep_all(&it);
        return;
    }
    if (op->mode == SCORE_INT8) {
        it.codes = (const int8_t *)op->query.codes + row * query;
        it.code_scales = (const float *)op->query.scales + (int64_t)row * op->heads;
    } else {
        f->kernels->decode_bf16((const uint16_t *)op->query.codes + row * query, it.decoded, (int32_t)query);
        f->kernels->widen(it.decoded, it.query, (int32_t)query);
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
