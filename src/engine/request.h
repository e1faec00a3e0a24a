/* request.h: one request from submit to its last event: a copy of everything the caller gave, and the queue of events that
 * the engine's thread fills and the caller empties. */
#ifndef QR_ENGINE_REQUEST_H
#define QR_ENGINE_REQUEST_H

#include <pthread.h>
#include <stdatomic.h>

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

struct request {
    struct request *next;           /* in the engine's list */
    qr_handle handle;
    char *name;                     /* for messages */
    int32_t *tokens;                /* the prompt, with room for the answer behind it */
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
    void (*callback)(void *user, const qr_event *event);
    void *user;

    _Atomic bool cancelled;
    bool running, finished, released; /* under the engine's lock */
    struct event *first, *last;     /* events not yet fetched; under the engine's lock */
    struct event *handed;           /* the event of the last qr_poll, freed by the next */
    struct event *final;            /* made at submit, so that the last event never lacks memory */
    double submitted, first_token, ended;
    qr_usage usage;
};

/* Checks and copies. `max_model_len`: ceiling of prompt and answer together. QR_BAD_REQUEST names the field. */
qr_status request_make(const qr_model *model, const qr_request *given, int32_t max_model_len, struct request **out,
                       qr_error *err);
void request_free(struct request *r);

struct event *event_make(void); /* NULL without memory */
void event_free(struct event *e);

#endif
