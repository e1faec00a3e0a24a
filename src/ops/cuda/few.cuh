/* few.cuh: products of FP4 weights and at most 8 rows, from a ring that bulk copies fill. The arithmetic is that of
 * product.cuh, bit for bit.
 *
 * A block's scales are multiplied into its sums instead of into its weights: a power of two times a sum is that sum of
 * the powers times its terms, as long as nothing leaves the range of f32. Placed codes are 2^-126 of their values, so
 * rows are made 2^40 times as large for the unit, and sums as much smaller in the end: terms then stay above 2^-126 for
 * values of rows from 2^-39 on (the least that the quantizer leaves is 2^-31), and below 2^127 up to 2^80.
 *
 * A stage is four blocks of a warp's range of K, behind each other in memory as in the ring, copied by one instruction
 * of one lane; a warp multiplies whole stages without asking, and what is left of its range block by block. */
#ifndef QR_OPS_CUDA_FEW_CUH
#define QR_OPS_CUDA_FEW_CUH

#include "ops/cuda/product.cuh"

enum { FEW_TOGETHER = 4, FEW_BLOCK = blocks<WEIGHT_FP4>::BYTES, FEW_STAGE = FEW_TOGETHER * FEW_BLOCK, FEW_STAGES = 3 };
enum {
    FEW_WARP_RING = FEW_STAGES * FEW_STAGE,
    FEW_RING = SPLITS * FEW_WARP_RING,
    FEW_BARRIERS = SPLITS * FEW_STAGES * 8
};
static_assert(FEW_BLOCK % 16 == 0 && FEW_RING % 16 == 0, "");

/* Whether a kernel of this form goes this way. */
template <int FORMAT, int TOKENS, bool LARGE> static __host__ __device__ constexpr bool is_few_form()
{
    return QUIRE_CUDA_FEW && FORMAT == WEIGHT_FP4 && TOKENS == 1 && !LARGE;
}
/* Blocks of a unit that a warp asks for before anything is there. */
template <int FORMAT, int TOKENS, bool LARGE> static __host__ __device__ constexpr int form_ahead()
{
    return is_few_form<FORMAT, TOKENS, LARGE>() ? FEW_STAGES * FEW_TOGETHER : blocks<FORMAT>::STAGES - 1;
}
template <int FORMAT, int TOKENS, int RUNS, bool LARGE> static __host__ __device__ constexpr size_t form_shared()
{
    return is_few_form<FORMAT, TOKENS, LARGE>() ? FEW_RING + RUNS * sizeof(struct tile_sums<1>) + FEW_BARRIERS
                                                : product_shared<TOKENS, RUNS, FORMAT>();
}
template <int FORMAT, int TOKENS, int RUNS, bool LARGE> static __host__ __device__ constexpr int form_residents()
{
    return is_few_form<FORMAT, TOKENS, LARGE>() ? 3 : product_residents<TOKENS, RUNS, FORMAT>();
}

/* Adds a block of W, a lane's codes and the scales of its four rows, times a lane's 8 columns of a row, 2^40 times as
 * large. */
static __device__ inline void add_few(uint32_t codes_at, uint32_t scales_at, const uint4 &x, float acc[2][4])
{
    const uint4 codes = shared_16(codes_at);
    const uint32_t scales = shared_4(scales_at);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint32_t pair[2][4];
        float part[4] = {0, 0, 0, 0};
        place_e2m1(m ? codes.z : codes.x, m ? codes.w : codes.y, pair[0], pair[1]);
        mma(part, pair[0][0], pair[1][0], pair[0][1], pair[1][1], x.x, x.y);
        mma(part, pair[0][2], pair[1][2], pair[0][3], pair[1][3], x.z, x.w);
        /* a kept scale is the exponent of 2^126 times it */
        const float first = __uint_as_float(__byte_perm(scales, 0, m ? 0x2444 : 0x0444) >> 1);
        const float second = __uint_as_float(__byte_perm(scales, 0, m ? 0x3444 : 0x1444) >> 1);
#pragma unroll
        for (int e = 0; e < 4; e++) /* the product is exact: this is an addition */
            acc[m][e] = fmaf(part[e], e < 2 ? first : second, acc[m][e]);
    }
}

/* A lane's columns of a row, 2^40 times as large. */
/* A lane's columns of a row, 2^40 times as large. */
static __device__ inline uint4 lifted(uint4 x)
{
    const uint32_t lift = power_pair(127 + 40);
    return make_uint4(multiply_pair(x.x, lift), multiply_pair(x.y, lift), multiply_pair(x.z, lift),
                      multiply_pair(x.w, lift));
}

