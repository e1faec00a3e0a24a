/* op_layer.h: what the compositions of a layer and those of a whole forward share: requests from arrays, the tables of
 * their caches, and the pass that fills them. */
#ifndef QR_TOOLS_OP_LAYER_H
#define QR_TOOLS_OP_LAYER_H

#include "tools/op_cache.h"

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
                           qr_error *err);
/* Checks and loads the caches of every layer, once c->caches says where they are. */
qr_status composition_load(struct op_composition *c, qr_error *err);

/* An output that begins as a copy of the input of its name: its host memory. NULL when the file has no such input (the
 * output is then left out). */
qr_status copied_output(struct op_run *run, const char *name, void *out, qr_error *err);

#endif
