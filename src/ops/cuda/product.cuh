/* product.cuh: y = W x on the matrix unit, at the speed at which W streams from memory.
 *
 * Arithmetic. Weights are the M operand of mma.m16n8k16 (bf16, f32 sums), rows of activations its N operand, so a row
 * meets the same operations whatever stands beside it. K is cut into eight contiguous ranges at fixed places (those of
 * a row-parallel weight), one warp each; the unit sums blocks of 32 columns from zero, and these sums are added in f32,
 * ascending; then the eight are added, ascending too. Codes become bf16 with their scale folded in, which is exact for the scales that
 * weight.c admits.
 *
 * Layout. A tile is 32 rows of W; a block 32 columns of a tile, laid out (pack.cu) so that a lane's operands of a block
 * are contiguous. Lane 4 g + t holds columns 8 t .. 8 t + 7 of rows g, g + 8, g + 16 and g + 24: the order in which an
 * instruction takes a row's columns is free, so activations stay as they are. FP8 and FP4 weights take columns 0 2 1 3 of
 * each four, as codes unfold: rows of bf16 are put into that order when they are read, or come in it (CODE_ORDER). With
 * FP8 weights and few rows they may be Q8 codes, made bf16 by the lane that uses them.
 *
 * INT8 weights meet INT8 rows in mma.m16n8k32 (s8, s32 sums): sums are exact, so no order shows. A lane holds columns 4 t ..
 * 4 t + 3 and 16 + 4 t .. 16 + 4 t + 3 of the same rows, as the instruction takes them. Rows with more scales than one
 * for all of K: a warp's range of K is cut where those of a row are, or several warps share one (int8_fits).
 *
 * Streaming. A warp copies its blocks into a ring of its own in shared memory, STAGES ahead and across tiles, so that
 * loads are in flight while sums of a tile are put together. */
#ifndef QR_OPS_CUDA_PRODUCT_CUH
#define QR_OPS_CUDA_PRODUCT_CUH

#include "ops/cuda/device.cuh"

enum { SPLITS = 8, TILE_ROWS = 32, TILE_TOKENS = 8, BLOCK_COLUMNS = 32, PRODUCT_THREADS = SPLITS * WARP };
enum { SUM_PITCH = TILE_ROWS + 4 };

/* Bytes of a block in memory (codes, then FP4's scales) and in a warp's ring (a lane's scales beside each other), and
 * how many blocks the ring holds. */
template <int FORMAT> struct blocks;
template <> struct blocks<WEIGHT_BF16> {
    enum { CHUNKS = 4, BYTES = CHUNKS * 16 * WARP, SLOT = BYTES, STAGES = 4 };
};
template <> struct blocks<WEIGHT_FP8> {
    enum { CHUNKS = 2, BYTES = CHUNKS * 16 * WARP, SLOT = BYTES, STAGES = 6 };
};
template <> struct blocks<WEIGHT_FP4> {
    enum { CHUNKS = 1, BYTES = 16 * WARP + TILE_ROWS, SLOT = 20 * WARP, STAGES = 6 };
};
template <> struct blocks<WEIGHT_INT8> {
    enum { CHUNKS = 2, BYTES = CHUNKS * 16 * WARP, SLOT = BYTES, STAGES = 6 };
};
template <int FORMAT> static __host__ __device__ constexpr size_t ring_bytes()
{
    return (size_t)SPLITS * blocks<FORMAT>::STAGES * blocks<FORMAT>::SLOT;
}

