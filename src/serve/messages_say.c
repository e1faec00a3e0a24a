#include "serve/messages_say.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/base64.h"
#include "serve/choice.h"
#include "serve/messages_read.h"
#include "serve/server.h"
#include "serve/usage.h"

static struct messages_way *way(const struct job *job) { return job->own; }

static const char *text_of(const struct buffer *b) { return b->data ? b->data : ""; }

/* ---- what events and the whole share ---- */

static void write_usage(const struct job *job, struct json_writer *w)
{
    const int64_t cached = usage_cached(job);
    json_w_key(w, "usage");
    json_w_object(w);
    json_w_member_int(w, "input_tokens", job->prompt_tokens - cached);
    json_w_member_int(w, "cache_creation_input_tokens", 0);
    json_w_member_int(w, "cache_read_input_tokens", cached);
    json_w_member_int(w, "output_tokens", job_output_tokens(job));
    json_w_end_object(w);
}

static void write_stop(const struct job *job, struct json_writer *w)
{
    const struct choice *c = &job->choices[0];
    const bool at_string = c->parsed.end == QR_ANSWER_STOP && c->stop_string >= 0;
    const char *reason = at_string                                ? "stop_sequence"
                         : c->parsed.end == QR_ANSWER_TOOL_CALLS  ? "tool_use"
                         : c->parsed.end == QR_ANSWER_LENGTH      ? "max_tokens"
                                                                  : "end_turn";
    json_w_member_string(w, "stop_reason", reason);
    json_w_member_string(w, "stop_sequence", at_string ? job->text.request.stop[c->stop_string] : NULL);
}

static void write_stamp(const struct job *job, struct json_writer *w)
{
    json_w_member_string(w, "id", job->id);
    json_w_member_string(w, "type", "message");
    json_w_member_string(w, "role", "assistant");
    json_w_member_string(w, "model", job->server->name);
}

/* Clients send it back with the block; one that was not shown comes back by it. */
static void write_signature(const struct job *job, const char *text, size_t length, struct json_writer *w)
{
    struct buffer signature = {0};
    buffer_puts(&signature, SIGNATURE_START);
    if (way(job)->hides_thinking)
        base64_encode(&signature, text, length);
    way(job)->failed |= signature.failed;
    json_w_member_string_n(w, "signature", text_of(&signature), signature.length);
    buffer_free(&signature);
}

/* Clients know calls by ids of this kind. */
static void write_call_id(const struct said_call *call, struct json_writer *w)
{
    static const size_t behind_prefix = sizeof "call_" - 1;
    char id[sizeof call->id + 8];
    snprintf(id, sizeof id, "toolu_%s", call->id + behind_prefix);
    json_w_member_string(w, "id", id);
}

/* ---- events of a stream ---- */

static struct json_writer *open_event(struct job *job, const char *type)
{
    struct json_writer *w = json_writer_open(false);
    if (!w) {
        job->out.failed = true;
        return NULL;
    }
    json_w_object(w);
    json_w_member_string(w, "type", type);
    return w;
}

static void close_event(struct job *job, const char *type, struct json_writer *w)
{
    json_w_end_object(w);
    job_event(job, type, w);
    job->out.failed |= way(job)->failed;
    json_writer_close(w);
}

static void begin(struct job *job)
{
    static const char type[] = "message_start";
    struct json_writer *w = open_event(job, type);
    if (!w)
        return;
    json_w_key(w, "message");
    json_w_object(w);
    write_stamp(job, w);
    json_w_key(w, "content");
    json_w_array(w);
    json_w_end_array(w);
    json_w_member_null(w, "stop_reason");
    json_w_member_null(w, "stop_sequence");
    write_usage(job, w);
    json_w_end_object(w);
    close_event(job, type, w);
}

static void alive(struct job *job)
{
    struct json_writer *w = open_event(job, "ping");
    if (w)
        close_event(job, "ping", w);
}

/* One piece of the open block: {"type": `kind`, `key`: text}. */
static void say_piece(struct job *job, const char *kind, const char *key, const char *text, size_t length)
{
    static const char type[] = "content_block_delta";
    struct json_writer *w = open_event(job, type);
    if (!w)
        return;
    json_w_member_int(w, "index", way(job)->blocks - 1);
    json_w_key(w, "delta");
    json_w_object(w);
    json_w_member_string(w, "type", kind);
    json_w_member_string_n(w, key, text, length);
    json_w_end_object(w);
    close_event(job, type, w);
}

static void say_signature(struct job *job, const struct choice *c)
{
    static const char type[] = "content_block_delta";
    const size_t from = way(job)->thinking_from;
    struct json_writer *w = open_event(job, type);
    if (!w)
        return;
    json_w_member_int(w, "index", way(job)->blocks - 1);
    json_w_key(w, "delta");
    json_w_object(w);
    json_w_member_string(w, "type", "signature_delta");
    write_signature(job, text_of(&c->reasoning) + from, c->reasoning.length - from, w);
    json_w_end_object(w);
    close_event(job, type, w);
}

static void close_block(struct job *job, const struct choice *c)
{
    static const char type[] = "content_block_stop";
    if (way(job)->open == BLOCK_NONE)
        return;
    if (way(job)->open == BLOCK_THINKING)
        say_signature(job, c);
    way(job)->open = BLOCK_NONE;
    struct json_writer *w = open_event(job, type);
    if (!w)
        return;
    json_w_member_int(w, "index", way(job)->blocks - 1);
    close_event(job, type, w);
}

