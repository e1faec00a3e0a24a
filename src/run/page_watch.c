#include "run/page_watch.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/alloc.h"

struct page_watch {
    const struct geometry *geometry;
    struct pool_layout pool;
    uint64_t *sum;  /* [blocks] 0: not known */
    uint8_t *named; /* [blocks] by the batch being looked at */
    int64_t next;   /* the page whose turn it is */
};

qr_status page_watch_open(const struct geometry *geometry, const struct pool_layout *pool, struct page_watch **out,
                          qr_error *err)
{
    struct page_watch *w = qr_calloc(1, sizeof *w);
    if (w) {
        w->geometry = geometry;
        w->pool = *pool;
        w->sum = qr_calloc((size_t)pool->blocks, sizeof *w->sum);
        w->named = qr_calloc((size_t)pool->blocks, 1);
    }
    if (!w || !w->sum || !w->named) {
        page_watch_close(w);
        return qr_fail(err, QR_NO_MEMORY, "no memory for sums of %lld pages", (long long)pool->blocks);
    }
    *out = w;
    return QR_OK;
}

void page_watch_close(struct page_watch *w)
{
    if (!w)
        return;
    qr_free(w->sum);
    qr_free(w->named);
    qr_free(w);
}

int64_t page_watch_bytes_for(int64_t blocks)
{
    return (int64_t)sizeof(struct page_watch) + blocks * (int64_t)(sizeof(uint64_t) + 1);
}

void page_watch_forget(struct page_watch *w)
{
    if (w)
        memset(w->sum, 0, (size_t)w->pool.blocks * sizeof *w->sum);
}

/* ---- sums ---- */

uint64_t page_sum(const struct geometry *g, const struct pool_layout *pool, const uint8_t *base, block_id id)
{
    uint64_t sum = XXH3_64bits(base + pool->main_offset + id * g->main_page_bytes, (size_t)g->main_page_bytes);
    for (int32_t o = 0; o < g->owners; o++) {
        const struct geometry_owner *owner = &g->owner[o];
        if (pool->index_offset[o] >= 0)
            sum = XXH3_64bits_withSeed(base + pool->index_offset[o] + id * owner->index_block_bytes,
                                       (size_t)owner->index_block_bytes, sum);
        if (pool->index_scale_offset[o] >= 0)
            sum = XXH3_64bits_withSeed(base + pool->index_scale_offset[o] + id * owner->index_scale_block_bytes,
                                       (size_t)owner->index_scale_block_bytes, sum);
    }
    return sum | 1;
}

/* ---- what a batch names ---- */

/* Rows are written from write_from on, whatever else the span runs. */
static void name_span(struct page_watch *w, const struct batch_span *span)
{
    const int32_t block = w->geometry->options.block_tokens, end = span->first_position + span->count;
    const int32_t first = span->write_from > span->first_position ? span->write_from : span->first_position;
    for (int32_t i = first / block; first < end && i <= (end - 1) / block; i++)
        w->named[span->blocks[i]] = 1;
}

/* Bytes [at, at + bytes), where they lie in a plane of `stride` bytes a block that starts at `plane`. */
static void name_bytes(struct page_watch *w, int64_t plane, int64_t stride, int64_t at, int64_t bytes)
{
    const int64_t end = plane + w->pool.blocks * stride;
    if (plane < 0 || stride == 0 || at < plane || at >= end)
        return;
    for (int64_t id = (at - plane) / stride; id <= (at + bytes - 1 - plane) / stride; id++)
        w->named[id] = 1;
}

static void name_copy(struct page_watch *w, const struct cache_copy *copy)
{
    name_bytes(w, w->pool.main_offset, w->geometry->main_page_bytes, copy->to, copy->bytes);
    for (int32_t o = 0; o < w->geometry->owners; o++) {
        const struct geometry_owner *owner = &w->geometry->owner[o];
        name_bytes(w, w->pool.index_offset[o], owner->index_block_bytes, copy->to, copy->bytes);
        name_bytes(w, w->pool.index_scale_offset[o], owner->index_scale_block_bytes, copy->to, copy->bytes);
    }
}

/* ---- a step ---- */

static qr_status look_at(struct page_watch *w, block_id id, const uint8_t *base, uint64_t step, qr_error *err)
{
    const uint64_t sum = page_sum(w->geometry, &w->pool, base, id);
    if (w->named[id] || w->sum[id] == 0)
        w->sum[id] = sum;
    if (w->sum[id] == sum)
        return QR_OK;
    return qr_fail(err, QR_INTERNAL, "I10: page %d was changed, which step %llu and those before it do not name", id,
                   (unsigned long long)step);
}

qr_status page_watch_step(struct page_watch *w, const struct batch *batch, const uint8_t *base, int64_t most,
                          qr_error *err)
{
    const int64_t blocks = w->pool.blocks;
    qr_status st = QR_OK;
    memset(w->named, 0, (size_t)blocks);
    for (int32_t b = 0; b < batch->count; b++)
        name_span(w, &batch->spans[b]);
    for (int32_t i = 0; i < batch->copy_count; i++)
        name_copy(w, &batch->copies[i]);
    for (block_id id = 0; st == QR_OK && id < blocks; id++)
        if (w->named[id])
            st = look_at(w, id, base, batch->step, err);
    for (int64_t i = 0; st == QR_OK && i < most && i < blocks; i++) {
        st = look_at(w, (block_id)w->next, base, batch->step, err);
        w->next = (w->next + 1) % blocks;
    }
    return st;
}
