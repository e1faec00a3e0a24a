#include "serve/responses_say.h"

#include <string.h>

#include "serve/logprobs.h"
#include "serve/responses_output.h"

static struct responses_way *way(const struct job *job) { return responses_way_of(job); }

/* ---- events ---- */

/* NULL: the request has no stream, or there is no memory. */
static struct json_writer *open_event(struct job *job, const char *type)
{
    struct json_writer *w = job->stream ? json_writer_open(false) : NULL;
    job->out.failed |= job->stream && !w;
    if (!w)
        return NULL;
    json_w_object(w);
    json_w_member_string(w, "type", type);
    json_w_member_int(w, "sequence_number", way(job)->sequence++);
    return w;
}

static void close_event(struct job *job, const char *type, struct json_writer *w)
{
    json_w_end_object(w);
    job_event(job, type, w);
    job->out.failed |= way(job)->failed;
    json_writer_close(w);
}

static void say_response(struct job *job, const char *type, const char *status, const struct refusal *refusal)
{
    struct json_writer *w = open_event(job, type);
    if (!w)
        return;
    json_w_key(w, "response");
    response_write(job, status, refusal, w);
    close_event(job, type, w);
}

static int64_t index_of(const struct job *job, const struct response_item *item) { return item - way(job)->items; }

static void say_item(struct job *job, const char *type, const struct response_item *item)
{
    struct json_writer *w = open_event(job, type);
    if (!w)
        return;
    json_w_member_int(w, "output_index", index_of(job, item));
    json_w_key(w, "item");
    item_write(job, item, w);
    close_event(job, type, w);
}

/* Up to the members of its own of an event about an item, in whose list `list` ("content_index", NULL: none) it has its place. */
static struct json_writer *open_about(struct job *job, const char *type, const struct response_item *item, const char *list)
{
    struct json_writer *w = open_event(job, type);
    if (!w)
        return NULL;
    json_w_member_string(w, "item_id", item->id);
    json_w_member_int(w, "output_index", index_of(job, item));
    if (list)
        json_w_member_int(w, list, 0);
    return w;
}

/* ---- texts: of messages, of reasoning, of summaries ---- */

struct telling {
    const char *part;               /* the type of its part, */
    const char *list;               /* which has its place in this, */
    const char *added, *part_done;  /* and whose events these are; NULL: it has none */
    const char *delta, *done;
    bool logprobs;
};

static const struct telling message_telling = {
    .part = "output_text", .list = "content_index", .added = "response.content_part.added",
    .part_done = "response.content_part.done", .delta = "response.output_text.delta", .done = "response.output_text.done",
    .logprobs = true};
static const struct telling reasoning_telling = {.part = "reasoning_text", .list = "content_index",
                                                 .delta = "response.reasoning_text.delta", .done = "response.reasoning_text.done"};
static const struct telling summary_telling = {
    .part = "summary_text", .list = "summary_index", .added = "response.reasoning_summary_part.added",
    .part_done = "response.reasoning_summary_part.done", .delta = "response.reasoning_summary_text.delta",
    .done = "response.reasoning_summary_text.done"};

static const struct telling *telling_of(const struct job *job, const struct response_item *item)
{
    if (item->kind == ITEM_MESSAGE)
        return &message_telling;
    return way(job)->asked.summary ? &summary_telling : &reasoning_telling;
}

static void say_part(struct job *job, const char *type, const struct response_item *item, bool empty)
{
    const struct telling *how = telling_of(job, item);
    struct json_writer *w = type ? open_about(job, type, item, how->list) : NULL;
    if (!w)
        return;
    json_w_key(w, "part");
    item_write_part(job, item, how->part, empty, w);
    close_event(job, type, w);
}

/* A piece of an item's text, with the log probabilities that have come since the last. */
static void say_delta(struct job *job, const struct response_item *item, const char *text, size_t length)
{
    const struct telling *how = telling_of(job, item);
    struct choice *c = &job->choices[0];
    struct json_writer *w = open_about(job, how->delta, item, how->list);
    if (!w)
        return;
    json_w_member_string_n(w, "delta", text, length);
    if (how->logprobs)
        list_write(w, "logprobs", &c->content_logprobs, &c->content_logprobs_said);
    close_event(job, how->delta, w);
}

static void end_text(struct job *job, const struct response_item *item)
{
    const struct telling *how = telling_of(job, item);
    size_t length;
    const char *text = item_text(job, item, &length);
    struct json_writer *w = open_about(job, how->done, item, how->list);
    if (w) {
        json_w_member_string_n(w, "text", text, length);
        if (how->logprobs)
            item_write_logprobs(job, item, w);
        close_event(job, how->done, w);
    }
    say_part(job, how->part_done, item, false);
}

/* ---- calls ---- */

static void say_arguments(struct job *job, const char *type, const char *key, const struct response_item *item, const char *text,
                          size_t length)
{
    struct json_writer *w = open_about(job, type, item, NULL);
    if (!w)
        return;
    json_w_member_string_n(w, key, text, length);
    close_event(job, type, w);
}

/* What of a free-form text has come and is not told. */
static void say_custom(struct job *job, const struct response_item *item, const struct buffer *text)
{
    struct responses_way *o = way(job);
    if (text->length > o->custom_said)
        say_arguments(job, "response.custom_tool_call_input.delta", "delta", item, text->data + o->custom_said,
                      text->length - o->custom_said);
    o->custom_said = text->length;
}

static void take_arguments(struct job *job, const struct response_item *item, const char *text, size_t length)
{
    if (item_form(item) == TOOL_FUNCTION) {
        say_arguments(job, "response.function_call_arguments.delta", "delta", item, text, length);
    } else if (item_form(item) == TOOL_CUSTOM) {
        custom_input_push(&way(job)->custom, text, length);
        say_custom(job, item, &way(job)->custom.text);
    }
}

