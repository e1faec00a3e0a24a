/* device.cuh: what kernels share: numbers, rows and their addresses, sums of a block of threads. The twins of number/
 * and of ops/cpu/reference for the device; a test holds them together. */
#ifndef QR_OPS_CUDA_DEVICE_CUH
#define QR_OPS_CUDA_DEVICE_CUH

#include "ops/cuda/cuda.h"
#include "ops/cuda/ptx.cuh"

static __device__ inline void report_trouble(int32_t *where, enum trouble code, int32_t number)
{
    *where = (int32_t)((uint32_t)number << TROUBLE_BITS | (uint32_t)code);
}

/* ---- numbers ---- */

static __device__ inline float bf16_value(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }

static __device__ inline uint16_t bf16_bits(float x)
{
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static __device__ inline float round_bf16(float x) { return bf16_value(bf16_bits(x)); }

static __device__ inline float e4m3_value(uint32_t code)
{
    if ((code & 0x7F) == 0x7F)
        return __uint_as_float(0x7FC00000);
    float magnitude = __uint_as_float((code & 0x7F) << 20) * 0x1p120f;
    return code & 0x80 ? -magnitude : magnitude;
}

static __device__ inline uint8_t e4m3_code(float x)
{
    uint32_t bits = __float_as_uint(x), magnitude = bits & 0x7FFFFFFF, sign = bits >> 24 & 0x80;
    if (magnitude > 0x7F800000)
        return (uint8_t)(sign | 0x7F);
    if (magnitude >= 0x43E00000) /* 448 */
        return (uint8_t)(sign | 0x7E);
    if (magnitude < 0x3C800000) { /* below 2^-6 the sum's last bit is 2^-9 */
        float sum = __uint_as_float(magnitude) + 0x1p14f;
        return (uint8_t)(sign | (__float_as_uint(sum) - 0x46800000));
    }
    magnitude += 0x7FFFF + (magnitude >> 20 & 1);
    return (uint8_t)(sign | ((magnitude >> 20) - ((127 - 7) << 3)));
}

static __device__ inline float e2m1_value(uint32_t code)
{
    float magnitude = __uint_as_float((code & 7) << 22) * 0x1p126f;
    return code & 8 ? -magnitude : magnitude;
}

static __device__ inline uint8_t e2m1_code(float x)
{
    uint32_t bits = __float_as_uint(x);
    float a = __uint_as_float(bits & 0x7FFFFFFF);
    int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)((bits >> 28 & 8) | (uint32_t)code);
}

static __device__ inline float e8m0_value(uint32_t byte)
{
    if (byte == 0)
        return 0x1p-127f;
    return byte == 255 ? __uint_as_float(0x7FC00000) : __uint_as_float(byte << 23);
}

/* 1 / s of a scale byte: x / s and x * this are the same number, rounded once. */
static __device__ inline float e8m0_inverse(uint32_t byte)
{
    return byte == 255 ? __uint_as_float(0x7FC00000) : e8m0_value(254 - byte);
}

/* The scale byte 2^ceil(log2 t) of a positive normal t. */
static __device__ inline uint8_t e8m0_up(float t)
{
    uint32_t bits = __float_as_uint(t);
    int byte = (int)(bits >> 23 & 255) + ((bits & 0x7FFFFF) != 0);
    return (uint8_t)(byte > 255 ? 255 : byte);
}

/* The larger of `largest` and |x|; a NaN is larger than every number, so that it is not lost on the way to a scale. */
static __device__ inline float larger_magnitude(float largest, float x)
{
    return __uint_as_float(max(__float_as_uint(largest), __float_as_uint(x) & 0x7FFFFFFF));
}
/* A NaN stays one. */
static __device__ inline float at_least(float largest, float floor) { return largest < floor ? floor : largest; }

static __device__ inline uint8_t q8_scale(float largest)
{
    return e8m0_up(at_least(largest, 1e-4f) * 0x1.24924ap-9f); /* 1 / 448 as the reference holds it */
}

