#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/container.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/scalar.h"

#include <string.h>

/* The attention core: v41-model.md 5.5, v4-model.md 5.4, 7.4; lists by runtime.md 3.3 and speculation.md 2.6. */

/* A row's key list: window_size window slots, then `more` slots of compressed rows (or of the draft block). */
struct key_list {
    const struct op_attend *op;
    int64_t row;
    int32_t request, position;
    int32_t window_first, window_count; /* positions; the slots behind them are empty */
    int32_t more, visible;
};

static struct key_list list_of(const struct op_attend *op, int64_t row)
{
    const struct step *step = op->step;
    struct key_list l = {.op = op, .row = row, .request = step->batch_id[row], .position = step->positions[row]};
    int32_t end = op->draft_block ? step->first_position[l.request] : l.position + 1;
    int32_t low = op->window_low && op->window_low[row] > 0 ? op->window_low[row] : 0;

    l.window_first = end - op->window_size > low ? end - op->window_size : low;
    l.window_count = end > l.window_first ? end - l.window_first : 0;
    l.visible = plan_visible(op->ratio, l.position);
    if (op->draft_block)
        l.more = step->first_row[l.request + 1] - step->first_row[l.request];
    else if (op->has_plane)
        l.more = op->selected ? op->selected_count[row] : l.visible;
    return l;
}

/* The window key of position q: this forward's, or the ring's. */
static bool window_key(const struct key_list *l, int64_t q, float *key)
{
    const struct op_attend *op = l->op;
    struct row_address at;
    if (!op->draft_block && q >= op->key_from[l->request]) {
        int64_t row = op->step->first_row[l->request] + (q - op->step->first_position[l->request]);
        bf16_load((const uint16_t *)op->fresh + row * op->head_dim, op->head_dim, key);
        return true;
    }
    if (!ring_find(&op->ring, op->step, l->request, q, &at))
        return false;
    container_load(op->ring.format, at.values, at.scales, op->head_dim, key);
    return true;
}

/* The key (and value) in a slot of the list; false: the slot adds nothing. */
static bool key_at(const struct key_list *l, int64_t slot, float *key)
{
    const struct op_attend *op = l->op;
    struct row_address at;
    if (slot < op->window_size)
        return slot < l->window_count && window_key(l, l->window_first + slot, key);

    int64_t index = slot - op->window_size;
    if (op->draft_block) {
        int64_t row = op->step->first_row[l->request] + index;
        bf16_load((const uint16_t *)op->fresh + row * op->head_dim, op->head_dim, key);
        return true;
    }
    int64_t j = op->selected ? op->selected[l->row * op->selected_stride + index] : index;
    if (j < 0 || j >= l->visible || !plane_find(&op->plane, op->step, l->request, j, &at))
        return false;
    container_load(op->plane.format, at.values, at.scales, op->head_dim, key);
    return true;
}

/* What a thread holds of one row: the keys of one block, and per head the running softmax. */
struct work {
    float *q, *keys, *o, *largest, *denominator; /* [heads][d], [block][d], [heads][d], [heads], [heads] */
    float *p;                                    /* [block]: scores, then probabilities */
    bool *valid;                                 /* [block] */
};

static int64_t work_bytes(const struct op_attend *op)
{
    return 2 * piece_bytes((int64_t)op->heads * op->head_dim, sizeof(float)) +
           piece_bytes((int64_t)op->block * op->head_dim, sizeof(float)) + 2 * piece_bytes(op->heads, sizeof(float)) +
           piece_bytes(op->block, sizeof(float)) + piece_bytes(op->block, sizeof(bool));
}

static void place_work(struct work *w, const struct op_attend *op, struct pieces *scratch)
{
    w->q = take_floats(scratch, (int64_t)op->heads * op->head_dim);
    w->o = take_floats(scratch, (int64_t)op->heads * op->head_dim);
    w->keys = take_floats(scratch, (int64_t)op->block * op->head_dim);
    w->largest = take_floats(scratch, op->heads);
    w->denominator = take_floats(scratch, op->heads);
    w->p = take_floats(scratch, op->block);
    w->valid = take(scratch, op->block * (int64_t)sizeof(bool));
}

/* s = scale (q k) of the block's n keys into w->p; returns the largest, at least `floor`. */
static float block_scores(const struct op_attend *op, const struct work *w, int32_t h, int32_t n, float floor)
{
    const float *q = w->q + (int64_t)h * op->head_dim;
    float largest = floor;
    for (int32_t i = 0; i < n; i++) {
        if (!w->valid[i])
            continue;
        w->p[i] = (float)dot(q, w->keys + (int64_t)i * op->head_dim, op->head_dim) * op->scale;
        largest = fmaxf(largest, w->p[i]);
    }
    return largest;
}

