#include "ops/cuda/rowgrid.cuh"

/* What goes into the pools: window keys, compressor tails, compressed rows (v41-model.md 5.2, 5.3;
 * v4-model.md 5.6-5.9). */

enum { THREADS = 128 };

static __global__ void window_write_kernel(struct op_window_write op, struct step step)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x);
    int n = op.head_dim;
    struct row_address at;
    if (!ring_find(op.ring, step, step.batch_id[row], step.positions[row], &at))
        return;
    if (op.ring.format == ROW_BF16) {
        for (int c = threadIdx.x; c < n; c += THREADS)
            ((uint16_t *)(void *)at.values)[c] = ((const uint16_t *)op.keys)[row * n + c];
        return;
    }
    for (int c = threadIdx.x; c < n; c += THREADS)
        at.values[c] = ((const uint8_t *)op.packed.codes)[row * n + c];
    for (int c = threadIdx.x; c < n / 32; c += THREADS)
        at.scales[c] = ((const uint8_t *)op.packed.scales)[row * (n / 32) + c];
}

qr_status cuda_window_write(struct backend *b, const struct op_window_write *op, qr_error *err)
{
    bool packed = op->packed.codes && op->packed.format == ACT_Q8 && op->packed.block == 32;
    if (op->ring.format != ROW_BF16 && (op->ring.format != ROW_FP8_E8M0 || !packed))
        return qr_fail(err, QR_BAD_ARGUMENT, "window_write: ring format %d %s", op->ring.format,
                       op->ring.format == ROW_FP8_E8M0 ? "needs the packed keys" : "is not one of a window");
    LAUNCH("window_write", window_write_kernel, op->rows.count, THREADS, 0, *op, *op->step);
    return QR_OK;
}

static __global__ void position_bias_kernel(struct op_position_bias op, struct step step)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x), cols = op.cols;
    const float *ape = op.ape + step.positions[row] % op.ratio * cols;
    for (int c = threadIdx.x; c < cols; c += THREADS)
        op.scores[row * cols + c] += ape[c];
}

qr_status cuda_position_bias(struct backend *b, const struct op_position_bias *op, qr_error *err)
{
    if (op->ratio < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "position_bias: ratio %d, wanted at least 1", op->ratio);
    LAUNCH("position_bias", position_bias_kernel, op->rows.count, THREADS, 0, *op, *op->step);
    return QR_OK;
}

static __global__ void tail_write_kernel(struct op_tail_write op, struct step step)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x), cols = op.cols;
    struct row_address at;
    if (!ring_find(op.tail, step, step.batch_id[row], step.positions[row], &at))
        return;
    for (int c = threadIdx.x; c < cols; c += THREADS) {
        ((float *)(void *)at.values)[c] = op.values[row * cols + c];
        ((float *)(void *)at.scales)[c] = op.scores[row * cols + c];
    }
}

qr_status cuda_tail_write(struct backend *b, const struct op_tail_write *op, qr_error *err)
{
    if (op->tail.rows < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "tail_write: a tail of %d rows", op->tail.rows);
    LAUNCH("tail_write", tail_write_kernel, op->rows.count, THREADS, 0, *op, *op->step);
    return QR_OK;
}

/* ---- pooling of one compressed row (v41-model.md 5.3, v4-model.md 5.7) ---- */

/* A member's value and score columns; both NULL: missing (value 0, score -inf). */
struct member {
    const float *value, *score;
};

/* The compressor input of position q, columns from `column` on: computed by this forward or kept in the tail. */
static __device__ struct member member_at(const struct op_compress &op, const struct step &step, int32_t request,
                                          int64_t q, int64_t column)
{
    int64_t cols = op.kind == COMPRESSOR_OVERLAP ? 2 * (int64_t)op.width : op.width;
    struct member none = {NULL, NULL}, m;
    struct row_address at;
    if (q >= 0 && q >= op.from[request]) {
        int64_t row = step.first_row[request] + (q - step.first_position[request]);
        m.value = op.values + row * cols + column;
        m.score = op.scores + row * cols + column;
        return m;
    }
    if (op.tail.rows > 0 && ring_find(op.tail, step, request, q, &at)) {
        m.value = (const float *)(const void *)at.values + column;
        m.score = (const float *)(const void *)at.scales + column;
        return m;
    }
    return none;
}

/* Member i of the row whose last token is at p. OVERLAP: the previous group with the first half of its columns, then
 * this group with the second half. */
