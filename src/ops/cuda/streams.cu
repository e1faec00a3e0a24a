#include "ops/cuda/product.cuh"

/* The residual streams: v41-model.md 4.1, 4.4, 10.2; v4-model.md 3.1, 3.3-3.5, 6.3, 7.4. M = streams, D = hidden. */

enum {
    THREADS = 256,
    DOT_THREADS = 512,
    ROW_THREADS = 1024,
    MAX_STREAMS = 16,
    MAX_MIX = (2 + MAX_STREAMS) * MAX_STREAMS
};

static __device__ float weight_value(const struct weight_view &w, bool f32, int64_t n, int64_t k)
{
    return f32 ? ((const float *)(const void *)(w.values + n * w.pitch))[k] : packed_bf16(w, n, k);
}

static __global__ void embed_kernel(struct op_embed op, struct step step, struct weight_view w, bool f32,
                                    int32_t *trouble)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x);
    int32_t token = step.token_ids[row];
    bool known = token >= 0 && token < w.n;
    if (!known && threadIdx.x == 0)
        report_trouble(trouble, TROUBLE_TOKEN, token);
    for (int c = threadIdx.x; c < op.out.hidden; c += THREADS) {
        float e = known ? weight_value(w, f32, token, c) : 0.0f;
        for (int j = 0; j < op.out.count; j++)
            stream_store(op.out, (row * op.out.count + j) * op.out.hidden + c, e);
    }
}

qr_status cuda_embed(struct backend *b, const struct op_embed *op, qr_error *err)
{
    const struct weight_spec *w = &op->weight->spec;
    if ((w->format != WEIGHT_BF16 && w->format != WEIGHT_F32) || w->k != op->out.hidden)
        return qr_fail(err, QR_BAD_ARGUMENT, "embed: weight %s of format %d, %d columns, wanted bf16 or f32 and %d",
                       w->name, w->format, w->k, op->out.hidden);
    LAUNCH("embed", embed_kernel, op->rows.count, THREADS, 0, *op, *op->step, op->weight->view, w->format == WEIGHT_F32,
           cuda_of(b)->trouble);
    return QR_OK;
}

/* Softmax + eps, column step, then iterations - 1 times row and column step (4.4 steps 7 to 9). One thread. */
static __device__ void sinkhorn(float *c, int m, float eps, int iterations)
{
    for (int j = 0; j < m; j++) {
        float largest = c[j * m], sum = 0;
        for (int k = 1; k < m; k++)
            largest = fmaxf(largest, c[j * m + k]);
        for (int k = 0; k < m; k++)
            sum += c[j * m + k] = exp_of(c[j * m + k] - largest);
        for (int k = 0; k < m; k++)
            c[j * m + k] = c[j * m + k] / sum + eps;
    }
    for (int round = 0; round < iterations; round++) {
        for (int j = 0; round > 0 && j < m; j++) {
            float sum = 0;
            for (int k = 0; k < m; k++)
                sum += c[j * m + k];
            for (int k = 0; k < m; k++)
                c[j * m + k] /= sum + eps;
        }
        for (int k = 0; k < m; k++) {
            float sum = 0;
            for (int j = 0; j < m; j++)
                sum += c[j * m + k];
            for (int j = 0; j < m; j++)
                c[j * m + k] /= sum + eps;
        }
    }
}

/* The same for four streams by a warp: lane 4 j + k holds c[j][k], the upper half repeats the lower. Sums in the same
 * order, so the bits are the same. */
static __device__ float sinkhorn_4(float c, float eps, int iterations)
{
    const int row = lane_of() & 12, column = lane_of() & 3;
    auto of_row = [&](float x, int k) { return __shfl_sync(ALL_LANES, x, row + k); };
    auto of_column = [&](float x, int j) { return __shfl_sync(ALL_LANES, x, 4 * j + column); };
    float largest = fmaxf(fmaxf(fmaxf(of_row(c, 0), of_row(c, 1)), of_row(c, 2)), of_row(c, 3));
    c = exp_of(c - largest);
    c = c / (((0.0f + of_row(c, 0)) + of_row(c, 1)) + of_row(c, 2) + of_row(c, 3)) + eps;
    for (int round = 0; round < iterations; round++) {
        if (round > 0)
            c /= (((0.0f + of_row(c, 0)) + of_row(c, 1)) + of_row(c, 2) + of_row(c, 3)) + eps;
        c /= (((0.0f + of_column(c, 0)) + of_column(c, 1)) + of_column(c, 2) + of_column(c, 3)) + eps;
    }
    return c;
}

/* pre, post and comb of a row from its dots, by a warp. The scaling of comb, m^2 numbers, is the warp's work for four
 * streams, else one thread's. */
