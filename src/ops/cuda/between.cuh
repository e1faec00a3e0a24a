/* between.cuh: what the kernels between two sub-blocks share: sums, mixes and a row's next input, for four streams. */
#ifndef QR_OPS_CUDA_BETWEEN_CUH
#define QR_OPS_CUDA_BETWEEN_CUH

#include "ops/cuda/product.cuh"

enum { MOST_ACTIVE = 64 };

/* ---- the experts' sum ---- */

/* The order in which routed outputs are added: ascending expert id (equal ids by place); w8a8: k order. */
static __device__ void order_experts(const struct op_combine &op, int64_t row, int *order, int thread, int threads)
{
    const int32_t *idx = op.idx + row * op.active;
    for (int k = thread; k < op.active; k += threads) {
        int at = 0;
        for (int other = 0; other < op.active; other++)
            at += idx[other] < idx[k] || (idx[other] == idx[k] && other < k);
        order[op.w8a8 ? k : at] = k;
    }
}

/* Column c of y: routed outputs in their order, then the shared one; w8a8: shared first. */
static __device__ uint16_t combined(const struct op_combine &op, int64_t row, int64_t c, const int *order)
{
    const uint16_t *routed = (const uint16_t *)op.routed + row * op.active * op.hidden + c;
    float shared = bf16_value(((const uint16_t *)op.shared)[row * op.hidden + c]);
    float y = op.w8a8 ? shared : 0.0f;
#pragma unroll 8
    for (int n = 0; n < op.active; n++)
        y += bf16_value(routed[(int64_t)order[n] * op.hidden]);
    return bf16_bits(op.w8a8 ? y : y + shared);
}

/* ---- mixes ---- */

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
#pragma unroll 1
    for (int round = 0; round < iterations; round++) {
        if (round > 0)
            c /= (((0.0f + of_row(c, 0)) + of_row(c, 1)) + of_row(c, 2) + of_row(c, 3)) + eps;
        c /= (((0.0f + of_column(c, 0)) + of_column(c, 1)) + of_column(c, 2) + of_column(c, 3)) + eps;
    }
    return c;
}

/* A row's post and comb from its mixes, by a warp, for four streams: the scaling of comb is its work together. */
static __device__ void finish_comb_4(const struct op_mhc_mix &op, int64_t row, const float *mix)
{
    const int i = lane_of() % 16;
    float c = sinkhorn_4(mix[8 + i] * op.scale[2] + op.base[8 + i], op.hc_eps, op.iterations);
    if (lane_of() < 16)
        op.comb[row * 16 + i] = c;
    if (lane_of() < 4)
        op.post[row * 4 + i] = 2.0f * sigmoid_of(mix[4 + i] * op.scale[1] + op.base[4 + i]);
}

static __device__ float pre_of(const struct op_mhc_mix &op, const float *mix, int j)
{
    return sigmoid_of(mix[j] * op.scale[0] + op.base[j]) + op.hc_eps;
}

/* The sum over the streams adds its products without a rounding of their own, as the reference does. */
static __device__ inline float plus_product(float sum, float a, float b)
{
    return (float)((double)a * (double)b + (double)sum);
}

/* ---- a row by a block of threads ---- */

/* A block of threads takes PART columns of the four streams of a row, a thread for each value, and one warp more. The
 * last block of a row to come so far (`arrived` counts, and is zero again afterwards) has the whole row's sums: its
 * workers make the next input while the warp scales comb. */
enum { FOUR = 4, PART = 128, WORKERS = FOUR * PART, PASS_THREADS = WORKERS + WARP, MOST_DOTS = (2 + FOUR) * FOUR + 1 };
enum { WORKER_WARPS = WORKERS / WARP, DOTS_EACH = (MOST_DOTS + WORKER_WARPS - 1) / WORKER_WARPS };

/* Which are there; those that are have the same streams and rows. */
struct between {
    struct op_combine combine;
    struct op_expand expand;
    struct op_mhc_mix mix;
    struct op_collapse collapse;
    bool has_combine, has_expand, has_mix, has_collapse;
    struct streams x;
    struct row_list rows;
    int32_t offset, outputs; /* outputs: of the mix */
    const float *fn;         /* [outputs][M * D], f32 */
    double *parts;           /* [rows][D / PART][outputs + 1] */
    uint32_t *arrived;       /* [rows] */
};

