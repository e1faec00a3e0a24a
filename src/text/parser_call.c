#include "text/parser_call.h"

#include <string.h>

#include "base/alloc.h"
#include "text/chat_json.h"

void call_begin(struct call *c, const struct tool *tool, uint32_t index, bool lost)
{
    c->tool = tool;
    c->index = index;
    c->lost = lost;
    c->started = c->opened = c->wrapped = false;
    c->parameters = c->key_count = 0;
    buffer_clear(&c->key_text);
    buffer_clear(&c->value);
}

void call_free(struct call *c)
{
    buffer_free(&c->name);
    buffer_free(&c->key_text);
    buffer_free(&c->value);
    buffer_free(&c->scratch);
    qr_free(c->keys);
    *c = (struct call){0};
}

bool call_failed(const struct call *c)
{
    return c->name.failed || c->key_text.failed || c->value.failed || c->scratch.failed;
}

/* ---- saying it ---- */

static void say(struct call *c, enum delta_kind kind, const char *text, size_t length, struct deltas *out)
{
    if (!c->lost)
        deltas_add(out, kind, c->index, text, length);
}

static void say_arguments(struct call *c, const char *text, struct deltas *out)
{
    say(c, DELTA_ARGUMENTS, text, strlen(text), out);
}

static void say_escaped(struct call *c, const char *text, size_t length, struct deltas *out)
{
    buffer_clear(&c->scratch);
    chat_json_escape(&c->scratch, text, length);
    if (c->scratch.length)
        say(c, DELTA_ARGUMENTS, c->scratch.data, c->scratch.length, out);
}

static void start(struct call *c, struct deltas *out)
{
    if (!c->started)
        say(c, DELTA_CALL, c->name.data, c->name.length, out);
    c->started = true;
}

static void say_key(struct call *c, const char *key, size_t length, struct deltas *out)
{
    say_arguments(c, c->opened ? ", \"" : "{\"", out);
    c->opened = true;
    say_escaped(c, key, length, out);
    say_arguments(c, "\": ", out);
}

/* ---- keys ---- */

static bool seen(const struct call *c, const char *key, size_t length)
{
    for (size_t i = 0; i < c->key_count; i++)
        if (c->keys[i].length == length && memcmp(c->key_text.data + c->keys[i].offset, key, length) == 0)
            return true;
    return false;
}

static void remember(struct call *c, const char *key, size_t length)
{
    size_t offset = c->key_text.length;
    if (!buffer_append(&c->key_text, key, length))
        return;
    if (!array_grow(&c->keys, &c->key_capacity, c->key_count, sizeof *c->keys)) {
        c->key_text.failed = true;
        return;
    }
    c->keys[c->key_count++] = (struct call_key){offset, length};
}

static bool is_wrapper(const struct call *c, const char *key, size_t length)
{
    bool named = (length == 9 && memcmp(key, "arguments", 9) == 0) || (length == 5 && memcmp(key, "input", 5) == 0);
    return named && !tool_declares(c->tool, key, length);
}

/* ---- values ---- */

static bool is_json(const char *text, size_t length, struct call *c)
{
    static const struct json_events none = {0};
    qr_status st = json_scan(text ? text : "", length, "value", &none, NULL, NULL);
    if (st == QR_NO_MEMORY)
        c->value.failed = true;
    return st == QR_OK;
}

/* The held value, as it stands or as a string. */
static void say_held_value(struct call *c, struct deltas *out)
{
    if (c->holds_json && is_json(c->value.data, c->value.length, c)) {
        say(c, DELTA_ARGUMENTS, c->value.data, c->value.length, out);
        return;
    }
    say_arguments(c, "\"", out);
    if (c->value.length)
        say_escaped(c, c->value.data, c->value.length, out);
    say_arguments(c, "\"", out);
}

/* The held first parameter turns out to be one of several. */
static void release_wrapped(struct call *c, struct deltas *out)
{
    say_key(c, c->key_text.data, c->keys[0].length, out);
    say_held_value(c, out);
    c->wrapped = false;
}

void call_parameter(struct call *c, const char *key, size_t length, enum string_attribute attribute, struct deltas *out)
{
    start(c, out);
    c->parameters++;
    if (seen(c, key, length)) { /* what is held stays: the first value counts */
        c->mode = VALUE_SKIPPED;
        return;
    }
    if (c->wrapped)
        release_wrapped(c, out);
    remember(c, key, length);
    bool string = attribute == STRING_TRUE || (attribute == STRING_UNKNOWN && tool_wants_string(c->tool, key, length));
    c->mode = string ? VALUE_STRING : VALUE_JSON;
    c->holds_json = !string;
    buffer_clear(&c->value);
    c->wrapped = c->key_count == 1 && is_wrapper(c, key, length);
    if (c->wrapped)
        return;
    say_key(c, key, length, out);
    if (string)
        say_arguments(c, "\"", out);
}

