/* cuda.h: what the files of the CUDA backend share: the handle, prepared weights, scratch, and how a kernel is started.
 *
 * The rule that keeps a row's bits: a kernel gives a row, or an output of a row, to a fixed number of threads that add
 * in an order fixed by the shape of the weight or of the row. Nothing depends on how many rows there are or where in
 * the list a row stands; no float is added atomically. */
#ifndef QR_OPS_CUDA_CUDA_H
#define QR_OPS_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include <cuda_runtime_api.h>

#include "ops/cuda/arena.h"
#include "ops/device.h"

/* Scratch of the operators: larger steps are cut into bands of rows that fit. */
enum { SCRATCH_BYTES = 128 << 20 };
/* More of it for a shared expert of so few rows that it runs beside the routed ones. */
enum { SIDE_BYTES = 16 << 20, SIDE_ROWS = 64 };
/* Tables of expert weights that are kept on the device, and their greatest size (experts of a layer). */
enum { EXPERT_TABLES = 160, MOST_EXPERTS = 512 };
enum { MOST_ALLOWED = 64, MOST_ARRIVED = 4096 };
/* Weights on their way into their layout; pools that live at once; buffers that live at once. */
enum { STAGING_BYTES = 64 << 20, MOST_POOLS = 8, MOST_BUFFERS = 4096 };

/* A weight as kernels see it. F32: rows `pitch` bytes apart, zero beyond k. All others: tiles of 32 rows `pitch` bytes
 * apart, laid out for the matrix unit (product.cuh), an FP8 weight's scales behind them by tile and block of 32 columns,
 * scale_cols a tile, an INT8 weight's as they come, one a row. */
struct weight_view {
    const uint8_t *values, *scales;
    int64_t pitch;
    int32_t n, k, tile, scale_cols;
    bool large_scales; /* some are beyond what one factor holds (product.cuh) */
};

struct weight {
    struct weight_spec spec;
    struct weight_view view;
    void *memory;
    int64_t bytes;
    uint64_t laid; /* the rest count when it was laid out: it is what a renewal may not do twice */
    bool on_host;  /* its memory is the host's, pinned */
};

/* The weights of one layer's experts, and behind them those of the seats (seats.h). on_host: they lie in host memory, from
 * where they are copied into a seat before a product reads them. */
struct expert_view {
    struct weight_view w1, w2, w3;
    bool on_host;
};
struct expert_table {
    int32_t experts; /* 0: empty */
    int32_t on_host; /* experts */
    uint64_t stamp;  /* of its last use */
    const struct weight **w1, **w2, **w3;
    struct expert_view *host, *device;
};

/* What a kernel found wrong in its arguments, reported by the next fence: a code in the low byte, the number that was
 * found above it. The output of the row is not written then, or written as zeros. */
enum trouble { TROUBLE_NONE, TROUBLE_TOKEN, TROUBLE_EXPERT, TROUBLE_UNPREPARED, TROUBLE_GROUP };
enum { TROUBLE_BITS = 8 };

struct recorder;
struct seats;

struct buffer_record {
    void *at;
    int64_t bytes;
};

struct cuda_backend {
    struct backend base; /* first */
    cudaStream_t stream;
    int ordinal, processors; /* multiprocessors of the device */
    int priority, most_urgent; /* of kernels that are started now; what those on a list's longest path get */
    bool has_wgmma;          /* the device has it, and the module holds kernels that use it */
    bool starts_early;       /* a kernel may be started before the one before it has ended (device.cuh) */
    char name[64];
    uint8_t *scratch, *side;
    int32_t max_k;         /* input columns of a linear that were reserved for; 0: nothing was */
    uint32_t *arrived;     /* device, [2][MOST_ARRIVED] zeros: blocks count themselves here, and leave zeros; the second
                              half is that of the side scratch */
    int32_t *trouble;      /* device */
    int32_t *trouble_host; /* pinned */
    struct recorder *recorder;
    struct memory_arena *weights, *pools[MOST_POOLS]; /* an entry NULL: none */
    struct buffer_record *buffers;                    /* [MOST_BUFFERS], those that live */
    int32_t buffer_count;
    int64_t held, most_held, may_hold; /* bytes taken, at most so far, and at most ever (0: no bound) */
    int64_t weights_laid;
    uint64_t rests; /* of the weights */
    uint8_t *staging;
    int64_t staging_bytes, score_band; /* bytes of scratch that index scores may take */
    const void *allowed[MOST_ALLOWED]; /* kernels that may take more shared memory than usual, */
    size_t most_shared;                /* up to this much */
    struct expert_table tables[EXPERT_TABLES];
    struct expert_view *device_tables, *views; /* [EXPERT_TABLES][MOST_EXPERTS] */
    const struct weight **handles;
    uint64_t uses;
    struct seats *seats; /* NULL: every expert lies on the device */
};

static inline struct cuda_backend *cuda_of(struct backend *b) { return (struct cuda_backend *)b; }

