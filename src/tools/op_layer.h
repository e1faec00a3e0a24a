/* op_layer.h: what the compositions of a layer and those of a whole forward share: requests from arrays, the tables of
 * their caches, and the pass that fills them. */
#ifndef QR_TOOLS_OP_LAYER_H
#define QR_TOOLS_OP_LAYER_H

#include "tools/op_cache.h"
#include "tools/op_head.h"

/* A composition in progress: a world, and the caches of each of its layers. */
struct op_composition {
    struct op_world *world;
    struct world_request *requests;
    int32_t count, ranks, rank_rows;
    bool prefill;
    struct op_layer_cache *caches; /* [layers of the plan] */
};

/* Requests of in.position_ids: decode ([ep] B S, two rows each) or prefill ([ep] T, one a rank); in.num_tokens says how
 * many rows of a rank are live (absent: all). Refuses, by 9.5, shapes, counts and positions. */
qr_status layer_requests(struct op_run *run, bool prefill, struct op_composition *out, qr_error *err);

/* The config of one layer with `ratio`, hash-routed or not, from the sizes of the run. */
struct qr_config layer_config(const struct op_run *run, int32_t ratio, bool hash);

/* Opens the world of the composition, for steps of `tile` rows of a rank at most. */
qr_status composition_open(struct op_run *run, struct op_composition *c, const struct qr_config *config, unsigned parts, bool mtp,
                           bool bare, qr_error *err);
/* Checks and loads the caches of every layer, once c->caches says where they are. */
qr_status composition_load(struct op_composition *c, qr_error *err);

/* Rows for the head where the file names none: every live row of a decode step, the last of each prompt; [ranks][8], -1: none. */
qr_status composition_logit_rows(struct op_run *run, const struct op_composition *c, const int32_t **out, qr_error *err);

/* An array of pages that a layer must have: data, and what every such array says; pages: of each of `layers` layers, layer
 * `at` of them. wanted_rows 0: as many as there are. Refused as bad shape. */
qr_status open_pages(struct op_run *run, struct op_pages *p, int64_t all_pages, int32_t layers, int32_t at, int64_t row_bytes,
                     int64_t page_rows, int64_t wanted_rows, int64_t width, int64_t wanted_width, qr_error *err);

/* The window's pool, slots, table and lists of a harness with one layer. */
qr_status open_window(struct op_run *run, bool prefill, struct op_layer_cache *out, qr_error *err);
/* Turns by in.freqs_cos and in.freqs_sin [positions][r or r/2], where the file has them. */
qr_status layer_tables(struct op_run *run, struct op_world *w, enum rope rope, qr_error *err);

/* An output that begins as a copy of the input of its name: its host memory. NULL when the file has no such input (the
 * output is then left out). */
qr_status copied_output(struct op_run *run, const char *name, void *out, qr_error *err);

#endif
