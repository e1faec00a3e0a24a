#include "serve/responses_output.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/base64.h"
#include "serve/logprobs.h"
#include "serve/server.h"
#include "serve/usage.h"

struct responses_way *responses_way_of(const struct job *job) { return job->own; }

void responses_way_free(struct responses_way *way)
{
    if (!way)
        return;
    response_tools_free(&way->asked.tools);
    json_close(way->document);
    buffer_free(&way->custom.text);
    qr_free(way->items);
    qr_free(way);
}

static const char *text_of(const struct buffer *b) { return b->data ? b->data : ""; }

/* ---- items ---- */

enum tool_form item_form(const struct response_item *item) { return item->tool ? item->tool->form : TOOL_FUNCTION; }

static const char *id_prefix(const struct response_item *item)
{
    static const char *const prefixes[] = {[TOOL_FUNCTION] = "fc_", [TOOL_CUSTOM] = "ctc_", [TOOL_SEARCH] = "tsc_"};
    if (item->kind == ITEM_CALL)
        return prefixes[item_form(item)];
    return item->kind == ITEM_REASONING ? "rs_" : "msg_";
}

struct response_item *item_open(struct job *job, enum item_kind kind)
{
    struct responses_way *way = responses_way_of(job);
    const struct choice *c = &job->choices[0];
    if (!array_grow(&way->items, &way->room, way->count, sizeof *way->items)) {
        way->failed = true;
        return NULL;
    }
    struct response_item *item = &way->items[way->count++];
    *item = (struct response_item){.kind = kind};
    if (kind == ITEM_CALL) {
        item->call = (uint32_t)c->call_count - 1;
        const struct buffer *name = &c->calls[item->call].name;
        item->tool = response_tools_find(&way->asked.tools, text_of(name), name->length);
    }
    server_make_id(job->server, id_prefix(item), item->id, sizeof item->id);
    return item;
}

struct response_item *item_open_now(const struct job *job)
{
    const struct responses_way *way = responses_way_of(job);
    struct response_item *last = way->count ? &way->items[way->count - 1] : NULL;
    return last && last->state == ITEM_GOES_ON ? last : NULL;
}

const char *item_text(const struct job *job, const struct response_item *item, size_t *length)
{
    const struct choice *c = &job->choices[0];
    const struct buffer *all = item->kind == ITEM_REASONING ? &c->reasoning : &c->content;
    *length = (item->state == ITEM_GOES_ON ? all->length : item->to) - item->from;
    return text_of(all) + item->from;
}

/* ---- items as JSON ---- */

void item_write_logprobs(const struct job *job, const struct response_item *item, struct json_writer *w)
{
    const struct buffer *all = &job->choices[0].content_logprobs;
    list_write_between(w, "logprobs", all, item->logprobs_from, item->state == ITEM_GOES_ON ? all->length : item->logprobs_to);
}

void item_write_part(const struct job *job, const struct response_item *item, const char *type, bool empty, struct json_writer *w)
{
    static const struct buffer nothing;
    size_t length;
    const char *text = item_text(job, item, &length);
    json_w_object(w);
    json_w_member_string(w, "type", type);
    json_w_member_string_n(w, "text", text, empty ? 0 : length);
    if (item->kind == ITEM_MESSAGE) {
        json_w_key(w, "annotations");
        json_w_array(w);
        json_w_end_array(w);
        if (empty)
            list_write_between(w, "logprobs", &nothing, 0, 0);
        else
            item_write_logprobs(job, item, w);
    }
    json_w_end_object(w);
}

static void write_parts(const char *key, const char *type, const struct job *job, const struct response_item *item,
                        struct json_writer *w)
{
    json_w_key(w, key);
    json_w_array(w);
    if (type && item->state != ITEM_GOES_ON)
        item_write_part(job, item, type, false, w);
    json_w_end_array(w);
}

