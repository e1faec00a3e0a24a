/* engine.h: the object behind qr_engine, and its parts: handles.c, fork.c (the public calls on requests), engine.c (creation, the
 * thread), step.c (a batch of the scheduler is run and its results told), generate.c (one request's answer), score.c,
 * inject.c (events of tests), sleep.c, size.c and rules.c.
 *
 * Two kinds of threads: the caller's, and the engine's own, which alone touches scheduler, runner and sampler. They meet
 * in the fields marked "locked", and in requests, as request.h says. */
#ifndef QR_ENGINE_ENGINE_H
#define QR_ENGINE_ENGINE_H

#include "cache/budget.h"
#include "engine/capture.h"
#include "engine/device_size.h"
#include "engine/constraint.h"
#include "engine/draft_counts.h"
#include "engine/expert_use.h"
#include "engine/modes.h"
#include "engine/payoff.h"
#include "engine/request.h"
#include "engine/shortlists.h"
#include "engine/speculate.h"
#include "engine/verdicts.h"
#include "run/forward.h"
#include "run/page_watch.h"
#include "run/token_counts.h"
#include "sched/sched.h"
#include "text/detokenizer.h"
#include "text/stop.h"

enum { ENGINE_QUEUE = 4096 }; /* requests that may wait */

/* A caller of qr_score, waiting. */
struct score_job {
    struct score_job *next;
    const int32_t *tokens;
    int32_t count, from;
    double *out;
    int32_t *best; /* the likeliest tokens, or NULL */
    qr_status status;
    qr_error *err;
    bool done;
};

struct qr_engine {
    qr_model *model;
    struct geometry geometry;
    struct backend *backend;
    struct runner *runner;
    struct pool_layout pool;
    struct page_watch *watch;       /* debug builds over host memory; else NULL */
    struct sched *sched;
    struct speculation *speculation; /* NULL: nothing drafts */
    struct verdicts *verdicts;      /* NULL: match judges drafts */
    qr_plan_bytes plan;
    int32_t max_model_len, max_requests, max_rows;
    bool bounded;                   /* a replay is: of a prompt only the last row's logits are computed */
    double delay_factor;            /* scheduler_delay_factor */
    /* the engine thread's, sized at creation */
    float *logits;                  /* [vocab] */
    struct sampler_scratch *sampler;
    struct shortlists *lists;       /* of the rows in hand; NULL: rows are read whole */
    struct sched_result *results;   /* [max_requests] of a step */
    int32_t *accepted;              /* [max_requests] of a verify step */
    struct task *tasks;             /* everything that the scheduler has */
    uint64_t next_task;
    uint64_t weights[2];            /* fingerprint of the checkpoint */
    struct expert_use use;          /* of routed experts, in earlier runs */
    double prompt_latency;          /* seconds from its start to its first token, of the last prompt */

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;            /* there is something to do, or to stop for */
    pthread_cond_t event;           /* an event, a score or the end of a callback is there */
    /* locked */
    bool stopping;
    struct request *oldest, *newest; /* all requests that live, in order of their handles */
    struct score_job *scores;
    struct injection *injections;   /* as they came */
    unsigned sleep_wanted, asleep;  /* QR_SLEEP_ tags */
    unsigned rising;                /* those of `asleep` that come back just now */
    bool stirred;                   /* a request came, was cancelled, paused or let go on since the engine's thread last looked */
    bool sleep_failed;              /* the last change of them, as sleep_error says */
    qr_error sleep_error;
    qr_handle next_handle;
    qr_handle calling;              /* whose callback is running; 0: none */
    int32_t waiting;                /* requests in that state, */
    int32_t waiting_cancelled;      /* and how many of them want no turn any more */
    qr_metrics metrics;
    struct draft_counts drafts;
    double last_step;               /* when the last step went well; 0: none has */
};

/* ---- handles.c ---- */

