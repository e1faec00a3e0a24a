/* blocks.h: which blocks are free. A block id is an index into every plane; block 0 is reserved, so that a zeroed
 * table never names a live one. Scheduler thread only; knows no bytes, no model. */
#ifndef QR_CACHE_BLOCKS_H
#define QR_CACHE_BLOCKS_H

#include "base/status.h"

typedef int32_t block_id;

struct blocks;

/* `count` blocks, block 0 included: count - 1 can be taken. Fails with QR_BAD_ARGUMENT below 2. */
qr_status blocks_open(int64_t count, struct blocks **out, qr_error *err);
void blocks_close(struct blocks *b);

/* Takes `n` blocks with one reference each, the lowest free ids first after opening, or none at all: false when fewer
 * are free. */
bool blocks_take(struct blocks *b, int64_t n, block_id *out);
void blocks_hold(struct blocks *b, block_id id);
/* Gives one reference of each block back; a block without any is free again. */
void blocks_release(struct blocks *b, const block_id *ids, int64_t n);

int64_t blocks_free(const struct blocks *b);
/* count - 1: what can be taken when nothing is. */
int64_t blocks_usable(const struct blocks *b);
int32_t blocks_references(const struct blocks *b, block_id id);

#endif
