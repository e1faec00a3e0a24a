/* wide_int8.cuh: whole sums of many INT8 rows on Hopper's matrix unit: wgmma of s8, W from registers, rows from shared memory as
 * they lie in activations, copied by wide.cuh's threads. A stage has INT8_COLUMNS columns.
 *
 * Work is that of wide.cuh, not PACKED, and
 *   enum { SEVERAL }                              whether a row has several scales
 *   int scales() const                            how many
 *   float sigma(place, token, i) const            SEVERAL: scale i of a row of the unit
 * Its slab holds f32 where a row has several scales, else the bits of whole numbers. */
#ifndef QR_OPS_CUDA_WIDE_INT8_CUH
#define QR_OPS_CUDA_WIDE_INT8_CUH

#include "ops/cuda/wide.cuh"

#ifdef WGMMA_TARGET

/* A lane's operands of a stage: those of its four blocks. */
enum { STAGE_BLOCKS = INT8_COLUMNS / BLOCK_COLUMNS };

static __device__ inline void take_stage(uint32_t (&a)[STAGE_BLOCKS][4], uint32_t at)
{
#pragma unroll
    for (int b = 0; b < STAGE_BLOCKS; b++) {
        const uint4 v = shared_16(at + (uint32_t)(b * blocks<WEIGHT_INT8>::BYTES));
        a[b][0] = v.x, a[b][1] = v.z, a[b][2] = v.y, a[b][3] = v.w;
    }
}

/* Waits for the products under way; sums and operands are not touched before. */
template <int N> static __device__ inline void settle_stage(int32_t (&d)[N], const uint32_t (&a)[STAGE_BLOCKS][4])
{
    unit_await<0>();
    settle(d);
#pragma unroll
    for (int b = 0; b < STAGE_BLOCKS; b++)
        hold_operands(a[b]);
}

template <int TOKENS, typename Work>
static __device__ inline void sum_whole(const Work &work, const wide_memory<WEIGHT_INT8, TOKENS> &memory)
{
    typedef wide_ring<WEIGHT_INT8, TOKENS> ring;
    enum { EACH = TOKENS / 2, OF_HALF = ring::HALF / 2 };
    const int units = work.units(), stages = work.shape().k / INT8_COLUMNS, stages_each = stages / work.scales();
    const int lane = kept(lane_of()), group = threadIdx.x / WARPGROUP, warp = warp_of() % 4;
    const uint32_t codes_at = (uint32_t)kept(
        (int)(memory.codes(0) + (uint32_t)((group * 2 + warp / 2) * ring::PIECE + (warp % 2 * WARP + lane) * 16)));
    const uint32_t full_at = (uint32_t)kept((int)memory.full(0)), rows_first = (uint32_t)kept((int)memory.rows(0));
    ring_place<ring::STAGES> at = {0, 0};
    int32_t acc[EACH];
    float total[EACH];
    uint32_t a[STAGE_BLOCKS][4], next[STAGE_BLOCKS][4];

    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const typename Work::place place = work.find(unit);
        int until = stages_each, scale = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            acc[i] = 0, total[i] = 0;
        barrier_await(full_at + (uint32_t)(at.slot * 8), at.parity);
        take_stage(a, codes_at + (uint32_t)(at.slot * ring::CODES));
#pragma unroll 1
        for (int s = 0; s < stages; s++) {
            const uint32_t rows = rows_at(rows_first + (uint32_t)(at.slot * ring::ROWS));
            const uint32_t own = full_at + (uint32_t)(at.slot * 8);
            unit_begin();
#pragma unroll
            for (int b = 0; b < STAGE_BLOCKS; b++)
                unit_multiply(acc, a[b], rows + (uint32_t)(b * BLOCK_COLUMNS >> 4));
            unit_close();
            at.next();
            if (s + 1 < stages) { /* the next stage's weights are taken meanwhile */
                barrier_await(full_at + (uint32_t)(at.slot * 8), at.parity);
                take_stage(next, codes_at + (uint32_t)(at.slot * ring::CODES));
            }
            settle_stage(acc, a);
            if (lane == 0)
                barrier_arrive<ring::STAGES * 8>(own);
#pragma unroll
            for (int i = 0; i < STAGE_BLOCKS * 4; i++)
                a[i / 4][i % 4] = next[i / 4][i % 4];
            if (Work::SEVERAL && --until == 0) {
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    total[i] += (float)acc[i] * work.sigma(place, i / 4 * 8 + lane % 4 * 2 + i % 2, scale);
                    acc[i] = 0;
                }
                until = stages_each;
                scale++;
            }
        }

        float *slab = memory.slab(group) + warp * 16 + lane / 4 + lane % 4 * 2 * SLAB_PITCH;
#pragma unroll
        for (int h = 0; h < ring::HALVES; h++) {
            meet<1, SUMMING>();
#pragma unroll
            for (int i = 0; i < OF_HALF; i++)
                slab[(i / 4 * 8 + i % 2) * SLAB_PITCH + i % 4 / 2 * 8] =
                    Work::SEVERAL ? total[h * OF_HALF + i] : __int_as_float(acc[h * OF_HALF + i]);
            meet<1, SUMMING>();
            work.finish(place, h * ring::HALF, memory.slab(0));
        }
    }
}

template <int TOKENS, typename Work> static __device__ inline void wide_int8_tiles(const Work &work)
{
    wide_threads<WEIGHT_INT8, TOKENS>(
        work, [&](const wide_memory<WEIGHT_INT8, TOKENS> &memory) { sum_whole<TOKENS>(work, memory); });
}

#else
template <int TOKENS, typename Work> static __device__ inline void wide_int8_tiles(const Work &) {}
#endif

#endif
