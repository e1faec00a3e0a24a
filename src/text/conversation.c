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
    buffer_free(&c->members);
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
    json_w_member_string(w, "role", role);
    return w;
}

/* Takes over the JSON. */
static qr_status push(struct conversation *c, bool user, struct buffer *json, qr_error *err)
{
    if (!array_grow(&c->messages, &c->capacity, c->count, sizeof *c->messages)) {
        buffer_free(json);
        return no_memory(err);
    }
    c->messages[c->count++] = (struct conversation_message){user, *json};
    return QR_OK;
}

static qr_status add(struct conversation *c, bool user, struct json_writer *w, qr_error *err)
{
    struct buffer json = {0};
    json_w_end_object(w);
    qr_status st = finish(w, &json, err);
    if (st != QR_OK)
        return st;
    return push(c, user, &json, err);
}

qr_status conversation_set_system(struct conversation *c, const char *text, qr_error *err)
{
    struct buffer json = {0};
    if (text) {
        struct json_writer *w = open_message("system");
        if (!w)
            return no_memory(err);
        json_w_member_string_n(w, "content", text, strlen(text));
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
    json_w_member_string_n(w, "content", text, length);
    return add(c, true, w, err);
}

static void write_call_id(struct json_writer *w, const char *key, size_t call)
{
    char id[32];
    snprintf(id, sizeof id, "call_%zu", call);
    json_w_member_string(w, key, id);
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
        json_w_member_string(w, "type", "function");
        json_w_key(w, "function");
        json_w_object(w);
        json_w_member_string_n(w, "name", call->name.data, call->name.length);
        json_w_member_string_n(w, "arguments", call->arguments.data, call->arguments.length);
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
    json_w_member_string_n(w, "content", answer->content.data, answer->content.length);
    if (answer->reasoning.length)
        json_w_member_string_n(w, "reasoning_content", answer->reasoning.data, answer->reasoning.length);
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
    json_w_member_string_n(w, "content", text, length);
    return add(c, false, w, err);
}

/* ---- dropping ---- */

size_t conversation_turns(const struct conversation *c)
{
    size_t turns = 0;
    for (size_t i = 0; i < c->count; i++)
        turns += c->messages[i].user;
    return turns;
}

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

qr_status conversation_set_members(struct conversation *c, const struct json *object, qr_error *err)
{
    struct buffer members = {0};
    if (object && object->kind != JSON_OBJECT)
        return qr_fail(err, QR_BAD_REQUEST, "the members of a conversation's requests: wanted an object");
    for (const struct json *m = object ? object->child : NULL; m; m = m->next) {
        struct buffer value = {0};
        struct json_writer *w = json_writer_open(false);
        if (strcmp(m->key, "messages") == 0) {
            json_writer_close(w);
            buffer_free(&members);
            return qr_fail(err, QR_BAD_REQUEST, "messages are no member beside the messages");
        }
        if (!w) {
            buffer_free(&members);
            return no_memory(err);
        }
        json_w_value(w, m);
        qr_status st = finish(w, &value, err);
        if (st != QR_OK) {
            buffer_free(&members);
            return st;
        }
        buffer_puts(&members, ",");
        chat_json_string(&members, m->key, m->key_length);
        buffer_puts(&members, ":");
        buffer_append(&members, value.data, value.length);
        buffer_free(&value);
    }
    if (members.failed) {
        buffer_free(&members);
        return no_memory(err);
    }
    buffer_free(&c->members);
    c->members = members;
    return QR_OK;
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

qr_status conversation_write(const struct conversation *c, bool members, struct buffer *out, qr_error *err)
{
    buffer_clear(out);
    append_messages(out, c);
    if (members && c->members.length)
        buffer_append(out, c->members.data, c->members.length);
    return buffer_puts(out, "}") ? QR_OK : no_memory(err);
}

/* ---- taking messages as they are ---- */

qr_status conversation_add(struct conversation *c, const struct json *message, qr_error *err)
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
    st = push(c, json_equals(role, "user"), &json, err);
    const struct json *calls = json_get(message, "tool_calls");
    if (st == QR_OK && calls && calls->kind == JSON_ARRAY)
        c->calls += calls->count;
    return st;
}

/* Puts `fresh` in the place of the messages. */
static void replace_messages(struct conversation *c, struct conversation *fresh)
{
    fresh->members = c->members;
    c->members = (struct buffer){0};
    conversation_free(c);
    *c = *fresh;
}

qr_status conversation_read(struct conversation *c, const struct json *request, qr_error *err)
{
    const struct json *messages = json_get(request, "messages");
    struct conversation fresh = {0};
    qr_status st = QR_OK;
    if (!messages || messages->kind != JSON_ARRAY)
        return qr_fail(err, QR_BAD_REQUEST, "the conversation has no list of messages");
    for (const struct json *m = messages->child; m && st == QR_OK; m = m->next)
        st = conversation_add(&fresh, m, err);
    if (st == QR_OK)
        replace_messages(c, &fresh);
    else
        conversation_free(&fresh);
    return st;
}

static bool copy_buffer(const struct buffer *from, struct buffer *to)
{
    return from->length == 0 || buffer_append(to, from->data, from->length);
}

qr_status conversation_copy(const struct conversation *c, struct conversation *out, qr_error *err)
{
    bool copied = copy_buffer(&c->system, &out->system) && copy_buffer(&c->members, &out->members);
    out->calls = c->calls;
    for (size_t i = 0; copied && i < c->count; i++) {
        struct buffer json = {0};
        copied = copy_buffer(&c->messages[i].json, &json) && push(out, c->messages[i].user, &json, NULL) == QR_OK;
    }
    if (copied)
        return QR_OK;
    conversation_free(out);
    return no_memory(err);
}
