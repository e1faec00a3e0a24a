#include "tools/op_cache.h"

#include <math.h>
#include <string.h>

#include "number/quantize.h"

/* The longest index key. */
enum { INDEX_VALUES = 2048 };

/* Minus infinity in storage (7.4). */
static const float lowest_score = -3.4028234663852886e38f;

/* ---- where rows lie ---- */

/* The row of the pool of a rank, or -1 where the table has no page. */
static int64_t place_of(const struct op_pages *p, int32_t request, int64_t n)
{
    int64_t page = n / p->page_rows;
    page = p->wraps ? page % p->width : page;
    int32_t entry = page < p->width ? p->table[(int64_t)request * p->width + page] : -1;
    return entry < 0 ? -1 : (int64_t)entry * p->page_rows + n % p->page_rows;
}

static uint8_t *row_at(const struct op_world *w, const struct op_pages *p, int32_t request, int64_t place)
{
    int64_t first = w->options.requests[request].rank * p->rank_pages * p->page_rows;
    return p->data + (first + place) * p->row_bytes;
}

static float *scale_at(const struct op_world *w, const struct op_pages *p, int32_t request, int64_t place)
{
    return p->scales + w->options.requests[request].rank * p->rank_pages * p->page_rows + place;
}

/* Where row k of a request is written: n is its row of these pages. */
static int64_t written_at(const struct op_world *w, const struct op_pages *p, int32_t request, int32_t k, int64_t n)
{
    return p->slot ? p->slot[w->options.requests[request].row + k] : place_of(p, request, n);
}

/* First position whose compressor inputs a step from `first` on still needs. */
static int64_t oldest_input(const struct layer_plan *l, int64_t first)
{
    int64_t start = first / l->ratio * l->ratio - (l->compressor == COMPRESSOR_OVERLAP ? l->ratio : 0);
    return start > 0 ? start : 0;
}

static int64_t oldest_key(const struct op_world *w, int64_t position)
{
    int64_t start = position - w->plan.config.sliding_window + 1;
    return start > 0 ? start : 0;
}

/* ---- checks ---- */

static qr_status check_entries(const struct op_world *w, const struct op_pages *p, qr_error *err)
{
    if (!p->table)
        return QR_OK;
    if (p->width < 1)
        return op_refuse(err, BAD_TABLE, "%s has no entry", p->table_name);
    return op_check_entries(p->table_name, p->table, (int64_t)w->options.count * p->width, p->pages, err);
}

/* The slot of row k, which the table must give where there is one; `skipped`: -1 is one too. */
static qr_status check_slot(const struct op_world *w, const struct op_pages *p, int32_t request, int32_t k, int64_t n, bool skipped,
                            qr_error *err)
{
    const struct world_request *q = &w->options.requests[request];
    int64_t slot = written_at(w, p, request, k, n), most = p->pages * p->page_rows;
    if (!p->wraps && p->table && n / p->page_rows >= p->width)
        return op_refuse(err, BAD_TABLE, "%s of request %d has %d entries, position %d wants %lld", p->table_name, request, p->width,
                         q->first + k, (long long)n / p->page_rows + 1);
    if (slot < -1 || slot >= most)
        return op_refuse(err, BAD_TABLE, "%s of request %d row %d is %lld, wanted -1 to %lld", p->slot_name, request, k, (long long)slot,
                         (long long)most - 1);
    int64_t wanted = p->table ? place_of(p, request, n) : slot;
    if (slot != wanted && !(skipped && slot == -1))
        return op_refuse(err, BAD_TABLE, "%s of request %d row %d is %lld, its table gives %lld", p->slot_name, request, k,
                         (long long)slot, (long long)wanted);
    if (slot >= 0 && slot % p->page_rows != n % p->page_rows)
        return op_refuse(err, BAD_TABLE, "%s of request %d row %d is row %lld of its page, position %d wants row %lld", p->slot_name,
                         request, k, (long long)(slot % p->page_rows), q->first + k, (long long)(n % p->page_rows));
    return QR_OK;
}

