#include "ops/cuda/linear.cuh"
#include "ops/cuda/wide_int8.cuh"

/* The linears of INT8: v4-model.md 7.3, and 7.4 for rows with a scale a group. acc += f32(whole sum of an activation block)
 * sigma, blocks ascending in each of the weight's splits of K, splits ascending; then the scale of the output's row of W. */

enum { THREADS = 256 };

static int32_t at_least_one(int32_t n) { return n > 0 ? n : 1; }

/* A product, and how its sums meet the scales of its rows: `blocks` of them in K, `splits` of K that are added apart. */
struct int8_product {
    struct product p;
    int32_t blocks, splits;
    int32_t token_tiles, row_tiles; /* of the wide product */
};

static __device__ inline const float *scales_of(const struct int8_product &w, int64_t row, int piece)
{
    return (const float *)(const void *)w.p.scales + row * (w.p.pieces * w.blocks) + piece * w.blocks;
}

static __device__ inline float scale_of_row(const struct weight_view &w, int64_t n)
{
    return __ldg((const float *)(const void *)w.scales + n);
}

/* ---- on the matrix unit ---- */

/* SEVERAL: a warp's range of K has several scales, else several warps share one. */
template <int TOKENS, bool SEVERAL> struct int8_work {
    enum { WEIGHTS_FIRST = 1, CODE_ORDER = 0 };
    const struct int8_product &w;
    struct place {
        int32_t tile, piece, first; /* first: row of W at which the piece begins */
    };
    __device__ int units() const { return w.p.tiles * w.p.pieces; }
    __device__ const struct weight_view &shape() const { return w.p.w; }
    __device__ place find(int unit) const
    {
        const int last = (w.p.w.n + TILE_ROWS - 1) / TILE_ROWS - 1;
        place at = {unit % w.p.tiles, unit / w.p.tiles, 0};
        at.first = w.p.groups ? at.piece * w.p.columns : 0;
        at.tile += at.first / TILE_ROWS;
        at.tile = at.tile < last ? at.tile : last;
        return at;
    }
    __device__ const struct weight_view &weight(const place &, int) const { return w.p.w; }
    __device__ int shift() const { return w.p.w.k / w.blocks / BLOCK_COLUMNS; }
    __device__ struct row_source row(const place &at, int token) const
    {
        const int first = blockIdx.y * TOKENS * TILE_TOKENS;
        const int64_t row = row_at(w.p.rows, first + token < w.p.rows.count ? first + token : first);
        return {w.p.x + row * w.p.stride + at.piece * w.p.piece_stride,
                (const uint8_t *)(const void *)scales_of(w, row, at.piece)};
    }
    __device__ float sum(const struct tile_sums<TOKENS> &sums, const float *sigma, int t, int r) const
    {
        if (SEVERAL)
            return sum_of<TOKENS>(sums, t, r);
        const int each = SPLITS / w.blocks;
        float y = 0;
        for (int j = 0; j < w.blocks; j++) /* no split has two of them, or there is one split */
            y += (float)whole_sum<TOKENS>(sums, t, r, j * each, (j + 1) * each) * __ldg(sigma + j);
        return y;
    }
    __device__ void finish(const place &at, const struct tile_sums<TOKENS> *sums) const
    {
        for (int i = threadIdx.x; i < TOKENS * TILE_TOKENS * TILE_ROWS; i += PRODUCT_THREADS) {
            const int r = i % TILE_ROWS, t = i / TILE_ROWS, token = blockIdx.y * TOKENS * TILE_TOKENS + t;
            const int column = at.tile * TILE_ROWS + r - at.first;
            if (token >= w.p.rows.count || column < 0 || column >= w.p.columns)
                continue;
            const int64_t row = row_at(w.p.rows, token);
            act_store(w.p.out, row, (int64_t)at.piece * w.p.columns + column,
                      sum(*sums, scales_of(w, row, at.piece), t, r) * scale_of_row(w.p.w, at.first + column));
        }
    }
};

template <int TOKENS, bool SEVERAL>
static __global__ void __launch_bounds__(PRODUCT_THREADS, (product_residents<TOKENS, 1, WEIGHT_INT8>()))
    int8_kernel(const __grid_constant__ struct int8_product w)
{
    stream_tiles<WEIGHT_INT8, 1, TOKENS, SEVERAL, false>(int8_work<TOKENS, SEVERAL>{w});
}

