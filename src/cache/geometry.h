/* geometry.h: every offset of the two pools (runtime.md 2). PAGE scales with cached tokens, STATE with running
 * requests. Pure numbers: no memory, no model, no scheduler. All offsets are 64-bit bytes.
 *
 * A row's address is never computed elsewhere: operators get `row_plane` and `ring_plane`, filled here from base
 * pointers, and use plane_row / ring_row. */
#ifndef QR_CACHE_GEOMETRY_H
#define QR_CACHE_GEOMETRY_H

#include "plan/plan.h"

/* Row containers (runtime.md 2.1). They change no value of the model. */
enum row_format {
    ROW_BF16,       /* head_dim bf16 */
    ROW_FP4_E4M3,   /* main: head_dim E2M1 (low nibble first), then head_dim/16 E4M3 scales */
    ROW_FP8_E8M0,   /* window: head_dim E4M3, then head_dim/32 E8M0 scales */
    ROW_INDEX_FP8,  /* index_head_dim E4M3, one f32 power-of-two scale; tiles of 16 rows: values, then scales */
    ROW_INDEX_FP4,  /* index_head_dim/2 bytes of E2M1, index_head_dim/32 E8M0 scales in a plane of their own */
    ROW_INDEX_INT8  /* index_head_dim int8, one f32 scale; tiles as ROW_INDEX_FP8 */
};

enum { INDEX_TILE_ROWS = 16 /* of ROW_INDEX_FP8 and ROW_INDEX_INT8 */ };

struct geometry_options {
    int32_t block_tokens;          /* B; 128 unless told */
    enum row_format main_format;   /* ROW_BF16 or ROW_FP4_E4M3 */
    enum row_format index_format;
    int32_t draft_width;           /* d: extra ring and tail rows; 0 without a drafter */
};

/* One owner's planes inside the PAGE pool. */
struct geometry_owner {
    int32_t layer, ratio, rows;        /* rows per block: B / ratio */
    bool has_index;
    int64_t main_offset;               /* of its field inside one block's main page */
    int64_t index_block_bytes;         /* values (and, in tiles, scales) of one block; 0 without an index plane */
    int64_t index_scale_block_bytes;   /* ROW_INDEX_FP4 only */
};

struct geometry {
    struct geometry_options options;
    int32_t head_dim, index_head_dim;
    int32_t window, ring_rows;         /* W, R = W + d */
    int32_t ring_layers;               /* L: backbone layers plus draft layers when d > 0 */
    int32_t owners;
    struct geometry_owner owner[QR_MAX_LAYERS];

    int64_t alignment;                 /* A: 1024 with bf16 main rows, 256 with fp4 */
    int64_t main_page_bytes;           /* one block of the main region */
    int64_t unit_bytes;                /* U: all planes of one block */

    int32_t main_row_bytes, window_row_bytes;
    int32_t index_row_bytes;           /* values; in tiles the scale too */
    int32_t index_scale_row_bytes;     /* ROW_INDEX_FP4 only */
    enum row_format window_format;     /* ROW_BF16 or ROW_FP8_E8M0, as the main format asks */
    int64_t window_offset;             /* inside a STATE entry; ring of layer l at window_offset + l * ring_bytes */
    int64_t ring_bytes;                /* R * window_row_bytes */
    /* Compressor tails, by owner: rows of f32. The value rows of all owners stand first, then their score rows; then
     * those of the indexers' compressors (V4 CSA) likewise. -1: none. */
    int64_t tail_offset[QR_MAX_LAYERS], tail_score_offset[QR_MAX_LAYERS];
    int64_t index_tail_offset[QR_MAX_LAYERS], index_tail_score_offset[QR_MAX_LAYERS];
    int32_t tail_rows[QR_MAX_LAYERS];         /* t by owner, draft slack included; 0: no tail */
    bool tail_in_image[QR_MAX_LAYERS];        /* groups overlap: a boundary needs the rows before it */
    int32_t tail_width[QR_MAX_LAYERS], index_tail_width[QR_MAX_LAYERS]; /* f32 per row and kind */
    int64_t cursor_offset;             /* int64 position, then the Engram history, oldest first, dead = -1 */
    int64_t cursor_bytes;
    int64_t draft_stream_offset;       /* V4 MTP: un-reduced stream [hc_mult][hidden] of the profile's format; -1: none */
    int64_t draft_stream_bytes;
    int64_t state_bytes;               /* T: one STATE entry */
    int64_t image_bytes;               /* what a state image holds: geometry_image */
    /* Layout identities (runtime.md 2.11), without model fingerprint and path. PAGEs do not depend on the drafter. */
    char state_layout[2048], page_layout[2048];
};

