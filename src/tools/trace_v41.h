/* trace_v41.h: the arrays of golden/v41 from a running V4.1 pass: an observer that downloads what each layer leaves,
 * and uploads a golden's streams in front of each layer when a pass is forced. */
#ifndef QR_TOOLS_TRACE_V41_H
#define QR_TOOLS_TRACE_V41_H

#include "checkpoint/safetensors.h"
#include "run/forward.h"
#include "tools/trace_arrays.h"
#include "tools/trace_input.h"

/* The groups of design/cli.md. */
enum trace_group {
    TRACE_LOGITS = 1,    /* logits */
    TRACE_STREAMS = 2,   /* streams, pre, final, taps */
    TRACE_SELECTION = 4, /* sel.L.ptr, sel.L.rows, cand.mask */
    TRACE_CACHES = 8,    /* win.L, main.L, ik.L with their codes and scales */
    TRACE_ROUTES = 16,   /* router.idx, router.weight */
    TRACE_ENGRAM = 32,   /* engram.rows, engram.gate.L */
    TRACE_DRAFT = 64,
    TRACE_MTP = 128
};

struct trace_job {
    const struct model_plan *plan;
    struct backend *backend;
    struct runner *runner;
    const struct trace_input *input;
    uint32_t want;                   /* enum trace_group, added */
    const struct safetensors *force; /* or NULL */
};

struct trace_v41;

/* Makes the arrays wanted, in `arrays`, and finds those of a forced pass. */
qr_status trace_v41_open(const struct trace_job *job, struct trace_arrays *arrays, struct trace_v41 **out,
                         qr_error *err);
void trace_v41_close(struct trace_v41 *t);

/* Runs one step whose span b is of sequence `sequence[b]`, recording. */
qr_status trace_v41_step(struct trace_v41 *t, const struct batch *batch, const int32_t *sequence, qr_error *err);

/* After the last step: reads the compressed rows out of the pool, with sequence i's blocks at blocks[i], and adds what
 * only has a size now. */
qr_status trace_v41_finish(struct trace_v41 *t, const int32_t *const *blocks, qr_error *err);

#endif