static __device__ inline uint8_t q4_e8m0_scale(float largest)
{
    return e8m0_up(at_least(largest, 6 * 0x1p-126f) * 0x1.555556p-3f); /* 1 / 6 */
}

static __device__ inline uint8_t q4_e4m3_scale(float largest) { return e4m3_code(at_least(largest, 6 * 0x1p-9f) / 6.0f); }

static __device__ inline float int8_multiplier(float largest) { return 127.0f / at_least(largest, 1e-4f); }

static __device__ inline int8_t int8_code(float product)
{
    float q = rintf(product);
    return (int8_t)(q > 127.0f ? 127.0f : q > -127.0f ? q : -127.0f); /* a NaN, whose scale is one too, is any code */
}

/* exp(x) rounded once, as the host's library gives it but for rare last bits. */
static __device__ inline float exp_of(float x) { return (float)exp((double)x); }
/* 1 / (1 + exp(-x)), rounded once. */
static __device__ inline float sigmoid_of(float x) { return (float)(1.0 / (1.0 + exp(-(double)x))); }
static __device__ inline float rsqrt_of(float x) { return 1.0f / sqrtf(x); }

/* ---- rows ---- */

static __device__ inline int64_t row_at(const struct row_list &rows, int64_t i)
{
    return rows.index ? rows.index[i] : i;
}

static __host__ __device__ inline bool act_is_float(const struct activation &a)
{
    return a.format == ACT_BF16 || a.format == ACT_F32;
}

static __device__ inline float fresh_bf16(const uint16_t *p) { return bf16_value(fresh(p)); }

static __device__ inline float act_value(const struct activation &a, int64_t row, int64_t column)
{
    int64_t i = row * a.cols + column;
    return a.format == ACT_BF16 ? fresh_bf16((const uint16_t *)a.codes + i) : fresh((const float *)a.codes + i);
}

/* Rounds to the format. */
static __device__ inline void act_store(const struct activation &a, int64_t row, int64_t column, float x)
{
    int64_t i = row * a.cols + column;
    if (a.format == ACT_BF16)
        ((uint16_t *)a.codes)[i] = bf16_bits(x);
    else
        ((float *)a.codes)[i] = x;
}

static __device__ inline float stream_value(const struct streams &x, int64_t i)
{
    return x.format == ACT_BF16 ? bf16_value(((const uint16_t *)x.data)[i]) : ((const float *)x.data)[i];
}

static __device__ inline void stream_store(const struct streams &x, int64_t i, float value)
{
    if (x.format == ACT_BF16)
        ((uint16_t *)x.data)[i] = bf16_bits(value);
    else
        ((float *)x.data)[i] = value;
}

/* Four values from i on; data on 16 bytes (is_wide), i a multiple of 4. */
static __device__ inline float4 load_four(bool bf16, const void *data, int64_t i)
{
    if (!bf16)
        return *(const float4 *)(const void *)((const float *)data + i);
    uint2 v = *(const uint2 *)(const void *)((const uint16_t *)data + i);
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xFFFF0000), __uint_as_float(v.y << 16),
                       __uint_as_float(v.y & 0xFFFF0000));
}

/* Rounded to bf16; out on 8 bytes. */
static __device__ inline void store_4(uint16_t *out, float4 x)
{
    *(uint2 *)(void *)out =
        make_uint2(bf16_bits(x.x) | (uint32_t)bf16_bits(x.y) << 16, bf16_bits(x.z) | (uint32_t)bf16_bits(x.w) << 16);
}

static inline bool is_wide(const void *data) { return (uintptr_t)data % 16 == 0; }

/* ---- a block of threads ---- */

static __device__ inline int lane_of() { return threadIdx.x % WARP; }
static __device__ inline int warp_of() { return threadIdx.x / WARP; }
static __device__ inline int warps_of() { return blockDim.x / WARP; }

