/* weights.h: the tensors of a checkpoint as the forward pass needs them: matrices as the backend's handles, short
 * vectors in backend memory. Which tensors a layer has follows from its plan record; names are v41-model.md 2.3 and
 * v4-model.md 2.1. */
#ifndef QR_MODEL_WEIGHTS_H
#define QR_MODEL_WEIGHTS_H

#include "checkpoint/checkpoint.h"
#include "ops/ops.h"
#include "plan/plan.h"

/* fn [(2+M)M][M*D], base [(2+M)M], scale [3] of one sub-block. */
struct mix_weights {
    struct weight *fn;
    const float *base, *scale;
};

struct compressor_weights {
    struct weight *wkv, *wgate; /* wgate NULL at ratio 1 */
    const void *norm;           /* bf16 */
};

struct indexer_weights {
    struct weight *wk;  /* latent -> index key; owners of rows only */
    const void *k_norm; /* bf16 */
    struct weight *wq_b, *weights_proj;
};

struct engram_weights {
    struct weight *wkv;
    const void *q_weight, *k_weight; /* bf16 [M][D] */
};

/* One matrix of each kind an expert; arrays of `count`. */
struct expert_weights {
    int32_t count;
    const struct weight **w1, **w2, **w3;
};

struct layer_weights {
    struct mix_weights attn_mix, ffn_mix;
    const void *attn_norm, *ffn_norm, *q_norm, *kv_norm; /* bf16 */
    const float *sinks;                                  /* [heads] */
    struct weight *wq_a, *wq_b, *wkv, *wo_a, *wo_b;
    struct compressor_weights compressor;
    struct indexer_weights indexer;
    struct engram_weights engram;
    struct weight *gate;
    const float *gate_bias, *gate_bias_image; /* [experts] */
    struct expert_weights routed, shared;
};

struct weights {
    struct weight *embed, *head;
    const void *norm; /* bf16 [D] */
    struct layer_weights layer[QR_MAX_LAYERS];

    /* owned */
    struct backend *backend;
    struct weight **handles;
    size_t handle_count, handle_capacity;
    void **slabs;
    size_t slab_count, slab_capacity;
    int64_t slab_used, slab_size;
    struct arena arena;
};

/* Prepares every tensor of the backbone. `ck` must outlive the weights: a backend may use them where they lie. A scale
 * of 255, a missing tensor or one of another shape is refused, naming it. */
qr_status weights_open(const struct checkpoint *ck, const struct model_plan *plan, struct backend *backend,
                       struct weights *out, qr_error *err);
/* Takes half-made weights and zeroed ones. */
void weights_close(struct weights *w);

#endif
