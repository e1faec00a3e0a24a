#include "cli/chat_body.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "base/utf8.h"

qr_status chat_turn_write(struct json_writer *w, const struct chat_turn *turn, qr_error *err)
{
    const size_t length = strlen(turn->text), valid = utf8_valid_prefix(turn->text, length);
    if (valid < length)
        return qr_fail(err, QR_BAD_REQUEST, "the %s message is no UTF-8 at byte %zu", turn->role, valid);
    json_w_object(w);
    json_w_member_string(w, "role", turn->role);
    json_w_member_string(w, "content", turn->text);
    json_w_end_object(w);
    return QR_OK;
}

/* --think off, or an effort. */
static void write_think(struct json_writer *w, const char *think)
{
    const bool off = strcmp(think, "off") == 0;
    json_w_key(w, "thinking");
    json_w_object(w);
    json_w_member_string(w, "type", off ? "disabled" : "enabled");
    json_w_end_object(w);
    if (!off)
        json_w_member_string(w, "reasoning_effort", think);
}

qr_status chat_file_read(const char *path, char **text, qr_error *err)
{
    struct json_document *doc = NULL;
    size_t size;
    *text = NULL;
    if (!path)
        return QR_OK;
    qr_status st = file_read(path, 1 << 26, text, &size, err);
    if (st == QR_OK)
        st = json_parse(*text, size, path, false, &doc, err);
    json_close(doc);
    if (st != QR_OK) {
        qr_free(*text);
        *text = NULL;
    }
    return st;
}

/* JSON text from a file goes in as a value of its own, so that a broken one cannot break the rest. */
static qr_status write_text(struct json_writer *w, const char *key, const char *json, qr_error *err)
{
    struct json_document *doc;
    qr_status st = json_parse(json, strlen(json), key, false, &doc, err);
    if (st != QR_OK)
        return st;
    json_w_key(w, key);
    json_w_value(w, json_root(doc));
    json_close(doc);
    return QR_OK;
}

static qr_status write_schema(struct json_writer *w, const char *schema, qr_error *err)
{
    json_w_key(w, "response_format");
    json_w_object(w);
    json_w_member_string(w, "type", "json_schema");
    json_w_key(w, "json_schema");
    json_w_object(w);
    json_w_member_string(w, "name", "answer");
    qr_status st = write_text(w, "schema", schema, err);
    json_w_end_object(w);
    json_w_end_object(w);
    return st;
}

qr_status chat_members_write(struct json_writer *w, const struct chat_body *body, qr_error *err)
{
    qr_status st = QR_OK;
    if (body->think)
        write_think(w, body->think);
    if (body->tools)
        st = write_text(w, "tools", body->tools, err);
    if (st == QR_OK && body->schema)
        st = write_schema(w, body->schema, err);
    return st;
}

qr_status chat_body_open(const qr_model *model, const struct chat_body *body, qr_chat **out, qr_error *err)
{
    const char *text;
    size_t length;
    qr_status st = QR_OK;
    *out = NULL;
    struct json_writer *w = json_writer_open(false);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the request");
    json_w_object(w);
    json_w_key(w, "messages");
    json_w_array(w);
    for (size_t i = 0; st == QR_OK && i < body->turn_count; i++)
        st = chat_turn_write(w, &body->turns[i], err);
    json_w_end_array(w);
    if (st == QR_OK)
        st = chat_members_write(w, body, err);
    json_w_end_object(w);
    if (st == QR_OK)
        st = json_finish(w, &text, &length, err);
    if (st == QR_OK)
        st = qr_chat_open(model, text, length, NULL, out, NULL, err);
    json_writer_close(w);
    return st;
}
