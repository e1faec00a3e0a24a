/* request.h: one request from submit to its last event: a copy of everything the caller gave, and the queue of events that
 * the engine's thread fills and the caller empties.
 *
 * What the caller gave does not change once the request is queued, and belongs to the engine's thread. The fields below
 * the line are under the engine's lock. */
#ifndef QR_ENGINE_REQUEST_H
#define QR_ENGINE_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>

#include "cache/block_key.h"
#include "engine/model.h"
#include "run/ending.h"
#include "run/sampling.h"

/* An event with the memory its pointers name. */
struct event {
    struct event *next;
    qr_event event;
    qr_error error;
    char *text;
    qr_token_logprob *top, *prompt, *prompt_top;
};

enum request_state {
    REQUEST_WAITING,
    REQUEST_RUNNING,
    REQUEST_FINISHED /* its last event has been made */
};

struct request {
    qr_handle handle;
    char *name;                     /* the caller's id, or NULL */
    int32_t *tokens;                /* the prompt */
    int32_t prompt_count, count, limit; /* limit: tokens that prompt and answer may have together */
    struct sampling_params sampling;
    struct logit_bias *bias;
    int32_t *banned;
    int32_t banned_count;
    bool allow_special, include_stop;
    struct ending ending;
    char **stop;
    int32_t stop_count;
    int32_t *ends;                  /* the model's end tokens, then the request's stop tokens: what `ending` names */
    int32_t end_count;
    int32_t logprobs, prompt_logprobs;
    int32_t priority;
    struct block_key salt;          /* zero: none */
    qr_handle after;                /* 0: none */
    struct grammar *grammar;        /* held; NULL: the answer may be anything */
    bool grammar_after_reasoning;
    void (*callback)(void *user, const qr_event *event);
    void *user;
    double submitted;
    struct event *final;            /* made at submit, so that the last event never lacks memory */
    int32_t *answer;                /* [limit - prompt_count] while it runs, then [told]: tokens whose events have been made */

    _Atomic bool paused;
    _Atomic bool cancelled;         /* both set under the lock, looked at without it */

    /* ---- locked ---- */
    struct request *next, *previous; /* in the engine's list */
    enum request_state state;
    bool released;                  /* the caller has forgotten it */
    struct event *first, *last;     /* events not yet fetched */
    struct event *handed;           /* the event of the last qr_poll, freed by the next */
    int32_t told;                   /* tokens in `answer` */
    double last_token;              /* when the last of them came */
    qr_usage usage;
};

/* What an engine bounds its requests by. */
struct request_bounds {
    int32_t max_model_len; /* prompt and answer together */
    bool last_row_only;    /* of a prompt no other row's logits are computed (bounded replay, E37) */
    bool judged;           /* another verifier than match judges drafts, which needs all rows to be free */
};
/* Checks and copies. QR_BAD_REQUEST names the field. */
qr_status request_make(const qr_model *model, const qr_request *given, const struct request_bounds *bounds,
                       struct request **out, qr_error *err);
void request_free(struct request *r);

struct event *event_make(void); /* NULL without memory */
void event_free(struct event *e);
/* Takes away everything but the handle: the end of a request that was cancelled. */
void event_cut(struct event *e);

#endif
