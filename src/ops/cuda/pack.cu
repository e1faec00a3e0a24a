#include "ops/cuda/product.cuh"

/* Lays weights out for the matrix unit (product.cuh), once, from the bytes of the file. */

enum { THREADS = 256 };

/* Pair i of eight E2M1 codes of a row as place_e2m1 leaves it: columns 0 2 1 3 of each four, sign at bit 15, magnitude at
 * bits 8 to 6 of each half. */
static __device__ uint32_t placed_pair(uint32_t codes, int i)
{
    const int first = i / 2 * 4 + i % 2; /* column of the lower half; the upper one's is two on */
    const uint32_t low = codes >> 4 * first & 15, high = codes >> 4 * (first + 2) & 15;
    return (low >> 3) << 15 | (low & 7) << 6 | (high >> 3) << 31 | (high & 7) << 22;
}

static __device__ uint32_t turned_left(uint32_t x, int by) { return by ? x << by | x >> (32 - by) : x; }

/* The words of two rows that share their fourth pairs: what place_e2m1 takes apart. */
static __device__ void interleave_e2m1(uint32_t codes_a, uint32_t codes_b, uint32_t *a, uint32_t *b)
{
    const int turns[3] = {0, 4, 26};
    const uint32_t left = E2M1_LEFT;
    uint32_t both = turned_left(placed_pair(codes_a, 3), 6) | turned_left(placed_pair(codes_b, 3), 28);
    *a = both & left;
    *b = (both & ~left) << 2;
    for (int i = 0; i < 3; i++) {
        *a |= turned_left(placed_pair(codes_a, i), turns[i]);
        *b |= turned_left(placed_pair(codes_b, i), turns[i]);
    }
}

static __device__ uint32_t load_word(const uint8_t *row, int64_t at, int64_t end)
{
    uint32_t word = 0;
    for (int i = 0; i < 4; i++)
        word |= at + i < end ? (uint32_t)row[at + i] << 8 * i : 0;
    return word;
}