/* Columns of a row of activations as products take it. */
static inline int64_t row_width(const struct weight *w)
{
    return ((int64_t)w->spec.k + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS * BLOCK_COLUMNS;
}

/* ---- codes to bf16 ---- */

/* The factor that turns placed codes into values is 2^120 (E4M3) or 2^126 (E2M1) times the scale. Where it fits,
 * weights hold its exponent byte in place of the scale; a weight with larger scales holds those, and takes two factors.
 */
template <int FORMAT> struct placed {
    enum { SHIFT = FORMAT == WEIGHT_FP8 ? 120 : 126, MOST = 254 - SHIFT };
};
static __device__ inline uint32_t power_pair(uint32_t exponent) { return exponent * 0x00800080u; }
template <int FORMAT, bool LARGE> static __device__ inline uint32_t factor_of(uint32_t byte)
{
    const uint32_t most = placed<FORMAT>::MOST;
    return power_pair(LARGE ? (byte < most ? byte : most) + placed<FORMAT>::SHIFT : byte);
}
template <int FORMAT> static __device__ inline uint32_t second_factor_of(uint32_t byte)
{
    const uint32_t most = placed<FORMAT>::MOST;
    return power_pair(127 + (byte > most ? byte - most : 0));
}
/* What stands for a scale. */
template <int FORMAT> static __device__ inline uint32_t kept_scale(uint32_t scale, bool large)
{
    const uint32_t most = placed<FORMAT>::MOST;
    return large ? scale : (scale < most ? scale : most) + placed<FORMAT>::SHIFT;
}

/* Two pairs of E4M3: bytes 0 and 2, bytes 1 and 3. */
static __device__ inline void place_e4m3(uint32_t w, uint32_t out[2])
{
    out[0] = (w << 4 & 0x07F007F0) | (w << 8 & 0x80008000);
    out[1] = (w >> 4 & 0x07F007F0) | (w & 0x80008000);
}

/* Four pairs of E2M1 of each of two words, interleaved by pack.cu so that each takes a rotation and a mask: the first
 * three of a word lie in it, the fourth ones of both in the bits that these leave. */
enum { E2M1_LEFT = 0x60306030 };
static __device__ inline void place_e2m1(uint32_t a, uint32_t b, uint32_t out_a[4], uint32_t out_b[4])
{
    const uint32_t here = 0x81C081C0, left = E2M1_LEFT, both = (a & left) | (b >> 2 & ~left);
    out_a[0] = a & here;
    out_a[1] = __funnelshift_r(a, a, 4) & here;
    out_a[2] = a << 6 & here;
    out_a[3] = __funnelshift_r(both, both, 6) & here;
    out_b[0] = b & here;
    out_b[1] = __funnelshift_r(b, b, 4) & here;
    out_b[2] = b << 6 & here;
    out_b[3] = both << 4 & here;
}

static __device__ inline uint4 load_16(const void *p) { return __ldg((const uint4 *)p); }

/* A value of an FP8 weight. */
static __device__ inline float packed_e4m3(const struct weight_view &w, int64_t n, int64_t k)
{
    int64_t tile = n / TILE_ROWS, block = k / BLOCK_COLUMNS;
    int r = (int)(n % TILE_ROWS), c = (int)(k % BLOCK_COLUMNS), lane = r % 8 * 4 + c / 8;
    int word = r / 8 % 2 * 2 + c % 8 / 4, byte = c % 4;
    const uint8_t *at = w.values + tile * w.pitch + block * blocks<WEIGHT_FP8>::BYTES;
    return e4m3_value(at[(r / 16 * WARP + lane) * 16 + word * 4 + byte]) *
           e8m0_value(w.scales[tile * w.scale_cols + block] - (w.large_scales ? 0 : placed<WEIGHT_FP8>::SHIFT));
}

/* A value of a BF16 weight: where it is (those of columns up to the next multiple of 8 lie behind it), and it. */
static __device__ inline const uint8_t *packed_bf16_at(const struct weight_view &w, int64_t n, int64_t k)
{
    int r = (int)(n % TILE_ROWS), c = (int)(k % BLOCK_COLUMNS);
    const uint8_t *at = w.values + n / TILE_ROWS * w.pitch + k / BLOCK_COLUMNS * blocks<WEIGHT_BF16>::BYTES;
    return at + (r / 8 * WARP + r % 8 * 4 + c / 8) * 16 + c % 8 * 2;
}
static __device__ inline float packed_bf16(const struct weight_view &w, int64_t n, int64_t k)
{
    return bf16_value(*(const uint16_t *)(const void *)packed_bf16_at(w, n, k));
}

/* Where a code of an INT8 weight is. */
static __device__ inline const int8_t *packed_int8_at(const struct weight_view &w, int64_t n, int64_t k)
{
    int r = (int)(n % TILE_ROWS), c = (int)(k % BLOCK_COLUMNS), lane = r % 8 * 4 + c % 16 / 4;
    const uint8_t *at = w.values + n / TILE_ROWS * w.pitch + k / BLOCK_COLUMNS * blocks<WEIGHT_INT8>::BYTES;
    return (const int8_t *)at + (r / 16 * WARP + lane) * 16 + (r / 8 % 2 * 2 + c / 16) * 4 + c % 4;
}

/* ---- the ring ---- */

/* The range of K of split s, in blocks of 32 columns. */
template <int FORMAT> static __device__ inline void split_of(const struct weight_view &w, int s, int *from, int *to)
{
    int unit = FORMAT == WEIGHT_FP8 ? w.tile / BLOCK_COLUMNS : 1, all = (w.k + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    int units = (all + unit - 1) / unit;
    *from = s * units / SPLITS * unit;
    *to = (s + 1) * units / SPLITS * unit;
    *to = *to < all ? *to : all;
}

/* A lane's place in a tile of a weight: the codes and scales (FP4) of the block before its next. */
struct lane_source {
    const uint8_t *codes, *scales;
};

template <int FORMAT>
static __device__ inline struct lane_source source_of(const struct weight_view &w, int64_t tile, int from, int lane)
{
    const uint8_t *block = w.values + tile * w.pitch + (int64_t)(from - 1) * blocks<FORMAT>::BYTES;
    return {block + lane * 16, block + 16 * WARP + lane / 4 * 4};
}

/* Starts the copy of the next block into a lane's part of a slot. */
template <int FORMAT> static __device__ inline void start_block(struct lane_source &at, uint32_t to, uint32_t scale_to)
{
    at.codes += blocks<FORMAT>::BYTES;
#pragma unroll
    for (int c = 0; c < blocks<FORMAT>::CHUNKS; c++)
        copy_16(to + (uint32_t)(c * 16 * WARP), at.codes + c * 16 * WARP);
    if constexpr (FORMAT == WEIGHT_FP4) {
        at.scales += blocks<FORMAT>::BYTES;
        copy_4(scale_to, at.scales);
    }
}

/* Adds a block of W, in a lane's part of a slot, times a block of the activations: x[j] holds columns 8 t .. 8 t + 7 of
 * row 8 j + g. byte: the scale of an FP8 block. large: the weight holds its scales themselves. */
template <int FORMAT, int TOKENS, bool LARGE>
static __device__ inline void add_block(uint32_t slot, uint32_t scale_slot, uint32_t byte, bool large,
                                        const uint4 x[TOKENS], float acc[2][TOKENS][4])
{
    uint32_t scales = FORMAT == WEIGHT_FP4 ? shared_4(scale_slot) : 0;
    uint4 whole = shared_16(slot);
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint32_t pair[2][4], scale[2] = {byte, byte}; /* rows g + 16 m and g + 16 m + 8 */
        if constexpr (FORMAT == WEIGHT_BF16) {
            uint4 a = m ? shared_16(slot + 2 * 16 * WARP) : whole, b = shared_16(slot + (2 * m + 1) * 16 * WARP);
            pair[0][0] = a.x, pair[0][1] = a.y, pair[0][2] = a.z, pair[0][3] = a.w;
            pair[1][0] = b.x, pair[1][1] = b.y, pair[1][2] = b.z, pair[1][3] = b.w;
        } else if constexpr (FORMAT == WEIGHT_FP8) {
            uint4 a = m ? shared_16(slot + 16 * WARP) : whole;
            place_e4m3(a.x, pair[0]);
            place_e4m3(a.y, pair[0] + 2);
            place_e4m3(a.z, pair[1]);
            place_e4m3(a.w, pair[1] + 2);
        } else {
            scale[0] = __byte_perm(scales, 0, m ? 0x4442 : 0x4440);
            scale[1] = __byte_perm(scales, 0, m ? 0x4443 : 0x4441);
            place_e2m1(m ? whole.z : whole.x, m ? whole.w : whole.y, pair[0], pair[1]);
        }
        if (LARGE && !large) {
            scale[0] -= placed<FORMAT>::SHIFT;
            scale[1] -= placed<FORMAT>::SHIFT;
        }
        if constexpr (FORMAT != WEIGHT_BF16) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                pair[i / 4][i % 4] = multiply_pair(pair[i / 4][i % 4], factor_of<FORMAT, LARGE>(scale[i / 4]));
                if (LARGE)
                    pair[i / 4][i % 4] = multiply_pair(pair[i / 4][i % 4], second_factor_of<FORMAT>(scale[i / 4]));
            }
        }
#pragma unroll
        for (int j = 0; j < TOKENS; j++) {
            float part[4] = {0, 0, 0, 0};
            mma(part, pair[0][0], pair[1][0], pair[0][1], pair[1][1], x[j].x, x[j].y);
            mma(part, pair[0][2], pair[1][2], pair[0][3], pair[1][3], x[j].z, x[j].w);
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[m][j][e] += part[e];
        }
    }
}

