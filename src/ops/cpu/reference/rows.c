#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/container.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/rotation.h"
#include "ops/cpu/reference/scalar.h"

#include <string.h>

/* What goes into the pools: window keys, compressor tails, compressed rows (v41-model.md 5.2, 5.3;
 * v4-model.md 5.6-5.9). */

static void window_write_row(void *user, int64_t i, int thread)
{
    const struct op_window_write *op = ((const struct job *)user)->op;
    int64_t row = row_at(&op->rows, i), n = op->head_dim;
    struct row_address at;
    (void)thread;
    if (!ring_find(&op->ring, op->step, op->step->batch_id[row], op->step->positions[row], &at))
        return;
    if (op->ring.format == ROW_BF16) {
        memcpy(at.values, (const uint16_t *)op->keys + row * n, (size_t)n * sizeof(uint16_t));
        return;
    }
    memcpy(at.values, (const uint8_t *)op->packed.codes + row * n, (size_t)n);
    memcpy(at.scales, (const uint8_t *)op->packed.scales + row * (n / 32), (size_t)(n / 32));
}

qr_status reference_window_write(struct backend *b, const struct op_window_write *op, qr_error *err)
{
    bool packed = op->packed.codes && op->packed.format == ACT_Q8 && op->packed.block == 32;
    if (op->ring.format != ROW_BF16 && (op->ring.format != ROW_FP8_E8M0 || !packed))
        return qr_fail(err, QR_BAD_ARGUMENT, "window_write: ring format %d %s", op->ring.format,
                       op->ring.format == ROW_FP8_E8M0 ? "needs the packed keys" : "is not one of a window");
    return cpu_run(b, op, op->rows.count, window_write_row);
}

static void position_bias_row(void *user, int64_t i, int thread)
{
    const struct op_position_bias *op = ((const struct job *)user)->op;
    int64_t row = row_at(&op->rows, i), cols = op->cols;
    const float *ape = op->ape + op->step->positions[row] % op->ratio * cols;
    (void)thread;
    for (int64_t c = 0; c < cols; c++)
        op->scores[row * cols + c] += ape[c];
}

qr_status reference_position_bias(struct backend *b, const struct op_position_bias *op, qr_error *err)
{
    if (op->ratio < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "position_bias: ratio %d, wanted at least 1", op->ratio);
    return cpu_run(b, op, op->rows.count, position_bias_row);
}

static void tail_write_row(void *user, int64_t i, int thread)
{
    const struct op_tail_write *op = ((const struct job *)user)->op;
    int64_t row = row_at(&op->rows, i), cols = op->cols;
    struct row_address at;
    (void)thread;
    if (!ring_find(&op->tail, op->step, op->step->batch_id[row], op->step->positions[row], &at))
        return;
    memcpy(at.values, op->values + row * cols, (size_t)cols * sizeof(float));
    memcpy(at.scales, op->scores + row * cols, (size_t)cols * sizeof(float));
}

qr_status reference_tail_write(struct backend *b, const struct op_tail_write *op, qr_error *err)
{
    if (op->tail.rows < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "tail_write: a tail of %d rows", op->tail.rows);
    return cpu_run(b, op, op->rows.count, tail_write_row);
}

/* norm -> rotation at j * ratio -> Hadamard, bf16 at the end. A bf16 input rounds after each step; an f32 one is
 * rounded once before the transform (v4-model.md 7.4). */
static void make_row(const struct op_row_write *op, int64_t row, float *x, double *sums, uint16_t *out)
{
    float *other = (float *)sums; /* the norm's weight, then the angles, then the transform */
    int64_t n = op->in.cols;
    bool rounds = op->in.format == ACT_BF16;

    act_load(&op->in, row, 0, n, x);
    if (op->norm) {
        float inverse = rsqrt(mean_square(x, n) + op->eps);
        bf16_load(op->norm, n, other);
        for (int64_t c = 0; c < n; c++)
            x[c] = other[c] * (x[c] * inverse);
        if (rounds)
            bf16_round_all(x, n);
    }
    rope_table_of(&op->rope, row, op->step->positions[row] / op->ratio * op->ratio, other);
    rope_turn(&op->rope, other, x, n);
    bf16_round_all(x, n);
    if (op->hadamard)
        hadamard(x, n, op->grid == GRID_INT8, sums);
    bf16_store(x, n, out);
}

static void row_write_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_row_write *op = job->op;
    enum row_format format = op->plane.format;
    int64_t row = row_at(&op->rows, i), n = op->in.cols;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *x = take_floats(&scratch, n);
    double *sums = take(&scratch, n * (int64_t)sizeof *sums);
    uint16_t *key = take(&scratch, 2 * n);
    struct row_address nowhere = {take(&scratch, 2 * n), take(&scratch, n)}, at;

    if (op->padded && (op->step->positions[row] + 1) % op->ratio)
        return;
    make_row(op, row, x, sums, key);
    int64_t j = op->step->positions[row] / op->ratio;
    if (!plane_find(&op->plane, op->step, op->step->batch_id[row], j, &at))
        at = nowhere;
    container_store(format, op->grid, key, n, n - op->rope.dim, at.values, at.scales);
    if (!op->values_out)
        return;
    container_load(format, at.values, at.scales, n, x);
    float scale = container_scale(format, at.scales);
    for (int64_t c = 0; c < n; c++)
        x[c] *= scale;
    bf16_store(x, n, (uint16_t *)op->values_out + row * n);
}

qr_status reference_row_write(struct backend *b, const struct op_row_write *op, qr_error *err)
{
    int32_t n = op->in.cols;
    if (!act_is_float(&op->in) || op->ratio < 1 || op->rope.dim > n || op->rope.dim % 2 ||
        !container_fits(op->plane.format, op->grid, n, n - op->rope.dim))
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "row_write: input format %d, %d channels, %d rotated, ratio %d, grid %d into row format %d",
                       op->in.format, n, op->rope.dim, op->ratio, op->grid, op->plane.format);
    if (op->hadamard && (n & (n - 1)))
        return qr_fail(err, QR_BAD_ARGUMENT, "row_write: Hadamard of %d channels, wanted a power of two", n);
    qr_status st = cpu_need((struct cpu_backend *)b, "row_write", 6 * piece_bytes(n, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, row_write_row);
}
