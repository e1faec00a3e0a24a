/* engine.h: the object behind qr_engine, and its parts: sequence.c (one sequence's cache and forwards), generate.c (one
 * request's answer), score.c, engine.c (threads, queue, the public calls). */
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
    pthread_cond_t work, event;     /* something to do; an event or a score is there */
    bool thread_started, stopping;
    struct request *requests;       /* all that live, oldest first */
    struct score_job *scores;
    qr_handle next_handle;
    int32_t waiting;
    qr_metrics metrics;             /* under the lock */
};

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
    double seconds;                 /* spent in steps */
};

qr_status sequence_open(struct qr_engine *engine, int32_t slot, struct sequence *out, qr_error *err);
void sequence_close(struct sequence *s);
/* Runs tokens [position, end), at most max_rows of them; logits of the rows from position `logits_from` on stand in the
 * runner's workspace afterwards. */
qr_status sequence_forward(struct sequence *s, int32_t end, int32_t logits_from, qr_error *err);
/* Logits of the i-th wanted row of the last forward as host memory, until the next call. */
qr_status sequence_logits(struct sequence *s, int32_t i, const float **out, qr_error *err);

/* ---- generate.c, score.c ---- */

/* Runs a request to its end and delivers its events, the last one included. Never fails: errors are events. */
void generate(struct qr_engine *engine, struct request *r);
void score_run(struct qr_engine *engine, struct score_job *job);

/* Delivers an event (which it takes over) to callback or queue. Engine thread only. */
void engine_deliver(struct qr_engine *engine, struct request *r, struct event *e);

/* ---- size.c ---- */

/* Resolves options against model and machine: formats, block size, context length, pool sizes. QR_REFUSED (E31, with
 * `too_small` set and everything above it filled in) when it does not fit. */
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
qr_status engine_size(const qr_model *model, const qr_engine_options *options, struct engine_size *out, qr_error *err);

#endif
