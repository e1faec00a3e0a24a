/* image_copy.h: copies between the STATE entry of a slot and the PAGE units of an image (runtime.md 5.4). An image is a
 * stream: the pieces of geometry_image one after the other, laid over whole units in the order given; within a unit the
 * planes are filled in the order of runtime.md 2.2. Emits byte ranges, moves none. Pure. */
#ifndef QR_CACHE_IMAGE_COPY_H
#define QR_CACHE_IMAGE_COPY_H

#include "cache/blocks.h"
#include "cache/geometry.h"

/* Byte offsets from the start of the region that holds both pools. */
struct cache_copy {
    int64_t to, from, bytes;
};

enum image_direction { IMAGE_STORE /* slot to units */, IMAGE_RESTORE /* units to slot */ };

/* PAGE units of one image. */
int32_t image_units(const struct geometry *g);
/* The most copies that one image takes. */
int32_t image_copies_most(const struct geometry *g);
/* Writes the copies of one image (units: image_units of them, distinct) to `out` and returns how many. */
int32_t image_copies(const struct geometry *g, const struct pool_layout *pool, int64_t slot, const block_id *units,
                     enum image_direction direction, struct cache_copy *out);
/* The whole STATE entry of a slot, into another slot. */
struct cache_copy slot_copy(const struct geometry *g, const struct pool_layout *pool, int64_t from, int64_t to);

#endif