static __device__ void finish_mix(const struct op_mhc_mix &op, int64_t row, int outputs, const float *dot)
{
    __shared__ float mix[MAX_MIX], comb[MAX_STREAMS * MAX_STREAMS];
    int m = op.x.count;
    float inverse = rsqrt_of(__ldcg(dot + outputs) + op.norm_eps);

    for (int n = lane_of(); n < outputs; n += WARP)
        mix[n] = __ldcg(dot + n) * inverse;
    __syncwarp();
    for (int j = lane_of(); j < m; j += WARP) {
        op.pre[row * m + j] = sigmoid_of(mix[j] * op.scale[0] + op.base[j]) + op.hc_eps;
        if (!op.head_only)
            op.post[row * m + j] = 2.0f * sigmoid_of(mix[m + j] * op.scale[1] + op.base[m + j]);
    }
    if (op.head_only)
        return;
    for (int i = lane_of(); i < m * m; i += WARP)
        comb[i] = mix[2 * m + i] * op.scale[2] + op.base[2 * m + i];
    __syncwarp();
    if (m == 4) {
        float c = sinkhorn_4(comb[lane_of() % 16], op.hc_eps, op.iterations);
        if (lane_of() < 16)
            op.comb[row * 16 + lane_of()] = c;
        return;
    }
    if (lane_of() == 0)
        sinkhorn(comb, m, op.hc_eps, op.iterations);
    __syncwarp();
    for (int i = lane_of(); i < m * m; i += WARP)
        op.comb[row * m * m + i] = comb[i];
}

/* One block for each output of fn and one more for the sum of squares: dots[row][n] and dots[row][outputs]. The last
 * block of a row to arrive (`arrived` counts, and is zero again afterwards) finishes it. */
static __global__ void __launch_bounds__(DOT_THREADS)
    mix_kernel(struct op_mhc_mix op, int32_t offset, struct weight_view fn, bool f32, bool wide, float *dots,
               uint32_t *arrived)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.y) + (op.rows.index ? 0 : offset), n = blockIdx.x;
    int all = op.x.count * op.x.hidden;
    bool bf16 = op.x.format == ACT_BF16, squares = n == fn.n;
    const uint8_t *w = fn.values + n * fn.pitch;
    double sum = 0;
    if (wide) {
#pragma unroll 8
        for (int c = 4 * threadIdx.x; c < all; c += 4 * DOT_THREADS) {
            float4 x = load_four(bf16, op.x.data, row * all + c), v = squares ? x : load_four(false, w, c);
            sum += ((double)v.x * x.x + (double)v.y * x.y) + ((double)v.z * x.z + (double)v.w * x.w);
        }
    } else {
        for (int c = threadIdx.x; c < all; c += DOT_THREADS) {
            float x = stream_value(op.x, row * all + c);
            sum += (double)(squares ? x : weight_value(fn, f32, n, c)) * x;
        }
    }
    __shared__ bool last;
    float *dot = dots + (int64_t)blockIdx.y * (fn.n + 1);
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        dot[n] = squares ? (float)(sum / (double)all) : (float)sum;
        __threadfence();
        last = atomicInc(arrived + blockIdx.y, (uint32_t)fn.n) == (uint32_t)fn.n;
        __threadfence();
    }
    __syncthreads();
    if (last && warp_of() == 0)
        finish_mix(op, row, fn.n, dot);
}

qr_status cuda_mhc_mix(struct backend *b, const struct op_mhc_mix *op, qr_error *err)
{
    const struct weight_spec *fn = &op->fn->spec;
    int32_t m = op->x.count, wanted = op->head_only ? m : (2 + m) * m;
    if (m < 1 || m > MAX_STREAMS || fn->n != wanted || fn->k != m * op->x.hidden ||
        (fn->format != WEIGHT_F32 && fn->format != WEIGHT_BF16))
        return qr_fail(err, QR_BAD_ARGUMENT, "mhc_mix: weight %s of format %d [%d][%d], wanted f32 [%d][%d]", fn->name,
                       fn->format, fn->n, fn->k, wanted, m * op->x.hidden);
    float *dots = (float *)(void *)cuda_of(b)->scratch;
    bool f32 = fn->format == WEIGHT_F32, wide = f32 && fn->k % 4 == 0 && is_wide(op->x.data);
    struct op_mhc_mix band = *op;
    for (int32_t first = 0; first < op->rows.count; first += MOST_ARRIVED) {
        int32_t count = op->rows.count - first < MOST_ARRIVED ? op->rows.count - first : MOST_ARRIVED;
        band.rows.index = op->rows.index ? op->rows.index + first : NULL;
        band.rows.count = count;
        LAUNCH("mhc_mix", mix_kernel, dim3(fn->n + 1, count), DOT_THREADS, 0, band, first, op->fn->view, f32, wide,
               dots, cuda_of(b)->arrived);
    }
    return QR_OK;
}