/* Delivers an event (which it takes over) and the request's counts as of now, to callback or queue. An event of a request
 * that was cancelled meanwhile is dropped, and a last one says so and nothing else (runtime.md 4.9: no token after a
 * cancel). After the last event the request may be gone. Engine thread only, the lock not held. */
void engine_deliver(struct qr_engine *engine, struct request *r, struct event *e, const qr_usage *usage);
/* Ends what was cancelled while it waited, without a forward. Engine thread only, between steps, the lock not held. */
void engine_sweep(struct qr_engine *engine);
/* The request whose turn is next: of the highest priority the oldest that waits; NULL: none. The lock is held. */
struct request *engine_next_waiting(const struct qr_engine *engine);
/* The same, now running. */
struct request *engine_take_waiting(struct qr_engine *engine);
/* Marks a request as cancelled and drops its tokens that nobody fetched. The lock is held. */
void engine_cancel(struct qr_engine *engine, struct request *r);

/* The request of a handle that its caller has not forgotten; NULL. The lock is held. */
struct request *engine_find(const struct qr_engine *engine, qr_handle handle);

/* ---- inject.c ---- */

/* Does the injections that are due before the next step. Engine thread only, the lock not held. */
void engine_inject(struct qr_engine *engine);
void injections_free(struct injection *list);

/* ---- sleep.c ---- */

/* Makes `asleep` what is wanted, between steps. The lock is held, and let go meanwhile. */
void engine_change_sleep(struct qr_engine *engine);

/* ---- step.c ---- */

/* What the scheduler has of one caller: a request to answer or tokens to score. */
struct task {
    struct qr_engine *engine;
    struct task *next, *previous;
    struct sched_request *sched;    /* the scheduler's record of it */
    struct request *r;              /* NULL: a score */
    struct score_job *job;
    bool begun;                     /* its first step has begun */
    qr_status status;               /* why it failed, once it has */
    qr_error error;
    /* of a request's answer */
    struct detokenizer detok;
    struct stop_matcher *stop;
    struct token_counts *counts;    /* NULL: its sampling wants none */
    struct constraint *constraint;  /* NULL: its answer may be anything */
    struct buffer text, shown;      /* text of the token, and what of it may be shown */
    struct event *pending;          /* prompt logprobs wait here for the first token, the last event for its end */
    int32_t made, token;            /* tokens of the answer, and the last of them */
    int32_t drawn[SCHED_MAX_WIDTH]; /* those of the step in hand */
    struct payoff_request payoff;   /* of its drafts */
    struct draft_law *law;          /* NULL: none is needed */
    struct task_drafts {
        int32_t proposed;           /* for its next step */
        qr_rest rest;               /* why there are none */
        bool rated;                 /* the drafter said how sure it is: */
        double survival[QR_MAX_DRAFTS]; /* of each draft and all before it */
        float logits[QR_MAX_DRAFTS];    /* of each draft's confidence */
    } drafts;
    qr_finish finish;
    qr_usage usage;
};

/* Where the results of a span lie: row `logits` of the step's logits is that of its first row that wants any. */
struct span_rows {
    const struct batch_span *span;
    int32_t logits;
};

/* Hands a task's tokens to the scheduler. `first_logits`: of its prompt. Fails without memory, or when the pool can never
 * hold it; the task stays the caller's. */
qr_status task_add(struct task *t, const int32_t *tokens, int32_t count, int32_t limit, int32_t first_logits, qr_error *err);
/* One pass of the scheduler and the step it makes. False: there was nothing to run. */
bool engine_step(struct qr_engine *engine);
/* What the backend counts goes into the metrics. The lock is held, or nobody else is there yet. */
void engine_note_backend(struct qr_engine *engine);
/* Tells the scheduler of requests that were cancelled meanwhile. */
void engine_pass_cancels(struct qr_engine *engine);
/* Ends what the scheduler is done with. */
void engine_finish_tasks(struct qr_engine *engine);
/* Logits of row `row` of the last step as host memory, until the next call. */
qr_status engine_logits(struct qr_engine *engine, int32_t row, const float **out, qr_error *err);

