/* job.h: the generation behind an exchange: one or more answers that the engine makes, what they come to, and the bytes that
 * wait to be sent. Its connection sleeps while there is nothing to do.
 *
 * Threads: the engine's thread only queues events, the keeper only sets flags; everything else is done by the thread of the
 * connection, which either wakes. */
#ifndef QR_SERVE_JOB_H
#define QR_SERVE_JOB_H

#include <pthread.h>

#include "base/buffer.h"
#include "serve/exchange.h"
#include "serve/members.h"

struct job;
struct event_copy;

struct said_call {
    char id[32];               /* "call_" and 96 random bits */
    struct buffer name, arguments;
    bool whole;
};

/* One answer. */
struct choice {
    struct job *job;
    int index;
    qr_handle handle;
    bool submitted, done, over; /* done: it is complete; over: its last event has come */
    qr_parser *parser;         /* NULL: raw text */
    qr_parser_state parsed;    /* when done */
    qr_finish finish;
    int32_t stop_string, stop_token;
    qr_usage usage;            /* with the last event that was taken */
    int64_t tokens;            /* taken into the answer */
    uint64_t discarded_bytes;  /* of the tokens behind finished calls */
    struct buffer ids;         /* int32_t each, where wanted */
    struct buffer reasoning, content;
    bool has_tools;            /* its chat may call some; then: */
    struct buffer spelt;       /* its tokens' bytes, */
    size_t spelt_tags;         /* how many of them are the token that tags begin with, */
    size_t spelt_thought;      /* and where its reasoning ends in them */
    struct said_call *calls;
    size_t call_count, call_room;
    /* logprob entries as JSON, with a comma before each but the first, and how many have been said */
    struct buffer content_logprobs, reasoning_logprobs, held_logprobs; /* held: of tokens that may be text or not */
    size_t content_logprobs_said, reasoning_logprobs_said;
    struct buffer prompt_logprobs; /* JSON; where wanted */
    void *own;                 /* of the dialect; freed by its `close` */
    bool begun;                /* of a stream: its first chunk has been written */
};

/* How one API says things. Each appends to job->out. Any may be NULL. */
struct dialect {
    const char *id_prefix;     /* "chatcmpl-" */
    bool text_only;            /* no parser: the answer is its raw text */
    void (*begin)(struct job *job);                                     /* of a stream */
    /* a piece of a choice; already taken into it */
    void (*delta)(struct job *job, struct choice *c, qr_delta_kind kind, uint32_t call, const char *text, size_t length);
    void (*token)(struct job *job, struct choice *c, const qr_event *e); /* every token with its logprobs, before its deltas */
    void (*prompt)(struct job *job, struct choice *c, const qr_event *e); /* log probabilities of the prompt */
    void (*done)(struct job *job, struct choice *c);                    /* of a choice */
    void (*end)(struct job *job);                                       /* of a stream */
    void (*body)(struct job *job, struct json_writer *w);               /* the answer of a request without a stream */
    void (*fail)(struct job *job, const struct refusal *refusal);       /* of a stream that has begun */
    void (*alive)(struct job *job);                                     /* of a stream: a sign of life */
    void (*close)(struct job *job);
};

/* What a generation is asked to be. */
struct job_request {
    const struct dialect *dialect;
    bool stream, include_usage, usage_always, logprobs_all, return_token_ids;
    bool no_answer;            /* one token is made, of which nothing is said: the prompt alone is wanted */
    int answers;               /* of each prompt */
    struct json_document *document; /* that `text` and the dialect point into; taken over */
    struct request_text *text; /* how; its prompt is that of each chat or list */
    qr_chat **chats;           /* [prompts], or NULL: */
    qr_tokens *prompts;        /* [prompts] */
    size_t prompt_count;
    double keepalive;          /* seconds of silence before `alive` */
    void *own;                 /* of the dialect, whose `close` frees it; taken over */
};

struct job {
    struct server *server;
    struct exchange *exchange;
    const struct dialect *dialect;
    bool stream, include_usage, usage_always, logprobs_all, return_token_ids, no_answer;
    int answers;
    struct choice *choices;
    int count, done, over;
    struct json_document *document; /* taken over, as what follows */
    struct request_text text;
    qr_chat **chats;
    qr_tokens *prompts;
    size_t prompt_count;
    int64_t prompt_tokens;     /* of all prompts */
    char id[64];
    long long created;
    void *own;                 /* of the dialect */
    struct buffer out;         /* of a stream: bytes to be sent, `sent` of them already */
    size_t sent;
    double began, last_said, keepalive;
    bool answered;             /* its first byte has been counted */
    bool opened, begun, ended, failed; /* opened: the dialect has begun; begun: the headers are sent */
    struct refusal refusal;    /* failed: why */

    pthread_mutex_t lock;      /* of the rest */
    struct event_copy *first, **last;
    size_t queued;             /* bytes of those */
    const char *why;           /* aborted: why, as the client is told */
    bool asleep, gone, aborted, paused, due; /* due: the keeper wants a sign of life, or headers */
};

/* Submits every answer and lets the connection sleep (one that is away does already). Takes over document, the contents of `text`, chats and prompts, also when
 * it fails (the answer is then the refusal). What it returns is for the access handler to return. */
enum MHD_Result job_start(struct exchange *x, const struct job_request *request);
/* The connection has been woken: answers, or lets it sleep again. */
enum MHD_Result job_resume(struct exchange *x);
/* The exchange is over. NULL is fine. */
void job_close(struct job *job);

/* Of the keeper. */
void job_tick(struct job *job, double now);
void job_gone(struct job *job);
void job_abort(struct job *job, const char *why);

/* Of dialects. */
/* "data: " and the writer's text, or "event: NAME" before it; empties the writer. */
void job_event(struct job *job, const char *name, struct json_writer *w);
/* That the answers have so far. */
int64_t job_output_tokens(const struct job *job);

#endif