static __global__ void __launch_bounds__(ROW_THREADS) collapse_kernel(struct op_collapse op, bool wide)
{
    await_earlier();
    extern __shared__ float u[];
    int64_t row = row_at(op.rows, blockIdx.x);
    int m = op.x.count, d = op.x.hidden;
    const float *pre = op.pre + row * m;
    int64_t first = row * m * d;
    bool bf16 = op.x.format == ACT_BF16;

    for (int c = 4 * threadIdx.x; wide && c < d; c += 4 * ROW_THREADS) { /* four streams, four columns a thread */
        float4 a = load_four(bf16, op.x.data, first + c), b = load_four(bf16, op.x.data, first + d + c),
               e = load_four(bf16, op.x.data, first + 2 * (int64_t)d + c),
               f = load_four(bf16, op.x.data, first + 3 * (int64_t)d + c);
        auto sum = [&](float w, float x, float y, float z) {
            float p = pre[0] * w, q = pre[1] * x, r = pre[2] * y, s = pre[3] * z;
            return round_bf16(op.pairwise ? (p + q) + (r + s) : ((p + q) + r) + s);
        };
        u[c] = sum(a.x, b.x, e.x, f.x);
        u[c + 1] = sum(a.y, b.y, e.y, f.y);
        u[c + 2] = sum(a.z, b.z, e.z, f.z);
        u[c + 3] = sum(a.w, b.w, e.w, f.w);
    }
    for (int c = threadIdx.x; !wide && c < d; c += ROW_THREADS) {
        float sum = pre[0] * stream_value(op.x, first + c);
        if (op.pairwise)
            sum = (sum + pre[1] * stream_value(op.x, first + d + c)) +
                  (pre[2] * stream_value(op.x, first + 2 * (int64_t)d + c) +
                   pre[3] * stream_value(op.x, first + 3 * (int64_t)d + c));
        else
            for (int j = 1; j < m; j++)
                sum += pre[j] * stream_value(op.x, first + (int64_t)j * d + c);
        u[c] = round_bf16(sum);
    }
    __syncthreads();
    for (int c = threadIdx.x; op.collapsed.codes && c < d; c += ROW_THREADS)
        act_store(op.collapsed, row, c, u[c]);
    if (!op.norm)
        return;
    float inverse = rsqrt_of(block_mean_square(u, d) + op.norm_eps);
    for (int c = threadIdx.x; c < d; c += ROW_THREADS) {
        float w = bf16_value(((const uint16_t *)op.norm)[c]);
        u[c] = op.inverse ? u[c] * w : round_bf16(w * (u[c] * inverse));
        if (op.normed.codes)
            act_store(op.normed, row, c, u[c]);
    }
    if (op.inverse && threadIdx.x == 0)
        op.inverse[row] = inverse;
    __syncthreads();
    if (op.quantized.codes)
        quantize_row(op.quantized, row, 0, u, d, op.inverse ? inverse : 1.0f);
}

qr_status cuda_collapse(struct backend *b, const struct op_collapse *op, qr_error *err)
{
    int32_t d = op->x.hidden;
    if (op->x.count < 1 || (op->pairwise && op->x.count != 4))
        return qr_fail(err, QR_BAD_ARGUMENT, "collapse: %d streams%s", op->x.count, op->pairwise ? ", wanted 4" : "");
    if (op->inverse && op->quantized.codes && (op->quantized.format != ACT_I8 || op->quantized.block != d))
        return qr_fail(err, QR_BAD_ARGUMENT, "collapse: a deferred norm quantizes to int8 by row only");
    bool wide = op->x.count == 4 && d % 4 == 0 && is_wide(op->x.data);
    LAUNCH("collapse", collapse_kernel, op->rows.count, ROW_THREADS, (size_t)d * 4, *op, wide);
    return QR_OK;
}

/* x[k] <- post_k y + sum_j comb[j][k] x[j]: the sum over j first, in order, then the product is added. */
static __global__ void expand_kernel(struct op_expand op)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.y);
    int m = op.x.count, d = op.x.hidden, c = blockIdx.x * THREADS + threadIdx.x;
    const float *post = op.post + row * m, *comb = op.comb + row * m * m;
    float x[MAX_STREAMS];

    if (c >= d)
        return;
    float y = bf16_value(((const uint16_t *)op.y)[row * d + c]);
#pragma unroll
    for (int j = 0; j < MAX_STREAMS; j++)
        if (j < m)
            x[j] = stream_value(op.x, (row * m + j) * d + c);
    for (int k = 0; k < m; k++) {
        float sum = comb[k] * x[0];
#pragma unroll
        for (int j = 1; j < MAX_STREAMS; j++)
            if (j < m)
                sum += comb[j * m + k] * x[j];
        stream_store(op.x, (row * m + k) * d + c, post[k] * y + sum);
    }
}

