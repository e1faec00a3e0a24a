#include "text/conversation.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/chat_json.h"

static qr_status no_memory(qr_error *err) { return qr_fail(err, QR_NO_MEMORY, "no memory for a conversation"); }

void conversation_free(struct conversation *c)
{
    for (size_t i = 0; i < c->count; i++)
        buffer_free(&c->messages[i].json);
    qr_free(c->messages);
    buffer_free(&c->system);
    *c = (struct conversation){0};
}

/* ---- writing one message ---- */

/* Copies what was written; closes the writer. */
static qr_status finish(struct json_writer *w, struct buffer *out, qr_error *err)
{
    const char *text;
    size_t length;
    qr_status st = json_finish(w, &text, &length, err);
    if (st == QR_BAD_ARGUMENT && err)
        err->status = QR_BAD_REQUEST;
    if (st == QR_BAD_ARGUMENT)
        st = QR_BAD_REQUEST;
    if (st == QR_OK && !buffer_append(out, text, length))
        st = no_memory(err);
    if (st != QR_OK)
        buffer_free(out);
    json_writer_close(w);
    return st;
}

static struct json_writer *open_message(const char *role)
{
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return NULL;
    json_w_object(w);
    json_w_key(w, "role");
    json_w_string(w, role);
    return w;
}

static void write_text(struct json_writer *w, const char *key, const char *text, size_t length)
{
    json_w_key(w, key);
    json_w_string_n(w, text ? text : "", length);
}

static qr_status add(struct conversation *c, bool user, struct json_writer *w, qr_error *err)
{
    struct buffer json = {0};
    json_w_end_object(w);
    qr_status st = finish(w, &json, err);
    if (st != QR_OK)
        return st;
    if (!array_grow(&c->messages, &c->capacity, c->count, sizeof *c->messages)) {
        buffer_free(&json);
        return no_memory(err);
    }
    c->messages[c->count++] = (struct conversation_message){user, json};
    return QR_OK;
}

qr_status conversation_set_system(struct conversation *c, const char *text, qr_error *err)
{
    struct buffer json = {0};
    if (text) {
        struct json_writer *w = open_message("system");
        if (!w)
            return no_memory(err);
        write_text(w, "content", text, strlen(text));
        json_w_end_object(w);
        qr_status st = finish(w, &json, err);
        if (st != QR_OK)
            return st;
    }
    buffer_free(&c->system);
    c->system = json;
    return QR_OK;
}

qr_status conversation_add_user(struct conversation *c, const char *text, size_t length, qr_error *err)
{
    struct json_writer *w = open_message("user");
    if (!w)
        return no_memory(err);
    write_text(w, "content", text, length);
    return add(c, true, w, err);
}

static void write_call_id(struct json_writer *w, const char *key, size_t call)
{
    char id[32];
    snprintf(id, sizeof id, "call_%zu", call);
    json_w_key(w, key);
    json_w_string(w, id);
}

static void write_calls(struct json_writer *w, const struct parsed_answer *answer, size_t first)
{
    json_w_key(w, "tool_calls");
    json_w_array(w);
    for (size_t i = 0; i < answer->call_count; i++) {
        const struct answer_call *call = &answer->calls[i];
        if (!call->whole)
            continue;
        json_w_object(w);
        write_call_id(w, "id", first++);
        json_w_key(w, "type");
        json_w_string(w, "function");
        json_w_key(w, "function");
        json_w_object(w);
        write_text(w, "name", call->name.data, call->name.length);
        write_text(w, "arguments", call->arguments.data, call->arguments.length);
        json_w_end_object(w);
        json_w_end_object(w);
    }
    json_w_end_array(w);
}

qr_status conversation_add_answer(struct conversation *c, const struct parsed_answer *answer, qr_error *err)
{
    size_t calls = 0;
    for (size_t i = 0; i < answer->call_count; i++)
        calls += answer->calls[i].whole;
    struct json_writer *w = open_message("assistant");
    if (!w)
        return no_memory(err);
    write_text(w, "content", answer->content.data, answer->content.length);
    if (answer->reasoning.length)
        write_text(w, "reasoning_content", answer->reasoning.data, answer->reasoning.length);
    if (calls)
        write_calls(w, answer, c->calls);
    qr_status st = add(c, false, w, err);
    if (st == QR_OK)
        c->calls += calls;
    return st;
}