/* Marks the pages that the request writes with its number; refuses one that another request of its rank has. */
struct writers {
    int32_t *page; /* [pages of all ranks] request + 1 */
};

static qr_status mark(const struct op_world *w, const struct op_pages *p, struct writers *m, int32_t request, int64_t place, qr_error *err)
{
    if (place < 0)
        return QR_OK;
    int32_t *page = &m->page[w->options.requests[request].rank * p->pages + place / p->page_rows];
    if (*page && *page != request + 1)
        return op_refuse(err, BAD_TABLE, "requests %d and %d both write page %lld of %s", *page - 1, request,
                         (long long)(place / p->page_rows), p->name);
    *page = request + 1;
    return QR_OK;
}

/* Rows that a position of a request writes: its own (ratio 1), or the compressed row that it ends. */
static qr_status check_writes(const struct op_world *w, const struct op_pages *p, int32_t ratio, qr_error *err)
{
    struct writers m;
    TRY(op_host_new(w->run, 4LL * w->options.ranks * p->pages, &m.page, err));
    for (int32_t i = 0; i < w->options.count; i++)
        for (int32_t k = 0; k < w->options.requests[i].count; k++) {
            int64_t position = w->options.requests[i].first + (int64_t)k;
            bool ends = (position + 1) % ratio == 0;
            if (!ends && p->slot && p->slot[w->options.requests[i].row + k] != -1)
                return op_refuse(err, BAD_TABLE, "%s of request %d row %d is %d, wanted -1: no group ends at %lld", p->slot_name, i, k,
                                 p->slot[w->options.requests[i].row + k], (long long)position);
            if (!ends)
                continue;
            TRY(check_slot(w, p, i, k, position / ratio, ratio > 1, err));
            TRY(mark(w, p, &m, i, written_at(w, p, i, k, position / ratio), err));
        }
    return QR_OK;
}

/* Every page of the rows [0, visible) must be there. */
static qr_status check_reads(const struct op_world *w, const struct op_pages *p, int32_t ratio, qr_error *err)
{
    for (int32_t i = 0; i < w->options.count; i++) {
        const struct world_request *q = &w->options.requests[i];
        int64_t visible = q->count ? ((int64_t)q->first + q->count) / ratio : 0;
        for (int64_t n = 0; n < visible; n += p->page_rows)
            if (place_of(p, i, n) < 0)
                return op_refuse(err, BAD_TABLE, "%s of request %d has no page %lld, in which a visible row lies", p->table_name, i,
                                 (long long)(n / p->page_rows));
    }
    return QR_OK;
}

/* A state table must tell the rows that a group needs apart. */
static qr_status check_state(const struct op_world *w, const struct layer_plan *l, const struct op_pages *p, qr_error *err)
{
    for (int32_t i = 0; i < w->options.count; i++) {
        const struct world_request *q = &w->options.requests[i];
        int64_t needed = q->first - oldest_input(l, q->first) + (q->count < 2 ? q->count : 2);
        if (needed > (int64_t)p->width * p->page_rows)
            return op_refuse(err, BAD_TABLE, "%s of request %d has room for %lld rows, wanted %lld", p->table_name, i,
                             (long long)p->width * p->page_rows, (long long)needed);
    }
    return QR_OK;
}

/* The row's list: positions max(0, p - W + 1) to p, oldest first, then -1; of those in this call, their slots. */
static qr_status check_window_list(const struct op_world *w, const struct op_layer_cache *c, int32_t request, int32_t k, qr_error *err)
{
    const struct world_request *q = &w->options.requests[request];
    int32_t width = w->plan.config.sliding_window;
    const int32_t *list = c->window_rows + (q->row + (int64_t)k) * width;
    int64_t position = q->first + (int64_t)k, oldest = oldest_key(w, position), most = c->window.pages * WORLD_PAGE;
    for (int32_t i = 0; i < width; i++) {
        int64_t at = oldest + i, slot = at >= q->first && at <= position ? written_at(w, &c->window, request, (int32_t)(at - q->first), at) : -1;
        bool there = at <= position;
        if (list[i] < (there ? 0 : -1) || list[i] >= most || (!there && list[i] != -1))
            return op_refuse(err, BAD_TABLE, "swa_indices slot %d of request %d row %d is %d, wanted %s", i, request, k, list[i],
                             there ? "a row of the pool" : "-1 behind the last key");
        if (there && at >= q->first && list[i] != slot)
            return op_refuse(err, BAD_TABLE, "swa_indices slot %d of request %d row %d is %d, position %lld is written to %lld", i, request,
                             k, list[i], (long long)at, (long long)slot);
    }
    return QR_OK;
}

