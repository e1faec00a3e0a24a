/* product.cuh: y = W x on the matrix unit. Weights are the M operand of mma.m16n8k16 (bf16, f32 sums), rows of
 * activations its N operand, so a row meets the same operations whatever stands beside it. K is cut into eight
 * contiguous ranges at fixed places (those of a row-parallel weight), one warp each; the unit sums 32 columns from
 * zero, and these sums are added in f32, ascending. Codes become bf16 with their scale folded in, which is exact for
 * the scales that weight.c admits.
 *
 * In which order an instruction's 16 columns are taken from a row is free, as long as both operands agree: a lane takes
 * 16 contiguous bytes of the weight, in the order in which shifts and masks yield pairs of codes, and activations are
 * arranged in that order beforehand (arranged_column). */
#ifndef QR_OPS_CUDA_PRODUCT_CUH
#define QR_OPS_CUDA_PRODUCT_CUH

#include "ops/cuda/device.cuh"

enum { SPLITS = 8, TILE_ROWS = 16, TILE_TOKENS = 8, PRODUCT_THREADS = SPLITS * WARP };

/* Codes in the 16 bytes that a lane loads. */
template <int FORMAT> struct codes;
template <> struct codes<WEIGHT_BF16> {
    enum { COUNT = 8, SPLIT_BLOCK = 8 };
};
template <> struct codes<WEIGHT_FP8> {
    enum { COUNT = 16, SPLIT_BLOCK = 0 /* the scale's tile */ };
};
template <> struct codes<WEIGHT_FP4> {
    enum { COUNT = 32, SPLIT_BLOCK = 32 };
};

/* Where column k of a row stands after arranging it for a weight of that format. */
static __device__ inline int64_t arranged_column(enum weight_format format, int64_t k)
{
    if (format == WEIGHT_FP8) /* pairs (0, 2), (1, 3) */
        return (k & ~(int64_t)3) | (k & 1) << 1 | (k >> 1 & 1);
    if (format == WEIGHT_FP4) /* pairs (0, 4), (1, 5), (2, 6), (3, 7) */
        return (k & ~(int64_t)7) | (k & 3) << 1 | (k >> 2 & 1);
    return k;
}

/* Columns of an arranged row: the codes of a weight's row with the zeros behind it. */
static inline int64_t arranged_columns(const struct weight *w)
{
    return w->spec.format == WEIGHT_BF16  ? w->view.pitch / 2
           : w->spec.format == WEIGHT_FP4 ? w->view.pitch * 2
                                          : w->view.pitch;
}

/* a * b for pairs of bf16. */
static __device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(0x80008000u));
    return y;
}

/* The factor that turns placed codes into values: 2^120 (E4M3) or 2^126 (E2M1) times the scale, in both halves. A
 * larger scale than its exponent takes leaves the rest to a second one. */
template <int FORMAT> struct placed {
    enum { SHIFT = FORMAT == WEIGHT_FP8 ? 120 : 126, MOST = 254 - SHIFT };
};
template <int FORMAT> static __device__ inline uint32_t factor_of(uint32_t scale)
{
    uint32_t most = placed<FORMAT>::MOST, bits = ((scale < most ? scale : most) + placed<FORMAT>::SHIFT) << 7;
    return bits | bits << 16;
}
template <int FORMAT> static __device__ inline uint32_t second_factor_of(uint32_t scale)
{
    uint32_t most = placed<FORMAT>::MOST, bits = (127 + (scale > most ? scale - most : 0)) << 7;
    return bits | bits << 16;
}

/* The pairs of 16 bytes of codes, two for each instruction. */
template <int FORMAT>
static __device__ inline void decode(const uint4 &bytes, uint32_t factor, uint32_t out[codes<FORMAT>::COUNT / 2])
{
    const uint32_t word[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w = word[i];
        if (FORMAT == WEIGHT_BF16) {
            out[i] = w;
        } else if (FORMAT == WEIGHT_FP8) {
            out[2 * i] = multiply_pair((w << 4 & 0x07F007F0) | (w << 8 & 0x80008000), factor);
            out[2 * i + 1] = multiply_pair((w >> 4 & 0x07F007F0) | (w & 0x80008000), factor);
        } else {
            out[4 * i] = multiply_pair((w << 6 & 0x01C001C0) | (w << 12 & 0x80008000), factor);
            out[4 * i + 1] = multiply_pair((w << 2 & 0x01C001C0) | (w << 8 & 0x80008000), factor);
            out[4 * i + 2] = multiply_pair((w >> 2 & 0x01C001C0) | (w << 4 & 0x80008000), factor);
            out[4 * i + 3] = multiply_pair((w >> 6 & 0x01C001C0) | (w & 0x80008000), factor);
        }
    }
}

static __device__ inline void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                  uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

static __device__ inline uint4 load_16(const void *p) { return __ldg((const uint4 *)p); }

