/* assemble.h: a batch becomes a step: flat rows, one row list for each thing that a layer does, one upload (runtime.md
 * 3). The only place that makes a step. Knows geometry and plan; no model, no cursor. */
#ifndef QR_RUN_ASSEMBLE_H
#define QR_RUN_ASSEMBLE_H

#include "ops/ops.h"
#include "sched/batch.h"

struct assembly_limits {
    const struct model_plan *plan;
    const struct geometry *geometry;
    int64_t blocks, slots; /* of the pool; block 0 is reserved */
    int32_t max_rows, max_requests, max_logits, max_positions;
    int32_t attention_rows; /* model_limits; 0: a step's */
    bool pads; /* steps of several requests and few tokens each are alike wherever the requests stand, so that a device that
                  records them meets them again: tables are as wide as a power of two, and every row stands among those that
                  may emit a compressed row */
};

struct assembly;

/* Allocates everything a step needs, on the host and on the backend. */
qr_status assembly_open(struct backend *backend, const struct assembly_limits *limits, struct assembly **out,
                        qr_error *err);
void assembly_close(struct assembly *a);
/* Bytes that it takes, on the host and on the backend. */
int64_t assembly_bytes_for(const struct assembly_limits *limits);
/* Bytes it took on the backend. */
int64_t assembly_bytes(const struct assembly *a);

/* Everything that must hold before a step may write (runtime.md 3.9): spans not empty, distinct slots in range, tokens
 * of the vocabulary, blocks enough, in range, distinct within a request and not written by one request while another
 * names them, rows and logits within the buffers, tentative spans within the drafter's width. The cursor is not looked
 * at. Fails with QR_INTERNAL naming the span, the value and the bound; changes nothing. */
qr_status assembly_check(struct assembly *a, const struct batch *batch, qr_error *err);

/* Fills the step of a checked batch and uploads it. Both results stay until the next call. */
qr_status assembly_fill(struct assembly *a, const struct batch *batch, qr_error *err);
const struct step *assembly_step(const struct assembly *a);
const struct step_rows *assembly_rows(const struct assembly *a);

#endif