static qr_status check_window(const struct op_world *w, const struct op_layer_cache *c, qr_error *err)
{
    TRY(check_writes(w, &c->window, 1, err));
    for (int32_t i = 0; i < w->options.count; i++) {
        const struct world_request *q = &w->options.requests[i];
        for (int32_t k = 0; c->window_rows && k < q->count; k++)
            TRY(check_window_list(w, c, i, k, err));
        for (int64_t at = oldest_key(w, q->first); !c->window_rows && q->count && at < q->first; at++)
            if (place_of(&c->window, i, at) < 0)
                return op_refuse(err, BAD_TABLE, "%s of request %d has no page %lld, in which window position %lld lies",
                                 c->window.table_name, i, (long long)(at / WORLD_PAGE), (long long)at);
    }
    return QR_OK;
}

qr_status cache_check(const struct op_world *w, int32_t layer, const struct op_layer_cache *c, qr_error *err)
{
    const struct layer_plan *l = &w->plan.layer[layer];
    const struct op_pages *all[] = {&c->window, &c->main, &c->index, &c->state, &c->index_state};
    if (c->index.row_bytes > 2 * INDEX_VALUES)
        return op_refuse(err, BAD_SHAPE, "%s has rows of %lld bytes, wanted at most %d", c->index.name, (long long)c->index.row_bytes, 2 * INDEX_VALUES);
    for (int i = 0; i < 5; i++)
        if (all[i]->data)
            TRY(check_entries(w, all[i], err));
    TRY(check_window(w, c, err));
    for (int i = 1; i < 3; i++)
        if (all[i]->data) {
            TRY(check_writes(w, all[i], l->ratio, err));
            TRY(check_reads(w, all[i], l->ratio, err));
        }
    for (int i = 3; i < 5; i++)
        if (all[i]->data) {
            TRY(check_state(w, l, all[i], err));
            TRY(check_writes(w, all[i], 1, err));
        }
    return QR_OK;
}

/* ---- in ---- */

static qr_status put(struct op_world *w, void *to, const void *from, int64_t bytes, qr_error *err)
{
    return w->run->backend->upload(w->run->backend, to, from, bytes, err);
}

static qr_status load_window(struct op_world *w, int32_t layer, const struct op_layer_cache *c, int32_t request, qr_error *err)
{
    const struct world_request *q = &w->options.requests[request];
    int64_t oldest = oldest_key(w, q->first);
    struct ring_plane ring;
    geometry_window(&w->geometry, &w->pool, w->base, layer, &ring);
    for (int64_t at = oldest; at < q->first; at++) {
        int64_t place = c->window_rows ? c->window_rows[(int64_t)q->row * w->plan.config.sliding_window + (at - oldest)]
                                       : place_of(&c->window, request, at);
        TRY(put(w, ring.values + request * ring.slot_stride + at % ring.rows * ring.value_row_stride,
                row_at(w, &c->window, request, place), c->window.row_bytes, err));
    }
    return QR_OK;
}