void call_value(struct call *c, const char *text, size_t length, struct deltas *out)
{
    if (c->mode == VALUE_SKIPPED)
        return;
    if (c->mode == VALUE_STRING && !c->wrapped)
        say_escaped(c, text, length, out);
    else
        buffer_append(&c->value, text, length);
}

void call_value_end(struct call *c, struct deltas *out)
{
    if (c->mode == VALUE_SKIPPED || c->wrapped)
        return;
    if (c->mode == VALUE_STRING)
        say_arguments(c, "\"", out);
    else
        say_held_value(c, out);
}

/* ---- unwrapping ---- */

static void trim(const char **text, size_t *length)
{
    while (*length > 0 && strchr(" \t\r\n", (*text)[*length - 1]) && (*text)[*length - 1])
        (*length)--;
    while (*length > 0 && strchr(" \t\r\n", **text) && **text) {
        (*text)++;
        (*length)--;
    }
}

static bool declares_all(const struct tool *tool, const struct json *object)
{
    for (const struct json *m = object->child; m; m = m->next)
        if (!tool_declares(tool, m->key, m->key_length))
            return false;
    return true;
}

/* Appends `text` to `out` when it is an object whose keys the tool declares; `string_too`: or a string that holds one.
 */
static bool append_arguments(const struct tool *tool, const char *text, size_t length, bool string_too,
                             struct buffer *out)
{
    struct json_document *doc;
    bool found = false;
    qr_status st = json_parse(text, length, "value", false, &doc, NULL);
    if (st == QR_NO_MEMORY)
        out->failed = true;
    if (st != QR_OK)
        return false;
    const struct json *value = json_root(doc);
    if (value->kind == JSON_OBJECT && declares_all(tool, value)) {
        trim(&text, &length);
        found = buffer_append(out, text, length);
    } else if (value->kind == JSON_STRING && string_too) {
        found = append_arguments(tool, value->text, value->length, false, out);
    }
    json_close(doc);
    return found;
}

static bool say_unwrapped(struct call *c, struct deltas *out)
{
    buffer_clear(&c->scratch);
    if (!c->value.length || !append_arguments(c->tool, c->value.data, c->value.length, c->holds_json, &c->scratch))
        return false;
    say(c, DELTA_ARGUMENTS, c->scratch.data, c->scratch.length, out);
    return true;
}

void call_end(struct call *c, struct deltas *out)
{
    start(c, out);
    if (!c->wrapped || !say_unwrapped(c, out)) {
        if (c->wrapped)
            release_wrapped(c, out);
        say_arguments(c, c->opened ? "}" : "{}", out);
    }
    say(c, DELTA_CALL_END, "", 0, out);
}

/* ---- bodies ---- */

/* The text of the only member's value in the text of an object that has one. */
static void find_inner(const char **text, size_t *length)
{
    const char *p = *text + 1, *end = *text + *length - 1;
    while (*p != '"')
        p++;
    for (p++; *p != '"'; p++)
        p += *p == '\\';
    p = memchr(p, ':', (size_t)(end - p));
    *text = p + 1;
    *length = (size_t)(end - *text);
}

/* A body whose one member holds all arguments is replaced by them. */
static bool say_unwrapped_body(struct call *c, const char *text, size_t length, struct deltas *out)
{
    struct json_document *doc;
    bool found = false;
    qr_status st = json_parse(text, length, "body", false, &doc, NULL);
    if (st != QR_OK) { /* it was an object before */
        c->scratch.failed = true;
        return false;
    }
    const struct json *object = json_root(doc);
    buffer_clear(&c->scratch);
    if (object->count == 1 && is_wrapper(c, object->child->key, object->child->key_length)) {
        find_inner(&text, &length);
        found = append_arguments(c->tool, text, length, true, &c->scratch);
    }
    if (found)
        say(c, DELTA_ARGUMENTS, c->scratch.data, c->scratch.length, out);
    json_close(doc);
    return found;
}

qr_status call_body_check(const char *text, size_t length, bool *is_object)
{
    struct json_document *doc;
    qr_status st = json_parse(text, length, "body", false, &doc, NULL);
    *is_object = st == QR_OK && json_root(doc)->kind == JSON_OBJECT;
    if (st == QR_OK)
        json_close(doc);
    return st == QR_NO_MEMORY ? st : QR_OK;
}

void call_body(struct call *c, const char *text, size_t length, struct deltas *out)
{
    trim(&text, &length);
    start(c, out);
    if (!say_unwrapped_body(c, text, length, out))
        say(c, DELTA_ARGUMENTS, text, length, out);
    say(c, DELTA_CALL_END, "", 0, out);
}
