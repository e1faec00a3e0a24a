#include "ops/cuda/linear.cuh"
#include "ops/cuda/wide.cuh"

/* The linears of many rows. */

enum { THREADS = 256 };

struct wide_product {
    struct product p;
    const uint8_t *x; /* tiles of rows: [token tile][piece][stage] */
    int32_t token_tiles, row_tiles; /* row tiles: of a piece, WIDE_ROWS rows of W each */
};

/* ---- rows as tiles ---- */

static __device__ uint16_t widened_bits(const struct activation &in, int64_t at)
{
    if (in.format == ACT_BF16)
        return ((const uint16_t *)in.codes)[at];
    return bf16_bits(e4m3_value(((const uint8_t *)in.codes)[at]) * e8m0_value(((const uint8_t *)in.scales)[at / in.block]));
}

/* A thread for 32 columns of a row; zeros where there is no row. */
template <bool CODES, int TOKENS>
static __global__ void pack_rows(struct activation in, struct row_list rows, int32_t offset, int32_t k, int32_t pieces,
                                 int32_t token_tiles, uint8_t *out)
{
    await_earlier();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, chunk = i / (2 * TOKENS);
    const int chunks = k / STAGE_COLUMNS, second = (int)(i % 2), r = (int)(i / 2 % TOKENS);
    const int64_t piece = chunk / chunks % pieces, tile = chunk / chunks / pieces;
    if (tile >= token_tiles)
        return;
    const int64_t token = tile * TOKENS + r;
    uint16_t value[BLOCK_COLUMNS] = {};
    if (token < rows.count) {
        const int64_t row = row_at(rows, token) + (rows.index ? 0 : offset);
        const int64_t first = row * in.cols + piece * k + chunk % chunks * STAGE_COLUMNS + second * BLOCK_COLUMNS;
#pragma unroll
        for (int c = 0; c < BLOCK_COLUMNS; c++)
            value[unit_order(CODES, c)] = widened_bits(in, first + c);
    }
    uint8_t *to = out + (chunk * TOKENS + r) * STAGE_ROW_BYTES;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        uint32_t word[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            word[j] = (uint32_t)value[8 * q + 2 * j] | (uint32_t)value[8 * q + 2 * j + 1] << 16;
        *(uint4 *)(void *)(to + ((4 * second + q) ^ r % 8) * 16) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* ---- the product ---- */

template <int TOKENS> struct linear_wide_work {
    enum { PACKED = 1, VARIES = 0 };
    const struct wide_product &w;
    typedef struct linear_wide_place place;
    __device__ int units() const { return w.token_tiles * w.row_tiles * w.p.pieces; }
    __device__ const struct weight_view &shape() const { return w.p.w; }
    __device__ place find(int unit) const { return find_wide(w.p, unit, w.token_tiles, w.row_tiles, TOKENS); }
    __device__ const uint8_t *codes(const place &at, int t) const
    {
        return w.p.w.values + last_of(w.p.w, at.tile + t) * w.p.w.pitch;
    }
    __device__ const uint8_t *scales(const place &at, int t) const
    {
        return w.p.w.scales + last_of(w.p.w, at.tile + t) * w.p.w.scale_cols;
    }
    __device__ const uint8_t *packed(const place &at) const
    {
        return w.x + ((int64_t)at.token * w.p.pieces + at.piece * TOKENS) * w.p.w.k * 2;
    }
    __device__ void finish(const place &at, int first, const float *slab) const
    {
        enum { HALF = half_of(TOKENS) };
        const struct activation &out = w.p.out;
        const int r = lane_of() * 4, column = at.tile * TILE_ROWS + r - at.first;
        slab += r / SLAB_ROWS * HALF * SLAB_PITCH + r % SLAB_ROWS;
        const int64_t piece = (int64_t)at.piece * w.p.columns;
        const bool whole = column >= 0 && column + 4 <= w.p.columns && out.format == ACT_BF16 &&
                           (out.cols | (piece + column)) % 4 == 0 && (uintptr_t)out.codes % 8 == 0;
        for (int t = warp_of(); t < HALF && at.token + first + t < w.p.rows.count; t += SUMMING / WARP) {
            const float4 y = *(const float4 *)(const void *)(slab + t * SLAB_PITCH);
            const int64_t row = output_row(w.p, at.token + first + t);
            if (whole) {
                store_4((uint16_t *)out.codes + row * out.cols + piece + column, y);
                continue;
            }
            const float value[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (column + i >= 0 && column + i < w.p.columns)
                    act_store(out, row, piece + column + i, value[i]);
        }
    }
};

template <int FORMAT, int TOKENS>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) wide_kernel(const __grid_constant__ struct wide_product w)
{
    wide_tiles<FORMAT, TOKENS>(linear_wide_work<TOKENS>{w});
}

template <int FORMAT, int TOKENS>
static qr_status start_wide(struct backend *b, const struct op_linear *op, struct wide_product *w, qr_error *err)
{
    const struct product *p = &w->p;
    const int64_t packed = (int64_t)w->token_tiles * TOKENS * p->pieces * p->w.k / BLOCK_COLUMNS;
    const int64_t units = (int64_t)w->token_tiles * w->row_tiles * p->pieces, most = cuda_of(b)->processors;
    const bool codes = FORMAT != WEIGHT_BF16;
    LAUNCH("linear", (pack_rows<codes, TOKENS>), (unsigned)((packed + THREADS - 1) / THREADS), THREADS, 0, op->in,
           p->rows, p->offset, p->w.k, p->pieces, w->token_tiles, cuda_of(b)->scratch);
    LAUNCH("linear", (wide_kernel<FORMAT, TOKENS>), (unsigned)(units < most ? units : most), WIDE_THREADS,
           (wide_ring<FORMAT, TOKENS>::BYTES), *w);
    return QR_OK;
}

/* How many rows a block takes changes no bit. */
template <int FORMAT>
static qr_status choose_wide(struct backend *b, const struct op_linear *op, struct wide_product *w, int tokens,
                             qr_error *err)
{
    return tokens == 32   ? start_wide<FORMAT, 32>(b, op, w, err)
           : tokens == 64 ? start_wide<FORMAT, 64>(b, op, w, err)
                          : start_wide<FORMAT, 128>(b, op, w, err);
}

int linear_wide_rows(struct backend *b, const struct op_linear *op)
{
    const int64_t rows = op->rows.count, pieces = op->in.cols / op->weight->spec.k;
    const int64_t columns = op->out.cols / pieces, processors = cuda_of(b)->processors;
    for (int tokens = rows <= 32 ? 32 : rows <= 64 ? 64 : 128; tokens >= 32; tokens /= 2) {
        const int64_t units = (rows + tokens - 1) / tokens * ((columns + WIDE_ROWS - 1) / WIDE_ROWS) * pieces;
        if (units >= (tokens == 32 ? processors : processors / 2))
            return tokens;
    }
    return 0;
}

static int64_t row_bytes(const struct op_linear *op) { return (int64_t)op->in.cols * 2; }

bool linear_is_wide(struct backend *b, const struct op_linear *op)
{
    const struct weight *w = op->weight;
    const bool fits = op->in.format == ACT_BF16 || op->in.block % BLOCK_COLUMNS == 0;
    return cuda_of(b)->has_wgmma && op->rows.count > 2 * TILE_TOKENS && w->spec.k % STAGE_COLUMNS == 0 &&
           !w->view.large_scales && fits && SCRATCH_BYTES / row_bytes(op) >= 128 && linear_wide_rows(b, op) > 0;
}

qr_status linear_wide(struct backend *b, const struct op_linear *op, struct product *p, qr_error *err)
{
    const enum weight_format format = op->weight->spec.format;
    const int tokens = linear_wide_rows(b, op);
    const int64_t most = SCRATCH_BYTES / row_bytes(op) / tokens * tokens;
    struct wide_product w = {.p = *p, .x = cuda_of(b)->scratch};
    w.row_tiles = (p->tiles + WIDE_TILES - 1) / WIDE_TILES;
    for (int64_t first = 0; first < op->rows.count; first += most) {
        w.p.rows = band_of(op->rows, first, most);
        w.p.offset = (int32_t)first;
        w.token_tiles = (w.p.rows.count + tokens - 1) / tokens;
        qr_status st = format == WEIGHT_BF16  ? choose_wide<WEIGHT_BF16>(b, op, &w, tokens, err)
                       : format == WEIGHT_FP8 ? choose_wide<WEIGHT_FP8>(b, op, &w, tokens, err)
                                              : choose_wide<WEIGHT_FP4>(b, op, &w, tokens, err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}
