/* plan.h: what each layer is. Computed once from the config; everything that depends on topology asks here, and
 * nothing above asks for the family. Pure. */
#ifndef QR_PLAN_PLAN_H
#define QR_PLAN_PLAN_H

#include "checkpoint/config.h"

enum attend {
    ATTEND_WINDOW,  /* sliding window only */
    ATTEND_FULL,    /* V4.1: owns compressor, index keys and selection */
    ATTEND_REINDEX, /* V4.1: own selection over the owner's rows */
    ATTEND_REUSE,   /* V4.1: the owner's rows, an earlier layer's selection */
    ATTEND_CSA,     /* V4: overlapping ratio 4, own selection */
    ATTEND_HCA      /* V4: ratio 128, every visible row */
};
enum rope { ROPE_MAIN, ROPE_COMPRESS };
enum router { ROUTER_SCORE, ROUTER_HASH };
/* The order in which selected rows stand in a row's key list (v41-model.md 5.5, v4-model.md 5.3). */
enum selection_order { SELECTION_ASCENDING, SELECTION_BY_SCORE };
/* How a layer makes its compressed rows. */
enum compressor { COMPRESSOR_NONE, COMPRESSOR_SINGLE /* ratio 1 */, COMPRESSOR_PAIR /* ratio 2, gate per channel */,
                  COMPRESSOR_OVERLAP /* ratio 4, eight slots */, COMPRESSOR_PLAIN /* V4, any other ratio */ };

/* What index keys may be kept as: V4.1 gives the same bits to both of its grids; the grid of V4 is the profile's. */
enum index_keys { INDEX_KEYS_FP8_OR_FP4, INDEX_KEYS_FP4, INDEX_KEYS_INT8 };

struct layer_plan {
    enum attend attend;
    int32_t ratio;        /* tokens per compressed row of the cache it reads; 0: none */
    int32_t kv_owner;     /* layer whose compressed rows it reads; -1: none */
    int32_t index_owner;  /* layer whose top-k it uses; -1: reads all visible rows (or has none) */
    bool owns_rows;       /* kv_owner is this layer: it compresses */
    bool owns_index;      /* index_owner is this layer: it scores and selects */
    bool candidate_source, candidate_reader;
    enum compressor compressor;     /* of its own rows; NONE when it owns none */
    enum selection_order order;
    enum rope rope;
    enum router router;
    int32_t engram;       /* index of its n-gram table, or -1 */
    int32_t tap;          /* DSpark: index among the target layers whose input is recorded, or -1 */
    int32_t n_experts, n_active; /* routed experts of this layer and how many a token takes */
};

/* One plane of compressed rows: layer `owner` writes it. Order: ascending owner. */
struct owner_plan {
    int32_t layer, ratio;
    bool has_index;            /* an index-key plane stands beside the main rows */
    enum compressor compressor;
    int32_t tail_rows;         /* rows of its compressor tail before draft slack: PAIR 2, OVERLAP 8, PLAIN ratio, SINGLE 0 */
    int32_t tail_width;        /* f32 values of one tail row and kind (value or score): PAIR head_dim, OVERLAP 2*head_dim, PLAIN head_dim */
    int32_t index_tail_width;  /* the indexer's own compressor (V4 CSA): 2*index_head_dim; else 0 */
};

struct model_plan {
    struct qr_config config;
    enum qr_profile profile;
    int32_t layers;        /* backbone */
    int32_t draft_layers;  /* MTP layer or DSpark stages; their records follow the backbone's in `layer` */
    struct layer_plan layer[QR_MAX_LAYERS];
    int32_t owners;
    struct owner_plan owner[QR_MAX_LAYERS];
    int32_t owner_of_layer[QR_MAX_LAYERS]; /* index into `owner` of a layer's kv_owner, or -1 */
    int32_t index_sources;                 /* layers with owns_index */
    int32_t index_source_of_layer[QR_MAX_LAYERS]; /* ordinal of its index_owner among them, or -1 */
    bool rows_pack;        /* cached rows lie on the FP4 grid of blocks of 16, so that a container may pack them */
    enum index_keys index_keys;
    int32_t max_ratio;                     /* largest ratio of an owner; 1 when there is none */
    int32_t draft_width, draft_widest;     /* tokens that the drafter makes at once, and may be made to; 0 without one */
};

/* Fills `out`. Fails with QR_BAD_CONFIG when the topology is impossible (v41-model.md 1.4, v4-model.md 1.4) or the
 * profile is not one of the family. */
qr_status plan_make(const struct qr_config *config, enum qr_profile profile, struct model_plan *out, qr_error *err);

/* Compressed rows of `ratio` visible to a query at position p: (p+1) div ratio; 0 for ratio 0 (v41-model.md 5.4). */
static inline int32_t plan_visible(int32_t ratio, int32_t position)
{
    return ratio > 0 ? (position + 1) / ratio : 0;
}

const char *attend_name(enum attend attend);

#endif