/* ---- generate.c, score.c ---- */

/* Takes a request up. Never fails: what goes wrong is the request's last event. */
void generate_begin(struct qr_engine *engine, struct request *r);
/* Lists of ids that the task's token number `made` (0-based) cannot be; returns how many were written. */
enum { TASK_BANS = 3 };
int32_t task_bans(const struct task *t, int32_t made, struct id_list out[TASK_BANS]);
/* Rows of its prompt and its next tokens, as many as drafts were right and one more: events are delivered, but the last one waits for generate_end. */
void generate_rows(struct task *t, const struct span_rows *rows, struct sched_result *result);
/* Says which rows of a step such a task's tokens will be drawn from, for their lists to be found at once. */
void generate_want(const struct task *t, const struct span_rows *rows);
/* Drafts of the task that no step will see are counted as such. */
void generate_discard(struct task *t);
/* Delivers the last event and frees the task. */
void generate_end(struct task *t, enum finish finish);

void score_begin(struct qr_engine *engine, struct score_job *job);
void score_rows(struct task *t, const struct span_rows *rows, struct sched_result *result);
void score_end(struct task *t);

/* ---- size.c ---- */

/* Whether an engine on that device sums its pages: in debug builds, where it can read them. */
bool engine_watches_pages(const char *device);

/* Everything beside weights and pools that an engine holds, in bytes. */
struct workspace_sizes {
    int64_t forward;                /* buffers of a forward pass */
    int64_t scratch;                /* of the operators */
    int64_t lists;                  /* rows and lists of a step, on the host and on the backend */
    int64_t engram;                 /* table rows of a step */
    int64_t sampling;               /* logits, sampler, counts of tokens */
    int64_t grammars;               /* the tree of the vocabulary, and the ways of requests through their grammars */
    int64_t scheduler;              /* batches and their results, prefix index, table of state images */
    int64_t requests;               /* tokens and pages of requests that run */
    int64_t drafts;                 /* of a drafter beside its weights and buffers of a pass */
};

/* What one request takes while it runs: the scheduler's record of it, and the answer that forks read. */
int64_t engine_request_bytes(int32_t limit, int32_t block_tokens);

/* Where the model computes. */
struct engine_place {
    const char *device;
    int threads;
    const struct checkpoint *checkpoint; /* NULL: it is not open yet */
    const struct device_memory *memory;  /* NULL: the device is asked */
};

/* Resolves options against model and machine: formats, block size, context length, pool sizes. QR_REFUSED (E31, with
 * `too_small` set and everything above it filled in) when it does not fit, or when other rules are broken: all in one
 * sentence. `stored`: payload bytes of the checkpoint. */
struct engine_size {
    qr_engine_options options;      /* as given, with defaults; its strings are the caller's */
    struct geometry geometry;
    int64_t prepared;               /* weights held in another form than the file's */
    int64_t cache_bytes;            /* given to both pools */
    bool too_small;
    struct budget budget;
    int64_t blocks, slots;
    struct model_limits limits;
    struct draft_choice drafts;
    struct workspace_sizes workspace; /* on the host, where the device has memory of its own */
    struct device_plan on_device;
    struct run_mode mode;
    struct capture_sizes captures;
    qr_plan_bytes bytes;
};
qr_status engine_size(const struct model_plan *plan, int64_t stored, const struct engine_place *place,
                      const qr_engine_options *options, struct engine_size *out, qr_error *err);
/* Whether a replay is bounded: of a prompt only the last row's logits are computed. */
bool engine_is_bounded(const struct engine_size *size);
/* Numbers of the scheduler of an engine of that size. `pool` must outlive it. */
struct sched_options engine_sched_options(const struct model_plan *plan, const struct geometry *geometry,
                                          const struct pool_layout *pool, const struct engine_size *size);

#endif