qr_status cuda_expand(struct backend *b, const struct op_expand *op, qr_error *err)
{
    if (op->x.count < 1 || op->x.count > MAX_STREAMS)
        return qr_fail(err, QR_BAD_ARGUMENT, "expand: %d streams, wanted 1 to %d", op->x.count, MAX_STREAMS);
    LAUNCH("expand", expand_kernel, dim3((op->x.hidden + THREADS - 1) / THREADS, op->rows.count), THREADS, 0, *op);
    return QR_OK;
}

static __global__ void mean_kernel(struct op_stream_mean op)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x);
    int m = op.x.count, d = op.x.hidden;
    for (int c = threadIdx.x; c < d; c += THREADS) {
        float sum = stream_value(op.x, row * m * d + c);
        for (int j = 1; j < m; j++)
            sum += stream_value(op.x, (row * m + j) * d + c);
        act_store(op.out, row, op.column + c, sum / (float)m);
    }
}

qr_status cuda_stream_mean(struct backend *b, const struct op_stream_mean *op, qr_error *err)
{
    if (op->column < 0 || op->column + op->x.hidden > op->out.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "stream_mean: columns %d to %d of a row of %d", op->column,
                       op->column + op->x.hidden, op->out.cols);
    LAUNCH("stream_mean", mean_kernel, op->rows.count, THREADS, 0, *op);
    return QR_OK;
}

static __global__ void stream_add_kernel(struct op_stream_add op)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x);
    int m = op.out.count, d = op.out.hidden;
    for (int c = threadIdx.x; c < d; c += THREADS)
        for (int j = 0; j < m; j++)
            stream_store(op.out, (row * m + j) * d + c,
                         act_value(op.e, row, c) + act_value(op.h, row, (int64_t)j * d + c));
}

qr_status cuda_stream_add(struct backend *b, const struct op_stream_add *op, qr_error *err)
{
    if (!act_is_float(op->e) || !act_is_float(op->h) || op->e.cols != op->out.hidden ||
        op->h.cols != op->out.count * op->out.hidden)
        return qr_fail(err, QR_BAD_ARGUMENT, "stream_add: rows of %d and %d columns, wanted %d and %d", op->e.cols,
                       op->h.cols, op->out.hidden, op->out.count * op->out.hidden);
    LAUNCH("stream_add", stream_add_kernel, op->rows.count, THREADS, 0, *op);
    return QR_OK;
}

/* ---- Engram: gate and injection (v41-model.md 8.7) ---- */

#define ENGRAM_EPS 1e-20f

/* One block for each stream of a row. rho = rsqrt(mean x^2 + eps) rsqrt(mean k^2 + eps); d = (sum x g k) rho D^-0.5
 * with g = q_weight k_weight; gate = sigmoid(copysign(sqrt(max(|d|, 1e-6)), d)). */
static __global__ void engram_kernel(struct op_engram op, struct step step)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.y);
    int j = blockIdx.x, m = op.x.count, d = op.x.hidden;
    const uint16_t *key = (const uint16_t *)op.kv + (row * (m + 1) + j) * d;
    const uint16_t *value = (const uint16_t *)op.kv + (row * (m + 1) + m) * d;
    int64_t first = (row * m + j) * d;
    float gate = 0;

    if (!(step.image_mask && step.image_mask[row])) {
        double dot = 0, xx = 0, kk = 0;
        for (int c = threadIdx.x; c < d; c += THREADS) {
            float g = bf16_value(((const uint16_t *)op.q_weight)[(int64_t)j * d + c]) *
                      bf16_value(((const uint16_t *)op.k_weight)[(int64_t)j * d + c]);
            float x = stream_value(op.x, first + c), k = bf16_value(key[c]);
            dot += (double)x * (double)g * (double)k;
            xx += (double)x * x;
            kk += (double)k * k;
        }
        dot = block_sum(dot);
        float rho = rsqrt_of((float)(block_sum(xx) / (double)d) + ENGRAM_EPS) *
                    rsqrt_of((float)(block_sum(kk) / (double)d) + ENGRAM_EPS);
        float s = (float)dot * rho * (float)(1.0 / sqrt((double)d));
        gate = sigmoid_of(copysignf(sqrtf(fmaxf(fabsf(s), 1e-6f)), s));
        for (int c = threadIdx.x; c < d; c += THREADS)
            stream_store(op.x, first + c, stream_value(op.x, first + c) + gate * bf16_value(value[c]));
    }
    if (op.gate_out && threadIdx.x == 0)
        op.gate_out[row * m + j] = gate;
}

qr_status cuda_engram(struct backend *b, const struct op_engram *op, qr_error *err)
{
    LAUNCH("engram", engram_kernel, dim3(op->x.count, op->rows.count), THREADS, 0, *op, *op->step);
    return QR_OK;
}