static __device__ void workers_sync() { meet<1, WORKERS>(); }

static __device__ float4 bf16_four(uint2 v)
{
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000), __uint_as_float(v.y << 16),
                       __uint_as_float(v.y & 0xFFFF0000));
}

/* Four values that other blocks of this kernel may have written. */
template <bool BF16> static __device__ float4 fresh_four(const struct streams &x, int64_t i)
{
    if (!BF16)
        return __ldcg((const float4 *)(const void *)((const float *)x.data + i));
    return bf16_four(__ldcg((const uint2 *)(const void *)((const uint16_t *)x.data + i)));
}

static __device__ void store_four(const struct activation &a, int64_t row, int c, float4 v)
{
    int64_t i = row * a.cols + c;
    if (a.format == ACT_F32)
        *(float4 *)(void *)((float *)a.codes + i) = v;
    else
        *(uint2 *)(void *)((uint16_t *)a.codes + i) =
            make_uint2(bf16_bits(v.x) | (uint32_t)bf16_bits(v.y) << 16, bf16_bits(v.z) | (uint32_t)bf16_bits(v.w) << 16);
}

/* Q8 in blocks of 32, 64 or 128 columns: those of 8, 16 or 32 lanes. */
static __device__ void quantize_four(const struct activation &a, int64_t row, int c, float4 v)
{
    float largest = larger_magnitude(larger_magnitude(larger_magnitude(larger_magnitude(0, v.x), v.y), v.z), v.w);
    for (int o = 1; o < a.block / 4; o *= 2)
        largest = larger_magnitude(largest, __shfl_xor_sync(ALL_LANES, largest, o));
    const uint8_t scale = q8_scale(largest);
    const float s = e8m0_inverse(scale);
    const int64_t i = row * a.cols + c;
    *(uint32_t *)(void *)((uint8_t *)a.codes + i) = e4m3_code(v.x * s) | (uint32_t)e4m3_code(v.y * s) << 8 |
                                                    (uint32_t)e4m3_code(v.z * s) << 16 |
                                                    (uint32_t)e4m3_code(v.w * s) << 24;
    if (c % a.block == 0)
        ((uint8_t *)a.scales)[i / a.block] = scale;
}

/* Other quantizers: not often, so not in the way. */
static __device__ __noinline__ void quantize_others(const struct activation &a, int64_t row, const float *u, int d,
                                                    float factor, int worker)
{
    workers_sync();
    quantize_blocks(a, row, 0, u, d, factor, worker / WARP, WORKER_WARPS);
}

/* op_collapse of a row, by the workers. u: room for the row, and for its weight behind it; part: for a sum of each
 * warp. */