static __device__ inline double warp_sum(double x)
{
    for (int o = WARP / 2; o > 0; o /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, o);
    return x;
}

/* The same of N numbers, a power of two: number n in lanes n * WARP / N and behind. Each is added up as warp_sum does. */
template <int N, int FROM = WARP / 2> static __device__ inline double warp_sums(double (&x)[N])
{
    enum { LEFT = FROM * N / WARP }; /* numbers in a lane behind this step; 0: one, in several lanes */
    const bool upper = threadIdx.x & FROM;
    if constexpr (LEFT == 0)
        x[0] += __shfl_xor_sync(ALL_LANES, x[0], FROM);
#pragma unroll
    for (int i = 0; i < LEFT; i++) {
        const double mine = upper ? x[i + LEFT] : x[i], other = upper ? x[i] : x[i + LEFT];
        x[i] = mine + __shfl_xor_sync(ALL_LANES, other, FROM);
    }
    if constexpr (FROM > 1)
        return warp_sums<N, FROM / 2>(x);
    return x[0];
}

static __device__ inline float warp_max(float x)
{
    for (int o = WARP / 2; o > 0; o /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, o));
    return x;
}

static __device__ inline float warp_largest(float magnitude)
{
    for (int o = WARP / 2; o > 0; o /= 2)
        magnitude = larger_magnitude(magnitude, __shfl_xor_sync(ALL_LANES, magnitude, o));
    return magnitude;
}

/* The sum over the block's threads, the same in every thread: a tree in each warp, then the warps in order. */
static __device__ inline double block_sum(double x)
{
    __shared__ double part[WARP];
    x = warp_sum(x);
    __syncthreads();
    if (lane_of() == 0)
        part[warp_of()] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < warps_of(); w++)
        sum += part[w];
    return sum;
}

/* mean x^2 of n values in shared memory, rounded once. */
static __device__ inline float block_mean_square(const float *x, int n)
{
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += (double)x[i] * x[i];
    return (float)(block_sum(sum) / (double)n);
}

/* The Q8 or I8 form of n values in shared memory, into columns [column, column + n) of a row: blocks of values first,
 * first + stride, ... by this warp. `factor` multiplies the scales of I8. The values must stand. */
static __device__ inline void quantize_blocks(const struct activation &a, int64_t row, int64_t column, const float *x,
                                              int n, float factor, int first_block, int stride)
{
    int64_t first = row * a.cols + column;
    for (int b = first_block; b < n / a.block; b += stride) {
        const float *v = x + (int64_t)b * a.block;
        int64_t at = first + (int64_t)b * a.block;
        float largest = 0;
        for (int i = lane_of(); i < a.block; i += WARP)
            largest = larger_magnitude(largest, v[i]);
        largest = warp_largest(largest);
        if (a.format == ACT_Q8) {
            uint8_t scale = q8_scale(largest);
            float inverse = e8m0_inverse(scale);
            for (int i = lane_of(); i < a.block; i += WARP)
                ((uint8_t *)a.codes)[at + i] = e4m3_code(v[i] * inverse);
            if (lane_of() == 0)
                ((uint8_t *)a.scales)[at / a.block] = scale;
        } else {
            float m = int8_multiplier(largest);
            for (int i = lane_of(); i < a.block; i += WARP)
                ((int8_t *)a.codes)[at + i] = int8_code(v[i] * m);
            if (lane_of() == 0)
                ((float *)a.scales)[at / a.block] = 1.0f / m * factor;
        }
    }
}

/* All of them, by the block's warps. */
static __device__ inline void quantize_row(const struct activation &a, int64_t row, int64_t column, const float *x,
                                           int n, float factor)
{
    quantize_blocks(a, row, column, x, n, factor, warp_of(), warps_of());
}

/* ---- rotation ---- */

enum { MAX_ROPE_PAIRS = 128 };

