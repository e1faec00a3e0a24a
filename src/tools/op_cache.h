/* op_cache.h: the deployment's paged pools (v4-model.md 7.5, 9.2) around a world: what a step reads is brought into the
 * world's pool before it, what it writes is put back into the arrays. Every entry of a table and every slot is checked
 * first, never clamped (9.5). */
#ifndef QR_TOOLS_OP_CACHE_H
#define QR_TOOLS_OP_CACHE_H

#include "tools/op_world.h"

/* The pages of one layer. Row n of a request lies in page table[n / page_rows] (mod width where states wrap), at n mod
 * page_rows. `data` is an output array of the run that begins as a copy of the input; rank k's pages begin `rank_pages`
 * after those of rank k - 1. */
struct op_pages {
    const char *name, *table_name, *slot_name;
    uint8_t *data;
    float *scales;         /* one a row, or NULL */
    int64_t pages, rank_pages, row_bytes;
    int32_t page_rows;
    const int32_t *table;  /* [requests][width]; NULL: none */
    int32_t width;
    bool wraps;
    const int32_t *slot;   /* [rows of the arrays] where each row is written, -1: nowhere; NULL: as the table says */
};

/* The caches of a layer. data NULL: it has none. */
struct op_layer_cache {
    struct op_pages window, main, index, state, index_state;
    const int32_t *window_rows; /* [rows of the arrays][W] rows of the pool, oldest first; NULL: by the window's table */
};

/* Checks tables and slots of a layer against every live row: entries in range, a page of every row that is read, the slot
 * that the table gives, no page that two requests write. `path`: of the plan's layer. */
qr_status cache_check(const struct op_world *w, int32_t layer, const struct op_layer_cache *c, qr_error *err);
/* Brings what the requests have before their first row into the world's pool. */
qr_status cache_load(struct op_world *w, int32_t layer, const struct op_layer_cache *c, qr_error *err);
/* What a pass over the tile writes: keys and compressor inputs are taken as they are made (from an observer), compressed
 * rows from the pool behind the pass. */
qr_status cache_keep_keys(struct op_world *w, const struct op_layer_cache *c, qr_error *err);
qr_status cache_keep_inputs(struct op_world *w, const struct op_layer_cache *c, bool index, qr_error *err);
qr_status cache_keep_rows(struct op_world *w, int32_t layer, const struct op_layer_cache *c, qr_error *err);

#endif
