/* op_moe.h: routed and shared experts over simulated ranks of one process (v4-model.md 8): rows go to the ranks of their
 * experts and come back, in either form of the exchange. */
#ifndef QR_TOOLS_OP_MOE_H
#define QR_TOOLS_OP_MOE_H

#include "comm/dispatch.h"
#include "tools/op_adapters.h"

enum moe_form {
    MOE_LANES,  /* decode: a lane of RECV_MAX rows for each expert */
    MOE_GROUPED /* prefill: counts first, rows packed by expert in groups of 16 */
};

/* Buffers of a rank's rows, which calls that follow one another share. Zero-initialise; they are the run's. */
struct moe_scratch {
    int64_t room;        /* rows */
    struct activation x;
    float *weight;
    void *y;
};

/* Rank k has live[k] rows from first[k] on (NULL: k * world.rows). */
struct moe {
    struct dispatch_world world;
    enum moe_form form;
    const int32_t *live, *first;  /* host [ranks] */
    struct activation x;          /* coded [ranks * rows][D] */
    const int32_t *idx;           /* host [ranks * rows][K] */
    const int32_t *device_idx;    /* the same */
    const float *weight;          /* backend memory [ranks * rows][K] */
    const struct weight *const *w1, *const *w2, *const *w3; /* [experts] */
    const struct weight *shared[3];
    float swiglu_limit;
    void *routed;                 /* bf16 [ranks * rows][K][D]: what came back */
    void *shared_out, *out;       /* bf16 [ranks * rows][D] */
    struct moe_scratch *scratch;
};

/* Refuses bad worlds and routes. A rank without rows takes part all the same. A row that is not live has out = shared. */
qr_status moe_run(struct op_run *run, const struct moe *m, qr_error *err);
/* The routed experts alone: dispatch, experts, and the way back into `routed`. */
qr_status moe_routed(struct op_run *run, const struct moe *m, qr_error *err);

#endif