/* A rope_spec with its frequencies inside, as kernels take it. */
struct rope_view {
    int32_t dim;
    bool bf16_tables;
    const float *turns;
    float frequency[MAX_ROPE_PAIRS];
};

/* False when there are too many pairs. */
static inline bool rope_view_of(const struct rope_spec *rope, struct rope_view *out)
{
    if (rope->dim < 0 || rope->dim % 2 || rope->dim > 2 * MAX_ROPE_PAIRS)
        return false;
    out->dim = rope->dim;
    out->bf16_tables = rope->bf16_tables;
    out->turns = rope->turns;
    for (int i = 0; !rope->turns && i < rope->dim / 2; i++)
        out->frequency[i] = rope->frequencies[i];
    return true;
}

/* Cosine and sine by which pair i of a row turns. */
static __device__ inline float2 rope_turn(const struct rope_view &rope, int64_t row, int32_t position, int i)
{
    if (rope.turns)
        return make_float2(rope.turns[row * rope.dim + i], rope.turns[row * rope.dim + rope.dim / 2 + i]);
    float angle = (float)position * rope.frequency[i];
    float c = (float)cos((double)angle), s = (float)sin((double)angle);
    return rope.bf16_tables ? make_float2(round_bf16(c), round_bf16(s)) : make_float2(c, s);
}

/* Fills table[0 .. dim/2) with cosines and the rest with sines, by the whole block; synchronizes. */
static __device__ inline void rope_table(const struct rope_view &rope, int64_t row, int32_t position, float *table)
{
    int pairs = rope.dim / 2;
    for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
        float2 turn = rope_turn(rope, row, position, i);
        table[i] = turn.x;
        table[pairs + i] = turn.y;
    }
    __syncthreads();
}

/* Turns pair i of the trailing channels of x (n of them, shared memory); sign -1 turns back. */
static __device__ inline void rope_turn_pair(const struct rope_view &rope, const float *table, float *x, int n, int i,
                                             float sign)
{
    float *pair = x + n - rope.dim + 2 * i;
    float c = table[i], s = sign * table[rope.dim / 2 + i], even = pair[0], odd = pair[1];
    pair[0] = even * c - odd * s;
    pair[1] = even * s + odd * c;
}

/* ---- cache rows ---- */

struct row_address {
    uint8_t *values, *scales;
};

static __device__ inline bool plane_find(const struct row_plane &plane, const struct step &step, int32_t request,
                                         int64_t g, struct row_address *out)
{
    int64_t index = g / plane.rows_per_block;
    if (g < 0 || index >= step.block_stride)
        return false;
    int64_t block = step.block_table[(int64_t)request * step.block_stride + index];
    if (block < 0)
        return false;
    int32_t row = (int32_t)(g % plane.rows_per_block), tile = row / plane.tile_rows, in_tile = row % plane.tile_rows;
    out->values = plane.values + block * plane.value_block_stride + tile * plane.value_tile_stride +
                  in_tile * plane.value_row_stride;
    out->scales = plane.scales ? plane.scales + block * plane.scale_block_stride + tile * plane.scale_tile_stride +
                                     in_tile * plane.scale_row_stride
                               : NULL;
    return true;
}

static __device__ inline bool ring_find(const struct ring_plane &ring, const struct step &step, int32_t request,
                                        int64_t p, struct row_address *out)
{
    int64_t slot = step.slot[request];
    if (slot < 0 || p < 0)
        return false;
    out->values = ring.values + slot * ring.slot_stride + p % ring.rows * ring.value_row_stride;
    out->scales = ring.scales ? ring.scales + slot * ring.slot_stride + p % ring.rows * ring.scale_row_stride : NULL;
    return true;
}

