/* bench.h: the parts of `quire bench`. Every figure stands beside the bound measured in the same run. */
#ifndef QR_TOOLS_BENCH_H
#define QR_TOOLS_BENCH_H

#include "base/pool.h"
#include "base/status.h"
#include "cli/model_options.h"

/* Bytes a second that the workers read from memory, the best of several passes over `bytes` of it. */
qr_status bench_read_rate(struct worker_pool *pool, int64_t bytes, double *out, qr_error *err);

/* More of decode on the same model, loaded once: `batch` requests of `rows` rows after `context` tokens. */
struct bench_cell {
    int batch, context, rows;
};

/* Steps of a model: decode (batch requests of `rows` consecutive tokens each) or prefill (one prompt of `tokens`). */
struct bench_step {
    struct model_options model;
    bool prefill, json;
    int batch, rows;      /* decode */
    bool mtp;             /* decode: the MTP layer drafts behind each step, of two rows a request */
    int tokens, chunk;    /* prefill: prompt length, rows a step (0: all of them) */
    int context;          /* tokens cached before the first step */
    int steps;            /* steps timed; one more runs before them */
    const struct bench_cell *also; /* decode, behind what the fields above say */
    int also_count;
};

/* Runs and prints: time a step, by layer kind, beside the bytes that the step must read over the rate measured. */
qr_status bench_step_run(const struct bench_step *options, qr_error *err);

#endif
