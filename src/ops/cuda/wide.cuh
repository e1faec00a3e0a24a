/* wide.cuh: y = W x for many rows on Hopper's matrix unit: wgmma, W from registers, rows from shared memory.
 *
 * Arithmetic. That of product.cuh, bit for bit: a block of 32 columns is two instructions of 16 that start from zero,
 * each with the columns of mma.m16n8k16's instruction, its sum is added in f32 to the sum of its split of K, and the
 * splits' sums are added ascending.
 *
 * Rows come as bf16 in "unit order": the words of 32 columns as the instructions take them. They are tiles of TOKENS
 * rows and STAGE_COLUMNS columns, 128 bytes a row, the 16-byte pieces of row r at place piece ^ r % 8 (the layout that
 * the matrix unit calls 128-byte swizzle). Either they lie so in memory, a tile behind the other (PACKED), or the
 * copying threads bring them so from rows in unit order.
 *
 * Threads. Two warpgroups sum, each 64 rows of W: a warp has half a tile of 32 rows, whose operands are contiguous for
 * a lane. A third copies weights and rows into a ring of stages. */
#ifndef QR_OPS_CUDA_WIDE_CUH
#define QR_OPS_CUDA_WIDE_CUH

#include "ops/cuda/product.cuh"
#include "ops/cuda/wgmma.cuh"

enum { WIDE_TILES = 4, WIDE_ROWS = WIDE_TILES * TILE_ROWS, STAGE_COLUMNS = 64, STAGE_ROW_BYTES = 2 * STAGE_COLUMNS };
enum { INT8_COLUMNS = STAGE_ROW_BYTES }; /* of a stage of INT8 */
template <int FORMAT> static __host__ __device__ constexpr int stage_columns()
{
    return FORMAT == WEIGHT_INT8 ? (int)INT8_COLUMNS : (int)STAGE_COLUMNS;
}
enum { WARPGROUP = 128, SUMMING = 2 * WARPGROUP, WIDE_THREADS = SUMMING + WARPGROUP };
enum { SLAB_ROWS = 64, SLAB_PITCH = SLAB_ROWS + 4 };

/* How many of a unit's rows of activations one instruction takes. */
static __host__ __device__ constexpr int half_of(int tokens) { return tokens < 64 ? tokens : 64; }

/* The ring's parts for a format and a number of rows of activations. */
template <int FORMAT, int TOKENS> struct wide_ring {
    enum { HALF = half_of(TOKENS), HALVES = TOKENS / HALF };
    enum {
        PIECE = stage_columns<FORMAT>() / BLOCK_COLUMNS * blocks<FORMAT>::BYTES,
        CODES = WIDE_TILES * PIECE,
        ROWS = TOKENS * STAGE_ROW_BYTES
    };
    enum { SLABS = 2 * HALF * SLAB_PITCH * 4, ROOM = (220 << 10) - SLABS };
    enum { FIT = ROOM / (CODES + ROWS), STAGES = FIT < 12 ? FIT : 12 };
    enum { CODES_AT = STAGES * ROWS, SLABS_AT = CODES_AT + STAGES * CODES, BARRIERS_AT = SLABS_AT + SLABS };
    enum { BYTES = BARRIERS_AT + 2 * STAGES * 8 + 1024 }; /* it begins on 1024 bytes */
    static_assert(STAGES >= 4 && SLABS_AT % 16 == 0, "");
};

/* Where column c of a row stands in unit order; codes: of FP8 and FP4 weights. */
static __host__ __device__ inline int64_t unit_order(bool codes, int64_t c)
{
    const int in = (int)(c % BLOCK_COLUMNS), r = in % 4, at = codes ? in - r + (r == 1 ? 2 : r == 2 ? 1 : r) : in;
    const int word = at / 2;
    return c - in + 2 * (word % 4 * 4 + word / 4) + at % 2;
}

/* The tile, or the last one of W where that lies behind it: of a unit of which W has only a part. */
[[maybe_unused]] static __device__ inline int64_t last_of(const struct weight_view &w, int tile)
{
    const int last = (w.n + TILE_ROWS - 1) / TILE_ROWS - 1;
    return tile < last ? tile : last;
}

#ifdef WGMMA_TARGET

/* ---- weights as operands ---- */