template <int TOKENS, bool SEVERAL>
static qr_status start_product(struct backend *b, const struct int8_product *w, qr_error *err)
{
    const int units = w->p.tiles * w->p.pieces;
    const int most = cuda_of(b)->processors * product_residents<TOKENS, 1, WEIGHT_INT8>();
    dim3 grid(units < most ? units : most, (w->p.rows.count + TOKENS * TILE_TOKENS - 1) / (TOKENS * TILE_TOKENS));
    LAUNCH("linear", (int8_kernel<TOKENS, SEVERAL>), grid, PRODUCT_THREADS, (product_shared<TOKENS, 1, WEIGHT_INT8>()), *w);
    return QR_OK;
}

/* How many rows a block takes changes no bit. */
static qr_status choose_product(struct backend *b, const struct int8_product *w, qr_error *err)
{
    const int32_t rows = w->p.rows.count;
    if (w->blocks > SPLITS)
        return rows <= TILE_TOKENS ? start_product<1, true>(b, w, err) : start_product<2, true>(b, w, err);
    if (rows <= TILE_TOKENS)
        return start_product<1, false>(b, w, err);
    if (rows <= 2 * TILE_TOKENS || product_shared<4, 1, WEIGHT_INT8>() > cuda_of(b)->most_shared)
        return start_product<2, false>(b, w, err);
    if (rows <= 4 * TILE_TOKENS || product_shared<8, 1, WEIGHT_INT8>() > cuda_of(b)->most_shared)
        return start_product<4, false>(b, w, err);
    return start_product<8, false>(b, w, err);
}

/* ---- of many rows ---- */

template <int TOKENS, bool MANY_SCALES> struct int8_wide_work {
    enum { PACKED = 0, VARIES = 0, SEVERAL = MANY_SCALES };
    typedef struct linear_wide_place place;
    const struct int8_product &w;
    __device__ int units() const { return w.token_tiles * w.row_tiles * w.p.pieces; }
    __device__ const struct weight_view &shape() const { return w.p.w; }
    __device__ int scales() const { return w.blocks; }
    __device__ place find(int unit) const { return find_wide(w.p, unit, w.token_tiles, w.row_tiles, TOKENS); }
    __device__ const uint8_t *codes(const place &at, int t) const
    {
        return w.p.w.values + last_of(w.p.w, at.tile + t) * w.p.w.pitch;
    }
    /* A row of the unit; any where there is none. */
    __device__ int64_t row_of(const place &at, int token) const
    {
        return row_at(w.p.rows, at.token + token < w.p.rows.count ? at.token + token : at.token);
    }
    __device__ const uint8_t *row(const place &at, int token) const
    {
        return w.p.x + row_of(at, token) * w.p.stride + at.piece * w.p.piece_stride;
    }
    __device__ float sigma(const place &at, int token, int i) const
    {
        return __ldg(scales_of(w, row_of(at, token), at.piece) + i);
    }
    __device__ float value(float sum, float sigma, int64_t n) const
    {
        float y = 0;
        y += SEVERAL ? sum : (float)__float_as_int(sum) * sigma;
        return y * scale_of_row(w.p.w, n);
    }
    __device__ void finish(const place &at, int first, const float *slab) const
    {
        enum { HALF = half_of(TOKENS) };
        const int64_t piece = (int64_t)at.piece * w.p.columns;
        for (int t = warp_of(); t < HALF && at.token + first + t < w.p.rows.count; t += SUMMING / WARP) {
            const int64_t row = row_of(at, first + t);
            const float of_row = SEVERAL ? 0 : sigma(at, first + t, 0);
#pragma unroll
            for (int r = lane_of(); r < WIDE_ROWS; r += WARP) {
                const int column = at.tile * TILE_ROWS + r - at.first;
                if (column >= 0 && column < w.p.columns)
                    act_store(w.p.out, row, piece + column,
                              value(slab[(r / SLAB_ROWS * HALF + t) * SLAB_PITCH + r % SLAB_ROWS], of_row, at.first + column));
            }
        }
    }
};

template <int TOKENS, bool SEVERAL>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) int8_wide_kernel(const __grid_constant__ struct int8_product w)
{
    await_earlier();
    wide_int8_tiles<TOKENS>(int8_wide_work<TOKENS, SEVERAL>{w});
}

template <int TOKENS, bool SEVERAL>
static qr_status start_wide(struct backend *b, struct int8_product *w, qr_error *err)
{
    const int64_t most = cuda_of(b)->processors;
    w->token_tiles = (w->p.rows.count + TOKENS - 1) / TOKENS;
    w->row_tiles = (w->p.tiles + WIDE_TILES - 1) / WIDE_TILES;
    const int64_t units = (int64_t)w->token_tiles * w->row_tiles * w->p.pieces;
    LAUNCH("linear", (int8_wide_kernel<TOKENS, SEVERAL>), (unsigned)(units < most ? units : most), WIDE_THREADS,
           (wide_ring<WEIGHT_INT8, TOKENS>::BYTES), *w);
    return QR_OK;
}

