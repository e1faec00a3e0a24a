#include "text/chat_arguments.h"

#include <stdio.h>
#include <string.h>

#include "base/json_text.h"
#include "base/alloc.h"
#include "text/chat_json.h"

static const struct json empty_object = {.kind = JSON_OBJECT};

static qr_status no_memory(qr_error *err) { return qr_fail(err, QR_NO_MEMORY, "no memory for the arguments of a call"); }

/* Would `text` be JSON if its lone surrogates were characters? Only asked of text that is not JSON. */
static qr_status is_json_but_for_surrogates(const char *text, size_t length, bool *out, qr_error *err)
{
    static const struct json_events none = {0};
    static const char replacement[] = "\\ufffd";
    bool found = false;
    size_t from = 0, offset;
    char *copy = qr_strndup(text, length);
    if (!copy)
        return no_memory(err);
    while (json_text_defect(copy + from, length - from, &offset) && length - from - offset >= strlen(replacement) &&
           copy[from + offset] == '\\') {
        memcpy(copy + from + offset, replacement, strlen(replacement));
        from += offset + strlen(replacement);
        found = true;
    }
    qr_status st = found ? json_scan(copy, length, "arguments", &none, NULL, err) : QR_BAD_FILE;
    qr_free(copy);
    *out = st == QR_OK;
    return st == QR_NO_MEMORY ? st : QR_OK;
}

/* Parses `text`; *value stays NULL when it is not JSON. */
static qr_status parse(const char *text, size_t length, const char *path, struct chat_messages *owner,
                       const struct json **value, struct chat_issue *issue, qr_error *err)
{
    struct json_document *doc;
    bool surrogates = false;
    *value = NULL;
    if (!array_grow(&owner->documents, &owner->document_capacity, owner->document_count, sizeof *owner->documents))
        return no_memory(err);
    qr_status st = json_parse(text, length, "arguments", false, &doc, err);
    if (st == QR_NO_MEMORY)
        return st;
    if (st == QR_OK) {
        owner->documents[owner->document_count++] = doc;
        *value = json_root(doc);
        return QR_OK;
    }
    if (err)
        *err = (qr_error){0};
    st = is_json_but_for_surrogates(text, length, &surrogates, err);
    if (st == QR_OK && surrogates)
        return chat_refuse(issue, err, NULL, path, "a lone surrogate in the arguments");
    if (st == QR_OK && err)
        *err = (qr_error){0};
    return st;
}

static qr_status write_raw(const struct json *value, struct chat_messages *owner, struct chat_call *call, qr_error *err)
{
    struct buffer text = {0};
    chat_json_write(&text, value);
    char *copy = text.failed ? NULL : arena_strndup(&owner->arena, text.data, text.length);
    call->raw = copy;
    call->raw_length = text.length;
    buffer_free(&text);
    return copy ? QR_OK : no_memory(err);
}

qr_status chat_arguments_read(const struct json *arguments, const char *path, struct chat_messages *owner,
                              struct chat_call *call, struct chat_issue *issue, qr_error *err)
{
    const struct json *value = arguments;
    qr_status st = QR_OK;
    if (!arguments || arguments->kind == JSON_NULL)
        value = &empty_object;
    for (int times = 0; times < 2 && value && value->kind == JSON_STRING && st == QR_OK; times++)
        st = parse(value->text, value->length, path, owner, &value, issue, err);
    if (st != QR_OK)
        return st;
    if (value && value->kind == JSON_OBJECT) {
        call->arguments = value;
        return QR_OK;
    }
    if (arguments->kind != JSON_STRING)
        return write_raw(arguments, owner, call, err);
    call->raw = arguments->text;
    call->raw_length = arguments->length;
    return QR_OK;
}