/* What a lane holds of half m (16 rows) of a block of W as it is stored. */
template <int FORMAT> struct stored {
    enum { WORDS = FORMAT == WEIGHT_BF16 ? 8 : FORMAT == WEIGHT_FP8 ? 4 : 2 };
    uint32_t word[WORDS], scales; /* FP8: the block's byte */

    /* Where a lane's part of a block is, and its scales (FP4). */
    static __device__ uint32_t own(int m, int lane)
    {
        return (uint32_t)(FORMAT == WEIGHT_FP4 ? lane * 16 + 8 * m : (WORDS / 4 * m * WARP + lane) * 16);
    }
    static __device__ uint32_t own_scales(int m, int lane) { return (uint32_t)(16 * WARP + lane / 4 * 4 + 2 * m); }

    template <int BLOCK> __device__ void load(uint32_t at, uint32_t scales_at, uint32_t byte)
    {
        enum { FIRST = BLOCK * blocks<FORMAT>::BYTES };
        if constexpr (FORMAT == WEIGHT_FP4) {
            shared_8<FIRST>(at, word);
            scales = shared_2<FIRST>(scales_at);
        } else {
#pragma unroll
            for (int i = 0; i < WORDS / 4; i++)
                shared_16<FIRST>(at + (uint32_t)(i * 16 * WARP), word + 4 * i);
            scales = byte;
        }
    }
    /* What two instructions take of it. */
    __device__ void take(uint32_t (&a)[8]) const
    {
        uint32_t pair[2][4], factor[2];
        if constexpr (FORMAT == WEIGHT_BF16) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                pair[i / 4][i % 4] = word[i];
        } else if constexpr (FORMAT == WEIGHT_FP8) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                place_e4m3(word[i], pair[i / 2] + i % 2 * 2);
            factor[0] = factor[1] = power_pair(scales);
        } else {
            place_e2m1(word[0], word[1], pair[0], pair[1]);
            factor[0] = power_pair(scales & 255), factor[1] = power_pair(scales >> 8);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) { /* an instruction takes pairs 2 k and 2 k + 1 of both rows */
            uint32_t p = pair[i % 2][i / 4 * 2 + i % 4 / 2];
            a[i] = FORMAT == WEIGHT_BF16 ? p : multiply_pair(p, factor[i % 2]);
        }
    }
};

/* ---- where a thread stands in the ring ---- */

