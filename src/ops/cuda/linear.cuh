/* linear.cuh: what the kernels of the linears share. */
#ifndef QR_OPS_CUDA_LINEAR_CUH
#define QR_OPS_CUDA_LINEAR_CUH

#include "ops/cuda/wide.cuh"

/* y = W x for a list of rows. */
struct product {
    struct weight_view w;
    /* piece p of row r: x + r * stride + p * piece_stride bytes; q8: codes, with scales of 2^shift columns */
    const uint8_t *x, *scales;
    int64_t stride, piece_stride;
    bool listed, q8; /* listed: rows of x stand where the list says, else one behind the other */
    int32_t shift;
    struct row_list rows;
    int32_t offset, pieces, columns; /* columns: of one piece of the output */
    int32_t tiles;                   /* of a piece */
    bool groups;                     /* piece p multiplies its own rows of W */
    struct activation out;
};

static __device__ inline int64_t output_row(const struct product &p, int token)
{
    return row_at(p.rows, token) + (p.rows.index ? 0 : p.offset);
}

static inline struct row_list band_of(struct row_list rows, int64_t first, int64_t most)
{
    /* only lists with an index can be cut by moving it; others carry the offset beside */
    struct row_list band = {rows.index ? rows.index + first : NULL,
                            (int32_t)(rows.count - first < most ? rows.count - first : most)};
    return band;
}

/* A unit of the wide products: WIDE_ROWS rows of W for so many of activations. */
struct linear_wide_place {
    int32_t tile, piece, first, token; /* first: row of W at which the piece begins */
};

/* Units that run side by side share rows and weights. */
static __device__ inline struct linear_wide_place find_wide(const struct product &p, int unit, int token_tiles, int row_tiles,
                                                            int tokens)
{
    enum { BAND = 16 };
    const int each = token_tiles * row_tiles, i = unit % each, band = i / (BAND * row_tiles);
    const int across = token_tiles - band * BAND < BAND ? token_tiles - band * BAND : (int)BAND;
    const int j = i - band * BAND * row_tiles;
    struct linear_wide_place at;
    at.piece = unit / each;
    at.first = p.groups ? at.piece * p.columns : 0;
    at.tile = at.first / TILE_ROWS + j / across * WIDE_TILES;
    at.token = (band * BAND + j % across) * tokens;
    return at;
}

/* How many rows a wide block takes: as many as leave enough blocks for the device; 0: mma.sync is better. As measured. */
int linear_wide_rows(struct backend *b, const struct op_linear *op);
/* Whether linear_wide takes it: many rows, on a device with wgmma. */
bool linear_is_wide(struct backend *b, const struct op_linear *op);
/* p: all but x, its strides and the rows. */
qr_status linear_wide(struct backend *b, const struct op_linear *op, struct product *p, qr_error *err);

#endif