static __device__ struct member pooled_member(const struct op_compress &op, const struct step &step, int32_t request,
                                              int64_t p, int i)
{
    int64_t first = p - op.ratio + 1;
    if (op.kind == COMPRESSOR_OVERLAP)
        return i < op.ratio ? member_at(op, step, request, first - op.ratio + i, 0)
                            : member_at(op, step, request, first + i - op.ratio, op.width);
    return member_at(op, step, request, first + i, 0);
}

/* z[c] = sum_i a_i[c] w_i, w = softmax_i(s_i[c]) with the largest score taken off; a thread for each column. */
static __global__ void compress_kernel(struct op_compress op, struct step step, int32_t *trouble)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x);
    int32_t request = step.batch_id[row], n = op.kind == COMPRESSOR_OVERLAP ? 2 * op.ratio : op.ratio;
    int64_t p = step.positions[row];
    int c = blockIdx.y * THREADS + threadIdx.x;
    float largest = -INFINITY;
    double sum = 0, z = 0;

    if (c >= op.width)
        return;
    if ((p + 1) % op.ratio) {
        if (!op.padded)
            report_trouble(trouble, TROUBLE_GROUP, (int32_t)p);
        return;
    }
    for (int i = 0; i < n; i++) {
        struct member m = pooled_member(op, step, request, p, i);
        largest = m.score ? fmaxf(largest, m.score[c]) : largest;
    }
    for (int i = 0; i < n && largest > -INFINITY; i++) {
        struct member m = pooled_member(op, step, request, p, i);
        sum += m.score ? exp_of(m.score[c] - largest) : 0.0f;
    }
    for (int i = 0; i < n && largest > -INFINITY; i++) {
        struct member m = pooled_member(op, step, request, p, i);
        if (m.value)
            z += (double)m.value[c] * (double)(exp_of(m.score[c] - largest) / (float)sum);
    }
    act_store(op.out, row, c, (float)z);
}

qr_status cuda_compress(struct backend *b, const struct op_compress *op, qr_error *err)
{
    if (op->kind == COMPRESSOR_NONE || op->kind == COMPRESSOR_SINGLE || op->ratio < 1 || op->width < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "compress: kind %d, ratio %d, width %d", op->kind, op->ratio, op->width);
    if (!act_is_float(op->out) || op->out.cols != op->width)
        return qr_fail(err, QR_BAD_ARGUMENT, "compress: output format %d with %d columns, wanted bf16 or f32 with %d",
                       op->out.format, op->out.cols, op->width);
    LAUNCH("compress", compress_kernel, dim3(op->rows.count, (op->width + THREADS - 1) / THREADS), THREADS, 0, *op,
           *op->step, cuda_of(b)->trouble);
    return QR_OK;
}

/* ---- compressed rows ---- */

/* Stores bf16 values on their grid; x is left as a load would give it. The values of a ROW_INDEX_INT8 row are
 * multiplied by its scale. */
static __device__ void store_row(const struct op_row_write &op, float *x, int n, int nope, struct vector_target to)
{
    struct vector_target nowhere = {NULL, NULL};
    enum row_format format = op.plane.format;
    bool own = format == ROW_FP4_E4M3 || format == ROW_FP8_E8M0 || format == ROW_INDEX_FP4;

    if (op.grid != GRID_NONE && op.grid != GRID_FP8_ROW && op.grid != GRID_INT8)
        grid_blocks(op.grid, x, n, nope, own ? to : nowhere, warp_of(), warps_of());
    __syncthreads();
    if (format == ROW_BF16) {
        for (int c = threadIdx.x; to.values && c < n; c += THREADS)
            ((uint16_t *)(void *)to.values)[c] = bf16_bits(x[c]);
    } else if (format == ROW_INDEX_FP8 && warp_of() == 0) {
        float s = vector_fp8_scale(block_largest(x, n));
        round_fp8_block(x, n, s, to.values);
        if (to.values && lane_of() == 0)
            store_f32(to.scales, s);
    } else if (format == ROW_INDEX_INT8 && warp_of() == 0) {
        float m = int8_multiplier(block_largest(x, n)), sigma = 1.0f / m;
        for (int c = lane_of(); c < n; c += WARP) {
            int8_t code = int8_code(x[c] * m);
            if (to.values)
                ((int8_t *)to.values)[c] = code;
            x[c] = (float)code * sigma;
        }
        if (to.values && lane_of() == 0)
            store_f32(to.scales, sigma);
    }
    __syncthreads();
}

