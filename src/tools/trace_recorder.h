/* trace_recorder.h: what records a traced pass: one for each family, since their arrays are the goldens' of the family.
 */
#ifndef QR_TOOLS_TRACE_RECORDER_H
#define QR_TOOLS_TRACE_RECORDER_H

#include "checkpoint/safetensors.h"
#include "run/forward.h"
#include "tools/trace_arrays.h"
#include "tools/trace_input.h"

/* The groups of design/cli.md; which arrays they are is the recorder's. */
enum trace_group {
    TRACE_LOGITS = 1,
    TRACE_STREAMS = 2,
    TRACE_SELECTION = 4,
    TRACE_CACHES = 8,
    TRACE_ROUTES = 16,
    TRACE_ENGRAM = 32,
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

struct trace_recorder {
    uint32_t groups; /* those it has */

    /* Makes the arrays wanted, in `arrays`, and finds those of a forced pass. */
    qr_status (*open)(const struct trace_job *job, struct trace_arrays *arrays, void **out, qr_error *err);
    void (*close)(void *self); /* NULL is fine */
    /* Runs one step whose span b is of sequence `sequence[b]`, recording. */
    qr_status (*step)(void *self, const struct batch *batch, const int32_t *sequence, qr_error *err);
    /* After the last step: reads what stands in the pools, with sequence i's blocks at blocks[i] and in STATE slot
     * slots[i], and adds what only has a size now. */
    qr_status (*finish)(void *self, const int32_t *const *blocks, const int32_t *slots, qr_error *err);
};

extern const struct trace_recorder trace_v41_recorder; /* golden/v41 */
extern const struct trace_recorder trace_v4_recorder;  /* golden/v4 */

#endif