/* Row n of the arrays in its place of the plane: bf16 values, int8 with their scale, or bf16 values that FP4 codes hold. */
static qr_status load_row(struct op_world *w, const struct row_plane *plane, const struct op_pages *p, int32_t request, int64_t n,
                          qr_error *err)
{
    int32_t block = 1 + request * w->pages + (int32_t)(n / plane->rows_per_block), row = (int32_t)(n % plane->rows_per_block);
    int64_t place = place_of(p, request, n), values = p->row_bytes / 2;
    const uint8_t *from = row_at(w, p, request, place);
    uint8_t *to = plane->values + plane_value_offset(plane, block, row), codes[INDEX_VALUES / 2], scales[INDEX_VALUES / 32];
    if (plane->format == ROW_INDEX_INT8)
        TRY(put(w, plane->scales + plane_scale_offset(plane, block, row), scale_at(w, p, request, place), 4, err));
    if (plane->format != ROW_INDEX_FP4)
        return put(w, to, from, p->row_bytes, err);
    q4_e8m0_quantize((const uint16_t *)(const void *)from, values, codes, scales);
    TRY(put(w, plane->scales + plane_scale_offset(plane, block, row), scales, values / 32, err));
    return put(w, to, codes, values / 2, err);
}

static qr_status load_rows(struct op_world *w, int32_t ratio, const struct row_plane *plane, const struct op_pages *p, int32_t request,
                           qr_error *err)
{
    for (int64_t n = 0; n < w->options.requests[request].first / ratio; n++)
        TRY(load_row(w, plane, p, request, n, err));
    return QR_OK;
}

static qr_status load_state(struct op_world *w, int32_t layer, bool index, const struct op_pages *p, int32_t request, qr_error *err)
{
    const struct layer_plan *l = &w->plan.layer[layer];
    int64_t first = w->options.requests[request].first, half = p->row_bytes / 2;
    struct ring_plane tail;
    float *missing;
    geometry_tail(&w->geometry, &w->pool, w->base, w->plan.owner_of_layer[layer], index, &tail);
    TRY(op_host_new(w->run, p->row_bytes, &missing, err));
    for (int64_t i = half / 4; i < half / 2; i++)
        missing[i] = lowest_score;
    for (int64_t at = oldest_input(l, first); at < first; at++) {
        int64_t place = place_of(p, request, at), slot = request * tail.slot_stride;
        const uint8_t *from = place < 0 ? (const uint8_t *)missing : row_at(w, p, request, place);
        TRY(put(w, tail.values + slot + at % tail.rows * tail.value_row_stride, from, half, err));
        TRY(put(w, tail.scales + slot + at % tail.rows * tail.scale_row_stride, from + half, half, err));
    }
    return QR_OK;
}

static struct row_plane plane_of(struct op_world *w, int32_t layer, bool index)
{
    struct row_plane plane;
    if (index)
        geometry_index_plane(&w->geometry, &w->pool, w->base, w->plan.owner_of_layer[layer], &plane);
    else
        geometry_main_plane(&w->geometry, &w->pool, w->base, w->plan.owner_of_layer[layer], &plane);
    return plane;
}

qr_status cache_load(struct op_world *w, int32_t layer, const struct op_layer_cache *c, qr_error *err)
{
    int32_t ratio = w->plan.layer[layer].ratio;
    struct row_plane main, index;
    if (c->main.data)
        main = plane_of(w, layer, false);
    if (c->index.data)
        index = plane_of(w, layer, true);
    for (int32_t i = 0; i < w->options.count; i++) {
        if (!w->options.requests[i].count)
            continue;
        TRY(load_window(w, layer, c, i, err));
        if (c->main.data)
            TRY(load_rows(w, ratio, &main, &c->main, i, err));
        if (c->index.data)
            TRY(load_rows(w, ratio, &index, &c->index, i, err));
        if (c->state.data)
            TRY(load_state(w, layer, false, &c->state, i, err));
        if (c->index_state.data)
            TRY(load_state(w, layer, true, &c->index_state, i, err));
    }
    return w->run->backend->fence(w->run->backend, err);
}

/* ---- out ---- */

/* Where the tile's row i goes in pages of rows of `ratio` tokens; -1: nowhere. */
static int64_t target(const struct op_world *w, const struct op_pages *p, int32_t i, int32_t ratio)
{
    int32_t request = w->tile.request[i], position = w->tile.position[i];
    if ((position + 1) % ratio)
        return -1;
    return written_at(w, p, request, position - w->options.requests[request].first, position / ratio);
}