template <int STAGES> struct ring_place {
    int slot;
    uint32_t parity;
    __device__ void next()
    {
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* What the threads of a block share. */
template <int FORMAT, int TOKENS> struct wide_memory {
    typedef wide_ring<FORMAT, TOKENS> ring;
    uint8_t *base;
    uint32_t at;
    __device__ uint32_t rows(int slot) const { return at + (uint32_t)(slot * ring::ROWS); }
    __device__ uint32_t codes(int slot) const { return at + ring::CODES_AT + (uint32_t)(slot * ring::CODES); }
    __device__ uint32_t full(int slot) const { return at + ring::BARRIERS_AT + (uint32_t)(slot * 8); }
    __device__ uint32_t free(int slot) const { return full(slot) + ring::STAGES * 8; }
    __device__ float *slab(int i) const
    {
        return (float *)(void *)(base + ring::SLABS_AT) + i * ring::HALF * SLAB_PITCH;
    }
};

/* ---- copying ---- */

/* Work as in product.cuh's stream_tiles, for units of WIDE_TILES tiles and TOKENS rows:
 *   units(), shape(), find(unit)                  as there
 *   const uint8_t *codes(place, t), *scales(place, t) of tile t of the unit
 *   const uint8_t *packed(place)                  PACKED: the rows' first tile; those of further columns lie behind it
 *   const uint8_t *row(place, token)              else: a row in unit order
 *   int rows(place)                               VARIES: how many of the unit's rows are wanted
 *   void finish(place, first, const float *slab)  by the summing threads: sums [2][HALF][SLAB_PITCH] of rows of
 *                                                 activations from `first` of the unit on
 * PACKED: weights and places need no earlier kernel, and the caller has not waited for it; else it has. */

/* The part of warp t of the copying ones: tile t of a stage. */
template <int FORMAT, int TOKENS, typename Work>
static __device__ inline void copy_weights(const wide_memory<FORMAT, TOKENS> &memory, const uint8_t *codes, int t,
                                           int stage, int slot)
{
    typedef wide_ring<FORMAT, TOKENS> ring;
    if (t == 0)
        barrier_expect(memory.full(slot), ring::CODES + (Work::PACKED ? (int)ring::ROWS : 0));
    bulk_copy(memory.codes(slot) + (uint32_t)(t * ring::PIECE), codes + (int64_t)stage * ring::PIECE, ring::PIECE,
              memory.full(slot));
}

/* The first threads of four warps copy everything. */
template <int FORMAT, int TOKENS, typename Work>
static __device__ inline void copy_packed(const Work &work, const wide_memory<FORMAT, TOKENS> &memory, int t)
{
    typedef wide_ring<FORMAT, TOKENS> ring;
    const int units = work.units(), stages = work.shape().k / stage_columns<FORMAT>();
    const int ahead = stages < ring::STAGES ? stages : (int)ring::STAGES; /* their weights need no earlier kernel */
    ring_place<ring::STAGES> to = {0, 1};
    if ((int)blockIdx.x < units) {
        const uint8_t *codes = work.codes(work.find(blockIdx.x), t);
        for (int s = 0; s < ahead; s++)
            copy_weights<FORMAT, TOKENS, Work>(memory, codes, t, s, s);
    }
    await_earlier();
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const typename Work::place place = work.find(unit);
        const uint8_t *codes = work.codes(place, t), *rows = work.packed(place);
        for (int s = 0; s < stages; s++) {
            barrier_await(memory.free(to.slot), to.parity);
            if (unit != (int)blockIdx.x || s >= ahead)
                copy_weights<FORMAT, TOKENS, Work>(memory, codes, t, s, to.slot);
            if (t == 1)
                bulk_copy(memory.rows(to.slot), rows + (int64_t)s * ring::ROWS, ring::ROWS, memory.full(to.slot));
            to.next();
        }
    }
}

/* A warpgroup gathers rows; the first threads of its warps copy the weights. */
template <int FORMAT, int TOKENS, typename Work>
static __device__ inline void copy_gathered(const Work &work, const wide_memory<FORMAT, TOKENS> &memory, int thread)
{
    typedef wide_ring<FORMAT, TOKENS> ring;
    enum { LAG = ring::STAGES - 2 < 6 ? ring::STAGES - 2 : 6, EACH = TOKENS / 16 };
    const int units = work.units(), stages = work.shape().k / stage_columns<FORMAT>(), first = thread / 8,
              piece = thread % 8;
    const uint32_t own = (uint32_t)(first * STAGE_ROW_BYTES + (piece ^ first % 8) * 16);
    ring_place<ring::STAGES> to = {0, 1}, shown = {0, 0};
    int started = 0;
    const int t = thread / WARP;
    const bool leads = thread % WARP == 0;
    auto show = [&]() {
        show_stores();
        __syncwarp();
        if (thread % WARP == 0)
            barrier_arrive(memory.full(shown.slot));
        shown.next();
    };
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const typename Work::place place = work.find(unit);
        const uint8_t *row[EACH], *codes = work.codes(place, t);
        bool whole = true;
        if constexpr (Work::VARIES)
            whole = work.rows(place) > ring::HALF;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            row[i] = work.row(place, first + 16 * i) + piece * 16;
        for (int s = 0; s < stages; s++) {
            barrier_await(memory.free(to.slot), to.parity);
            if (leads)
                copy_weights<FORMAT, TOKENS, Work>(memory, codes, t, s, to.slot);
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (i >= ring::HALF / 16 && !whole)
                    continue;
                copy_16(memory.rows(to.slot) + own + (uint32_t)(16 * i * STAGE_ROW_BYTES), row[i]);
                row[i] += STAGE_ROW_BYTES;
            }
            close_stage();
            to.next();
            if (started++ >= LAG) {
                await_stages<LAG>();
                show();
            }
        }
    }
    await_stages<0>();
    for (int left = started < LAG ? started : (int)LAG; left > 0; left--)
        show();
}

/* ---- summing ---- */

/* A warp's sums: `part` of a block under way, `acc` of a split, `total` of those before. */
template <int FORMAT, int TOKENS> struct wide_sums {
    enum { HALVES = wide_ring<FORMAT, TOKENS>::HALVES, EACH = wide_ring<FORMAT, TOKENS>::HALF / 2 };
    float part[2][EACH], acc[HALVES][EACH], total[HALVES][EACH];
    int split, left;      /* blocks of the split to come */
    int unit, units, all; /* blocks of K: that stay together, how many such, and all */

    __device__ void begin(const struct weight_view &w)
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                acc[h][i] = total[h][i] = 0;
        all = w.k / BLOCK_COLUMNS;
        unit = FORMAT == WEIGHT_FP8 ? w.tile / BLOCK_COLUMNS : 1;
        units = (all + unit - 1) / unit;
        split = -1;
        next_split();
    }
    __device__ int bound(int s) const { return min(s * units / SPLITS * unit, all); } /* split_of */
    __device__ void next_split()
    {
        do {
            split++;
            left = split < SPLITS ? bound(split + 1) - bound(split) : 1 << 30;
        } while (left == 0);
    }
    /* Starts the products of half H of a block; rows: the descriptor of its columns. */
    template <int H> __device__ void start(int to, const uint32_t (&a)[8], uint32_t rows)
    {
        const uint32_t b = rows + (H * 64 * STAGE_ROW_BYTES >> 4);
        unit_begin();
        unit_multiply<false>(part[to], a, b);
        unit_multiply<true>(part[to], a + 4, b + (32 >> 4));
        unit_close();
    }
    /* Waits for all but OPEN of those started, and adds one. */
    template <int OPEN> __device__ void add(int h, int from, const uint32_t (&a)[8])
    {
        unit_await<OPEN>();
        settle(part[from]);
        hold_operands(a);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            acc[h][i] += part[from][i];
    }
    __device__ void end_block()
    {
        if (__builtin_expect(--left > 0, 1))
            return;
#pragma unroll
        for (int h = 0; h < HALVES; h++)
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                total[h][i] += acc[h][i];
                acc[h][i] = 0;
            }
        next_split();
    }
};

