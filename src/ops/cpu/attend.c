#include "ops/cpu/fast.h"

#include <math.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "ops/cpu/reference/container.h"

/* A work item is one row and ATTEND_HEADS of its heads: keys are decoded once for those heads, a block of list slots at a
 * time, and stay in the cache for both products.
 *
 * The products are summed in f64. An o that is one f32 ulp off flips a bf16 here and there, behind it a code of the output
 * projection, and with it a whole row: sums that are exact cost no more than f32 ones did head by head, and make every
 * path's attention the reference's, bit for bit. Keys stand KEY_PAD apart from a power of two, so that a column of them
 * does not fall into one set of the cache. */
enum { ATTEND_HEADS = 16, ATTEND_BLOCK = 128, KEY_PAD = 8 };

struct attend_job {
    struct fast *f;
    const struct op_attend *op;
    int32_t head_groups;
};

/* What an item keeps while it walks the list. */
struct attend_item {
    const struct op_attend *op;
    int32_t row, request, position, first_head, heads;
    int32_t window_low, window_count, fresh_count, selected_count;
    double *keys, *q, *p;      /* [ATTEND_BLOCK][head_dim + KEY_PAD], [ATTEND_HEADS][head_dim], [ATTEND_HEADS][ATTEND_BLOCK] */
    float *o, *value;          /* [ATTEND_HEADS][head_dim]; value: of one block */
    float *decoded;            /* [head_dim] */
    float *score;              /* [ATTEND_HEADS][ATTEND_BLOCK] */
    float top[ATTEND_HEADS], sum[ATTEND_HEADS];
};

int64_t attend_scratch_floats(int32_t head_dim)
{
    int64_t doubles = (int64_t)ATTEND_BLOCK * (head_dim + KEY_PAD) + (int64_t)ATTEND_HEADS * (head_dim + ATTEND_BLOCK);
    return 2 * doubles + (int64_t)ATTEND_HEADS * (2 * head_dim + ATTEND_BLOCK) + head_dim;
}

/* A stored row as f32. */
static void decode_row(const struct fast *f, enum row_format format, const struct row_address *at, int32_t n, float *out)
{
    switch (format) {
    case ROW_FP8_E8M0:
        f->kernels->decode_fp8(at->values, out, n);
        for (int32_t b = 0; b < n; b += 32)
            f->kernels->scale(out + b, e8m0_decode(at->scales[b / 32]), 32);
        break;
    case ROW_FP4_E4M3:
        f->kernels->decode_fp4(at->values, out, n);
        for (int32_t b = 0; b < n; b += 16)
            f->kernels->scale(out + b, e4m3_decode(at->scales[b / 16]), 16);
        break;
    default:
        f->kernels->decode_bf16((const uint16_t *)(const void *)at->values, out, n);
        break;
    }
}

/* Decodes list slot `slot` of the item's row; false when nothing stands there. */
static bool decode_slot(const struct fast *f, const struct attend_item *it, int32_t slot, float *out)
{
    const struct op_attend *op = it->op;
    const struct step *step = op->step;
    const int32_t n = op->head_dim, b = it->request;
    struct row_address at;

    if (slot < op->window_size) {
        const int32_t position = it->window_low + slot;
        if (slot >= it->window_count)
            return false;
        if (!op->draft_block && position >= op->key_from[b]) {
            const int64_t row = step->first_row[b] + (position - step->first_position[b]);
            f->kernels->decode_bf16((const uint16_t *)op->fresh + row * n, out, n);
            return true;
        }
        if (!ring_find(&op->ring, step, b, position, &at))
            return false;
        decode_row(f, op->ring.format, &at, n, out);
        return true;
    }
    slot -= op->window_size;
    if (op->draft_block) {
        f->kernels->decode_bf16((const uint16_t *)op->fresh + (int64_t)(step->first_row[b] + slot) * n, out, n);
        return slot < it->fresh_count;
    }
    int32_t j = op->selected ? op->selected[(int64_t)it->row * op->selected_stride + slot] : slot;
    if (j < 0 || j >= plan_visible(op->ratio, it->position) || !plane_find(&op->plane, step, b, j, &at))
        return false;
    decode_row(f, op->plane.format, &at, n, out);
    return true;
}

static void item_begin(const struct fast *f, const struct op_attend *op, int32_t row, int32_t group, float *scratch,
                       struct attend_item *it)
{
    const int32_t n = op->head_dim, b = op->step->batch_id[row];
    it->op = op;
    it->row = row;
    it->request = b;
    it->position = op->step->positions[row];
    it->first_head = group * ATTEND_HEADS;
    it->heads = op->heads - it->first_head < ATTEND_HEADS ? op->heads - it->first_head : ATTEND_HEADS;

    /* the window ends at the row itself, or before the block of drafts */
    const int32_t end = op->draft_block ? op->step->first_position[b] : it->position + 1;
    const int32_t lowest = op->window_low && op->window_low[row] > 0 ? op->window_low[row] : 0;
    it->window_low = end - op->window_size > lowest ? end - op->window_size : lowest;
    it->window_count = end > it->window_low ? end - it->window_low : 0;
    it->fresh_count = op->draft_block ? op->step->first_row[b + 1] - op->step->first_row[b] : 0;
    it->selected_count = !op->has_plane ? 0
                         : op->selected ? op->selected_count[row]
                                        : plan_visible(op->ratio, it->position);
    it->keys = (double *)(void *)scratch;
    it->q = it->keys + (int64_t)ATTEND_BLOCK * (n + KEY_PAD);
    it->p = it->q + (int64_t)ATTEND_HEADS * n;
    it->o = (float *)(void *)(it->p + ATTEND_HEADS * ATTEND_BLOCK);
    it->value = it->o + (int64_t)ATTEND_HEADS * n;
    it->score = it->value + (int64_t)ATTEND_HEADS * n;
    it->decoded = it->score + ATTEND_HEADS * ATTEND_BLOCK;
    for (int32_t h = 0; h < it->heads; h++) {
        const int64_t at = ((int64_t)row * op->heads + it->first_head + h) * n;
        f->kernels->decode_bf16((const uint16_t *)op->q + at, it->decoded, n);
        f->kernels->widen(it->decoded, it->q + (int64_t)h * n, n);
        it->top[h] = op->w8a8 ? -1e20f : -1e30f;
        it->sum[h] = 0;
    }
    memset(it->o, 0, sizeof(float) * (size_t)(it->heads * n));
}