/* The same for INT8: x[j].x holds columns 4 t .. 4 t + 3, x[j].y those 16 on. */
template <int TOKENS>
static __device__ inline void add_block(uint32_t slot, const uint4 x[TOKENS], int32_t acc[2][TOKENS][4])
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const uint4 a = shared_16(slot + (uint32_t)(m * 16 * WARP));
#pragma unroll
        for (int j = 0; j < TOKENS; j++)
            mma_int8(acc[m][j], a.x, a.z, a.y, a.w, x[j].x, x[j].y);
    }
}

/* Rows of activations: bf16, INT8, or Q8 codes with a scale for 2^shift columns. */
struct row_source {
    const uint8_t *codes, *scales;
};

/* Eight columns of a Q8 row in the order in which FP8 and FP4 weights come. */
static __device__ inline uint4 widened(uint2 codes, uint32_t scale)
{
    uint32_t pair[4], one = factor_of<WEIGHT_FP8, true>(scale), two = second_factor_of<WEIGHT_FP8>(scale);
    place_e4m3(codes.x, pair);
    place_e4m3(codes.y, pair + 2);
#pragma unroll
    for (int i = 0; i < 4; i++)
        pair[i] = multiply_pair(multiply_pair(pair[i], one), two);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* bf16 columns in the order in which weights come: as they are for BF16, else 0 2 1 3 of each four. */
template <bool REORDER> static __device__ inline uint4 ordered(uint4 x)
{
    if (!REORDER)
        return x;
    return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x5410),
                      __byte_perm(x.z, x.w, 0x7632));
}