/* A thread for each lane of a block. */
static __global__ void pack_fp4(const uint8_t *values, const uint8_t *scales, struct weight_view w, uint8_t *out)
{
    await_earlier();
    int64_t blocks_k = (w.k + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int lane = (int)(i % WARP), group = lane / 4;
    int64_t block = i / WARP, tile = block / blocks_k, k = block % blocks_k;
    if (tile * TILE_ROWS >= w.n)
        return;
    uint8_t *to = out + block * blocks<WEIGHT_FP4>::BYTES;
    uint32_t word[4], bytes = 0;
    for (int r = 0; r < 4; r++) {
        int64_t row = tile * TILE_ROWS + group + 8 * r;
        bool there = row < w.n;
        uint32_t codes = there ? load_word(values + row * (w.k / 2), k * 16 + lane % 4 * 4, w.k / 2) : 0;
        word[r] = codes;
        bytes |= kept_scale<WEIGHT_FP4>(there ? scales[row * blocks_k + k] : 127, w.large_scales) << 8 * r;
    }
    interleave_e2m1(word[0], word[1], &word[0], &word[1]);
    interleave_e2m1(word[2], word[3], &word[2], &word[3]);
    *(uint4 *)(void *)(to + lane * 16) = make_uint4(word[0], word[1], word[2], word[3]);
    if (lane % 4 == 0)
        *(uint32_t *)(void *)(to + 16 * WARP + group * 4) = bytes;
}

static __global__ void pack_fp8(const uint8_t *values, const uint8_t *scales, struct weight_view w, uint8_t *out,
                                uint8_t *out_scales)
{
    await_earlier();
    int64_t blocks_k = w.scale_cols, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int lane = (int)(i % WARP), group = lane / 4;
    int64_t block = i / WARP, tile = block / blocks_k, k = block % blocks_k;
    if (tile * TILE_ROWS >= w.n)
        return;
    uint8_t *to = out + block * blocks<WEIGHT_FP8>::BYTES;
    for (int m = 0; m < 2; m++) {
        uint32_t word[4];
        for (int r = 0; r < 2; r++)
            for (int half = 0; half < 2; half++) {
                int64_t row = tile * TILE_ROWS + group + 16 * m + 8 * r;
                uint32_t codes =
                    row < w.n ? load_word(values + row * w.k, k * BLOCK_COLUMNS + lane % 4 * 8 + 4 * half, w.k) : 0;
                word[2 * r + half] = codes;
            }
        *(uint4 *)(void *)(to + (m * WARP + lane) * 16) = make_uint4(word[0], word[1], word[2], word[3]);
    }
    int64_t cols = (w.k + w.tile - 1) / w.tile;
    if (lane == 0)
        out_scales[block] = (uint8_t)kept_scale<WEIGHT_FP8>(
            scales[tile * TILE_ROWS / w.tile * cols + k * BLOCK_COLUMNS / w.tile], w.large_scales);
}

static __global__ void pack_int8(const uint8_t *values, struct weight_view w, uint8_t *out)
{
    await_earlier();
    int64_t blocks_k = (w.k + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int lane = (int)(i % WARP);
    int64_t block = i / WARP, tile = block / blocks_k, k = block % blocks_k;
    if (tile * TILE_ROWS >= w.n)
        return;
    uint8_t *to = out + block * blocks<WEIGHT_INT8>::BYTES;
    for (int m = 0; m < 2; m++) {
        uint32_t word[4];
        for (int i = 0; i < 4; i++) {
            int64_t row = tile * TILE_ROWS + lane / 4 + 16 * m + i / 2 * 8, at = k * BLOCK_COLUMNS + lane % 4 * 4 + i % 2 * 16;
            word[i] = row < w.n ? load_word(values + row * w.k, at, w.k) : 0;
        }
        *(uint4 *)(void *)(to + (m * WARP + lane) * 16) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

static __global__ void pack_bf16(const uint8_t *values, struct weight_view w, uint8_t *out)
{
    await_earlier();
    int64_t blocks_k = (w.k + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS, i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int lane = (int)(i % WARP);
    int64_t block = i / WARP, tile = block / blocks_k, k = block % blocks_k;
    if (tile * TILE_ROWS >= w.n)
        return;
    uint8_t *to = out + block * blocks<WEIGHT_BF16>::BYTES;
    for (int r = 0; r < 4; r++) {
        int64_t row = tile * TILE_ROWS + lane / 4 + 8 * r, at = k * 64 + lane % 4 * 16, end = 2 * (int64_t)w.k;
        const uint8_t *from = values + row * end;
        uint32_t word[4];
        for (int c = 0; c < 4; c++)
            word[c] = row < w.n ? load_word(from, at + 4 * c, end) : 0;
        *(uint4 *)(void *)(to + (r * WARP + lane) * 16) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

int64_t cuda_packed_bytes(const struct weight_spec *s, int64_t *tile_bytes)
{
    int64_t tiles = (s->n + TILE_ROWS - 1) / TILE_ROWS, across = (s->k + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    *tile_bytes = across * (s->format == WEIGHT_FP4   ? (int)blocks<WEIGHT_FP4>::BYTES
                            : s->format == WEIGHT_FP8 ? (int)blocks<WEIGHT_FP8>::BYTES
                            : s->format == WEIGHT_INT8 ? (int)blocks<WEIGHT_INT8>::BYTES
                                                       : (int)blocks<WEIGHT_BF16>::BYTES);
    return tiles * *tile_bytes + (s->format == WEIGHT_FP8 ? tiles * across : s->format == WEIGHT_INT8 ? 4 * (int64_t)s->n : 0);
}

qr_status cuda_pack(struct backend *b, const struct weight *w, const void *values, const void *scales, void *out,
                    qr_error *err)
{
    int64_t tiles = (w->spec.n + TILE_ROWS - 1) / TILE_ROWS, across = (w->spec.k + BLOCK_COLUMNS - 1) / BLOCK_COLUMNS;
    unsigned grid = (unsigned)((tiles * across * WARP + THREADS - 1) / THREADS);
    if (w->spec.format == WEIGHT_FP4)
        LAUNCH("weight", pack_fp4, grid, THREADS, 0, (const uint8_t *)values, (const uint8_t *)scales, w->view,
               (uint8_t *)out);
    else if (w->spec.format == WEIGHT_INT8)
        LAUNCH("weight", pack_int8, grid, THREADS, 0, (const uint8_t *)values, w->view, (uint8_t *)out);
    else if (w->spec.format == WEIGHT_BF16)
        LAUNCH("weight", pack_bf16, grid, THREADS, 0, (const uint8_t *)values, w->view, (uint8_t *)out);
    else
        LAUNCH("weight", pack_fp8, grid, THREADS, 0, (const uint8_t *)values, (const uint8_t *)scales, w->view,
               (uint8_t *)out, (uint8_t *)out + tiles * w->view.pitch);
    return QR_OK;
}