static void end_custom(struct job *job, const struct response_item *item, const struct buffer *arguments)
{
    struct buffer whole = {0};
    custom_input_of(arguments->data ? arguments->data : "", arguments->length, &whole);
    way(job)->failed |= whole.failed || way(job)->custom.text.failed;
    say_custom(job, item, &whole);
    say_arguments(job, "response.custom_tool_call_input.done", "input", item, whole.data ? whole.data : "", whole.length);
    buffer_free(&whole);
    buffer_free(&way(job)->custom.text);
    way(job)->custom = (struct custom_input){.matched = 0};
    way(job)->custom_said = 0;
}

static void end_call(struct job *job, const struct response_item *item)
{
    const struct buffer *arguments = &job->choices[0].calls[item->call].arguments;
    if (item_form(item) == TOOL_FUNCTION)
        say_arguments(job, "response.function_call_arguments.done", "arguments", item, arguments->data ? arguments->data : "",
                      arguments->length);
    else if (item_form(item) == TOOL_CUSTOM)
        end_custom(job, item, arguments);
}

/* ---- items ---- */

/* Ends the item that goes on, with all text of its kind that has come. NULL: none does. */
static const struct response_item *finish_item(struct job *job, enum item_state state)
{
    const struct choice *c = &job->choices[0];
    struct response_item *item = item_open_now(job);
    if (!item)
        return NULL;
    item->to = item->kind == ITEM_REASONING ? c->reasoning.length : c->content.length;
    item->logprobs_to = c->content_logprobs.length;
    item->state = state;
    return item;
}

static void close_item(struct job *job, enum item_state state)
{
    const struct response_item *item = finish_item(job, state);
    if (!item)
        return;
    if (item->kind == ITEM_CALL)
        end_call(job, item);
    else
        end_text(job, item);
    say_item(job, "response.output_item.done", item);
}

static struct response_item *begin_item(struct job *job, enum item_kind kind)
{
    close_item(job, ITEM_COMPLETED);
    struct response_item *item = item_open(job, kind);
    if (item)
        say_item(job, "response.output_item.added", item);
    return item;
}

/* The log probabilities that earlier messages hold: those of a held text belong to the message that tells it. */
static size_t logprobs_told(const struct job *job)
{
    size_t told = 0;
    for (size_t i = 0; i < way(job)->count; i++)
        if (way(job)->items[i].kind == ITEM_MESSAGE && way(job)->items[i].state != ITEM_GOES_ON)
            told = way(job)->items[i].logprobs_to;
    return told;
}

static void take_text(struct job *job, enum item_kind kind, const char *text, size_t length)
{
    const struct choice *c = &job->choices[0];
    struct response_item *item = item_open_now(job);
    if (!item || item->kind != kind) {
        item = begin_item(job, kind);
        if (!item)
            return;
        item->from = (kind == ITEM_REASONING ? c->reasoning.length : c->content.length) - length;
        item->logprobs_from = kind == ITEM_MESSAGE ? logprobs_told(job) : 0;
        say_part(job, telling_of(job, item)->added, item, true);
    }
    say_delta(job, item, text, length);
}

static void delta(struct job *job, struct choice *c, qr_delta_kind kind, uint32_t call, const char *text, size_t length)
{
    const struct response_item *item = item_open_now(job);
    const bool calls = item && item->kind == ITEM_CALL;
    (void)c;
    (void)call;
    switch (kind) {
    case QR_DELTA_REASONING:
    case QR_DELTA_CONTENT:
        if (length)
            take_text(job, kind == QR_DELTA_REASONING ? ITEM_REASONING : ITEM_MESSAGE, text, length);
        break;
    case QR_DELTA_CALL: begin_item(job, ITEM_CALL); break;
    case QR_DELTA_ARGUMENTS:
        if (calls && length)
            take_arguments(job, item, text, length);
        break;
    case QR_DELTA_CALL_END:
        if (calls)
            close_item(job, ITEM_COMPLETED);
        break;
    case QR_DELTA_CALL_LOST:
        if (calls)
            close_item(job, ITEM_INCOMPLETE);
        break;
    }
}

/* ---- the whole ---- */

static bool is_complete(const struct job *job) { return strcmp(response_status(job), "completed") == 0; }

static void begin(struct job *job)
{
    say_response(job, "response.created", NULL, NULL);
    say_response(job, "response.in_progress", NULL, NULL);
}

/* Comments in a stream do not tell every client that it lives. */
static void alive(struct job *job) { say_response(job, "response.in_progress", NULL, NULL); }

static void done(struct job *job, struct choice *c)
{
    (void)c;
    close_item(job, is_complete(job) ? ITEM_COMPLETED : ITEM_INCOMPLETE);
}

static void end(struct job *job)
{
    say_response(job, is_complete(job) ? "response.completed" : "response.incomplete", response_status(job), NULL);
}

static void fail(struct job *job, const struct refusal *refusal)
{
    (void)finish_item(job, ITEM_INCOMPLETE);
    say_response(job, "response.failed", "failed", refusal);
}

static void body(struct job *job, struct json_writer *w)
{
    response_write(job, response_status(job), NULL, w);
    if (way(job)->failed)
        json_writer_reset(w); /* an answer without a text is an error of the server */
}

static void close_way(struct job *job) { responses_way_free(job->own); }

const struct dialect responses_dialect = {.id_prefix = "resp_", .begin = begin, .delta = delta, .done = done, .end = end,
                                          .body = body, .fail = fail, .alive = alive, .close = close_way};