/* Where a summing thread stands. */
template <int FORMAT, int TOKENS> struct wide_stand {
    int lane, group, warp, tile;                       /* tile of the unit */
    uint32_t codes_at, scales_at, full_at, rows_first; /* in slot 0 */
    ring_place<wide_ring<FORMAT, TOKENS>::STAGES> at;
};

/* The sums of a unit of which the first USED rows are wanted. */
template <int FORMAT, int TOKENS, int USED, typename Work>
static __device__ inline void
sum_unit(const Work &work, const typename Work::place &place, wide_stand<FORMAT, TOKENS> &stand,
         float (&total)[wide_ring<FORMAT, TOKENS>::HALVES][wide_ring<FORMAT, TOKENS>::HALF / 2])
{
    typedef wide_ring<FORMAT, TOKENS> ring;
    enum { HALVES = wide_ring<FORMAT, USED>::HALVES };
    const struct weight_view &shape = work.shape();
    const int stages = shape.k / STAGE_COLUMNS;
    const uint32_t codes_at = stand.codes_at, scales_at = stand.scales_at, full_at = stand.full_at;
    ring_place<ring::STAGES> &at = stand.at;
    wide_sums<FORMAT, USED> sums;
    stored<FORMAT> raw;
    uint32_t a[2][8];

    const uint8_t *scales = FORMAT == WEIGHT_FP8 ? work.scales(place, stand.tile) : NULL;
    uint32_t bytes = 0, bytes_next = 0; /* FP8: of the stage's blocks */
    if (FORMAT == WEIGHT_FP8)
        bytes = __ldg((const uint16_t *)(const void *)scales);
    sums.begin(shape);
    barrier_await(full_at + (uint32_t)(at.slot * 8), at.parity);
    raw.template load<0>(codes_at + (uint32_t)(at.slot * ring::CODES), scales_at + (uint32_t)(at.slot * ring::CODES),
                         bytes & 255);
    raw.take(a[0]);
    /* a block's weights are taken while the one before it is multiplied; behind the last, any */
#pragma unroll 1
    for (int s = 0; s < stages; s++) {
        const uint32_t rows = rows_at(stand.rows_first + (uint32_t)(at.slot * ring::ROWS));
        const uint32_t own = full_at + (uint32_t)(at.slot * 8), codes = (uint32_t)(at.slot * ring::CODES);
        raw.template load<1>(codes_at + codes, scales_at + codes, bytes >> 8);
        if (s + 1 < stages)
            at.next();
        if (FORMAT == WEIGHT_FP8)
            bytes_next = __ldg((const uint16_t *)(const void *)(scales += s + 1 < stages ? 2 : 0));
        sums.template start<0>(0, a[0], rows);
        if constexpr (HALVES == 2)
            sums.template start<1>(1, a[0], rows);
        raw.take(a[1]);
        barrier_await(full_at + (uint32_t)(at.slot * 8), at.parity);
        bytes = bytes_next;
        raw.template load<0>(codes_at + (uint32_t)(at.slot * ring::CODES),
                             scales_at + (uint32_t)(at.slot * ring::CODES), bytes & 255);
        if constexpr (HALVES == 2) {
            sums.template add<1>(0, 0, a[0]);
            sums.template start<0>(0, a[1], rows + (64 >> 4));
            sums.template add<1>(1, 1, a[0]);
            sums.end_block();
            sums.template start<1>(1, a[1], rows + (64 >> 4));
            raw.take(a[0]);
            sums.template add<1>(0, 0, a[1]);
            sums.template add<0>(1, 1, a[1]);
        } else {
            sums.template start<0>(1, a[1], rows + (64 >> 4));
            sums.template add<1>(0, 0, a[0]);
            sums.end_block();
            raw.take(a[0]);
            sums.template add<0>(0, 1, a[1]);
        }
        if (stand.lane == 0)
            barrier_arrive<ring::STAGES * 8>(own);
        sums.end_block();
    }
    at.next();

#pragma unroll
    for (int h = 0; h < HALVES; h++)
#pragma unroll
        for (int i = 0; i < ring::HALF / 2; i++)
            total[h][i] = sums.total[h][i];
}

