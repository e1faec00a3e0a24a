#include "serve/chat_say.h"

#include <string.h>

#include "serve/choice.h"
#include "serve/logprobs.h"
#include "serve/server.h"
#include "serve/usage.h"

void ids_write(struct json_writer *w, const char *key, const int32_t *ids, size_t count)
{
    json_w_key(w, key);
    json_w_array(w);
    for (size_t i = 0; i < count; i++)
        json_w_int(w, ids[i]);
    json_w_end_array(w);
}

/* ---- chunks of a stream ---- */

/* Up to the inside of "delta". */
static struct json_writer *open_chunk(struct job *job, const struct choice *c)
{
    struct json_writer *w = json_writer_open(false);
    if (!w) {
        job->out.failed = true;
        return NULL;
    }
    stamp_write(job, "chat.completion.chunk", w);
    json_w_key(w, "choices");
    json_w_array(w);
    json_w_object(w);
    json_w_member_int(w, "index", c->index);
    json_w_key(w, "delta");
    json_w_object(w);
    return w;
}

static void close_chunk(struct job *job, struct choice *c, struct json_writer *w, const char *reason)
{
    json_w_end_object(w);
    if (logprobs_waiting(c))
        logprobs_write(c, w);
    else
        json_w_member_null(w, "logprobs");
    json_w_member_string(w, "finish_reason", reason);
    if (reason && job->return_token_ids)
        ids_write(w, "token_ids", (const int32_t *)(void *)c->ids.data, c->ids.length / sizeof(int32_t));
    json_w_end_object(w);
    json_w_end_array(w);
    if (job->usage_always)
        usage_write(job, w);
    json_w_end_object(w);
    job_event(job, NULL, w);
    json_writer_close(w);
}

static void begin(struct job *job)
{
    for (int i = 0; i < job->count; i++) {
        struct json_writer *w = open_chunk(job, &job->choices[i]);
        if (!w)
            return;
        json_w_member_string(w, "role", "assistant");
        json_w_member_string(w, "content", "");
        close_chunk(job, &job->choices[i], w, NULL);
    }
}

static void write_reasoning(const struct job *job, struct json_writer *w, const char *text, size_t length)
{
    const char *field = job->server->settings.reasoning_field;
    if (strcmp(field, "reasoning") != 0)
        json_w_member_string_n(w, "reasoning_content", text, length);
    if (strcmp(field, "reasoning_content") != 0)
        json_w_member_string_n(w, "reasoning", text, length);
}

/* A call of which the stream has a piece to say: its beginning when `name`, else its arguments. */
static void write_call_piece(const struct choice *c, struct json_writer *w, uint32_t call, bool name, const char *text, size_t length)
{
    json_w_key(w, "tool_calls");
    json_w_array(w);
    json_w_object(w);
    json_w_member_int(w, "index", call);
    if (name) {
        json_w_member_string(w, "id", c->calls[call].id);
        json_w_member_string(w, "type", "function");
    }
    json_w_key(w, "function");
    json_w_object(w);
    if (name)
        json_w_member_string_n(w, "name", text, length);
    json_w_member_string_n(w, "arguments", name ? "" : text, name ? 0 : length);
    json_w_end_object(w);
    json_w_end_object(w);
    json_w_end_array(w);
}

static void delta(struct job *job, struct choice *c, qr_delta_kind kind, uint32_t call, const char *text, size_t length)
{
    const bool text_kind = kind == QR_DELTA_REASONING || kind == QR_DELTA_CONTENT || kind == QR_DELTA_ARGUMENTS;
    if (!job->stream || kind == QR_DELTA_CALL_END || kind == QR_DELTA_CALL_LOST || (text_kind && length == 0))
        return;
    struct json_writer *w = open_chunk(job, c);
    if (!w)
        return;
    if (kind == QR_DELTA_REASONING)
        write_reasoning(job, w, text, length);
    else if (kind == QR_DELTA_CONTENT)
        json_w_member_string_n(w, "content", text, length);
    else
        write_call_piece(c, w, call, kind == QR_DELTA_CALL, text, length);
    close_chunk(job, c, w, NULL);
}

static void done(struct job *job, struct choice *c)
{
    struct json_writer *w = job->stream ? open_chunk(job, c) : NULL;
    if (w)
        close_chunk(job, c, w, choice_reason(c));
}

