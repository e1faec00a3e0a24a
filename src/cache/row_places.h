/* row_places.h: the bytes of the two pools that one position, or one compressed row, of a request is addressed by: what a
 * debug build spoils and what tests compare. `base`: the pool's, of any device; nothing is read. */
#ifndef QR_CACHE_ROW_PLACES_H
#define QR_CACHE_ROW_PLACES_H

#include "cache/geometry.h"

struct row_bytes {
    uint8_t *at;
    int64_t bytes;
};
enum { ROW_PLACES_MOST = 4 };

/* The pool whose rows are meant. */
struct row_pool {
    const struct geometry *geometry;
    const struct pool_layout *layout;
    uint8_t *base;
};

/* The row of `position` in the ring of `layer`, scales included. */
struct row_bytes place_window(const struct row_pool *pool, int32_t slot, int32_t layer, int32_t position);
/* Its rows in the tails of `owner`: value and score, and those of the indexer's compressor; 0 to 4 of them. */
int32_t place_tail(const struct row_pool *pool, int32_t slot, int32_t owner, int32_t position,
                   struct row_bytes out[ROW_PLACES_MOST]);
/* Compressed row `row` of PAGE `block`: main row and index key, 1 to 4 pieces. */
int32_t place_group(const struct row_pool *pool, int32_t owner, int32_t block, int32_t row,
                    struct row_bytes out[ROW_PLACES_MOST]);

#endif
