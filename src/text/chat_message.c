#include "text/chat_message.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/chat_arguments.h"
#include "text/chat_part.h"
#include "text/tool_list.h"

struct reader {
    const struct chat_message_rules *rules;
    struct chat_messages *out;
    struct chat_issue *issue;
    qr_error *err;
};

static bool is_absent(const struct json *value) { return !value || value->kind == JSON_NULL; }

/* ---- roles and tasks ---- */

static const struct {
    const char *name;
    enum chat_role role;
} roles[] = {
    {"system", CHAT_SYSTEM}, {"developer", CHAT_SYSTEM}, {"user", CHAT_USER},
    {"assistant", CHAT_ASSISTANT}, {"tool", CHAT_TOOL}, {"function", CHAT_TOOL},
    {"latest_reminder", CHAT_REMINDER},
};

static qr_status read_role(struct reader *r, const struct json *message, const char *path, struct chat_message *m)
{
    const struct json *role = json_get(message, "role");
    if (!role || role->kind != JSON_STRING)
        return chat_refuse(r->issue, r->err, NULL, path, "the message is no object with a string \"role\"");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (!json_equals(role, roles[i].name))
            continue;
        m->role = roles[i].role;
        if (m->role == CHAT_REMINDER && !r->rules->vendor_extensions)
            return chat_refuse(r->issue, r->err, NULL, path, "the role latest_reminder is a vendor extension");
        return QR_OK;
    }
    return chat_refuse(r->issue, r->err, NULL, path, "unknown role %.80s", role->text);
}

static qr_status read_task(struct reader *r, const struct json *message, const char *path, struct chat_message *m)
{
    static const char *const tasks[][2] = {
        {"action", TOKEN_ACTION},     {"query", "<｜query｜>"}, {"authority", "<｜authority｜>"},
        {"domain", "<｜domain｜>"}, {"title", "<｜title｜>"}, {"read_url", "<｜read_url｜>"},
    };
    const struct json *task = json_get(message, "task");
    if (is_absent(task))
        return QR_OK;
    if (!r->rules->vendor_extensions)
        return chat_refuse(r->issue, r->err, NULL, path, "the member task is a vendor extension");
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks && !m->task; i++)
        if (json_equals(task, tasks[i][0]))
            m->task = tasks[i][1];
    return m->task ? QR_OK
                   : chat_refuse(r->issue, r->err, NULL, path, "unknown task %.80s",
                                 task->kind == JSON_STRING ? task->text : "that is no string");
}

/* ---- assistant messages ---- */

static qr_status read_reasoning(struct reader *r, const struct json *message, const char *path, struct chat_message *m)
{
    static const char *const members[] = {"reasoning_content", "reasoning"};
    for (size_t i = 0; i < 2; i++) {
        const struct json *text = json_get(message, members[i]);
        if (is_absent(text))
            continue;
        if (text->kind != JSON_STRING)
            return chat_refuse(r->issue, r->err, NULL, path, "%s is no string", members[i]);
        if (m->reasoning_length == 0) {
            m->reasoning = text->text;
            m->reasoning_length = text->length;
        }
    }
    return QR_OK;
}

static qr_status read_call(struct reader *r, const struct json *call, const char *path, struct chat_call *out)
{
    const struct json *function = json_get(call, "function"), *id = json_get(call, "id");
    if (!function || function->kind != JSON_OBJECT)
        return chat_refuse(r->issue, r->err, NULL, path, "the call has no object \"function\"");
    qr_status st = tool_qualified_name(call, function, path, &r->out->arena, &out->name, &out->name_length, r->issue,
                                       r->err);
    if (st != QR_OK)
        return st;
    out->id = id && id->kind == JSON_STRING ? id : NULL;
    return chat_arguments_read(json_get(function, "arguments"), path, r->out, out, r->issue, r->err);
}

static qr_status read_calls(struct reader *r, const struct json *calls, const char *path, struct chat_message *m)
{
    char param[96];
    struct chat_call **end = &m->calls;
    qr_status st = QR_OK;
    if (is_absent(calls))
        return QR_OK;
    if (calls->kind != JSON_ARRAY)
        return chat_refuse(r->issue, r->err, NULL, path, "tool_calls is no list");
    for (const struct json *c = calls->child; c && st == QR_OK; c = c->next) {
        snprintf(param, sizeof param, "%s.tool_calls[%zu]", path, m->call_count++);
        *end = arena_alloc(&r->out->arena, sizeof **end);
        if (!*end)
            return qr_fail(r->err, QR_NO_MEMORY, "no memory for a call");
        st = read_call(r, c, param, *end);
        end = &(*end)->next;
    }
    return st;
}

/* ---- all messages ---- */

/* A tool message is one block: the result, with its content as parts. */
static qr_status wrap_result(struct reader *r, const struct json *message, struct chat_message *m)
{
    const struct json *id = json_get(message, "tool_call_id");
    struct chat_block *result = arena_alloc(&r->out->arena, sizeof *result);
    if (!result)
        return qr_fail(r->err, QR_NO_MEMORY, "no memory for a tool result");
    result->kind = BLOCK_RESULT;
    result->call_id = id && id->kind == JSON_STRING ? id : NULL;
    result->parts = m->blocks;
    m->blocks = m->last_block = result;
    return QR_OK;
}

static qr_status read_message(struct reader *r, const struct json *message, const char *path, struct chat_message *m)
{
    qr_status st;
    m->reasoning = "";
    if ((st = read_role(r, message, path, m)) != QR_OK || (st = read_task(r, message, path, m)) != QR_OK)
        return st;
    st = chat_content_read(json_get(message, "content"), m->role, json_get(message, "role")->text, path, r->rules,
                           &r->out->arena, &m->blocks, &m->last_block, r->issue, r->err);
    if (st != QR_OK)
        return st;
    m->prefix = json_get(message, "prefix") && json_get(message, "prefix")->boolean;
    if (m->role == CHAT_TOOL)
        return wrap_result(r, message, m);
    if (m->role != CHAT_ASSISTANT)
        return QR_OK;
    if ((st = read_reasoning(r, message, path, m)) != QR_OK)
        return st;
    return read_calls(r, json_get(message, "tool_calls"), path, m);
}

qr_status chat_messages_read(const struct json *messages, const struct chat_message_rules *rules,
                             struct chat_messages *out, struct chat_issue *issue, qr_error *err)
{
    struct reader r = {rules, out, issue, err};
    char path[40];
    qr_status st = QR_OK;
    if (!messages || messages->kind != JSON_ARRAY || messages->count == 0)
        return chat_refuse(issue, err, NULL, "messages", "found %s, wanted a list of at least one message",
                           !messages ? "none" : messages->kind == JSON_ARRAY ? "an empty list" : "another type");
    out->items = arena_alloc(&out->arena, (messages->count + 1) * sizeof *out->items);
    if (!out->items)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu messages", messages->count);
    for (const struct json *m = messages->child; m && st == QR_OK; m = m->next) {
        snprintf(path, sizeof path, "messages[%zu]", out->count);
        st = read_message(&r, m, path, &out->items[out->count++]);
    }
    return st;
}

void chat_messages_free(struct chat_messages *messages)
{
    for (size_t i = 0; i < messages->document_count; i++)
        json_close(messages->documents[i]);
    qr_free(messages->documents);
    arena_free(&messages->arena);
    *messages = (struct chat_messages){0};
}