/* What a lane has asked for of a row's next block. BYTES: of a column; FIRST: between the first ones of two lanes. */
enum row_kind { ROW_OF_BF16, ROW_OF_Q8, ROW_OF_INT8 };
template <int KIND> struct raw_row;
template <> struct raw_row<ROW_OF_BF16> {
    enum { BYTES = 2, FIRST = 16 };
    uint4 x;
    __device__ void load(const uint8_t *at, const uint8_t *) { x = load_16(at); }
    template <bool REORDER> __device__ uint4 get() const { return ordered<REORDER>(x); }
};
template <> struct raw_row<ROW_OF_Q8> {
    enum { BYTES = 1, FIRST = 8 };
    uint2 codes;
    uint32_t scale;
    __device__ void load(const uint8_t *at, const uint8_t *scale_at)
    {
        codes = __ldg((const uint2 *)(const void *)at);
        scale = __ldg(scale_at);
    }
    template <bool> __device__ uint4 get() const { return widened(codes, scale); }
};
template <> struct raw_row<ROW_OF_INT8> {
    enum { BYTES = 1, FIRST = 4 };
    uint32_t low, high;
    __device__ void load(const uint8_t *at, const uint8_t *)
    {
        low = __ldg((const uint32_t *)(const void *)at);
        high = __ldg((const uint32_t *)(const void *)(at + 16));
    }
    template <bool> __device__ uint4 get() const { return make_uint4(low, high, 0, 0); }
};

/* ---- sums of a tile ---- */

/* The warps' sums: [split][token][row]; INT8: the bits of whole numbers. */
template <int TOKENS> struct tile_sums {
    float part[SPLITS][TOKENS * TILE_TOKENS][SUM_PITCH];
};

static __device__ inline float sum_bits(float x) { return x; }
static __device__ inline float sum_bits(int32_t x) { return __int_as_float(x); }

