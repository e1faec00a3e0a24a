/* weights.h: the tensors of a checkpoint as the forward pass needs them: matrices as the backend's handles, short
 * vectors in backend memory. Which tensors a layer has follows from its plan record; names are v41-model.md 2.3 and
 * v4-model.md 2.1. */
#ifndef QR_MODEL_WEIGHTS_H
#define QR_MODEL_WEIGHTS_H

#include "base/loading.h"
#include "model/tensors.h"
#include "plan/placement.h"

/* Vectors share blocks of backend memory of this size, at offsets of this alignment. */
enum { WEIGHTS_SLAB_BYTES = 1 << 20, WEIGHTS_ALIGNMENT = 256 };

/* fn [(2+M)M][M*D], base [(2+M)M], scale [3] of one sub-block. */
struct mix_weights {
    struct weight *fn;
    const float *base, *scale;
};

struct compressor_weights {
    struct weight *wkv, *wgate; /* wgate NULL at ratio 1 */
    const float *ape;           /* [ratio][columns]; V4 */
    const void *norm;           /* bf16 */
};

struct indexer_weights {
    struct weight *wk;              /* V4.1: latent -> index key; owners of rows only */
    const void *k_norm;             /* bf16 */
    struct compressor_weights keys; /* V4: index keys have a compressor of their own */
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
    const float *gate_bias, *gate_bias_image; /* [experts]; NULL where the layer has none */
    const int32_t *expert_table;              /* [vocab][active] of a hash layer, else NULL */
    struct expert_weights routed, shared;
};

/* What leads from streams to the head. */
struct head_weights {
    struct mix_weights mix; /* fn [M][M*D], scale [1], base [M]; V4 */
    const void *norm;       /* bf16 [D] */
};

/* What the stages of the block drafter have beside their layers' weights (speculation.md 2.3, 2.7). */
struct dspark_weights {
    struct weight *main_proj;         /* taps of a row -> what every stage makes its key of */
    const void *main_norm;            /* bf16 [D] */
    struct head_weights head;         /* of the last stage */
    struct weight *markov_embed;      /* bf16 [vocab][rank] */
    struct weight *markov_head;       /* bf16 [vocab][rank] */
    struct weight *confidence_hidden; /* bf16 [1][D] and [1][rank]: the two parts of the confidence head */
    struct weight *confidence_markov;
};

/* What the MTP layer has beside a layer's weights (v4-model.md 6.3, 7.4 mtp_projection). */
struct mtp_weights {
    struct weight *e_proj, *h_proj;
    bool e_plain, h_plain;            /* bf16 in a repackaged file: the input is not quantized */
    const void *e_norm, *h_norm;      /* bf16, f32 in w8a8 */
    const float *e_smooth, *h_smooth; /* w8a8, else NULL */
    struct head_weights head;
};

struct weights {
    struct weight *embed, *head;
    struct head_weights final;
    struct layer_weights layer[QR_MAX_LAYERS]; /* backbone, then the drafter's where it is opened */
    struct mtp_weights mtp;
    struct dspark_weights dspark;

    /* owned */
    struct backend *backend;
    struct tensors *tensors; /* holds what a backend uses where it lies */
    struct weight **handles;
    size_t handle_count, handle_capacity;
    void **slabs;
    size_t slab_count, slab_capacity;
    int64_t slab_used, slab_size;
    struct arena arena;
};

/* What is opened. */
enum weight_part {
    WEIGHTS_EMBED = 1,
    WEIGHTS_HEAD = 2,       /* the head's matrix */
    WEIGHTS_FINAL = 4,      /* what leads to it */
    WEIGHTS_ATTENTION = 8,  /* the attention sub-blocks of the backbone's layers */
    WEIGHTS_EXPERTS = 16,   /* their FFN sub-blocks */
    WEIGHTS_BACKBONE = 31,  /* all of these */
    WEIGHTS_DRAFTER = 32    /* the MTP layer, or the stages of the block drafter */
};

/* Prepares the tensors of `parts` (enum weight_part); what belongs to no part stays zero. `ck` must outlive the weights: a backend
 * may use them where they lie. A scale of 255, a missing tensor, one of another shape, or a hash table with an expert
 * that does not exist or stands twice in a row (v4-model.md 9.5) is refused, naming it. `loading` (may be NULL) is told of
 * every tensor. */
qr_status weights_open(const struct checkpoint *ck, const struct model_plan *plan, unsigned parts,
                       struct backend *backend, struct loading *loading, struct weights *out, qr_error *err);
/* The same with routed experts in host memory, on a backend that seats experts; `placement` is read during the call. */
qr_status weights_open_placed(const struct checkpoint *ck, const struct model_plan *plan, unsigned parts,
                              struct backend *backend, const struct expert_placement *placement, struct loading *loading,
                              struct weights *out, qr_error *err);
/* Where the backend lets weights rest (ops.h): gives their bytes back and keeps the handles; lays the same tensors out again
 * where they were, after a failure of which they rest on. What weights_open was given must be the same. */
void weights_rest(struct weights *w);
qr_status weights_rise(const struct checkpoint *ck, const struct model_plan *plan, unsigned parts, struct loading *loading,
                       struct weights *w, qr_error *err);
/* Takes half-made weights and zeroed ones. */
void weights_close(struct weights *w);
/* In how many ranges of K a row-parallel matrix of that form is summed (weight_spec.k_splits). */
int32_t weights_splits(const struct weight_spec *spec);

#endif
