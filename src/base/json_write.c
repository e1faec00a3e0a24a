#define _GNU_SOURCE
#include "base/json.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_gen.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/utf8.h"
#include "base/yajl_memory.h"

struct json_writer {
    struct yajl_memory memory;
    yajl_gen yajl;
    struct buffer text;
    int depth;
    const char *defect; /* the first thing that went wrong, or NULL */
};

static void print(void *user, const char *text, size_t length) { buffer_append(user, text, length); }

struct json_writer *json_writer_open(bool pretty)
{
    struct json_writer *w = qr_calloc(1, sizeof *w);
    if (!w)
        return NULL;
    yajl_memory_init(&w->memory);
    if (setjmp(w->memory.no_memory)) {
        json_writer_close(w);
        return NULL;
    }
    /* Once the text goes to our buffer yajl allocates nothing more. */
    w->yajl = yajl_gen_alloc(&w->memory.functions);
    yajl_gen_config(w->yajl, yajl_gen_print_callback, print, &w->text);
    if (pretty) {
        yajl_gen_config(w->yajl, yajl_gen_beautify, 1);
        yajl_gen_config(w->yajl, yajl_gen_indent_string, "  ");
    }
    return w;
}

void json_writer_close(struct json_writer *w)
{
    if (!w)
        return;
    yajl_memory_free(&w->memory);
    buffer_free(&w->text);
    qr_free(w);
}

void json_writer_reset(struct json_writer *w)
{
    yajl_gen_reset(w->yajl, NULL);
    if (w->text.failed)
        buffer_free(&w->text);
    buffer_clear(&w->text);
    w->depth = 0;
    w->defect = NULL;
}

static void note(struct json_writer *w, const char *defect)
{
    if (!w->defect)
        w->defect = defect;
}

static void check(struct json_writer *w, yajl_gen_status status)
{
    if (status == yajl_max_depth_exceeded)
        note(w, "it is nested too deep");
    else if (status != yajl_gen_status_ok)
        note(w, "its calls are out of order");
}

void json_w_object(struct json_writer *w)
{
    w->depth++;
    check(w, yajl_gen_map_open(w->yajl));
}

void json_w_end_object(struct json_writer *w)
{
    w->depth--;
    check(w, yajl_gen_map_close(w->yajl));
}

void json_w_array(struct json_writer *w)
{
    w->depth++;
    check(w, yajl_gen_array_open(w->yajl));
}

void json_w_end_array(struct json_writer *w)
{
    w->depth--;
    check(w, yajl_gen_array_close(w->yajl));
}

void json_w_key(struct json_writer *w, const char *key) { json_w_string(w, key); }
void json_w_string(struct json_writer *w, const char *text) { json_w_string_n(w, text, strlen(text)); }

void json_w_string_n(struct json_writer *w, const char *text, size_t length)
{
    if (utf8_valid_prefix(text, length) != length)
        note(w, "a string is not UTF-8");
    check(w, yajl_gen_string(w->yajl, (const unsigned char *)(text ? text : ""), length));
}

void json_w_int(struct json_writer *w, int64_t value) { check(w, yajl_gen_integer(w->yajl, value)); }

void json_w_uint(struct json_writer *w, uint64_t value)
{
    char text[24];
    json_w_raw(w, text, (size_t)snprintf(text, sizeof text, "%llu", (unsigned long long)value));
}

/* The fewest significant digits that read back as `value`: 17 always do. */
static int shortest(char *text, size_t size, double value)
{
    int length = 0;
    for (int digits = 1; digits <= 17; digits++) {
        length = snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return length;
}

void json_w_double(struct json_writer *w, double value)
{
    char text[40];
    if (!isfinite(value)) {
        note(w, "a number is not finite");
        return;
    }
    /* The program around the library may have chosen a locale whose decimal point is a comma. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) {
        w->text.failed = true;
        return;
    }
    locale_t before = uselocale(c);
    int length = shortest(text, sizeof text, value);
    uselocale(before);
    freelocale(c);
    json_w_raw(w, text, (size_t)length);
}

void json_w_bool(struct json_writer *w, bool value) { check(w, yajl_gen_bool(w->yajl, value)); }
void json_w_null(struct json_writer *w) { check(w, yajl_gen_null(w->yajl)); }

/* yajl writes the text of a number as it is given, with the commas and colons around it. */
void json_w_raw(struct json_writer *w, const char *text, size_t length)
{
    check(w, yajl_gen_number(w->yajl, text, length));
}

void json_w_value(struct json_writer *w, const struct json *value)
{
    const struct json *child;
    switch (value->kind) {
    case JSON_NULL:
        json_w_null(w);
        break;
    case JSON_BOOL:
        json_w_bool(w, value->boolean);
        break;
    case JSON_NUMBER:
        json_w_raw(w, value->text, value->length);
        break;
    case JSON_STRING:
        json_w_string_n(w, value->text, value->length);
        break;
    case JSON_ARRAY:
        json_w_array(w);
        for (child = value->child; child; child = child->next)
            json_w_value(w, child);
        json_w_end_array(w);
        break;
    case JSON_OBJECT:
        json_w_object(w);
        for (child = value->child; child; child = child->next) {
            json_w_string_n(w, child->key, child->key_length);
            json_w_value(w, child);
        }
        json_w_end_object(w);
        break;
    }
}

void json_w_member_string(struct json_writer *w, const char *key, const char *text)
{
    json_w_key(w, key);
    if (text)
        json_w_string(w, text);
    else
        json_w_null(w);
}

void json_w_member_string_n(struct json_writer *w, const char *key, const char *text, size_t length)
{
    json_w_key(w, key);
    json_w_string_n(w, text, length);
}

void json_w_member_int(struct json_writer *w, const char *key, int64_t value)
{
    json_w_key(w, key);
    json_w_int(w, value);
}

void json_w_member_uint(struct json_writer *w, const char *key, uint64_t value)
{
    json_w_key(w, key);
    json_w_uint(w, value);
}

void json_w_member_number(struct json_writer *w, const char *key, double value)
{
    json_w_key(w, key);
    if (isfinite(value))
        json_w_double(w, value);
    else
        json_w_null(w);
}

void json_w_member_bool(struct json_writer *w, const char *key, bool value)
{
    json_w_key(w, key);
    json_w_bool(w, value);
}

void json_w_member_null(struct json_writer *w, const char *key)
{
    json_w_key(w, key);
    json_w_null(w);
}

qr_status json_finish(struct json_writer *w, const char **text, size_t *length, qr_error *err)
{
    *text = "";
    *length = 0;
    if (w->text.failed)
        return qr_fail(err, QR_NO_MEMORY, "no memory to write JSON after %zu bytes", w->text.length);
    if (w->depth != 0 || w->text.length == 0)
        note(w, "its calls are out of order");
    if (w->defect)
        return qr_fail(err, QR_BAD_ARGUMENT, "JSON cannot be written: %s", w->defect);
    *text = w->text.data;
    *length = w->text.length;
    return QR_OK;
}
