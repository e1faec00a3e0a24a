#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/rotation.h"
#include "ops/cpu/reference/scalar.h"

#include "number/quantize.h"

/* Queries, window keys and the inverse rotation: v41-model.md 5.1, 5.2, 5.6; v4-model.md 5.2, 7.4.
 * A bf16 input rounds after every step (the reference profile), an f32 one only at the end (w8a8). */

static qr_status check_rope(const char *operator, const struct rope_spec * rope, int32_t width, qr_error *err)
{
    if (rope->dim >= 0 && rope->dim % 2 == 0 && rope->dim <= width)
        return QR_OK;
    return qr_fail(err, QR_BAD_ARGUMENT, "%s: %d rotated channels of %d, wanted an even number", operator, rope->dim,
                   width);
}

/* q <- q rsqrt(mean q^2 + eps) in bf16 steps: u = bf(q^2), mu = bf(mean u), a = bf(mu + eps), nu = bf(rsqrt a)
 * (v4-model.md 5.2 step 3). */
static void norm_bf16_chain(float *q, int64_t n, float eps)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += (double)bf16_round(q[c] * q[c]);
    float mu = bf16_round((float)(sum / (double)n));
    float nu = bf16_round(rsqrt(bf16_round(mu + eps)));
    for (int64_t c = 0; c < n; c++)
        q[c] = bf16_round(q[c] * nu);
}

static void query_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_query *op = job->op;
    int64_t row = row_at(&op->rows, i), n = op->head_dim;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *q = take_floats(&scratch, n), *table = take_floats(&scratch, op->rope.dim);

    rope_table_of(&op->rope, row, op->step->positions[row], table);
    for (int32_t h = 0; h < op->heads; h++) {
        act_load(&op->in, row, h * n, n, q);
        if (op->norm == QUERY_NORM_BF16)
            norm_bf16_chain(q, n, op->eps);
        if (op->norm == QUERY_NORM_F32) {
            float inverse = rsqrt(mean_square(q, n) + op->eps);
            for (int64_t c = 0; c < n; c++)
                q[c] *= inverse;
        }
        rope_turn(&op->rope, table, q, n);
        act_store(&op->out, row, h * n, q, n);
    }
}

qr_status reference_query(struct backend *b, const struct op_query *op, qr_error *err)
{
    if (!act_is_float(&op->in) || !act_is_float(&op->out) || op->in.cols != op->heads * op->head_dim ||
        op->out.cols != op->in.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "query: formats %d to %d, %d columns to %d, %d heads of %d", op->in.format,
                       op->out.format, op->in.cols, op->out.cols, op->heads, op->head_dim);
    qr_status st = check_rope("query", &op->rope, op->head_dim, err);
    if (st == QR_OK)
        st = cpu_need((struct cpu_backend *)b, "query", 2 * piece_bytes(op->head_dim, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, query_row);
}

/* The key's grid, on bf16 values in place; FP8_ALL also gives its codes. */
static void key_grid(const struct op_window_key *op, int64_t row, uint16_t *key)
{
    if (op->grid == GRID_FP8_NOPE)
        q8_round(key, op->in.cols - op->rope.dim, 64);
    if (op->grid != GRID_FP8_ALL)
        return;
    if (op->packed.codes) {
        int64_t n = op->in.cols;
        uint8_t *codes = (uint8_t *)op->packed.codes + row * n, *scales = (uint8_t *)op->packed.scales + row * (n / 32);
        q8_quantize(key, n, 32, codes, scales);
    }
    q8_round(key, op->in.cols, 32);
}

static void window_key_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_window_key *op = job->op;
    int64_t row = row_at(&op->rows, i), n = op->in.cols;
    bool rounds = op->in.format == ACT_BF16;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *x = take_floats(&scratch, n), *w = take_floats(&scratch, n), *table = take_floats(&scratch, op->rope.dim);

    act_load(&op->in, row, 0, n, x);
    bf16_load(op->norm, n, w);
    float inverse = rsqrt(mean_square(x, n) + op->eps);
    for (int64_t c = 0; c < n; c++)
        x[c] = w[c] * (x[c] * inverse);
    if (rounds)
        bf16_round_all(x, n);
    rope_table_of(&op->rope, row, op->step->positions[row], table);
    rope_turn(&op->rope, table, x, n);

    uint16_t *key = (uint16_t *)op->out + row * n;
    bf16_store(x, n, key);
    key_grid(op, row, key);
}

qr_status reference_window_key(struct backend *b, const struct op_window_key *op, qr_error *err)
{
    int32_t n = op->in.cols, nope = n - op->rope.dim;
    bool fits = op->grid == GRID_NONE || (op->grid == GRID_FP8_ALL && n % 32 == 0) ||
                (op->grid == GRID_FP8_NOPE && nope % 64 == 0);
    if (!act_is_float(&op->in) || !fits)
        return qr_fail(err, QR_BAD_ARGUMENT, "window_key: grid %d does not fit %d channels, %d of them rotated",
                       op->grid, n, op->rope.dim);
    if (op->packed.codes && (op->packed.format != ACT_Q8 || op->packed.block != 32 || op->grid != GRID_FP8_ALL))
        return qr_fail(err, QR_BAD_ARGUMENT, "window_key: codes are wanted in blocks of %d, grid %d makes blocks of 32",
                       op->packed.block, op->grid);
    qr_status st = check_rope("window_key", &op->rope, n, err);
    if (st == QR_OK)
        st = cpu_need((struct cpu_backend *)b, "window_key", 3 * piece_bytes(n, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, window_key_row);
}

static void unrotate_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_unrotate *op = job->op;
    int64_t row = row_at(&op->rows, i), n = op->head_dim;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *o = take_floats(&scratch, n), *table = take_floats(&scratch, op->rope.dim);

    rope_table_of(&op->rope, row, op->step->positions[row], table);
    for (int32_t h = 0; h < op->heads; h++) {
        act_load(&op->in, row, h * n, n, o);
        rope_turn_back(&op->rope, table, o, n);
        act_store(&op->out, row, h * n, o, n);
    }
}

qr_status reference_unrotate(struct backend *b, const struct op_unrotate *op, qr_error *err)
{
    if (!act_is_float(&op->in) || op->out.format != ACT_BF16 || op->in.cols != op->heads * op->head_dim ||
        op->out.cols != op->in.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "unrotate: formats %d to %d, %d columns to %d, %d heads of %d",
                       op->in.format, op->out.format, op->in.cols, op->out.cols, op->heads, op->head_dim);
    qr_status st = check_rope("unrotate", &op->rope, op->head_dim, err);
    if (st == QR_OK)
        st = cpu_need((struct cpu_backend *)b, "unrotate", 2 * piece_bytes(op->head_dim, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, unrotate_row);
}
