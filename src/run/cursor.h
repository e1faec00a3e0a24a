/* cursor.h: moving a request's cursor, and keeping the copy in its STATE entry (runtime.md 3.8). The struct is
 * cache/pool.h's: the next position, and the compressed ids that Engram's next n-grams reach back to. */
#ifndef QR_RUN_CURSOR_H
#define QR_RUN_CURSOR_H

#include "cache/pool.h"
#include "ops/ops.h"

/* A compressed id of an image-span token, or of a position before 0: an n-gram does not reach across it. */
enum { CURSOR_DEAD = -1 };
/* Position of a slot that a failed forward left behind. */
enum { CURSOR_LOST = -1 };

/* A cursor at `position` whose history is the last of `count` compressed ids before it; dead where there is none. */
struct cursor cursor_at(const struct geometry *geometry, int64_t position, const int32_t *ids, int64_t count);
/* Moves over `count` tokens of those compressed ids. */
void cursor_advance(struct cursor *c, const int32_t *ids, int64_t count);

/* Copies between the host's cursor and the STATE entry of `slot`. */
qr_status cursor_store(struct backend *backend, const struct cache_pool *pool, int32_t slot, const struct cursor *c,
                       qr_error *err);
qr_status cursor_load(struct backend *backend, const struct cache_pool *pool, int32_t slot, struct cursor *out,
                      qr_error *err);

#endif