/* What the planes are when nothing is said: runtime.md 12.1 (--kv-cache-dtype, --index-cache-dtype, --block-size). */
struct geometry_options geometry_defaults(const struct model_plan *plan);
/* "bf16", "fp4", "fp8", "int8" as the flags and messages name a container. */
const char *row_format_name(enum row_format format);
/* The container of main rows (of index keys when `index`) that such a name means; false when there is none. */
bool row_format_parse(const char *name, bool index, enum row_format *out);

/* Fills `out`. Fails with QR_REFUSED naming every rule violated among E02, E03, E05, E06 and E40 (runtime.md 11),
 * QR_BAD_ARGUMENT for a draft width without a drafter or out of range. */
qr_status geometry_make(const struct model_plan *plan, const struct geometry_options *options, struct geometry *out,
                        qr_error *err);

/* The second half of geometry_make: computes every offset and size from the counts, row bytes and alignment already in
 * `g` (runtime.md 2.2, 2.4). Declared for the tests, which rebuild the published layouts of other engines with it.
 * Fails with QR_BAD_ARGUMENT when a size does not fit 63 bits. */
qr_status geometry_place(struct geometry *g, qr_error *err);

/* The pieces of a STATE entry that an image holds (runtime.md 5.4): rings, overlapping tails, cursor and draft stream;
 * no other tail, no padding. Ascending, adjacent ones joined; returns how many were written to `out`. */
struct state_piece {
    int64_t offset, bytes;
};
enum { GEOMETRY_MAX_PIECES = 4 * QR_MAX_LAYERS + 2 };
int32_t geometry_image(const struct geometry *g, struct state_piece out[GEOMETRY_MAX_PIECES]);

/* Where the regions of a pool of N blocks (block 0 reserved) and M STATE entries start, and its size. */
struct pool_layout {
    int64_t blocks, slots;
    int64_t main_offset;
    int64_t index_offset[QR_MAX_LAYERS], index_scale_offset[QR_MAX_LAYERS]; /* by owner; -1: none */
    int64_t state_offset;
    int64_t bytes;
};
/* Fails with QR_BAD_ARGUMENT for negative counts or a size that does not fit 63 bits. */
qr_status geometry_pool(const struct geometry *g, int64_t blocks, int64_t slots, struct pool_layout *out, qr_error *err);
/* The most blocks that fit `bytes` beside `slots` STATE entries, region alignment included (runtime.md 2.10 step 4);
 * 0 when not even one does. At most INT32_MAX. */
int64_t geometry_blocks_in(const struct geometry *g, int64_t bytes, int64_t slots);

/* A plane of compressed rows. Row g of a request lies in block block_table[g / rows_per_block]; inside the block rows
 * stand in tiles (one tile a block unless the format is tiled). `scales` is NULL for formats without scales. Bases are
 * addresses of the device that owns the pool. */
struct row_plane {
    enum row_format format;
    int32_t rows_per_block, tile_rows;
    uint8_t *values, *scales;
    int64_t value_block_stride, value_tile_stride, value_row_stride;
    int64_t scale_block_stride, scale_tile_stride, scale_row_stride;
};
/* A ring of per-request rows: row of position p in slot s at base + s * slot_stride + (p mod rows) * row_stride.
 * Windows: values and scales of `format`. Tails: f32 `values` and `scales` are the value and the score rows. */
struct ring_plane {
    enum row_format format;
    int32_t rows;
    uint8_t *values, *scales;
    int64_t slot_stride, value_row_stride, scale_row_stride;
};

/* Fill a plane from the pool's base address (of any device). The owner or layer must have the plane. */
void geometry_main_plane(const struct geometry *g, const struct pool_layout *pool, uint8_t *base, int32_t owner,
                         struct row_plane *out);
void geometry_index_plane(const struct geometry *g, const struct pool_layout *pool, uint8_t *base, int32_t owner,
                          struct row_plane *out);
void geometry_window(const struct geometry *g, const struct pool_layout *pool, uint8_t *base, int32_t layer,
                     struct ring_plane *out);
/* Without a tail (SINGLE compressors): rows 0, pointers NULL. */
void geometry_tail(const struct geometry *g, const struct pool_layout *pool, uint8_t *base, int32_t owner, bool index,
                   struct ring_plane *out);
/* Byte of the cursor (of the MTP stream) of slot s from the pool's base. */
int64_t geometry_cursor(const struct geometry *g, const struct pool_layout *pool, int64_t slot);
int64_t geometry_draft_stream(const struct geometry *g, const struct pool_layout *pool, int64_t slot);

static inline int64_t plane_value_offset(const struct row_plane *p, int32_t block, int32_t row_in_block)
{
    return block * p->value_block_stride + row_in_block / p->tile_rows * p->value_tile_stride +
           row_in_block % p->tile_rows * p->value_row_stride;
}
static inline int64_t plane_scale_offset(const struct row_plane *p, int32_t block, int32_t row_in_block)
{
    return block * p->scale_block_stride + row_in_block / p->tile_rows * p->scale_tile_stride +
           row_in_block % p->tile_rows * p->scale_row_stride;
}

#endif