/* Puts a warp's sums down; the block synchronizes afterwards. */
template <int TOKENS, typename Sum>
static __device__ inline void put_sums(struct tile_sums<TOKENS> &sums, const Sum acc[2][TOKENS][4])
{
    int group = lane_of() / 4, pair = lane_of() % 4 * 2;
#pragma unroll
    for (int j = 0; j < TOKENS; j++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            sums.part[warp_of()][8 * j + pair + e % 2][group + 8 * (e / 2)] = sum_bits(acc[e / 4][j][e % 4]);
}

/* Ascending, as ranks that share K add theirs. */
template <int TOKENS> static __device__ inline float sum_of(const struct tile_sums<TOKENS> &sums, int token, int row)
{
    float y = sums.part[0][token][row];
#pragma unroll
    for (int s = 1; s < SPLITS; s++)
        y += sums.part[s][token][row];
    return y;
}

/* The whole number that warps `from` to `to` - 1 have summed. */
template <int TOKENS>
static __device__ inline int32_t whole_sum(const struct tile_sums<TOKENS> &sums, int token, int row, int from, int to)
{
    int32_t y = 0;
    for (int s = from; s < to; s++)
        y += __float_as_int(sums.part[s][token][row]);
    return y;
}

/* An INT8 warp's sums so far, when a scale of the rows ends: total += f32(acc) sigma. Lane 4 g + t brings the scale of rows
 * 8 j + g, and has sums of rows 8 j + 2 t and 8 j + 2 t + 1. */
template <int TOKENS>
static __device__ inline void fold_sums(const struct row_source row[TOKENS], int scale, int32_t acc[2][TOKENS][4],
                                        float total[2][TOKENS][4])
{
#pragma unroll
    for (int j = 0; j < TOKENS; j++) {
        const float own = __ldg((const float *)(const void *)row[j].scales + scale);
        const float sigma[2] = {__shfl_sync(ALL_LANES, own, lane_of() % 4 * 8),
                                __shfl_sync(ALL_LANES, own, lane_of() % 4 * 8 + 4)};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            total[i / 4][j][i % 4] += (float)acc[i / 4][j][i % 4] * sigma[i % 2];
            acc[i / 4][j][i % 4] = 0;
        }
    }
}

/* ---- tiles of a kernel ---- */

template <int FORMAT> struct sum_of_format {
    typedef float type;
};
template <> struct sum_of_format<WEIGHT_INT8> {
    typedef int32_t type;
};

template <int TOKENS, int RUNS, int FORMAT> static __host__ __device__ constexpr size_t product_shared()
{
    return ring_bytes<FORMAT>() + RUNS * sizeof(struct tile_sums<TOKENS>);
}

/* Blocks of threads that share a multiprocessor. */
template <int TOKENS, int RUNS, int FORMAT> static __host__ __device__ constexpr int product_residents()
{
    const int wanted = TOKENS == 1   ? (FORMAT == WEIGHT_FP4 ? 4 : 3)
                       : TOKENS <= 4 ? 2
                                     : 1,
              fit = (int)((220 << 10) / product_shared<TOKENS, RUNS, FORMAT>());
    return wanted < fit ? wanted : fit;
}

/* A block of threads takes units blockIdx.x, + gridDim.x, ... of `work`, a tile of RUNS weights of one shape each:
 *   int units() const;
 *   const struct weight_view &shape() const;                     of any of the weights
 *   struct Work::place find(int unit) const;                      where a unit's weights and rows are
 *   const struct weight_view &weight(place, r) const;             weight r of it
 *   struct row_source row(place, token) const;                    a row of activations; where there is none, any
 *   int shift() const;                                            of Q8 rows; INT8: blocks of K that share a scale
 *   void finish(place, const struct tile_sums<TOKENS> *) const;   by the whole block: [RUNS] sums
 * place.tile: of the weights. CODE_ORDER: its bf16 rows come in the order of the weights. WEIGHTS_FIRST: all but rows and finish need no earlier kernel, and the caller has not
 * waited for it. LARGE, INT8: a warp's range of K has several scales, and its sums are f32; else they are whole numbers. */