template <bool SEVERAL>
static qr_status choose_wide(struct backend *b, struct int8_product *w, int tokens, qr_error *err)
{
    return tokens == 32   ? start_wide<32, SEVERAL>(b, w, err)
           : tokens == 64 ? start_wide<64, SEVERAL>(b, w, err)
                          : start_wide<128, SEVERAL>(b, w, err);
}

/* Rows of a block of the wide product; 0: it does not take them. */
static int wide_rows(struct backend *b, const struct op_linear *op, const struct int8_product *w)
{
    const bool fits = cuda_of(b)->has_wgmma && op->rows.count > 2 * TILE_TOKENS && SPLITS % w->blocks == 0 &&
                      op->in.block % INT8_COLUMNS == 0 && op->in.cols % 16 == 0 && (uintptr_t)op->in.codes % 16 == 0;
    return fits ? linear_wide_rows(b, op) : 0;
}

/* ---- any shape ---- */

/* A warp for each output. */
static __global__ void plain_kernel(const __grid_constant__ struct int8_product w)
{
    await_earlier();
    const int64_t row = row_at(w.p.rows, blockIdx.y), column = (int64_t)blockIdx.x * (THREADS / WARP) + warp_of();
    if (column >= (int64_t)w.p.pieces * w.p.columns)
        return;
    const int64_t piece = column / w.p.columns, n = w.p.groups ? column : column % w.p.columns;
    const int8_t *x = (const int8_t *)w.p.x + row * w.p.stride + piece * w.p.piece_stride;
    const float *sigma = scales_of(w, row, (int)piece);
    const int block = w.p.w.k / w.blocks;
    float y = 0;
    for (int s = 0; s < w.splits; s++) {
        float acc = 0;
        for (int j = s * w.blocks / w.splits; j < (s + 1) * w.blocks / w.splits; j++) {
            int sum = 0;
            for (int k = j * block + lane_of(); k < (j + 1) * block; k += WARP)
                sum += x[k] * *packed_int8_at(w.p.w, n, k);
            acc += (float)__reduce_add_sync(ALL_LANES, sum) * sigma[j];
        }
        y = s == 0 ? acc : y + acc;
    }
    if (lane_of() == 0)
        act_store(w.p.out, row, column, y * scale_of_row(w.p.w, n));
}

static qr_status plain_product(struct backend *b, const struct int8_product *w, qr_error *err)
{
    const int32_t warps = THREADS / WARP;
    dim3 grid((unsigned)(((int64_t)w->p.pieces * w->p.columns + warps - 1) / warps), w->p.rows.count);
    LAUNCH("linear", plain_kernel, grid, THREADS, 0, *w);
    return QR_OK;
}

/* ---- the operator ---- */

/* Whether warps' ranges of K and the scales of a row cut each other nowhere, the weight's splits neither, and a lane can
 * read whole words of its rows. */
static bool int8_fits(const struct op_linear *op, const struct int8_product *w)
{
    const int32_t k = op->weight->spec.k, blocks = w->blocks;
    const bool shared = SPLITS % blocks == 0, several = blocks % SPLITS == 0 && w->splits == SPLITS;
    return k % BLOCK_COLUMNS == 0 && op->in.block % BLOCK_COLUMNS == 0 && (shared || several) && op->in.cols % 4 == 0 &&
           (uintptr_t)op->in.codes % 4 == 0;
}

qr_status cuda_linear_int8(struct backend *b, const struct op_linear *op, qr_error *err)
{
    const struct weight *weight = op->weight;
    const int32_t groups = at_least_one(op->groups), k = weight->spec.k;
    struct int8_product w = {.p = {.w = weight->view}, .blocks = k / op->in.block, .splits = at_least_one(weight->spec.k_splits)};
    struct product *p = &w.p;
    p->x = (const uint8_t *)op->in.codes;
    p->scales = (const uint8_t *)op->in.scales;
    p->stride = op->in.cols;
    p->piece_stride = k;
    p->rows = op->rows;
    p->pieces = groups * at_least_one(op->parts);
    p->groups = groups > 1;
    p->columns = weight->spec.n / groups;
    p->tiles = (p->columns + TILE_ROWS - 1) / TILE_ROWS + (groups > 1 && p->columns % TILE_ROWS != 0);
    p->out = op->out;
    if (!int8_fits(op, &w))
        return plain_product(b, &w, err);
    const int wide = wide_rows(b, op, &w);
    if (wide)
        return w.blocks > 1 ? choose_wide<true>(b, &w, wide, err) : choose_wide<false>(b, &w, wide, err);
    return choose_product(b, &w, err);
}