/* The text for clients that hand it back without showing it. */
static void write_hidden(const struct job *job, const struct response_item *item, struct json_writer *w)
{
    struct buffer hidden = {0};
    size_t length;
    const char *text = item_text(job, item, &length);
    base64_encode(&hidden, text, length);
    responses_way_of(job)->failed |= hidden.failed;
    json_w_member_string_n(w, "encrypted_content", text_of(&hidden), hidden.length);
    buffer_free(&hidden);
}

static void write_reasoning(const struct job *job, const struct response_item *item, struct json_writer *w)
{
    const struct responses_asked *asked = &responses_way_of(job)->asked;
    write_parts("summary", asked->summary ? "summary_text" : NULL, job, item, w);
    if (!asked->summary)
        write_parts("content", "reasoning_text", job, item, w);
    if (asked->encrypted && item->state != ITEM_GOES_ON)
        write_hidden(job, item, w);
}

static void write_message(const struct job *job, const struct response_item *item, struct json_writer *w)
{
    json_w_member_string(w, "role", "assistant");
    write_parts("content", "output_text", job, item, w);
}

/* A name whose namespace the client has named apart is told apart. */
static void write_name(const struct said_call *call, const struct response_tool *tool, struct json_writer *w)
{
    const size_t space = tool ? tool->space : 0, behind = space ? space + strlen("::") : 0;
    json_w_member_string_n(w, "name", text_of(&call->name) + behind, call->name.length - behind);
    if (space)
        json_w_member_string_n(w, "namespace", call->name.data, space);
}

static void write_input(const struct job *job, const struct response_item *item, const struct said_call *call, struct json_writer *w)
{
    struct buffer text = {0};
    if (item->state != ITEM_GOES_ON)
        custom_input_of(text_of(&call->arguments), call->arguments.length, &text);
    responses_way_of(job)->failed |= text.failed;
    json_w_member_string_n(w, "input", text_of(&text), text.length);
    buffer_free(&text);
}

static void write_search(const struct response_item *item, const struct said_call *call, struct json_writer *w)
{
    json_w_member_string(w, "execution", "client");
    json_w_key(w, "arguments");
    if (item->state == ITEM_COMPLETED && call->arguments.length)
        json_w_raw(w, call->arguments.data, call->arguments.length);
    else
        json_w_raw(w, "{}", 2);
}

static void write_call(const struct job *job, const struct response_item *item, struct json_writer *w)
{
    const struct said_call *call = &job->choices[0].calls[item->call];
    json_w_member_string(w, "call_id", call->id);
    if (item_form(item) == TOOL_SEARCH) {
        write_search(item, call, w);
        return;
    }
    write_name(call, item->tool, w);
    if (item_form(item) == TOOL_CUSTOM)
        write_input(job, item, call, w);
    else
        json_w_member_string_n(w, "arguments", text_of(&call->arguments), item->state == ITEM_GOES_ON ? 0 : call->arguments.length);
}

static const char *type_name(const struct response_item *item)
{
    static const char *const calls[] = {
        [TOOL_FUNCTION] = "function_call", [TOOL_CUSTOM] = "custom_tool_call", [TOOL_SEARCH] = "tool_search_call"};
    if (item->kind == ITEM_CALL)
        return calls[item_form(item)];
    return item->kind == ITEM_REASONING ? "reasoning" : "message";
}

void item_write(const struct job *job, const struct response_item *item, struct json_writer *w)
{
    static const char *const states[] = {
        [ITEM_GOES_ON] = "in_progress", [ITEM_COMPLETED] = "completed", [ITEM_INCOMPLETE] = "incomplete"};
    json_w_object(w);
    json_w_member_string(w, "id", item->id);
    json_w_member_string(w, "type", type_name(item));
    json_w_member_string(w, "status", states[item->state]);
    switch (item->kind) {
    case ITEM_REASONING: write_reasoning(job, item, w); break;
    case ITEM_MESSAGE: write_message(job, item, w); break;
    case ITEM_CALL: write_call(job, item, w); break;
    }
    json_w_end_object(w);
}

/* ---- the response ---- */

const char *response_status(const struct job *job)
{
    return job->choices[0].parsed.end == QR_ANSWER_LENGTH ? "incomplete" : "completed";
}