static void write_empty_block(enum said_block block, const struct said_call *call, struct json_writer *w)
{
    static const char *const types[] = {[BLOCK_THINKING] = "thinking", [BLOCK_TEXT] = "text", [BLOCK_TOOL] = "tool_use"};
    json_w_object(w);
    json_w_member_string(w, "type", types[block]);
    if (block == BLOCK_THINKING) {
        json_w_member_string(w, "thinking", "");
        json_w_member_string(w, "signature", "");
    } else if (block == BLOCK_TEXT) {
        json_w_member_string(w, "text", "");
    } else {
        write_call_id(call, w);
        json_w_member_string_n(w, "name", text_of(&call->name), call->name.length);
        json_w_key(w, "input");
        json_w_object(w);
        json_w_end_object(w);
    }
    json_w_end_object(w);
}

/* Begins a block; the one before it ends. A first ping follows the first. */
static void open_block(struct job *job, const struct choice *c, enum said_block block, const struct said_call *call)
{
    static const char type[] = "content_block_start";
    close_block(job, c);
    way(job)->open = block;
    struct json_writer *w = open_event(job, type);
    if (!w)
        return;
    json_w_member_int(w, "index", way(job)->blocks++);
    json_w_key(w, "content_block");
    write_empty_block(block, call, w);
    close_event(job, type, w);
    if (way(job)->blocks == 1)
        alive(job);
}

static void say_thinking(struct job *job, const struct choice *c, const char *text, size_t length)
{
    if (way(job)->open != BLOCK_THINKING) {
        open_block(job, c, BLOCK_THINKING, NULL);
        way(job)->thinking_from = c->reasoning.length - length;
    }
    if (!way(job)->hides_thinking)
        say_piece(job, "thinking_delta", "thinking", text, length);
}

static void say_text(struct job *job, const struct choice *c, const char *text, size_t length)
{
    if (way(job)->open != BLOCK_TEXT)
        open_block(job, c, BLOCK_TEXT, NULL);
    if (length)
        say_piece(job, "text_delta", "text", text, length);
}

static void delta(struct job *job, struct choice *c, qr_delta_kind kind, uint32_t call, const char *text, size_t length)
{
    if (!job->stream)
        return;
    switch (kind) {
    case QR_DELTA_REASONING:
        if (length)
            say_thinking(job, c, text, length);
        break;
    case QR_DELTA_CONTENT:
        if (length)
            say_text(job, c, text, length);
        break;
    case QR_DELTA_CALL: open_block(job, c, BLOCK_TOOL, &c->calls[call]); break;
    case QR_DELTA_ARGUMENTS:
        if (length)
            say_piece(job, "input_json_delta", "partial_json", text, length);
        break;
    case QR_DELTA_CALL_END:
    case QR_DELTA_CALL_LOST: close_block(job, c); break;
    }
}

static void done(struct job *job, struct choice *c)
{
    if (!job->stream)
        return;
    if (way(job)->blocks == 0)
        say_text(job, c, "", 0);
    close_block(job, c);
}

static void end(struct job *job)
{
    static const char changed[] = "message_delta", stopped[] = "message_stop";
    struct json_writer *w = open_event(job, changed);
    if (!w)
        return;
    json_w_key(w, "delta");
    json_w_object(w);
    write_stop(job, w);
    json_w_end_object(w);
    write_usage(job, w);
    close_event(job, changed, w);
    w = open_event(job, stopped);
    if (w)
        close_event(job, stopped, w);
}

static void fail(struct job *job, const struct refusal *refusal)
{
    struct json_writer *w = json_writer_open(false);
    if (w)
        refusal_write(refusal, TONGUE_ANTHROPIC, job->exchange->request_id, w);
    job_event(job, "error", w);
    json_writer_close(w);
}

/* ---- the whole ---- */

static void write_thinking(const struct job *job, const struct choice *c, struct json_writer *w)
{
    const bool hidden = way(job)->hides_thinking;
    json_w_object(w);
    json_w_member_string(w, "type", "thinking");
    json_w_member_string_n(w, "thinking", text_of(&c->reasoning), hidden ? 0 : c->reasoning.length);
    write_signature(job, text_of(&c->reasoning), c->reasoning.length, w);
    json_w_end_object(w);
}

static void write_call(const struct said_call *call, struct json_writer *w)
{
    json_w_object(w);
    json_w_member_string(w, "type", "tool_use");
    write_call_id(call, w);
    json_w_member_string_n(w, "name", text_of(&call->name), call->name.length);
    json_w_key(w, "input");
    if (call->arguments.length)
        json_w_raw(w, call->arguments.data, call->arguments.length);
    else
        json_w_raw(w, "{}", 2);
    json_w_end_object(w);
}

static void write_content(const struct job *job, const struct choice *c, struct json_writer *w)
{
    size_t blocks = 0;
    json_w_key(w, "content");
    json_w_array(w);
    if (c->reasoning.length) {
        write_thinking(job, c, w);
        blocks++;
    }
    for (size_t i = 0; i < c->call_count; i++)
        blocks += c->calls[i].whole;
    if (c->content.length || blocks == 0)
        part_text(w, text_of(&c->content), c->content.length);
    for (size_t i = 0; i < c->call_count; i++)
        if (c->calls[i].whole)
            write_call(&c->calls[i], w);
    json_w_end_array(w);
}

static void body(struct job *job, struct json_writer *w)
{
    json_w_object(w);
    write_stamp(job, w);
    write_content(job, &job->choices[0], w);
    write_stop(job, w);
    write_usage(job, w);
    json_w_end_object(w);
    if (way(job)->failed)
        json_writer_reset(w); /* an answer without a text is an error of the server */
}

static void close_way(struct job *job) { qr_free(job->own); }

const struct dialect messages_dialect = {.id_prefix = "msg_", .begin = begin, .delta = delta, .done = done, .end = end,
                                         .body = body, .fail = fail, .alive = alive, .close = close_way};