static qr_status get(struct op_world *w, void *to, const void *from, int64_t bytes, qr_error *err)
{
    struct backend *b = w->run->backend;
    TRY(b->download(b, to, from, bytes, err));
    return b->fence(b, err);
}

qr_status cache_keep_keys(struct op_world *w, const struct op_layer_cache *c, qr_error *err)
{
    uint8_t *keys;
    TRY(world_bytes(w, w->tile.rows * c->window.row_bytes, &keys, err));
    TRY(get(w, keys, w->pass.ws->keys, w->tile.rows * c->window.row_bytes, err));
    for (int32_t i = 0; i < w->tile.rows; i++) {
        int64_t place = target(w, &c->window, i, 1);
        if (place >= 0)
            memcpy(row_at(w, &c->window, w->tile.request[i], place), keys + i * c->window.row_bytes, (size_t)c->window.row_bytes);
    }
    return QR_OK;
}

qr_status cache_keep_inputs(struct op_world *w, const struct op_layer_cache *c, bool index, qr_error *err)
{
    const struct op_pages *p = index ? &c->index_state : &c->state;
    int64_t half = p->row_bytes / 2;
    uint8_t *values, *scores;
    TRY(world_bytes(w, 2 * w->tile.rows * half, &values, err));
    scores = values + w->tile.rows * half;
    TRY(get(w, values, w->pass.ws->compress_values, w->tile.rows * half, err));
    TRY(get(w, scores, w->pass.ws->compress_scores, w->tile.rows * half, err));
    for (int32_t i = 0; i < w->tile.rows; i++) {
        int64_t place = target(w, p, i, 1);
        if (place < 0)
            continue;
        uint8_t *to = row_at(w, p, w->tile.request[i], place);
        memcpy(to, values + i * half, (size_t)half);
        memcpy(to + half, scores + i * half, (size_t)half);
    }
    return QR_OK;
}

static qr_status keep_row(struct op_world *w, const struct row_plane *plane, const struct op_pages *p, int32_t request, int64_t n,
                          int64_t place, qr_error *err)
{
    struct backend *b = w->run->backend;
    int32_t block = 1 + request * w->pages + (int32_t)(n / plane->rows_per_block), row = (int32_t)(n % plane->rows_per_block);
    const uint8_t *from = plane->values + plane_value_offset(plane, block, row);
    uint8_t *to = row_at(w, p, request, place), codes[INDEX_VALUES / 2], scales[INDEX_VALUES / 32];
    int64_t values = p->row_bytes / 2;
    if (plane->format == ROW_INDEX_INT8)
        TRY(b->download(b, scale_at(w, p, request, place), plane->scales + plane_scale_offset(plane, block, row), 4, err));
    if (plane->format != ROW_INDEX_FP4)
        return b->download(b, to, from, p->row_bytes, err);
    TRY(b->download(b, codes, from, values / 2, err));
    TRY(b->download(b, scales, plane->scales + plane_scale_offset(plane, block, row), values / 32, err));
    TRY(b->fence(b, err));
    q4_e8m0_dequantize(codes, scales, values, (uint16_t *)(void *)to);
    return QR_OK;
}

static qr_status keep_plane(struct op_world *w, int32_t layer, bool index, const struct op_pages *p, qr_error *err)
{
    int32_t ratio = w->plan.layer[layer].ratio;
    struct row_plane plane = plane_of(w, layer, index);
    for (int32_t i = 0; i < w->tile.rows; i++) {
        int64_t place = target(w, p, i, ratio);
        if (place >= 0)
            TRY(keep_row(w, &plane, p, w->tile.request[i], w->tile.position[i] / ratio, place, err));
    }
    return QR_OK;
}

qr_status cache_keep_rows(struct op_world *w, int32_t layer, const struct op_layer_cache *c, qr_error *err)
{
    struct backend *b = w->run->backend;
    TRY(b->fence(b, err));
    if (c->main.data)
        TRY(keep_plane(w, layer, false, &c->main, err));
    if (c->index.data)
        TRY(keep_plane(w, layer, true, &c->index, err));
    return b->fence(b, err);
}