/* p_i = exp(s_i - largest), 0 in an empty slot; returns their sum, of unrounded p. */
static float block_probabilities(const struct work *w, int32_t n, float largest)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        w->p[i] = w->valid[i] ? expf(w->p[i] - largest) : 0.0f;
        sum += (double)w->p[i];
    }
    return (float)sum;
}

/* sum_i bf(p_i) v_i[c] */
static float block_value(const struct op_attend *op, const struct work *w, int32_t n, int64_t c)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        if (w->valid[i])
            sum += (double)bf16_round(w->p[i]) * (double)w->keys[(int64_t)i * op->head_dim + c];
    return (float)sum;
}

/* Reference profile: M' = max(M, s); l = l exp(M - M') + sum p; o = o exp(M - M') + sum bf(p) v. M starts at -1e30. */
static void add_block(const struct op_attend *op, const struct work *w, int32_t h, int32_t n)
{
    float *o = w->o + (int64_t)h * op->head_dim;
    float largest = block_scores(op, w, h, n, w->largest[h]);
    float shrink = expf(w->largest[h] - largest);

    w->denominator[h] = w->denominator[h] * shrink + block_probabilities(w, n, largest);
    for (int32_t c = 0; c < op->head_dim; c++)
        o[c] = o[c] * shrink + block_value(op, w, n, c);
    w->largest[h] = largest;
}

/* W8A8: the tile is a softmax of its own, then both sides are rescaled to the larger maximum; an empty one has -1e20. */
static void merge_tile(const struct op_attend *op, const struct work *w, int32_t h, int32_t n)
{
    float *o = w->o + (int64_t)h * op->head_dim;
    float tile = block_scores(op, w, h, n, -1e20f);
    float tile_sum = block_probabilities(w, n, tile);
    float largest = fmaxf(w->largest[h], tile);
    float alpha = expf(w->largest[h] - largest), beta = expf(tile - largest);

    w->denominator[h] = w->denominator[h] * alpha + tile_sum * beta;
    for (int32_t c = 0; c < op->head_dim; c++)
        o[c] = o[c] * alpha + block_value(op, w, n, c) * beta;
    w->largest[h] = largest;
}

static void attend_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_attend *op = job->op;
    int64_t row = row_at(&op->rows, i), d = op->head_dim;
    struct key_list list = list_of(op, row);
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    struct work w;

    place_work(&w, op, &scratch);
    bf16_load((const uint16_t *)op->q + row * op->heads * d, op->heads * d, w.q);
    memset(w.o, 0, (size_t)(op->heads * d) * sizeof *w.o);
    for (int32_t h = 0; h < op->heads; h++) {
        w.largest[h] = op->w8a8 ? -1e20f : -1e30f;
        w.denominator[h] = 0;
    }

    int64_t slots = (int64_t)op->window_size + list.more;
    for (int64_t first = 0; first < slots; first += op->block) {
        int32_t n = (int32_t)(slots - first < op->block ? slots - first : op->block);
        for (int32_t s = 0; s < n; s++)
            w.valid[s] = key_at(&list, first + s, w.keys + s * d);
        for (int32_t h = 0; h < op->heads; h++)
            op->w8a8 ? merge_tile(op, &w, h, n) : add_block(op, &w, h, n);
    }

    for (int32_t h = 0; h < op->heads; h++) { /* the sink adds to the denominator alone */
        float denominator = w.denominator[h] + expf(op->sinks[h] - w.largest[h]);
        for (int64_t c = 0; c < d; c++)
            w.o[h * d + c] /= denominator;
    }
    act_store(&op->out, row, 0, w.o, op->heads * d);
}

qr_status reference_attend(struct backend *b, const struct op_attend *op, qr_error *err)
{
    if (!act_is_float(&op->out) || op->out.cols != op->heads * op->head_dim || op->block < 1 || op->window_size < 1)
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "attend: output format %d, %d columns, %d heads of %d, window %d, blocks of %d", op->out.format,
                       op->out.cols, op->heads, op->head_dim, op->window_size, op->block);
    if (op->selected && (!op->selected_count || !op->has_plane))
        return qr_fail(err, QR_BAD_ARGUMENT, "attend: a selection without %s",
                       op->has_plane ? "its counts" : "a plane of rows");
    qr_status st = cpu_need((struct cpu_backend *)b, "attend", work_bytes(op), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, attend_row);
}