qr_status conversation_add_result(struct conversation *c, size_t call, const char *text, size_t length, qr_error *err)
{
    struct json_writer *w = open_message("tool");
    if (!w)
        return no_memory(err);
    write_call_id(w, "tool_call_id", call);
    write_text(w, "content", text, length);
    return add(c, false, w, err);
}

/* ---- dropping ---- */

bool conversation_drop_last(struct conversation *c)
{
    if (c->count == 0)
        return false;
    buffer_free(&c->messages[--c->count].json);
    return true;
}

bool conversation_drop_oldest(struct conversation *c)
{
    size_t end = 1;
    while (end < c->count && !c->messages[end].user)
        end++;
    if (end >= c->count)
        return false;
    for (size_t i = 0; i < end; i++)
        buffer_free(&c->messages[i].json);
    memmove(c->messages, c->messages + end, (c->count - end) * sizeof *c->messages);
    c->count -= end;
    return true;
}

/* ---- the request ---- */

static qr_status append_member(struct buffer *out, const char *key, const char *json, qr_error *err)
{
    static const struct json_events none = {0};
    if (!json)
        return QR_OK;
    qr_status st = json_scan(json, strlen(json), key, &none, NULL, err);
    if (st == QR_BAD_FILE)
        st = QR_BAD_REQUEST;
    if (st != QR_OK) {
        if (err)
            err->status = st;
        return st;
    }
    buffer_printf(out, ",\"%s\":", key);
    buffer_puts(out, json);
    return QR_OK;
}

static void append_thinking(struct buffer *out, const char *think)
{
    if (!think)
        return;
    if (strcmp(think, "off") == 0) {
        buffer_puts(out, ",\"thinking\":false");
        return;
    }
    buffer_puts(out, ",\"thinking\":true,\"reasoning_effort\":");
    chat_json_string(out, think, strlen(think));
}

static void append_messages(struct buffer *out, const struct conversation *c)
{
    buffer_puts(out, "{\"messages\":[");
    if (c->system.length)
        buffer_append(out, c->system.data, c->system.length);
    for (size_t i = 0; i < c->count; i++) {
        if (i > 0 || c->system.length)
            buffer_puts(out, ",");
        buffer_append(out, c->messages[i].json.data, c->messages[i].json.length);
    }
    buffer_puts(out, "]");
}

qr_status conversation_write(const struct conversation *c, const struct conversation_request *request,
                             struct buffer *out, qr_error *err)
{
    qr_status st;
    buffer_clear(out);
    append_messages(out, c);
    append_thinking(out, request->think);
    if (request->go_on)
        buffer_puts(out, ",\"continue_final_message\":true");
    if ((st = append_member(out, "tools", request->tools, err)) != QR_OK ||
        (st = append_member(out, "response_format", request->response_format, err)) != QR_OK)
        return st;
    return buffer_puts(out, "}") ? QR_OK : no_memory(err);
}

static qr_status copy_message(struct conversation *c, const struct json *message, qr_error *err)
{
    const struct json *role = json_get(message, "role");
    struct buffer json = {0};
    if (!role || role->kind != JSON_STRING)
        return qr_fail(err, QR_BAD_REQUEST, "a message of the conversation has no role");
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return no_memory(err);
    json_w_value(w, message);
    qr_status st = finish(w, &json, err);
    if (st != QR_OK)
        return st;
    if (json_equals(role, "system") && c->count == 0 && c->system.length == 0) {
        c->system = json;
        return QR_OK;
    }
    if (!array_grow(&c->messages, &c->capacity, c->count, sizeof *c->messages)) {
        buffer_free(&json);
        return no_memory(err);
    }
    c->messages[c->count++] = (struct conversation_message){json_equals(role, "user"), json};
    const struct json *calls = json_get(message, "tool_calls");
    c->calls += calls && calls->kind == JSON_ARRAY ? calls->count : 0;
    return QR_OK;
}

qr_status conversation_read(struct conversation *c, const struct json *request, qr_error *err)
{
    const struct json *messages = json_get(request, "messages");
    struct conversation fresh = {0};
    qr_status st = QR_OK;
    if (!messages || messages->kind != JSON_ARRAY)
        return qr_fail(err, QR_BAD_REQUEST, "the conversation has no list of messages");
    for (const struct json *m = messages->child; m && st == QR_OK; m = m->next)
        st = copy_message(&fresh, m, err);
    if (st != QR_OK) {
        conversation_free(&fresh);
        return st;
    }
    conversation_free(c);
    *c = fresh;
    return QR_OK;
}
