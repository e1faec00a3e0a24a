#include "cli/chat_log.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/status.h"

static void free_turn(struct chat_turn *turn)
{
    qr_free((char *)turn->text);
    qr_free((char *)turn->reasoning);
}

void chat_log_clear(struct chat_log *log)
{
    while (log->count)
        free_turn(&log->turns[--log->count]);
}

void chat_log_free(struct chat_log *log)
{
    chat_log_clear(log);
    qr_free(log->turns);
    qr_free(log->system);
    *log = (struct chat_log){0};
}

size_t chat_log_turns(const struct chat_log *log) { return log->count; }

bool chat_log_add(struct chat_log *log, const char *role, const char *text, size_t length, const char *reasoning)
{
    struct chat_turn turn = {.role = role, .text = qr_strndup(text, length)};
    if (reasoning)
        turn.reasoning = qr_strdup(reasoning);
    if (!turn.text || (reasoning && !turn.reasoning) ||
        !array_grow(&log->turns, &log->capacity, log->count, sizeof *log->turns)) {
        free_turn(&turn);
        return false;
    }
    log->turns[log->count++] = turn;
    return true;
}

void chat_log_drop_newest(struct chat_log *log)
{
    if (log->count)
        free_turn(&log->turns[--log->count]);
}

void chat_log_drop_oldest(struct chat_log *log)
{
    size_t n = 1;
    while (n < log->count && strcmp(log->turns[n].role, "user") != 0)
        n++;
    for (size_t i = 0; i < n && i < log->count; i++)
        free_turn(&log->turns[i]);
    memmove(log->turns, log->turns + n, (log->count - n) * sizeof *log->turns);
    log->count -= n;
}

qr_status chat_log_system(struct chat_log *log, const char *text, qr_error *err)
{
    char *copy = qr_strdup(text);
    if (!copy)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the system message");
    qr_free(log->system);
    log->system = copy;
    return QR_OK;
}

/* The system message, where there is one, and the turns. The list is the caller's to free. */
static struct chat_turn *all_turns(const struct chat_log *log, size_t *count)
{
    struct chat_turn *all = qr_calloc(log->count + 1, sizeof *all);
    size_t n = 0;
    if (!all)
        return NULL;
    if (log->system)
        all[n++] = (struct chat_turn){.role = "system", .text = log->system};
    for (size_t i = 0; i < log->count; i++)
        all[n++] = log->turns[i];
    *count = n;
    return all;
}

qr_status chat_log_render(const struct chat_log *log, const qr_model *model, const char *think, const char *tools,
                          qr_prompt *out, qr_error *err)
{
    struct chat_body body = {.think = think, .tools = tools};
    struct chat_turn *all = all_turns(log, &body.turn_count);
    if (!all)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the conversation");
    body.turns = all;
    qr_status st = chat_body_render(model, &body, out, err);
    qr_free(all);
    return st;
}

qr_status chat_log_save(const struct chat_log *log, const char *path, qr_error *err)
{
    const char *text;
    size_t length, count;
    struct chat_turn *all = all_turns(log, &count);
    struct json_writer *w = json_writer_open(true);
    qr_status st = all && w ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for the conversation");
    if (st == QR_OK) {
        json_w_object(w);
        json_w_key(w, "messages");
        json_w_array(w);
        for (size_t i = 0; i < count; i++)
            chat_turn_write(w, &all[i]);
        json_w_end_array(w);
        json_w_end_object(w);
        st = json_finish(w, &text, &length, err);
    }
    if (st == QR_OK)
        st = file_write_atomic(path, text, length, err);
    json_writer_close(w);
    qr_free(all);
    return st;
}

/* Adds one message of a file; a system message only at the beginning. */
static qr_status take_message(struct chat_log *log, const struct json *message, const char *path, size_t i, qr_error *err)
{
    const struct json *role = json_get(message, "role"), *content = json_get(message, "content");
    const struct json *reasoning = json_get(message, "reasoning_content");
    const char *as = json_equals(role, "user") ? "user" : json_equals(role, "assistant") ? "assistant" : NULL;
    if (!content || content->kind != JSON_STRING || (reasoning && reasoning->kind != JSON_STRING))
        return qr_fail(err, QR_BAD_FILE, "%s: messages[%zu]: wanted content as a string", path, i);
    if (json_equals(role, "system") && i == 0)
        return chat_log_system(log, content->text, err);
    if (!as)
        return qr_fail(err, QR_BAD_FILE, "%s: messages[%zu]: wanted the role user or assistant (system at first only)", path,
                       i);
    if (!chat_log_add(log, as, content->text, content->length, reasoning ? reasoning->text : NULL))
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for the conversation", path);
    return QR_OK;
}

qr_status chat_log_load(struct chat_log *log, const char *path, qr_error *err)
{
    struct chat_log fresh = {0};
    struct json_document *doc = NULL;
    char *text = NULL;
    size_t size, i = 0;
    qr_status st = file_read(path, 1 << 28, &text, &size, err);
    if (st == QR_OK)
        st = json_parse(text, size, path, false, &doc, err);
    const struct json *messages = st == QR_OK ? json_get(json_root(doc), "messages") : NULL;
    if (st == QR_OK && (!messages || messages->kind != JSON_ARRAY))
        st = qr_fail(err, QR_BAD_FILE, "%s: wanted an object with the list messages", path);
    for (const struct json *m = messages ? messages->child : NULL; st == QR_OK && m; m = m->next)
        st = take_message(&fresh, m, path, i++, err);
    if (st == QR_OK) {
        chat_log_free(log);
        *log = fresh;
    } else {
        chat_log_free(&fresh);
    }
    json_close(doc);
    qr_free(text);
    return st;
}
