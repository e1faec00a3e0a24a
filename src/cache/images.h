/* images.h: state images (runtime.md 5.3 to 5.6): what a request needs beside PAGEs to go on from a block boundary. An
 * image is filed under the block that ends there and lies in PAGE units borrowed from the pool of blocks. Scheduler
 * thread only; emits copies, moves no byte.
 *
 *     images_store --> COPYING --images_stored--> READY --evicted, unpinned--> gone
 *                         |  its block leaves the index  |
 *                         '--------> EVICTING <----------'  gone when copy and pins are over */
#ifndef QR_CACHE_IMAGES_H
#define QR_CACHE_IMAGES_H

#include "cache/image_copy.h"

typedef int32_t image_id;
enum { IMAGE_NONE = -1 };

struct images;

/* What an image can serve: `complete` layers, counted from layer 0, have every window key before the boundary. A resume
 * that reads keys of a later layer below the boundary cannot use it. */
struct image_facts {
    int32_t position; /* the boundary: the cursor of the state */
    int32_t complete;
};

struct images_counters {
    int64_t kept, dropped, evicted, orphaned, restored; /* dropped: no room; orphaned: its block left the index */
};

/* Borrows blocks, geometry and layout; becomes the evict hook of `blocks`. */
qr_status images_open(struct blocks *blocks, const struct geometry *g, const struct pool_layout *pool,
                      struct images **out, qr_error *err);
/* Gives every unit back. */
/* Bytes that it takes beside `blocks` blocks. */
int64_t images_bytes_for(int64_t blocks, const struct geometry *g);
void images_close(struct images *im);

/* Reserves units for the state at the boundary where `block`, an indexed block that somebody holds, ends. Room is made
 * of unused blocks, then of images, then of cached blocks (all older than a block that is held); IMAGE_NONE when that
 * is not enough or no record is free, and nothing is evicted. An image that stood there is replaced. */
image_id images_store(struct images *im, block_id block, const struct image_facts *facts);
/* The copy is over: the image is ready, or gone when its block left the index meanwhile. */
void images_stored(struct images *im, image_id id);
/* The copy will not happen. */
void images_abandon(struct images *im, image_id id);

/* The image that is ready at the end of `block`; IMAGE_NONE. Restoring or evicting others does not move it. */
image_id images_find(const struct images *im, block_id block);
/* Also one that is being copied: another need not be taken. */
image_id images_at(const struct images *im, block_id block);
const struct image_facts *images_facts(const struct images *im, image_id id);

/* A pinned image keeps its units. Pinning counts as a use. */
void images_pin(struct images *im, image_id id);
void images_unpin(struct images *im, image_id id);

/* Copies for the batch: storing from or restoring to `slot`. `out` has room for image_copies_most. */
int32_t images_copies(const struct images *im, image_id id, int64_t slot, enum image_direction direction,
                      struct cache_copy *out);

/* Evicts the least recently used ready image that nobody pins. False: there is none. */
bool images_evict(struct images *im);
/* Evicts one image, now or when it is free to go. */
void images_forget(struct images *im, image_id id);
/* Evicts all. */
void images_forget_all(struct images *im);

/* Units that images_evict could give back. */
int64_t images_evictable(const struct images *im);
/* Units held by images in any state. */
int64_t images_held(const struct images *im);
int32_t images_copying(const struct images *im);
const struct images_counters *images_counters(const struct images *im);

/* QR_INTERNAL naming the first record that contradicts its state, its block or its units. */
qr_status images_check(const struct images *im, qr_error *err);

#endif
