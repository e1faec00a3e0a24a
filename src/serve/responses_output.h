/* responses_output.h: what an answer comes to as items of a Responses object (protocol.md 4.6). */
#ifndef QR_SERVE_RESPONSES_OUTPUT_H
#define QR_SERVE_RESPONSES_OUTPUT_H

#include "serve/custom_input.h"
#include "serve/job.h"
#include "serve/responses_read.h"

enum item_kind { ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };
enum item_state { ITEM_GOES_ON, ITEM_COMPLETED, ITEM_INCOMPLETE };

struct response_item {
    enum item_kind kind;
    enum item_state state;
    char id[40];
    size_t from, to;                   /* of the choice's reasoning or content; `to` once it does not go on */
    size_t logprobs_from, logprobs_to; /* the same of a message's log probabilities */
    uint32_t call;                     /* of a call: which, */
    const struct response_tool *tool;  /* and of which tool; NULL: none that was declared */
};

/* job->own of the dialect; responses_way_free. */
struct responses_way {
    struct json_document *document;    /* of the client's body */
    const struct json *body;
    struct responses_asked asked;
    struct response_item *items;
    size_t count, room;
    bool failed;                       /* something had no memory */
    struct custom_input custom;        /* of the free-form call that goes on, `custom_said` bytes of it told */
    size_t custom_said;
    int64_t sequence;                  /* number of the next event */
};
void responses_way_free(struct responses_way *way); /* NULL is fine */

struct responses_way *responses_way_of(const struct job *job);

/* A new item at the end of the output; NULL without memory. */
struct response_item *item_open(struct job *job, enum item_kind kind);
/* The item that goes on, or NULL. */
struct response_item *item_open_now(const struct job *job);
enum tool_form item_form(const struct response_item *item); /* of a call */

/* The text of an item of reasoning or of a message, as far as it has come. */
const char *item_text(const struct job *job, const struct response_item *item, size_t *length);

/* {"type": "output_text" ...}, {"type": "summary_text" ...}: the text of the item as far as it has come, or an empty one. */
void item_write_part(const struct job *job, const struct response_item *item, const char *type, bool empty, struct json_writer *w);
/* The member "logprobs" of the item's text. */
void item_write_logprobs(const struct job *job, const struct response_item *item, struct json_writer *w);
/* The whole item; one that goes on is told empty. */
void item_write(const struct job *job, const struct response_item *item, struct json_writer *w);

/* "response" as it is now. `status` is NULL while it goes on; `refusal`: why it failed, or NULL. */
void response_write(const struct job *job, const char *status, const struct refusal *refusal, struct json_writer *w);
/* "completed", or "incomplete" where the answer had no more room. */
const char *response_status(const struct job *job);

#endif
