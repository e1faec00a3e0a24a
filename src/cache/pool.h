/* pool.h: the memory of the two currencies. One region holds the planes of N blocks and M STATE entries where geometry
 * says; it lies in host memory that the pool owns, or wherever a backend allocated it. */
#ifndef QR_CACHE_POOL_H
#define QR_CACHE_POOL_H

#include "cache/geometry.h"

struct cache_pool {
    const struct geometry *geometry; /* borrowed; outlives the pool */
    struct pool_layout layout;
    uint8_t *base; /* address on the device that owns it */
    bool owned;
};

enum { CURSOR_HISTORY = QR_MAX_NGRAM - 1 };

/* The state of a request that is no row: how many positions are cached, and the compressed ids of the last ones for
 * the n-gram hash (v41-model.md 8.5), oldest first, -1 where there is none. */
struct cursor {
    int64_t position;
    int32_t history_count; /* as the geometry has: engram_max_ngram - 1, or 0 without Engram */
    int64_t history[CURSOR_HISTORY];
};

/* Allocates the region in host memory, aligned to 2 MiB with huge pages advised where it is that large. Pages are
 * first touched by whoever writes them. Free with cache_pool_close. */
qr_status cache_pool_open(const struct geometry *geometry, int64_t blocks, int64_t slots, struct cache_pool *out,
                          qr_error *err);
/* The same over a region of at least layout.bytes that a backend allocated, 1,024-byte aligned; not freed by close. */
qr_status cache_pool_over(const struct geometry *geometry, int64_t blocks, int64_t slots, uint8_t *base,
                          struct cache_pool *out, qr_error *err);
void cache_pool_close(struct cache_pool *pool);

/* Host pools only. Makes slot s that of a fresh request: zero state, position 0, history dead. */
void cache_pool_reset_slot(const struct cache_pool *pool, int64_t slot);
void cache_pool_read_cursor(const struct cache_pool *pool, int64_t slot, struct cursor *out);
void cache_pool_write_cursor(const struct cache_pool *pool, int64_t slot, const struct cursor *cursor);

/* The bytes of a cursor as they lie in a STATE entry, for backends that copy them: geometry.cursor_bytes of them. */
void cursor_encode(const struct cursor *cursor, int64_t out[1 + CURSOR_HISTORY]);
void cursor_decode(const int64_t *bytes, int32_t history_count, struct cursor *out);
/* Position 0, nothing seen. */
struct cursor cursor_start(const struct geometry *geometry);

#endif