template <bool BF16>
static __device__ void collapse_row(const struct op_collapse &op, int64_t row, const float *pre, float *u, double *part,
                                    int worker)
{
    const int d = op.x.hidden;
    const int64_t first = row * FOUR * d;
    const float pre_0 = pre[0], pre_1 = pre[1], pre_2 = pre[2], pre_3 = pre[3];
    uint2 *weight = (uint2 *)(void *)(u + d);
    double squares = 0;
    auto sum = [&](float w, float x, float y, float z) {
        float p = pre_0 * w, q = pre_1 * x, r = pre_2 * y, s = pre_3 * z;
        float v = round_bf16(op.pairwise ? (p + q) + (r + s) : ((p + q) + r) + s);
        squares += (double)v * v;
        return v;
    };
#pragma unroll 1
    for (int c = 4 * worker; c < d; c += 4 * WORKERS) {
        float4 a = fresh_four<BF16>(op.x, first + c), b = fresh_four<BF16>(op.x, first + d + c),
               e = fresh_four<BF16>(op.x, first + 2 * (int64_t)d + c), f = fresh_four<BF16>(op.x, first + 3 * (int64_t)d + c);
        if (op.norm)
            weight[c / 4] = __ldg((const uint2 *)(const void *)((const uint16_t *)op.norm + c));
        float4 v = make_float4(sum(a.x, b.x, e.x, f.x), sum(a.y, b.y, e.y, f.y), sum(a.z, b.z, e.z, f.z),
                               sum(a.w, b.w, e.w, f.w));
        *(float4 *)(void *)(u + c) = v;
        if (op.collapsed.codes)
            store_four(op.collapsed, row, c, v);
    }
    if (!op.norm)
        return;
    squares = warp_sum(squares);
    if (lane_of() == 0)
        part[worker / WARP] = squares;
    workers_sync();
    squares = 0;
#pragma unroll 4
    for (int w = 0; w < WORKER_WARPS; w++)
        squares += part[w];
    const float inverse = rsqrt_of((float)(squares / (double)d) + op.norm_eps);
    auto normed = [&](float w, float v) { return op.inverse ? v * w : round_bf16(w * (v * inverse)); };
    const bool by_lanes = op.quantized.format == ACT_Q8 &&
                          (op.quantized.block == 32 || op.quantized.block == 64 || op.quantized.block == 128);
#pragma unroll 1
    for (int c = 4 * worker; c < d; c += 4 * WORKERS) { /* a thread's own columns again */
        const float4 w = bf16_four(weight[c / 4]), own = *(const float4 *)(const void *)(u + c);
        float4 v = make_float4(normed(w.x, own.x), normed(w.y, own.y), normed(w.z, own.z), normed(w.w, own.w));
        if (op.normed.codes)
            store_four(op.normed, row, c, v);
        if (op.quantized.codes && by_lanes)
            quantize_four(op.quantized, row, c, v);
        else
            *(float4 *)(void *)(u + c) = v;
    }
    if (op.inverse && worker == 0)
        op.inverse[row] = inverse;
    if (op.quantized.codes && !by_lanes)
        quantize_others(op.quantized, row, u, d, op.inverse ? inverse : 1.0f, worker);
}

/* What is to be done with row `number` of the list when all its `parts` parts are there. */
template <bool BF16>
static __device__ inline void finish_row(const struct between &a, int64_t row, int64_t number, int parts, float *u, float *mix,
                                         float *pre, double *part)
{
    const int worker = (int)threadIdx.x - WARP, warp = worker / WARP, lane = lane_of(), dots = a.outputs + 1;
    const int64_t all = (int64_t)FOUR * a.x.hidden;
    if (a.has_mix && worker >= 0) {
        const double *from = a.parts + (int64_t)number * parts * dots;
        for (int n = warp; n < dots; n += WORKER_WARPS) {
            double sum = 0;
            for (int p = lane; p < parts; p += WARP)
                sum += __ldcg(from + (int64_t)p * dots + n);
            sum = warp_sum(sum);
            if (lane == 0)
                mix[n] = n < a.outputs ? (float)sum : (float)(sum / (double)all);
        }
    }
    __syncthreads();
    if (a.has_mix) {
        float inverse = rsqrt_of(mix[a.outputs] + a.mix.norm_eps);
        __syncthreads();
        if (worker >= 0 && worker < a.outputs)
            mix[worker] *= inverse;
        __syncthreads();
        if (worker >= 0 && worker < FOUR) {
            pre[worker] = pre_of(a.mix, mix, worker);
            a.mix.pre[row * FOUR + worker] = pre[worker];
        }
    }
    if (worker < 0) {
        if (a.has_mix && !a.mix.head_only)
            finish_comb_4(a.mix, row, mix);
        return;
    }
    if (!a.has_collapse)
        return;
    if (!a.has_mix || a.collapse.pre != a.mix.pre) {
        if (worker < FOUR)
            pre[worker] = a.collapse.pre[row * FOUR + worker];
    }
    workers_sync();
    collapse_row<BF16>(a.collapse, row, pre, u, part, worker);
}

/* Many rows: the same bits as the kernel for few. */
bool between_is_many(const struct between *a);
qr_status between_many(struct backend *b, const struct between *a, qr_error *err);

#endif