void openai_end(struct job *job, const char *object)
{
    struct json_writer *w = job->include_usage ? json_writer_open(false) : NULL;
    if (w) {
        stamp_write(job, object, w);
        json_w_key(w, "choices");
        json_w_array(w);
        json_w_end_array(w);
        usage_write(job, w);
        json_w_end_object(w);
        job_event(job, NULL, w);
        json_writer_close(w);
    }
    buffer_puts(&job->out, "data: [DONE]\n\n");
}

static void end(struct job *job) { openai_end(job, "chat.completion.chunk"); }

void openai_fail(struct job *job, const struct refusal *refusal)
{
    struct json_writer *w = json_writer_open(false);
    if (w)
        refusal_write(refusal, TONGUE_OPENAI, job->exchange->request_id, w);
    job_event(job, "error", w);
    json_writer_close(w);
}

void openai_alive(struct job *job) { buffer_puts(&job->out, ": keepalive\n\n"); }

/* ---- the whole ---- */

static size_t whole_calls(const struct choice *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->call_count; i++)
        n += c->calls[i].whole;
    return n;
}

static const char *text_of(const struct buffer *b) { return b->data ? b->data : ""; }

static void write_calls(const struct choice *c, struct json_writer *w)
{
    json_w_key(w, "tool_calls");
    json_w_array(w);
    for (size_t i = 0; i < c->call_count; i++) {
        const struct said_call *call = &c->calls[i];
        if (!call->whole)
            continue;
        json_w_object(w);
        json_w_member_string(w, "id", call->id);
        json_w_member_string(w, "type", "function");
        json_w_key(w, "function");
        json_w_object(w);
        json_w_member_string_n(w, "name", text_of(&call->name), call->name.length);
        json_w_member_string_n(w, "arguments", text_of(&call->arguments), call->arguments.length);
        json_w_end_object(w);
        json_w_end_object(w);
    }
    json_w_end_array(w);
}

static void write_message(const struct job *job, const struct choice *c, struct json_writer *w)
{
    const size_t calls = whole_calls(c);
    qr_chat_info info;
    qr_chat_get_info(job->chats[0], &info);
    json_w_key(w, "message");
    json_w_object(w);
    json_w_member_string(w, "role", "assistant");
    if (calls && c->content.length == 0)
        json_w_member_null(w, "content");
    else
        json_w_member_string_n(w, "content", text_of(&c->content), c->content.length);
    if (info.thinking)
        write_reasoning(job, w, text_of(&c->reasoning), c->reasoning.length);
    if (calls)
        write_calls(c, w);
    json_w_end_object(w);
}

static void write_choice(const struct job *job, struct choice *c, struct json_writer *w)
{
    json_w_object(w);
    json_w_member_int(w, "index", c->index);
    write_message(job, c, w);
    if (job->text.request.logprobs >= 0)
        logprobs_write(c, w);
    else
        json_w_member_null(w, "logprobs");
    json_w_member_string(w, "finish_reason", choice_reason(c));
    if (job->return_token_ids)
        ids_write(w, "token_ids", (const int32_t *)(void *)c->ids.data, c->ids.length / sizeof(int32_t));
    json_w_end_object(w);
}

static void body(struct job *job, struct json_writer *w)
{
    stamp_write(job, "chat.completion", w);
    json_w_key(w, "choices");
    json_w_array(w);
    for (int i = 0; i < job->count; i++)
        write_choice(job, &job->choices[i], w);
    json_w_end_array(w);
    usage_write(job, w);
    if (job->choices[0].prompt_logprobs.length) {
        json_w_key(w, "prompt_logprobs");
        json_w_raw(w, job->choices[0].prompt_logprobs.data, job->choices[0].prompt_logprobs.length);
    }
    if (job->return_token_ids) {
        qr_chat_info info;
        qr_chat_get_info(job->chats[0], &info);
        ids_write(w, "prompt_token_ids", info.tokens, info.token_count);
    }
    json_w_end_object(w);
}

static void take_prompt(struct job *job, struct choice *c, const qr_event *e)
{
    struct json_writer *w = c->index == 0 ? json_writer_open(false) : NULL;
    const char *text;
    size_t length;
    if (!w)
        return;
    prompt_logprobs_write(job->server->model, e, w);
    if (json_finish(w, &text, &length, NULL) == QR_OK)
        buffer_append(&c->prompt_logprobs, text, length);
    json_writer_close(w);
}

const struct dialect chat_dialect = {.id_prefix = "chatcmpl-", .begin = begin, .delta = delta, .prompt = take_prompt, .done = done,
                                     .end = end, .body = body, .fail = openai_fail, .alive = openai_alive};
