#define _GNU_SOURCE
#include "cache/pool.h"

#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"

enum { HUGE_PAGE = 2 << 20, SMALL_ALIGNMENT = 4096 };

static void advise_huge_pages(void *base, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    if (bytes >= HUGE_PAGE) /* advice only: where it is refused the pool works with small pages */
        (void)madvise(base, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#else
    (void)base;
    (void)bytes;
#endif
}

qr_status cache_pool_over(const struct geometry *geometry, int64_t blocks, int64_t slots, uint8_t *base,
                          struct cache_pool *out, qr_error *err)
{
    *out = (struct cache_pool){.geometry = geometry, .base = base};
    return geometry_pool(geometry, blocks, slots, &out->layout, err);
}

qr_status cache_pool_open(const struct geometry *geometry, int64_t blocks, int64_t slots, struct cache_pool *out,
                          qr_error *err)
{
    qr_status st = cache_pool_over(geometry, blocks, slots, NULL, out, err);
    if (st != QR_OK)
        return st;
    size_t bytes = (size_t)out->layout.bytes;
    out->base = qr_aligned_alloc(bytes >= HUGE_PAGE ? HUGE_PAGE : SMALL_ALIGNMENT, bytes);
    if (!out->base)
        return qr_fail(err, QR_NO_MEMORY, "%lld bytes for a cache of %lld blocks and %lld slots",
                       (long long)out->layout.bytes, (long long)blocks, (long long)slots);
    out->owned = true;
    advise_huge_pages(out->base, bytes);
    return QR_OK;
}

void cache_pool_close(struct cache_pool *pool)
{
    if (pool && pool->owned)
        qr_free(pool->base);
    if (pool)
        *pool = (struct cache_pool){.geometry = NULL};
}

/* ---- cursor ---- */

static int32_t history_count(const struct geometry *geometry)
{
    return (int32_t)(geometry->cursor_bytes / 8) - 1;
}

struct cursor cursor_start(const struct geometry *geometry)
{
    struct cursor c = {.position = 0, .history_count = history_count(geometry)};
    for (int32_t i = 0; i < c.history_count; i++)
        c.history[i] = -1;
    return c;
}

void cursor_encode(const struct cursor *cursor, int64_t out[1 + CURSOR_HISTORY])
{
    out[0] = cursor->position;
    memcpy(out + 1, cursor->history, (size_t)cursor->history_count * sizeof *out);
}

void cursor_decode(const int64_t *bytes, int32_t count, struct cursor *out)
{
    *out = (struct cursor){.position = bytes[0], .history_count = count};
    memcpy(out->history, bytes + 1, (size_t)count * sizeof *bytes);
}

static int64_t *cursor_of(const struct cache_pool *pool, int64_t slot)
{
    return (int64_t *)(void *)(pool->base + geometry_cursor(pool->geometry, &pool->layout, slot));
}

void cache_pool_read_cursor(const struct cache_pool *pool, int64_t slot, struct cursor *out)
{
    cursor_decode(cursor_of(pool, slot), history_count(pool->geometry), out);
}

void cache_pool_write_cursor(const struct cache_pool *pool, int64_t slot, const struct cursor *cursor)
{
    cursor_encode(cursor, cursor_of(pool, slot));
}

void cache_pool_reset_slot(const struct cache_pool *pool, int64_t slot)
{
    struct cursor start = cursor_start(pool->geometry);
    memset(pool->base + pool->layout.state_offset + slot * pool->geometry->state_bytes, 0,
           (size_t)pool->geometry->state_bytes);
    cache_pool_write_cursor(pool, slot, &start);
}