/* Probabilities of head h over a block, relative to `top`: those for the values rounded to bf16. Returns the sum of the
 * unrounded ones. */
static float probabilities(struct attend_item *it, int32_t h, int32_t keys, float top)
{
    const float *score = it->score + h * ATTEND_BLOCK;
    double *p = it->p + h * ATTEND_BLOCK, sum = 0;
    for (int32_t i = 0; i < keys; i++) {
        const float x = expf(score[i] - top);
        sum += (double)x;
        p[i] = (double)bf16_round(x);
    }
    return (float)sum;
}

/* The scaled scores of head h; returns the largest, at least `floor`. */
static float largest_score(struct attend_item *it, int32_t h, int32_t keys, float floor)
{
    float *score = it->score + h * ATTEND_BLOCK;
    for (int32_t i = 0; i < keys; i++) {
        score[i] *= it->op->scale;
        floor = fmaxf(floor, score[i]);
    }
    return floor;
}

/* One block of the online softmax (v41-model.md 5.5): probabilities are relative to the maximum so far, this block
 * included. One tile of w8a8 (v4-model.md 7.4): relative to the tile's own maximum, then both sides are rescaled to the
 * larger one. Either way what was so far fades by `old`, and the block joins with `fresh`. */
static void add_block(const struct fast *f, struct attend_item *it, int32_t keys)
{
    const int32_t n = it->op->head_dim;
    float old[ATTEND_HEADS], fresh[ATTEND_HEADS];

    f->kernels->scores(it->q, it->heads, it->keys, keys, n + KEY_PAD, n, it->score, ATTEND_BLOCK);
    for (int32_t h = 0; h < it->heads; h++) {
        const float block = largest_score(it, h, keys, it->op->w8a8 ? -1e20f : it->top[h]);
        const float sum = probabilities(it, h, keys, block);
        const float top = fmaxf(it->top[h], block);
        old[h] = expf(it->top[h] - top);
        fresh[h] = it->op->w8a8 ? expf(block - top) : 1.0f;
        it->sum[h] = it->sum[h] * old[h] + sum * fresh[h];
        it->top[h] = top;
    }
    f->kernels->weigh(it->p, ATTEND_BLOCK, it->heads, it->keys, keys, n + KEY_PAD, n, it->value);
    for (int32_t h = 0; h < it->heads; h++)
        for (int64_t c = (int64_t)h * n; c < (int64_t)(h + 1) * n; c++)
            it->o[c] = it->o[c] * old[h] + it->value[c] * fresh[h];
}

static void item_end(struct attend_item *it)
{
    const struct op_attend *op = it->op;
    const int32_t n = op->head_dim;
    for (int32_t h = 0; h < it->heads; h++) {
        const int64_t at = ((int64_t)it->row * op->heads + it->first_head + h) * n;
        const float *o = it->o + (int64_t)h * n;
        const bool empty = it->sum[h] == 0;
        const float total = it->sum[h] + (empty ? 0 : expf(op->sinks[it->first_head + h] - it->top[h]));
        for (int32_t c = 0; c < n; c++) {
            const float x = empty ? 0 : o[c] / total;
            if (op->out.format == ACT_F32)
                ((float *)op->out.codes)[at + c] = x;
            else
                ((uint16_t *)op->out.codes)[at + c] = bf16_encode(x);
        }
    }
}

static void attend_item(void *user, int64_t item, int thread)
{
    const struct attend_job *job = user;
    const struct op_attend *op = job->op;
    const int32_t i = (int32_t)(item / job->head_groups);
    const int32_t row = op->rows.index ? op->rows.index[i] : i;
    struct attend_item it;
    item_begin(job->f, op, row, (int32_t)(item % job->head_groups),
               job->f->thread_scratch + thread * job->f->thread_floats, &it);

    const int32_t slots = op->window_size + it.fresh_count + it.selected_count;
    for (int32_t from = 0; from < slots; from += op->block) {
        const int32_t to = from + op->block < slots ? from + op->block : slots;
        int32_t keys = 0;
        for (int32_t slot = from; slot < to; slot++)
            if (decode_slot(job->f, &it, slot, it.decoded))
                job->f->kernels->widen(it.decoded, it.keys + (int64_t)keys++ * (op->head_dim + KEY_PAD), op->head_dim);
        if (keys)
            add_block(job->f, &it, keys);
    }
    item_end(&it);
}

qr_status fast_attend(struct backend *b, const struct op_attend *op, qr_error *err)
{
    struct fast *f = fast_of(b);
    if (op->block < 1 || op->block > ATTEND_BLOCK)
        return qr_fail(err, QR_BAD_ARGUMENT, "attend: blocks of %d list slots, wanted 1..%d", op->block, ATTEND_BLOCK);
    struct attend_job job = {.f = f, .op = op, .head_groups = (op->heads + ATTEND_HEADS - 1) / ATTEND_HEADS};
    pool_run(f->pool, (int64_t)op->rows.count * job.head_groups, attend_item, &job);
    return QR_OK;
}
