/* page_watch.h: that a step leaves every PAGE alone that it does not name (runtime.md 4.11, I10), by checksums. For
 * debug builds and tests: after a step the pages it named are summed anew, and some of the others, in turn, are looked
 * at. */
#ifndef QR_RUN_PAGE_WATCH_H
#define QR_RUN_PAGE_WATCH_H

#include "cache/geometry.h"
#include "sched/batch.h"

struct page_watch;

/* `geometry` must outlive it. Fails without memory. */
qr_status page_watch_open(const struct geometry *geometry, const struct pool_layout *pool, struct page_watch **out,
                          qr_error *err);
void page_watch_close(struct page_watch *w);
/* Bytes that it takes. */
int64_t page_watch_bytes_for(int64_t blocks);

/* Nothing is known of the pages any more: the pool is another one. */
void page_watch_forget(struct page_watch *w);
/* The batch has run over the pool at `base` (host memory): `most` pages that it does not name are compared with their
 * last sum. QR_INTERNAL naming the first that is another. */
qr_status page_watch_step(struct page_watch *w, const struct batch *batch, const uint8_t *base, int64_t most,
                          qr_error *err);

/* Sum of all planes of one block; never 0. */
uint64_t page_sum(const struct geometry *geometry, const struct pool_layout *pool, const uint8_t *base, block_id id);

#endif