/* QR_OK, or the sentence of a failed CUDA call. */
qr_status cuda_check(cudaError_t status, const char *what, qr_error *err);
/* Makes the backend's device that of the calling thread. */
qr_status cuda_enter(const struct cuda_backend *cuda, qr_error *err);

/* Counts bytes that are taken (or, negative, given back); QR_NO_MEMORY, naming both, beyond what may be held. */
qr_status cuda_hold(struct cuda_backend *cuda, int64_t bytes, qr_error *err);
/* Arenas whose memory is counted so. `bytes` more of one; QR_NO_MEMORY: neither the arena nor the count changed. */
qr_status cuda_take(struct cuda_backend *cuda, struct memory_arena *a, int64_t bytes, void **out, qr_error *err);
/* Starts what is written down, waits for it, and gives the memory back. */
void cuda_rest(struct cuda_backend *cuda, struct memory_arena *a);
/* Takes as much again, unless it stands. QR_NO_MEMORY: it rests on, nothing counted. */
qr_status cuda_rise(struct cuda_backend *cuda, struct memory_arena *a, qr_error *err);
/* Bytes that a weight takes of its range in its layout, and of its staging. */
int64_t cuda_weight_bytes(const struct weight_spec *spec);
int64_t cuda_staged_bytes(const struct weight_spec *spec);

qr_status cuda_prepare_weight(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err);
void cuda_release_weight(struct backend *b, struct weight *w);
void cuda_rest_weights(struct backend *b);
qr_status cuda_renew_weight(struct backend *b, struct weight *w, const struct weight_spec *spec, qr_error *err);

/* Bytes of a weight (none of F32) laid out for the matrix unit, and of a tile of it. */
int64_t cuda_packed_bytes(const struct weight_spec *spec, int64_t *tile_bytes);
/* Lays it out from the file's bytes, all on the device; w->view is filled but for values and scales. */
qr_status cuda_pack(struct backend *b, const struct weight *w, const void *values, const void *scales, void *out,
                    qr_error *err);

/* The experts of a layer as a table on the device (zeros for a NULL handle); made when first seen, found again by
 * content. NULL with `err` set when there are too many or the copy failed. */
const struct expert_table *cuda_expert_table(struct cuda_backend *cuda, int32_t experts, const struct weight *const *w1,
                                             const struct weight *const *w2, const struct weight *const *w3,
                                             qr_error *err);

void cuda_expert_forget(struct cuda_backend *cuda, const struct weight *w);
/* The number of a table of the backend. */
static inline int32_t cuda_table_number(const struct cuda_backend *cuda, const struct expert_table *t)
{
    return (int32_t)(t - cuda->tables);
}

/* Whether it reads its rows by way of scratch, which then is its own while it runs. */
bool cuda_linear_takes_scratch(const struct op_linear *op);
/* Whether it takes the side scratch. */
bool cuda_expert_is_aside(const struct op_expert *op);

/* Whether attention can turn its output back by itself, and attention that does. */
bool cuda_attend_turns(const struct op_attend *op, const struct op_unrotate *turn);
qr_status cuda_attend_turned(struct backend *b, const struct op_attend *op, const struct op_unrotate *turn,
                             qr_error *err);

/* A router of few rows, and the experts that it chooses for them. */
bool cuda_routes_experts(const struct op_route *op, const struct op_expert *experts);
qr_status cuda_route_experts(struct backend *b, const struct op_route *op, const struct op_expert *experts,
                             qr_error *err);
qr_status cuda_expert_widened(struct backend *b, const struct op_expert *op, qr_error *err);
/* Where those experts want their rows as bf16 in the order of the weights. */
uint16_t *cuda_expert_rows(struct backend *b, const struct op_expert *op);

/* Operators that one kernel does in a row: any run of them with an expand or a mix in it; NULL: not in the run. Whether a
 * step can be in one run with the next. */
enum between_step { BETWEEN_COMBINE, BETWEEN_EXPAND, BETWEEN_MIX, BETWEEN_COLLAPSE };
bool cuda_goes_between(enum between_step step, const void *op, enum between_step next_step, const void *next_op);
qr_status cuda_between(struct backend *b, const struct op_combine *combine, const struct op_expand *expand,
                       const struct op_mhc_mix *mix, const struct op_collapse *collapse, qr_error *err);

/* Not recorded: what is written down has to be started before. */
qr_status cuda_shortlist(struct backend *b, const struct op_shortlist *op, qr_error *err);

/* A linear of INT8. */
qr_status cuda_linear_int8(struct backend *b, const struct op_linear *op, qr_error *err);

#define CUDA_OPERATOR(NAME) qr_status cuda_##NAME(struct backend *b, const struct op_##NAME *op, qr_error *err);
QR_OPERATORS(CUDA_OPERATOR)
#undef CUDA_OPERATOR

#ifdef __cplusplus
}
#endif
#endif