/* A member of the client's body, or what stands for its absence. */
static void write_echo(const struct json *body, const char *name, const char *absent, struct json_writer *w)
{
    const struct json *value = member_of(body, name);
    json_w_key(w, name);
    if (value)
        json_w_value(w, value);
    else
        json_w_raw(w, absent, strlen(absent));
}

/* What a stream has said stays; a whole answer leaves out calls that were cut. */
static void write_output(const struct job *job, bool told, struct json_writer *w)
{
    const struct responses_way *way = responses_way_of(job);
    json_w_key(w, "output");
    json_w_array(w);
    for (size_t i = 0; told && i < way->count; i++) {
        const struct response_item *item = &way->items[i];
        if (job->stream || item->kind != ITEM_CALL || job->choices[0].calls[item->call].whole)
            item_write(job, item, w);
    }
    json_w_end_array(w);
}

static void write_usage(const struct job *job, bool told, struct json_writer *w)
{
    const int64_t output = job_output_tokens(job);
    json_w_key(w, "usage");
    if (!told) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_member_int(w, "input_tokens", job->prompt_tokens);
    json_w_key(w, "input_tokens_details");
    json_w_object(w);
    json_w_member_int(w, "cached_tokens", usage_cached(job));
    json_w_end_object(w);
    json_w_member_int(w, "output_tokens", output);
    json_w_key(w, "output_tokens_details");
    json_w_object(w);
    json_w_member_int(w, "reasoning_tokens", job->choices[0].parsed.reasoning_tokens);
    json_w_end_object(w);
    json_w_member_int(w, "total_tokens", job->prompt_tokens + output);
    json_w_end_object(w);
}

static void write_failure(const struct refusal *refusal, const char *status, struct json_writer *w)
{
    const bool incomplete = status && strcmp(status, "incomplete") == 0;
    json_w_key(w, "error");
    if (refusal) {
        json_w_object(w);
        json_w_member_string(w, "code", refusal->code[0] ? refusal->code : "server_error");
        json_w_member_string(w, "message", refusal->message);
        json_w_end_object(w);
    } else {
        json_w_null(w);
    }
    json_w_key(w, "incomplete_details");
    if (incomplete)
        json_w_raw(w, "{\"reason\":\"max_output_tokens\"}", strlen("{\"reason\":\"max_output_tokens\"}"));
    else
        json_w_null(w);
}

/* How it was asked, as the client said it and as it was understood. */
static void write_request(const struct job *job, struct json_writer *w)
{
    const struct json *body = responses_way_of(job)->body;
    write_echo(body, "instructions", "null", w);
    write_echo(body, "max_output_tokens", "null", w);
    write_echo(body, "parallel_tool_calls", "true", w);
    json_w_member_null(w, "previous_response_id");
    write_echo(body, "reasoning", "{\"effort\":null,\"summary\":null}", w);
    json_w_member_bool(w, "store", false);
    json_w_member_number(w, "temperature", job->text.sampling.temperature);
    write_echo(body, "text", "{\"format\":{\"type\":\"text\"}}", w);
    write_echo(body, "tool_choice", "\"auto\"", w);
    write_echo(body, "tools", "[]", w);
    write_echo(body, "top_logprobs", "0", w);
    json_w_member_number(w, "top_p", job->text.sampling.top_p);
    json_w_member_string(w, "truncation", "disabled");
    write_echo(body, "metadata", "{}", w);
}

void response_write(const struct job *job, const char *status, const struct refusal *refusal, struct json_writer *w)
{
    json_w_object(w);
    json_w_member_string(w, "id", job->id);
    json_w_member_string(w, "object", "response");
    json_w_member_int(w, "created_at", job->created);
    json_w_member_string(w, "status", status ? status : "in_progress");
    json_w_member_bool(w, "background", false);
    json_w_member_string(w, "model", job->server->name);
    write_failure(refusal, status, w);
    write_output(job, status != NULL, w);
    write_usage(job, status != NULL, w);
    write_request(job, w);
    json_w_end_object(w);
}
