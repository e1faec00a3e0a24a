/* rowgrid.cuh: a vector of a cache row in shared memory: its transform, its grid, its bytes (runtime.md 2.1). */
#ifndef QR_OPS_CUDA_ROWGRID_CUH
#define QR_OPS_CUDA_ROWGRID_CUH

#include "ops/cuda/device.cuh"

/* Where a vector's bytes go; values NULL: nowhere. */
struct vector_target {
    uint8_t *values, *scales;
};

/* x <- H x, H the Sylvester matrix of n = 2^m rows times n^-0.5, by `threads` threads of which this is `thread`, which
 * `sync` holds together. bf16_matrix: entries +-bf16(n^-0.5). `sums`: room for n. */
template <typename Sync>
static __device__ inline void hadamard(float *x, int n, bool bf16_matrix, double *sums, int thread, int threads,
                                       Sync sync)
{
    float entry = (float)(1.0 / sqrt((double)n));
    if (bf16_matrix)
        entry = round_bf16(entry);
    for (int i = thread; i < n; i += threads)
        sums[i] = x[i];
    sync();
    for (int half = 1; half < n; half *= 2) {
        for (int p = thread; p < n / 2; p += threads) {
            int i = p / half * 2 * half + p % half;
            double a = sums[i], b = sums[i + half];
            sums[i] = a + b;
            sums[i + half] = a - b;
        }
        sync();
    }
    for (int i = thread; i < n; i += threads)
        x[i] = bf16_matrix ? (float)(sums[i] * (double)entry) : (float)sums[i] * entry;
    sync();
}

/* One warp: puts a block of values (bf16 values, shared memory) on a grid of E2M1 or E4M3 codes with the given scale,
 * and its codes where wanted. */
static __device__ inline void round_fp8_block(float *x, int n, float s, uint8_t *codes)
{
    for (int i = lane_of(); i < n; i += WARP) {
        uint8_t code = e4m3_code(x[i] / s);
        x[i] = round_bf16(e4m3_value(code) * s);
        if (codes)
            codes[i] = code;
    }
}

static __device__ inline void round_fp4_block(float *x, int n, float s, uint8_t *codes)
{
    for (int i = 2 * lane_of(); i < n; i += 2 * WARP) {
        uint8_t even = e2m1_code(x[i] / s), odd = e2m1_code(x[i + 1] / s);
        x[i] = round_bf16(e2m1_value(even) * s);
        x[i + 1] = round_bf16(e2m1_value(odd) * s);
        if (codes)
            codes[i / 2] = (uint8_t)(even | odd << 4);
    }
}

static __device__ inline float block_largest(const float *x, int n)
{
    float largest = 0;
    for (int i = lane_of(); i < n; i += WARP)
        largest = larger_magnitude(largest, x[i]);
    return warp_largest(largest);
}

/* One power-of-two scale for a vector: the smallest that keeps every value within E4M3. */
static __device__ inline float vector_fp8_scale(float largest)
{
    float t = largest / 448.0f;
    return t < 0x1p-126f ? 0x1p-126f : e8m0_value(e8m0_up(t));
}

/* Blocks first, first + stride, ... of the vector: warps or one warp share them out. The codes go to `to` where its
 * format is the grid's own container. */
static __device__ inline void grid_blocks(enum key_grid grid, float *x, int n, int nope, struct vector_target to,
                                          int first, int stride)
{
    int block = grid == GRID_FP4_E4M3 ? 16 : grid == GRID_FP8_NOPE ? 64 : 32;
    int end = grid == GRID_FP8_NOPE ? nope : n;
    for (int b = first; b < end / block; b += stride) {
        float *v = x + b * block;
        float largest = block_largest(v, block);
        uint8_t scale = grid == GRID_FP4_E4M3   ? q4_e4m3_scale(largest)
                        : grid == GRID_FP4_E8M0 ? q4_e8m0_scale(largest)
                                                : q8_scale(largest);
        if (grid == GRID_FP4_E4M3)
            round_fp4_block(v, block, e4m3_value(scale), to.values ? to.values + b * block / 2 : NULL);
        else if (grid == GRID_FP4_E8M0)
            round_fp4_block(v, block, e8m0_value(scale), to.values ? to.values + b * block / 2 : NULL);
        else
            round_fp8_block(v, block, e8m0_value(scale), to.values ? to.values + b * block : NULL);
        if (to.values && lane_of() == 0)
            to.scales[b] = scale;
    }
}

#endif
