#include "ops/cuda/device.cuh"

/* Queries, window keys and the inverse rotation: v41-model.md 5.1, 5.2, 5.6; v4-model.md 5.2, 7.4. A bf16 input rounds
 * after every step (the reference profile), an f32 one only at the end (w8a8). */

enum { THREADS = 256, WARPS = THREADS / WARP };

static qr_status check_rope(const char *name, const struct rope_spec *rope, int32_t width, struct rope_view *out,
                            qr_error *err)
{
    if (rope->dim < 0 || rope->dim % 2 || rope->dim > width)
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: %d rotated channels of %d, wanted an even number", name, rope->dim,
                       width);
    if (!rope_view_of(rope, out))
        return qr_fail(err, QR_UNSUPPORTED, "%s: %d rotated channels, wanted at most %d", name, rope->dim,
                       2 * MAX_ROPE_PAIRS);
    return QR_OK;
}

static __device__ double square_sum(const float *x, int n)
{
    double sum = 0;
    for (int c = lane_of(); c < n; c += WARP)
        sum += (double)x[c] * x[c];
    return warp_sum(sum);
}

/* q rsqrt(mean q^2 + eps) in bf16 steps: u = bf(q^2), mu = bf(mean u), a = bf(mu + eps), nu = bf(rsqrt a). */
static __device__ void norm_bf16_chain(float *q, int n, float eps)
{
    double sum = 0;
    for (int c = lane_of(); c < n; c += WARP)
        sum += (double)round_bf16(q[c] * q[c]);
    float mu = round_bf16((float)(warp_sum(sum) / (double)n));
    float nu = round_bf16(rsqrt_of(round_bf16(mu + eps)));
    for (int c = lane_of(); c < n; c += WARP)
        q[c] = round_bf16(q[c] * nu);
}

/* A warp for each head; WARPS heads a block. */
static __global__ void query_kernel(struct op_query op, struct step step, struct rope_view rope)
{
    await_earlier();
    LAUNCHED_SHARED(float, heads, 4);
    __shared__ float table[2 * MAX_ROPE_PAIRS];
    int64_t row = row_at(op.rows, blockIdx.x);
    int h = blockIdx.y * WARPS + warp_of(), n = op.head_dim;
    float *q = heads + warp_of() * n;

    rope_table(rope, row, step.positions[row], table);
    if (h >= op.heads)
        return;
#pragma unroll 8
    for (int c = lane_of(); c < n; c += WARP)
        q[c] = act_value(op.in, row, (int64_t)h * n + c);
    if (op.norm == QUERY_NORM_BF16)
        norm_bf16_chain(q, n, op.eps);
    if (op.norm == QUERY_NORM_F32) {
        float inverse = rsqrt_of((float)(square_sum(q, n) / (double)n) + op.eps);
        for (int c = lane_of(); c < n; c += WARP)
            q[c] *= inverse;
    }
    __syncwarp();
    for (int i = lane_of(); i < rope.dim / 2; i += WARP)
        rope_turn_pair(rope, table, q, n, i, 1.0f);
    __syncwarp();
    for (int c = lane_of(); c < n; c += WARP)
        act_store(op.out, row, (int64_t)h * n + c, q[c]);
}

qr_status cuda_query(struct backend *b, const struct op_query *op, qr_error *err)
{
    struct rope_view rope;
    if (!act_is_float(op->in) || !act_is_float(op->out) || op->in.cols != op->heads * op->head_dim ||
        op->out.cols != op->in.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "query: formats %d to %d, %d columns to %d, %d heads of %d", op->in.format,
                       op->out.format, op->in.cols, op->out.cols, op->heads, op->head_dim);
    qr_status st = check_rope("query", &op->rope, op->head_dim, &rope, err);
    if (st != QR_OK)
        return st;
    LAUNCH("query", query_kernel, dim3(op->rows.count, (op->heads + WARPS - 1) / WARPS), THREADS,
           (size_t)WARPS * op->head_dim * 4, *op, *op->step, rope);
    return QR_OK;
}

static __global__ void unrotate_kernel(struct op_unrotate op, struct step step, struct rope_view rope)
{
    await_earlier();
    LAUNCHED_SHARED(float, heads, 4);
    __shared__ float table[2 * MAX_ROPE_PAIRS];
    int64_t row = row_at(op.rows, blockIdx.x);
    int h = blockIdx.y * WARPS + warp_of(), n = op.head_dim;
    float *o = heads + warp_of() * n;

    rope_table(rope, row, step.positions[row], table);
    if (h >= op.heads)
        return;
#pragma unroll 8
    for (int c = lane_of(); c < n; c += WARP)
        o[c] = act_value(op.in, row, (int64_t)h * n + c);
    __syncwarp();
    for (int i = lane_of(); i < rope.dim / 2; i += WARP)
        rope_turn_pair(rope, table, o, n, i, -1.0f);
    __syncwarp();
    for (int c = lane_of(); c < n; c += WARP)
        act_store(op.out, row, (int64_t)h * n + c, o[c]);
}