template <int FORMAT, int RUNS, int TOKENS, bool LARGE, bool Q8, typename Work>
static __device__ inline void stream_tiles(const Work &work)
{
    enum { STAGES = blocks<FORMAT>::STAGES, SLOT = blocks<FORMAT>::SLOT };
    enum { KIND = FORMAT == WEIGHT_INT8 ? ROW_OF_INT8 : Q8 ? ROW_OF_Q8 : ROW_OF_BF16 };
    LAUNCHED_SHARED(uint8_t, product_memory, 16);
    struct tile_sums<TOKENS> *sums = (struct tile_sums<TOKENS> *)(void *)(product_memory + ring_bytes<FORMAT>());
    const int lane = kept(lane_of()), units = work.units(), group = lane / 4;
    enum { SEVERAL = FORMAT == WEIGHT_INT8 && LARGE };
    const int shift = Q8 || SEVERAL ? work.shift() : 0;
    int from, to;
    split_of<FORMAT>(work.shape(), warp_of(), &from, &to);
    from = kept(from);
    to = kept(to);

    const uint32_t ring = (uint32_t)kept(
        (int)((uint32_t)__cvta_generic_to_shared(product_memory) + (uint32_t)(warp_of() * STAGES * SLOT + lane * 16)));
    const uint32_t ring_end = ring + STAGES * SLOT, scale_offset = (uint32_t)kept(16 * WARP - 12 * lane);
    int unit_in = (int)blockIdx.x, run_in = 0, left = 0; /* left: blocks of the run that are not copied yet */
    typename Work::place place_in = {};
    struct lane_source source = {};
    if (unit_in < units && from < to) {
        place_in = work.find(unit_in);
        source = source_of<FORMAT>(work.weight(place_in, 0), place_in.tile, from, lane);
        left = to - from;
    }
    auto next_run = [&]() {
        if (++run_in == RUNS) {
            run_in = 0;
            unit_in += gridDim.x;
            if (unit_in >= units)
                return;
            place_in = work.find(unit_in);
        }
        source = source_of<FORMAT>(work.weight(place_in, run_in), place_in.tile, from, lane);
        left = to - from;
    };
    auto start_next = [&](uint32_t slot) {
        if (left > 0) {
            start_block<FORMAT>(source, slot, slot + scale_offset);
            if (--left == 0)
                next_run();
        }
        close_stage();
    };

#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++)
        start_next(ring + (uint32_t)(i * SLOT));
    if (Work::WEIGHTS_FIRST)
        await_earlier();
    uint32_t slot_out = ring, slot_free = ring + (STAGES - 1) * SLOT;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        typename Work::place place = work.find(unit);
        struct row_source row[TOKENS];
#pragma unroll
        for (int j = 0; j < TOKENS; j++)
            row[j] = work.row(place, 8 * j + group);
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            typename sum_of_format<FORMAT>::type acc[2][TOKENS][4] = {};
            const uint8_t *scales = NULL;
            const uint8_t *at[TOKENS];
            float total[2][TOKENS][4] = {}; /* SEVERAL */
            int until = shift;
            const bool large = LARGE && !SEVERAL && work.weight(place, r).large_scales;
            if (FORMAT == WEIGHT_FP8) {
                const struct weight_view &w = work.weight(place, r);
                scales = w.scales + (int64_t)place.tile * w.scale_cols + from;
            }
#pragma unroll
            for (int j = 0; j < TOKENS; j++)
                at[j] = row[j].codes + from * (BLOCK_COLUMNS * raw_row<KIND>::BYTES) + lane % 4 * raw_row<KIND>::FIRST;
            /* rows and scales are asked for a block ahead */
            struct raw_row<KIND> raw[TOKENS];
            uint32_t byte_next = 0;
            auto fetch = [&](int k, int step) {
                if (FORMAT == WEIGHT_FP8)
                    byte_next = __ldg(scales += step);
#pragma unroll
                for (int j = 0; j < TOKENS; j++)
                    raw[j].load(at[j] += step * (BLOCK_COLUMNS * raw_row<KIND>::BYTES),
                                row[j].scales + (k * BLOCK_COLUMNS >> shift));
            };
            if (from < to)
                fetch(from, 0);
#pragma unroll 2
            for (int k = from; k < to; k++) {
                uint4 x[TOKENS];
                uint32_t byte = byte_next;
#pragma unroll
                for (int j = 0; j < TOKENS; j++)
                    x[j] = raw[j].template get<(FORMAT != WEIGHT_BF16 && !Work::CODE_ORDER)>();
                const int step = k + 1 < to ? 1 : 0; /* the last block is asked for twice */
                fetch(k + step, step);
                await_stages<STAGES - 2>();
                start_next(slot_free);
                if constexpr (FORMAT == WEIGHT_INT8)
                    add_block<TOKENS>(slot_out, x, acc);
                if constexpr (SEVERAL) {
                    if (--until == 0) {
                        fold_sums<TOKENS>(row, k / shift, acc, total);
                        until = shift;
                    }
                }
                if constexpr (FORMAT != WEIGHT_INT8)
                    add_block<FORMAT, TOKENS, LARGE>(slot_out, slot_out + scale_offset, byte, large, x, acc);
                slot_free = slot_out;
                slot_out += SLOT;
                slot_out = slot_out == ring_end ? ring : slot_out;
            }
            if constexpr (SEVERAL)
                put_sums<TOKENS>(sums[r], total);
            else
                put_sums<TOKENS>(sums[r], acc);
        }
        __syncthreads();
        work.finish(place, sums);
        __syncthreads();
    }
}

#endif