static __device__ inline float load_f32(const uint8_t *p)
{
    return __uint_as_float((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

static __device__ inline void store_f32(uint8_t *p, float x)
{
    uint32_t bits = __float_as_uint(x);
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(bits >> 8 * i);
}

/* Value i of a stored row; ROW_INDEX_INT8 gives its code. Exact in bf16 but for ROW_INDEX_FP8 of another grid. */
static __device__ inline float container_value(enum row_format format, const struct row_address &at, int i)
{
    switch (format) {
    case ROW_BF16:
        return bf16_value(((const uint16_t *)(const void *)at.values)[i]);
    case ROW_FP4_E4M3:
        return e2m1_value(at.values[i / 2] >> (i % 2 * 4) & 15) * e4m3_value(at.scales[i / 16]);
    case ROW_FP8_E8M0:
        return e4m3_value(at.values[i]) * e8m0_value(at.scales[i / 32]);
    case ROW_INDEX_FP8:
        return e4m3_value(at.values[i]) * load_f32(at.scales);
    case ROW_INDEX_FP4:
        return e2m1_value(at.values[i / 2] >> (i % 2 * 4) & 15) * e8m0_value(at.scales[i / 32]);
    case ROW_INDEX_INT8:
        return (float)(int8_t)at.values[i];
    }
    return 0;
}

/* ---- starting kernels ---- */

/* Lets a kernel have `bytes` of dynamic shared memory; asked of the driver once, for all it can have. */
static inline cudaError_t allow_shared(struct cuda_backend *cuda, const void *kernel, size_t bytes)
{
    int i = 0;
    if (bytes <= 32 << 10) /* with what a kernel has of its own it stays below what every kernel may have */
        return cudaSuccess;
    while (i < MOST_ALLOWED && cuda->allowed[i] && cuda->allowed[i] != kernel)
        i++;
    if (i < MOST_ALLOWED && cuda->allowed[i] == kernel)
        return bytes <= cuda->most_shared ? cudaSuccess : cudaErrorInvalidValue;
    cudaFuncAttributes own;
    cudaError_t status = cudaFuncGetAttributes(&own, kernel);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)(cuda->most_shared - own.sharedSizeBytes));
    if (status == cudaSuccess && i < MOST_ALLOWED)
        cuda->allowed[i] = kernel;
    return status;
}

/* LAUNCH(name, kernel, grid, threads, shared bytes, arguments...): an empty grid is no work. Returns on failure. */
#define LAUNCH(name, kernel, grid, threads, shared, ...)                                                      \
    do {                                                                                                      \
        dim3 launch_grid_(grid);                                                                              \
        if (launch_grid_.x == 0 || launch_grid_.y == 0)                                                       \
            break;                                                                                            \
        qr_status launch_status_ = cuda_enter(cuda_of(b), err);                                               \
        if (launch_status_ == QR_OK)                                                                          \
            launch_status_ = cuda_check(allow_shared(cuda_of(b), (const void *)(kernel), shared), name, err); \
        if (launch_status_ == QR_OK) {                                                                        \
            cudaLaunchAttribute attributes_[2] = {};                                                          \
            cudaLaunchConfig_t launch_ = {};                                                                  \
            attributes_[0].id = cudaLaunchAttributePriority;                                                  \
            attributes_[0].val.priority = cuda_of(b)->priority;                                               \
            attributes_[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;                           \
            attributes_[1].val.programmaticStreamSerializationAllowed = 1;                                    \
            launch_.gridDim = launch_grid_;                                                                   \
            launch_.blockDim = dim3(threads);                                                                 \
            launch_.dynamicSmemBytes = shared;                                                                \
            launch_.stream = cuda_of(b)->stream;                                                              \
            launch_.attrs = attributes_;                                                                      \
            launch_.numAttrs = cuda_of(b)->starts_early ? 2 : 1;                                              \
            launch_status_ = cuda_check(cudaLaunchKernelEx(&launch_, kernel, __VA_ARGS__), name, err);        \
        }                                                                                                     \
        if (launch_status_ != QR_OK)                                                                          \
            return launch_status_;                                                                            \
    } while (0)

#endif