qr_status cuda_unrotate(struct backend *b, const struct op_unrotate *op, qr_error *err)
{
    struct rope_view rope;
    if (!act_is_float(op->in) || op->out.format != ACT_BF16 || op->in.cols != op->heads * op->head_dim ||
        op->out.cols != op->in.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "unrotate: formats %d to %d, %d columns to %d, %d heads of %d",
                       op->in.format, op->out.format, op->in.cols, op->out.cols, op->heads, op->head_dim);
    qr_status st = check_rope("unrotate", &op->rope, op->head_dim, &rope, err);
    if (st != QR_OK)
        return st;
    LAUNCH("unrotate", unrotate_kernel, dim3(op->rows.count, (op->heads + WARPS - 1) / WARPS), THREADS,
           (size_t)WARPS * op->head_dim * 4, *op, *op->step, rope);
    return QR_OK;
}

/* The key's grid on bf16 values in shared memory, blocks of `block` channels of the first n; FP8_ALL gives its codes
 * too. */
static __device__ void key_grid(const struct op_window_key &op, int64_t row, float *x, int n, int block)
{
    for (int b = warp_of(); b < n / block; b += warps_of()) {
        float largest = 0;
        for (int i = lane_of(); i < block; i += WARP)
            largest = larger_magnitude(largest, x[b * block + i]);
        uint8_t scale = q8_scale(warp_largest(largest));
        float s = e8m0_value(scale);
        for (int i = lane_of(); i < block; i += WARP) {
            int c = b * block + i;
            uint8_t code = e4m3_code(x[c] / s);
            x[c] = round_bf16(e4m3_value(code) * s);
            if (op.packed.codes)
                ((uint8_t *)op.packed.codes)[row * op.in.cols + c] = code;
        }
        if (op.packed.codes && lane_of() == 0)
            ((uint8_t *)op.packed.scales)[row * (op.in.cols / block) + b] = scale;
    }
}

static __global__ void window_key_kernel(struct op_window_key op, struct step step, struct rope_view rope)
{
    await_earlier();
    LAUNCHED_SHARED(float, x, 4);
    __shared__ float table[2 * MAX_ROPE_PAIRS];
    int64_t row = row_at(op.rows, blockIdx.x);
    int n = op.in.cols;
    bool rounds = op.in.format == ACT_BF16;

#pragma unroll 8
    for (int c = threadIdx.x; c < n; c += THREADS)
        x[c] = act_value(op.in, row, c);
    float inverse = rsqrt_of(block_mean_square(x, n) + op.eps);
    for (int c = threadIdx.x; c < n; c += THREADS) {
        float y = bf16_value(((const uint16_t *)op.norm)[c]) * (x[c] * inverse);
        x[c] = rounds ? round_bf16(y) : y;
    }
    rope_table(rope, row, step.positions[row], table);
    for (int i = threadIdx.x; i < rope.dim / 2; i += THREADS)
        rope_turn_pair(rope, table, x, n, i, 1.0f);
    __syncthreads();
    for (int c = threadIdx.x; c < n; c += THREADS)
        x[c] = round_bf16(x[c]);
    __syncthreads();
    if (op.grid == GRID_FP8_ALL)
        key_grid(op, row, x, n, 32);
    if (op.grid == GRID_FP8_NOPE)
        key_grid(op, row, x, n - rope.dim, 64);
    __syncthreads();
    for (int c = threadIdx.x; c < n; c += THREADS)
        ((uint16_t *)op.out)[row * n + c] = bf16_bits(x[c]);
}

qr_status cuda_window_key(struct backend *b, const struct op_window_key *op, qr_error *err)
{
    struct rope_view rope;
    int32_t n = op->in.cols, nope = n - op->rope.dim;
    bool fits = op->grid == GRID_NONE || (op->grid == GRID_FP8_ALL && n % 32 == 0) ||
                (op->grid == GRID_FP8_NOPE && nope % 64 == 0);
    if (!act_is_float(op->in) || !fits)
        return qr_fail(err, QR_BAD_ARGUMENT, "window_key: grid %d does not fit %d channels, %d of them rotated",
                       op->grid, n, op->rope.dim);
    if (op->packed.codes && (op->packed.format != ACT_Q8 || op->packed.block != 32 || op->grid != GRID_FP8_ALL))
        return qr_fail(err, QR_BAD_ARGUMENT, "window_key: codes are wanted in blocks of %d, grid %d makes blocks of 32",
                       op->packed.block, op->grid);
    qr_status st = check_rope("window_key", &op->rope, n, &rope, err);
    if (st != QR_OK)
        return st;
    LAUNCH("window_key", window_key_kernel, op->rows.count, THREADS, (size_t)n * 4, *op, *op->step, rope);
    return QR_OK;
}
