#include "run/cursor.h"

#include <string.h>

struct cursor cursor_at(const struct geometry *geometry, int64_t position, const int32_t *ids, int64_t count)
{
    struct cursor c = cursor_start(geometry);
    cursor_advance(&c, ids, count);
    c.position = position;
    return c;
}

void cursor_advance(struct cursor *c, const int32_t *ids, int64_t count)
{
    int64_t kept = count < c->history_count ? c->history_count - count : 0, taken = c->history_count - kept;

    memmove(c->history, c->history + taken, (size_t)kept * sizeof *c->history);
    for (int64_t i = 0; i < taken; i++)
        c->history[kept + i] = ids[count - taken + i];
    c->position += count;
}

qr_status cursor_store(struct backend *backend, const struct cache_pool *pool, int32_t slot, const struct cursor *c,
                       qr_error *err)
{
    int64_t words[1 + CURSOR_HISTORY];
    cursor_encode(c, words);
    return backend->upload(backend, pool->base + geometry_cursor(pool->geometry, &pool->layout, slot), words,
                           pool->geometry->cursor_bytes, err);
}

qr_status cursor_load(struct backend *backend, const struct cache_pool *pool, int32_t slot, struct cursor *out,
                      qr_error *err)
{
    int64_t words[1 + CURSOR_HISTORY];
    qr_status st = backend->download(backend, words, pool->base + geometry_cursor(pool->geometry, &pool->layout, slot),
                                     pool->geometry->cursor_bytes, err);
    if (st == QR_OK)
        st = backend->fence(backend, err);
    if (st == QR_OK)
        cursor_decode(words, out->history_count, out);
    return st;
}
