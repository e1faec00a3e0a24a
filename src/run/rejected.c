#include "run/rejected.h"

#include <string.h>

#include "cache/row_places.h"

static qr_status fill(struct backend *backend, const struct row_bytes *rows, int32_t count, qr_error *err)
{
    uint8_t nan[512];
    memset(nan, 0xFF, sizeof nan);
    for (int32_t i = 0; i < count; i++)
        for (int64_t done = 0, part; done < rows[i].bytes; done += part) {
            part = rows[i].bytes - done < (int64_t)sizeof nan ? rows[i].bytes - done : (int64_t)sizeof nan;
            TRY(backend->upload(backend, rows[i].at + done, nan, part, err));
        }
    return QR_OK;
}

/* Rings and tails hold `draft_width` rows more than anybody reads: so far it goes. */
static qr_status fill_state(struct backend *backend, const struct row_pool *pool, const struct rejected_rows *rows,
                            qr_error *err)
{
    const struct geometry *g = pool->geometry;
    const int32_t most = rows->from + g->options.draft_width;
    for (int32_t p = rows->from; p < rows->to && p < most; p++) {
        for (int32_t layer = 0; layer < g->ring_layers; layer++) {
            const struct row_bytes window = place_window(pool, rows->slot, layer, p);
            TRY(fill(backend, &window, 1, err));
        }
        for (int32_t owner = 0; owner < g->owners; owner++) {
            struct row_bytes tail[ROW_PLACES_MOST];
            TRY(fill(backend, tail, place_tail(pool, rows->slot, owner, p, tail), err));
        }
    }
    return QR_OK;
}

/* Groups whose last position is one of them. */
static qr_status fill_pages(struct backend *backend, const struct row_pool *pool, const struct rejected_rows *rows,
                            qr_error *err)
{
    const struct geometry *g = pool->geometry;
    for (int32_t owner = 0; owner < g->owners; owner++) {
        const int32_t ratio = g->owner[owner].ratio, in_block = g->owner[owner].rows;
        for (int32_t group = rows->from / ratio; (group + 1) * ratio <= rows->to; group++) {
            struct row_bytes out[ROW_PLACES_MOST];
            if ((group + 1) * ratio > rows->write_from)
                TRY(fill(backend, out, place_group(pool, owner, rows->blocks[group / in_block], group % in_block, out),
                         err));
        }
    }
    return QR_OK;
}

qr_status rejected_fill(struct backend *backend, const struct cache_pool *pool, const struct rejected_rows *rows,
                        qr_error *err)
{
    const struct row_pool places = {.geometry = pool->geometry, .layout = &pool->layout, .base = pool->base};
    TRY(fill_state(backend, &places, rows, err));
    TRY(fill_pages(backend, &places, rows, err));
    return backend->fence(backend, err);
}
