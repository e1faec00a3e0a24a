/* engine.h: the object behind qr_engine, and its parts: handles.c (the public calls on requests), generate.c (one
 * request's answer), sequence.c (one sequence's cache and forwards), score.c, size.c, engine.c (creation, the thread).
 *
 * Two kinds of threads: the caller's, and the engine's own, which alone touches runner, blocks and sampler. They meet in
 * the fields marked "locked", and in requests, as request.h says. */
#ifndef QR_ENGINE_ENGINE_H
#define QR_ENGINE_ENGINE_H

#include "cache/blocks.h"
#include "cache/budget.h"
#include "engine/request.h"
#include "run/forward.h"
#include "run/token_counts.h"

enum { ENGINE_QUEUE = 4096 }; /* requests that may wait */

/* A caller of qr_score, waiting. */
struct score_job {
    struct score_job *next;
    const int32_t *tokens;
    int32_t count, from;
    double *out;
    qr_status status;
    qr_error *err;
    bool done;
};

struct qr_engine {
    qr_model *model;
    struct geometry geometry;
    struct backend *backend;
    struct runner *runner;
    struct blocks *blocks;
    qr_plan_bytes plan;
    int32_t max_model_len, max_rows, max_logits;
    /* the engine thread's, sized at creation */
    float *logits;                  /* [vocab] */
    struct sampler_scratch *sampler;
    struct token_counts *counts;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;            /* there is something to do, or to stop for */
    pthread_cond_t event;           /* an event, a score or the end of a callback is there */
    /* locked */
    bool stopping;
    struct request *oldest, *newest; /* all requests that live, in order of their handles */
    struct score_job *scores;
    qr_handle next_handle;
    qr_handle calling;              /* whose callback is running; 0: none */
    int32_t waiting;                /* requests in that state, */
    int32_t waiting_cancelled;      /* and how many of them want no turn any more */
    qr_metrics metrics;
};

/* ---- handles.c ---- */

/* Delivers an event (which it takes over) and the request's counts as of now, to callback or queue. An event of a request
 * that was cancelled meanwhile is dropped, and a last one says so and nothing else (runtime.md 4.9: no token after a
 * cancel). After the last event the request may be gone. Engine thread only, the lock not held. */
void engine_deliver(struct qr_engine *engine, struct request *r, struct event *e, const qr_usage *usage);
/* Ends what was cancelled while it waited, without a forward. Engine thread only, between steps, the lock not held. */
void engine_sweep(struct qr_engine *engine);
/* The oldest request that waits for its turn, now running; NULL: none. The lock is held. */
struct request *engine_take_waiting(struct qr_engine *engine);
/* Marks a request as cancelled and drops its tokens that nobody fetched. The lock is held. */
void engine_cancel(struct qr_engine *engine, struct request *r);

/* ---- sequence.c ---- */

/* The cached tokens of one sequence in STATE slot `slot`. */
struct sequence {
    struct qr_engine *engine;
    int32_t slot;
    const int32_t *tokens;          /* the caller's; may move between calls */
    int32_t position;               /* tokens [0, position) are cached */
    block_id *table;                /* [max_model_len / B] */
    int32_t blocks;
    uint8_t *mask;                  /* [max_rows] image-span marks of a step */
    struct row_plan rows;           /* of the tokens below its end; nothing is left out above */
    double seconds;                 /* spent in steps */
};

qr_status sequence_open(struct qr_engine *engine, int32_t slot, struct sequence *out, qr_error *err);
void sequence_close(struct sequence *s);
/* Says that the first `end` tokens are known and that no logits below position `first_logits` will be wanted, so that rows
 * which nothing reads are not run (plan/rows.h). Before the first forward. */
void sequence_plan(struct sequence *s, int32_t end, int32_t first_logits);
/* Runs tokens [position, end), at most max_rows of them; logits of the rows from position `logits_from` on stand in the
 * runner's workspace afterwards. */
qr_status sequence_forward(struct sequence *s, int32_t end, int32_t logits_from, qr_error *err);
/* Logits of the i-th wanted row of the last forward as host memory, until the next call. */
qr_status sequence_logits(struct sequence *s, int32_t i, const float **out, qr_error *err);

/* ---- generate.c, score.c ---- */

/* Runs a request to its end and delivers its events, the last one included. Never fails: errors are events. */
void generate(struct qr_engine *engine, struct request *r);
void score_run(struct qr_engine *engine, struct score_job *job);

/* ---- size.c ---- */

/* Resolves options against model and machine: formats, block size, context length, pool sizes. QR_REFUSED (E31, with
 * `too_small` set and everything above it filled in) when it does not fit. `stored`: payload bytes of the checkpoint. */
struct engine_size {
    struct geometry geometry;
    int64_t prepared;               /* weights held in another form than the file's */
    int64_t cache_bytes;            /* given to both pools */
    bool too_small;
    struct budget budget;
    int64_t blocks, slots;
    struct model_limits limits;
    qr_plan_bytes bytes;
};
qr_status engine_size(const struct model_plan *plan, int64_t stored, const qr_engine_options *options,
                      struct engine_size *out, qr_error *err);

#endif
