/* attend_unit.cuh: attention of released heads (512 channels) with the matrix unit's bf16 products: the arithmetic that
 * the kernel for few rows and the one for many share, bit for bit.
 *
 * Operands are bf16 as the model has them: queries, keys, probabilities rounded as v4-model.md 5.4 says. Sums are the
 * unit's f32. A score is the sum over the first half of the channels plus that over the second, each by instructions of 16
 * channels ascending. A block of 64 keys lowers the values so far and adds its own to them by instructions of 16 keys
 * ascending. What is worth what is f32. A row's blocks come in their order, whoever else attends. */
#ifndef QR_OPS_CUDA_ATTEND_UNIT_CUH
#define QR_OPS_CUDA_ATTEND_UNIT_CUH

#include "ops/cuda/attend.cuh"

enum { UNIT_DIM = 512, UNIT_HALF = UNIT_DIM / 2, UNIT_KEYS = 64 /* a block */, UNIT_STEP = 16 };

/* ---- what scores are worth ----
 * Of a head's 64 scores of a block the four lanes of a quad hold 16 each: of each eight keys a lane has two. */

/* Over the four lanes of a quad. */
static __device__ inline float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
static __device__ inline float quad_sum(float x)
{
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

/* The sum of a head's probabilities of 32 keys, of which a lane has p[0] and p[1] of the first eight, and so on. */
static __device__ inline float half_sum(const float p[8])
{
    return quad_sum(((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7])));
}

/* exp(s - largest), 0 in an empty slot, whose score is -inf. */
static __device__ inline float worth(float s, float largest) { return expf(s - largest); }

/* What sums are divided by: the sink adds to the denominator alone. Its inverse, so that no key at all (infinitely much)
 * gives 0. */
static __device__ inline float inverse_of(float denominator, float sink, float largest)
{
    return 1.0f / (denominator + expf(sink - largest));
}

/* ---- values on their way out: channels c and c + 1 of a head, turned back where that is wanted ---- */

static __device__ inline uint32_t finished_pair(bool turns, bool rounds, float even, float odd, float2 turn)
{
    if (!turns)
        return pack_pair(even, odd);
    if (rounds) {
        even = round_bf16(even);
        odd = round_bf16(odd);
    }
    const float s = -1.0f * turn.y;
    return pack_pair(even * turn.x - odd * s, even * s + odd * turn.x);
}

#endif