/* The range of K of split s. */
template <int FORMAT> static __device__ inline void split_of(const struct weight_view &w, int s, int *from, int *to)
{
    int block = codes<FORMAT>::SPLIT_BLOCK ? (int)codes<FORMAT>::SPLIT_BLOCK : w.tile;
    int64_t blocks = (w.k + block - 1) / block;
    *from = (int)(s * blocks / SPLITS) * block;
    *to = (int)((s + 1) * blocks / SPLITS) * block;
    *to = *to < w.k ? *to : w.k;
}

/* Adds columns [from, to) of rows first + 0 .. 15 of W (rows from `end` on are not there) times 8 * TOKENS rows of
 * activations. x[j]: the arranged row of token 8 j + lane / 4. */
template <int FORMAT, int TOKENS>
static __device__ inline void accumulate(const struct weight_view &w, int64_t first, int64_t end, int from, int to,
                                         const uint16_t *const x[TOKENS], float acc[TOKENS][4])
{
    enum { COUNT = codes<FORMAT>::COUNT, PAIRS = COUNT / 2 };
    int64_t group = lane_of() / 4, high = first + group, low = first + group + 8;
    high = high < end ? high : end - 1;
    low = low < end ? low : end - 1;
    const uint8_t *row_a = w.values + high * w.pitch, *row_b = w.values + low * w.pitch;
    const uint8_t *scale_a = w.scales + (FORMAT == WEIGHT_FP8 ? high / w.tile : high) * w.scale_cols;
    const uint8_t *scale_b = w.scales + (FORMAT == WEIGHT_FP8 ? low / w.tile : low) * w.scale_cols;
    int scale_shift = FORMAT == WEIGHT_FP8 && w.tile == 128 ? 7 : 5;

#pragma unroll(TOKENS == 1 ? 2 : 1)
    for (int k = from + lane_of() % 4 * COUNT; k - lane_of() % 4 * COUNT < to; k += 4 * COUNT) {
        uint4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
        uint32_t byte_a = 0, byte_b = 0, pairs_a[PAIRS], pairs_b[PAIRS];
        bool inside = k < to;
        if (inside) {
            a = load_16(row_a + (int64_t)k * 16 / COUNT);
            b = load_16(row_b + (int64_t)k * 16 / COUNT);
            if (FORMAT != WEIGHT_BF16) {
                byte_a = __ldg(scale_a + (k >> scale_shift));
                byte_b = __ldg(scale_b + (k >> scale_shift));
            }
        }
        decode<FORMAT>(a, factor_of<FORMAT>(byte_a), pairs_a);
        decode<FORMAT>(b, factor_of<FORMAT>(byte_b), pairs_b);
        if (FORMAT != WEIGHT_BF16 && w.large_scales) {
#pragma unroll
            for (int i = 0; i < PAIRS; i++) {
                pairs_a[i] = multiply_pair(pairs_a[i], second_factor_of<FORMAT>(byte_a));
                pairs_b[i] = multiply_pair(pairs_b[i], second_factor_of<FORMAT>(byte_b));
            }
        }
#pragma unroll
        for (int j = 0; j < TOKENS; j++) {
#pragma unroll
            for (int i = 0; i < COUNT / 8; i++) {
                uint4 v = {0, 0, 0, 0};
                if (inside)
                    v = load_16(x[j] + k + 8 * i);
                float part[4] = {0, 0, 0, 0};
                mma(part, pairs_a[4 * i], pairs_b[4 * i], pairs_a[4 * i + 1], pairs_b[4 * i + 1], v.x, v.y);
                mma(part, pairs_a[4 * i + 2], pairs_b[4 * i + 2], pairs_a[4 * i + 3], pairs_b[4 * i + 3], v.z, v.w);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    acc[j][e] += part[e];
            }
        }
    }
}

/* The warps' sums of a tile: [split][token][row]. */
template <int TOKENS> struct tile_sums {
    float part[SPLITS][TOKENS * TILE_TOKENS][TILE_ROWS];
};

/* Puts a warp's sums down; the block synchronizes afterwards. */
template <int TOKENS> static __device__ inline void put_sums(struct tile_sums<TOKENS> &sums, const float acc[TOKENS][4])
{
    int group = lane_of() / 4, pair = lane_of() % 4 * 2;
#pragma unroll
    for (int j = 0; j < TOKENS; j++) {
        sums.part[warp_of()][8 * j + pair][group] = acc[j][0];
        sums.part[warp_of()][8 * j + pair + 1][group] = acc[j][1];
        sums.part[warp_of()][8 * j + pair][group + 8] = acc[j][2];
        sums.part[warp_of()][8 * j + pair + 1][group + 8] = acc[j][3];
    }
}

/* Ascending where ranks share K, else in pairs, which rounds less. */
template <int TOKENS>
static __device__ inline float sum_of(const struct tile_sums<TOKENS> &sums, bool ascending, int token, int row)
{
    float y[SPLITS];
#pragma unroll
    for (int s = 0; s < SPLITS; s++)
        y[s] = sums.part[s][token][row];
    if (!ascending)
        return ((y[0] + y[1]) + (y[2] + y[3])) + ((y[4] + y[5]) + (y[6] + y[7]));
#pragma unroll
    for (int s = 1; s < SPLITS; s++)
        y[0] += y[s];
    return y[0];
}

#endif