/* As stream_tiles, for rows of bf16. */
template <int RUNS, typename Work> static __device__ inline void stream_few(const Work &work)
{
    LAUNCHED_SHARED(uint8_t, product_memory, 16);
    struct tile_sums<1> *sums = (struct tile_sums<1> *)(void *)(product_memory + FEW_RING);
    const int lane = kept(lane_of()), units = work.units();
    int from, to;
    split_of<WEIGHT_FP4>(work.shape(), warp_of(), &from, &to);
    const int count = kept(to - from), stages = (count + FEW_TOGETHER - 1) / FEW_TOGETHER;
    const uint32_t start = shared_address(product_memory),
                   ring = (uint32_t)kept((int)(start + warp_of() * FEW_WARP_RING));
    const uint32_t full = start + FEW_RING + RUNS * (uint32_t)sizeof(struct tile_sums<1>) + warp_of() * FEW_STAGES * 8;
    if (lane == 0)
        for (int i = 0; i < FEW_STAGES; i++)
            barrier_make(full + 8 * i, 1);
    show_stores();
    __syncwarp();

    /* what is asked for next; the same for all lanes, of which the first asks */
    int unit_in = count > 0 ? (int)blockIdx.x : units, run_in = 0, left = count;
    const uint8_t *source = NULL;
    typename Work::place place_in = {};
    auto begin_run = [&]() {
        source = work.weight(place_in, run_in).values + place_in.tile * work.shape().pitch + (int64_t)from * FEW_BLOCK;
        left = count;
    };
    if (unit_in < units) {
        place_in = work.find(unit_in);
        begin_run();
    }
    auto ask = [&](int slot) {
        if (unit_in >= units)
            return;
        const int bytes = min(left, (int)FEW_TOGETHER) * FEW_BLOCK;
        if (lane == 0) {
            barrier_expect(full + 8 * slot, bytes);
            bulk_copy(ring + slot * FEW_STAGE, source, bytes, full + 8 * slot);
        }
        source += FEW_STAGE;
        left -= FEW_TOGETHER;
        if (left > 0)
            return;
        if (++run_in == RUNS) {
            run_in = 0;
            unit_in += gridDim.x;
            if (unit_in >= units)
                return;
            place_in = work.find(unit_in);
        }
        begin_run();
    };
    for (int i = 0; i < FEW_STAGES; i++)
        ask(i);
    if (Work::WEIGHTS_FIRST)
        await_earlier();

    int slot = 0;
    uint32_t parity = 0;
    const uint32_t own = ring + lane * 16, own_scales = ring + 16 * WARP + lane / 4 * 4;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const typename Work::place place = work.find(unit);
        const uint8_t *row = work.row(place, lane / 4).codes + ((int64_t)from * BLOCK_COLUMNS * 2 + lane % 4 * 16);
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            float sum[2][4] = {};
            uint4 next[FEW_TOGETHER]; /* of rows; those behind the range are asked for again */
            auto fetch = [&](int stage) {
#pragma unroll
                for (int i = 0; i < FEW_TOGETHER; i++)
                    next[i] = load_16(row + min(stage * FEW_TOGETHER + i, count - 1) * (BLOCK_COLUMNS * 2));
            };
            if (stages > 0)
                fetch(0);
#pragma unroll 1
            for (int s = 0; s < stages; s++) {
                const int here = count - s * FEW_TOGETHER;
                const uint32_t at = slot * FEW_STAGE;
                uint4 x[FEW_TOGETHER];
#pragma unroll
                for (int i = 0; i < FEW_TOGETHER; i++)
                    x[i] = lifted(ordered<!Work::CODE_ORDER>(next[i]));
                fetch(s + 1 < stages ? s + 1 : s);
                barrier_await(full + 8 * slot, parity);
                if (here >= FEW_TOGETHER) {
#pragma unroll
                    for (int i = 0; i < FEW_TOGETHER; i++)
                        add_few(own + at + i * FEW_BLOCK, own_scales + at + i * FEW_BLOCK, x[i], sum);
                } else {
#pragma unroll
                    for (int i = 0; i < FEW_TOGETHER - 1; i++)
                        if (i < here)
                            add_few(own + at + i * FEW_BLOCK, own_scales + at + i * FEW_BLOCK, x[i], sum);
                }
                __syncwarp();
                ask(slot);
                if (++slot == FEW_STAGES) {
                    slot = 0;
                    parity ^= 1;
                }
            }
            float put[2][1][4];
#pragma unroll
            for (int e = 0; e < 8; e++)
                put[e / 4][0][e % 4] = sum[e / 4][e % 4] * 0x1p-40f;
            put_sums<1>(sums[r], put);
        }
        __syncthreads();
        work.finish(place, sums);
        __syncthreads();
    }
}

/* stream_tiles, or this. */
template <int FORMAT, int RUNS, int TOKENS, bool LARGE, bool Q8, typename Work>
static __device__ inline void stream_form(const Work &work)
{
#if __CUDA_ARCH__ >= 900
    if constexpr (is_few_form<FORMAT, TOKENS, LARGE>()) {
        stream_few<RUNS>(work);
        return;
    }
#endif
    stream_tiles<FORMAT, RUNS, TOKENS, LARGE, Q8>(work);
}

#endif
