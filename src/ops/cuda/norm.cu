#include "ops/cuda/device.cuh"

/* RMS norms and quantizers of rows: v41-model.md 3.2, 4.2; v4-model.md 4.1, 7.3. */

enum { THREADS = 256 };

static int32_t at_least_one(int32_t n) { return n > 0 ? n : 1; }

enum { HELD = 4 };

static __device__ float norm_weight(const struct op_norm &op, int c)
{
    return op.weight_f32 ? ((const float *)op.weight)[c] : bf16_value(((const uint16_t *)op.weight)[c]);
}

/* round(w (x rsqrt(mean x^2 + eps))), then times smooth; one rounding, to out's format. A block for each part of a row.
 */
static __global__ void norm_kernel(struct op_norm op, int32_t n)
{
    /* weights need no earlier kernel; those of the first columns are asked for at once */
    float first_weights[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++)
        first_weights[i] = (int)threadIdx.x + i * THREADS < n ? norm_weight(op, threadIdx.x + i * THREADS) : 0.0f;
    await_earlier();
    LAUNCHED_SHARED(float, x, 4);
    int64_t row = row_at(op.rows, blockIdx.x), first = (int64_t)blockIdx.y * n;

#pragma unroll 8
    for (int c = threadIdx.x; c < n; c += THREADS)
        x[c] = act_value(op.in, row, first + c);
    __syncthreads();
    float inverse = rsqrt_of(block_mean_square(x, n) + op.eps);
#pragma unroll
    for (int i = 0; i < HELD; i++) /* without an index at run time they stay in registers */
        if ((int)threadIdx.x + i * THREADS < n)
            x[threadIdx.x + i * THREADS] = first_weights[i] * (x[threadIdx.x + i * THREADS] * inverse);
    for (int c = threadIdx.x; c < n; c += THREADS) {
        float y = c < HELD * THREADS ? x[c] : norm_weight(op, c) * (x[c] * inverse);
        if (op.smooth)
            y *= op.smooth[c];
        x[c] = op.out.format == ACT_BF16 ? round_bf16(y) : y;
        if (op.out.codes)
            act_store(op.out, row, first + c, x[c]);
    }
    __syncthreads();
    if (op.quantized.codes)
        quantize_row(op.quantized, row, first, x, n, 1.0f);
}

qr_status cuda_norm(struct backend *b, const struct op_norm *op, qr_error *err)
{
    int32_t parts = at_least_one(op->parts);
    if (!act_is_float(op->in) || !act_is_float(op->out) || op->in.cols % parts)
        return qr_fail(err, QR_BAD_ARGUMENT, "norm: formats %d to %d, %d columns in %d parts", op->in.format,
                       op->out.format, op->in.cols, parts);
    LAUNCH("norm", norm_kernel, dim3(op->rows.count, parts), THREADS, (size_t)(op->in.cols / parts) * 4, *op,
           op->in.cols / parts);
    return QR_OK;
}

/* A block takes `piece` columns of a row: whole blocks of values. */
static __global__ void quantize_kernel(struct op_quantize op, int32_t piece)
{
    await_earlier();
    LAUNCHED_SHARED(float, x, 4);
    int64_t row = row_at(op.rows, blockIdx.x), first = (int64_t)blockIdx.y * piece;
    int n = op.in.cols - first < piece ? (int)(op.in.cols - first) : piece;
#pragma unroll 8
    for (int c = threadIdx.x; c < n; c += THREADS)
        x[c] = act_value(op.in, row, first + c);
    __syncthreads();
    quantize_row(op.out, row, first, x, n, 1.0f);
}

qr_status cuda_quantize(struct backend *b, const struct op_quantize *op, qr_error *err)
{
    if (!act_is_float(op->in) || act_is_float(op->out) || op->out.block < 1 || op->in.cols % op->out.block ||
        op->in.cols != op->out.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "quantize: formats %d to %d, %d columns to %d in blocks of %d",
                       op->in.format, op->out.format, op->in.cols, op->out.cols, op->out.block);
    int32_t piece = op->out.block >= 1024 ? op->out.block : 1024 / op->out.block * op->out.block;
    LAUNCH("quantize", quantize_kernel, dim3(op->rows.count, (op->in.cols + piece - 1) / piece), THREADS,
           (size_t)piece * 4, *op, piece);
    return QR_OK;
}

static __global__ void gather_kernel(struct op_gather op, int32_t words)
{
    await_earlier();
    const uint16_t *from = (const uint16_t *)op.in.codes + row_at(op.rows, blockIdx.x) * words;
    uint16_t *to = (uint16_t *)op.out.codes + (int64_t)blockIdx.x * words;
    for (int c = threadIdx.x; c < words; c += THREADS)
        to[c] = from[c];
}

qr_status cuda_gather(struct backend *b, const struct op_gather *op, qr_error *err)
{
    if (!act_is_float(op->in) || op->in.format != op->out.format || op->in.cols != op->out.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "gather: formats %d and %d, columns %d and %d, wanted equal plain rows",
                       op->in.format, op->out.format, op->in.cols, op->out.cols);
    LAUNCH("gather", gather_kernel, op->rows.count, THREADS, 0, *op, op->in.cols * (op->in.format == ACT_BF16 ? 1 : 2));
    return QR_OK;
}