template <int FORMAT, int TOKENS, typename Work>
static __device__ inline void sum_units(const Work &work, const wide_memory<FORMAT, TOKENS> &memory)
{
    typedef wide_ring<FORMAT, TOKENS> ring;
    typedef stored<FORMAT> stored_block;
    enum { HALVES = ring::HALVES };
    const int units = work.units();
    wide_stand<FORMAT, TOKENS> stand = {kept(lane_of()), (int)threadIdx.x / WARPGROUP, warp_of() % 4};
    stand.tile = stand.group * 2 + stand.warp / 2;
    const int m = stand.warp % 2;
    const uint32_t piece = memory.codes(0) + (uint32_t)(stand.tile * ring::PIECE);
    stand.codes_at = (uint32_t)kept((int)(piece + stored_block::own(m, stand.lane)));
    stand.scales_at = FORMAT == WEIGHT_FP4 ? (uint32_t)kept((int)(piece + stored_block::own_scales(m, stand.lane))) : 0;
    stand.full_at = (uint32_t)kept((int)memory.full(0));
    stand.rows_first = (uint32_t)kept((int)memory.rows(0));

    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const typename Work::place place = work.find(unit);
        float total[HALVES][ring::HALF / 2];
        bool whole = true;
        if constexpr (Work::VARIES && HALVES == 2)
            whole = work.rows(place) > ring::HALF;
        if (whole)
            sum_unit<FORMAT, TOKENS, TOKENS>(work, place, stand, total);
        else
            sum_unit<FORMAT, TOKENS, ring::HALF>(work, place, stand, total);
        float *slab = memory.slab(stand.group) + stand.warp * 16 + stand.lane / 4 + stand.lane % 4 * 2 * SLAB_PITCH;
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            if (h > 0 && !whole)
                break;
            meet<1, SUMMING>();
#pragma unroll
            for (int i = 0; i < ring::HALF / 2; i++)
                slab[(i / 4 * 8 + i % 2) * SLAB_PITCH + i % 4 / 2 * 8] = total[h][i];
            meet<1, SUMMING>();
            work.finish(place, h * ring::HALF, memory.slab(0));
        }
    }
}

/* The threads of a block; those that sum do what they are given. */
template <int FORMAT, int TOKENS, typename Work, typename Sum>
static __device__ inline void wide_threads(const Work &work, const Sum &sum)
{
    typedef wide_ring<FORMAT, TOKENS> ring;
    LAUNCHED_SHARED(uint8_t, wide_bytes, 1024);
    const uint32_t start = (uint32_t)__cvta_generic_to_shared(wide_bytes), skip = (1024 - start % 1024) % 1024;
    const wide_memory<FORMAT, TOKENS> memory = {wide_bytes + skip, start + skip};
    if (threadIdx.x == 0)
        for (int i = 0; i < ring::STAGES; i++) {
            barrier_make(memory.full(i), Work::PACKED ? 1 : 1 + WARPGROUP / WARP);
            barrier_make(memory.free(i), SUMMING / WARP);
        }
    show_stores();
    __syncthreads();
    if (threadIdx.x >= SUMMING) {
        give_registers<40>();
        if constexpr (!Work::PACKED)
            copy_gathered<FORMAT, TOKENS>(work, memory, (int)threadIdx.x - SUMMING);
        else if (threadIdx.x % WARP == 0)
            copy_packed<FORMAT, TOKENS>(work, memory, warp_of() - SUMMING / WARP);
        else
            await_earlier();
    } else {
        take_registers<232>();
        if (Work::PACKED)
            await_earlier();
        sum(memory);
    }
}

template <int FORMAT, int TOKENS, typename Work> static __device__ inline void wide_tiles(const Work &work)
{
    wide_threads<FORMAT, TOKENS>(
        work, [&](const wide_memory<FORMAT, TOKENS> &memory) { sum_units<FORMAT, TOKENS>(work, memory); });
}

#else
template <int FORMAT, int TOKENS, typename Work> static __device__ inline void wide_tiles(const Work &) {}
#endif

#endif