/* norm -> rotation at j * ratio -> Hadamard, bf16 at the end. A bf16 input rounds after each step; an f32 one is
 * rounded once before the transform (v4-model.md 7.4). */
static __global__ void row_write_kernel(struct op_row_write op, struct step step, struct rope_view rope)
{
    await_earlier();
    LAUNCHED_SHARED(double, shared, 8);
    __shared__ float table[2 * MAX_ROPE_PAIRS];
    int64_t row = row_at(op.rows, blockIdx.x), position = step.positions[row];
    int n = op.in.cols;
    float *x = (float *)(shared + n);
    bool rounds = op.in.format == ACT_BF16;

    if (op.padded && (position + 1) % op.ratio)
        return;
#pragma unroll 8
    for (int c = threadIdx.x; c < n; c += THREADS)
        x[c] = act_value(op.in, row, c);
    if (op.norm) {
        float inverse = rsqrt_of(block_mean_square(x, n) + op.eps);
        for (int c = threadIdx.x; c < n; c += THREADS) {
            float y = bf16_value(((const uint16_t *)op.norm)[c]) * (x[c] * inverse);
            x[c] = rounds ? round_bf16(y) : y;
        }
    }
    rope_table(rope, row, (int32_t)(position / op.ratio * op.ratio), table);
    for (int i = threadIdx.x; i < rope.dim / 2; i += THREADS)
        rope_turn_pair(rope, table, x, n, i, 1.0f);
    __syncthreads();
    for (int c = threadIdx.x; c < n; c += THREADS)
        x[c] = round_bf16(x[c]);
    __syncthreads();
    if (op.hadamard) {
        hadamard(x, n, op.grid == GRID_INT8, shared, threadIdx.x, THREADS, [] { __syncthreads(); });
        for (int c = threadIdx.x; c < n; c += THREADS)
            x[c] = round_bf16(x[c]);
        __syncthreads();
    }

    struct row_address at;
    struct vector_target to = {NULL, NULL};
    if (plane_find(op.plane, step, step.batch_id[row], position / op.ratio, &at)) {
        to.values = at.values;
        to.scales = at.scales;
    }
    store_row(op, x, n, n - rope.dim, to);
    for (int c = threadIdx.x; op.values_out && c < n; c += THREADS)
        ((uint16_t *)op.values_out)[row * n + c] = bf16_bits(x[c]);
}

static bool container_fits(enum row_format format, enum key_grid grid, int32_t n, int32_t nope)
{
    switch (format) {
    case ROW_BF16:
        return grid == GRID_NONE || (grid == GRID_FP8_ALL && n % 32 == 0) ||
               (grid == GRID_FP8_NOPE && nope % 64 == 0) || (grid == GRID_FP4_E4M3 && n % 16 == 0) ||
               (grid == GRID_FP4_E8M0 && n % 32 == 0);
    case ROW_FP4_E4M3:
        return grid == GRID_FP4_E4M3 && n % 16 == 0;
    case ROW_FP8_E8M0:
        return grid == GRID_FP8_ALL && n % 32 == 0;
    case ROW_INDEX_FP8:
        return grid == GRID_NONE || grid == GRID_FP8_ROW || (grid == GRID_FP4_E8M0 && n % 32 == 0);
    case ROW_INDEX_FP4:
        return grid == GRID_FP4_E8M0 && n % 32 == 0;
    case ROW_INDEX_INT8:
        return grid == GRID_INT8;
    }
    return false;
}

qr_status cuda_row_write(struct backend *b, const struct op_row_write *op, qr_error *err)
{
    int32_t n = op->in.cols;
    struct rope_view rope;
    if (!act_is_float(op->in) || op->ratio < 1 || op->rope.dim > n || !rope_view_of(&op->rope, &rope) ||
        !container_fits(op->plane.format, op->grid, n, n - op->rope.dim))
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "row_write: input format %d, %d channels, %d rotated, ratio %d, grid %d into row format %d",
                       op->in.format, n, op->rope.dim, op->ratio, op->grid, op->plane.format);
    if (op->hadamard && (n & (n - 1)))
        return qr_fail(err, QR_BAD_ARGUMENT, "row_write: Hadamard of %d channels, wanted a power of two", n);
    LAUNCH("row_write", row_write_kernel, op->rows.count, THREADS, (size_t)n * 12, *op, *op->step, rope);
    return QR_OK;
}
