#define _GNU_SOURCE
#include "text/chat_json.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/alloc.h"

/* ---- strings ---- */

static const char *short_escape(unsigned char c)
{
    switch (c) {
    case '"':
        return "\\\"";
    case '\\':
        return "\\\\";
    case '\b':
        return "\\b";
    case '\f':
        return "\\f";
    case '\n':
        return "\\n";
    case '\r':
        return "\\r";
    case '\t':
        return "\\t";
    default:
        return NULL;
    }
}

void chat_json_escape(struct buffer *out, const char *text, size_t length)
{
    size_t plain = 0; /* start of the run that needs no escape */
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buffer_append(out, text + plain, i - plain);
        plain = i + 1;
        const char *escape = short_escape(c);
        if (escape)
            buffer_puts(out, escape);
        else
            buffer_printf(out, "\\u%04x", c);
    }
    buffer_append(out, text + plain, length - plain);
}

void chat_json_string(struct buffer *out, const char *text, size_t length)
{
    buffer_append(out, "\"", 1);
    chat_json_escape(out, text, length);
    buffer_append(out, "\"", 1);
}

/* ---- numbers ---- */

static bool is_integer(const struct json *number)
{
    for (size_t i = 0; i < number->length; i++)
        if ((number->text[i] < '0' || number->text[i] > '9') && number->text[i] != '-')
            return false;
    return true;
}

/* The fewest significant digits that read back as `value` > 0, and its decimal exponent: value = d.ddd * 10^exponent.
 * Runs in the C locale. */
static int shortest_digits(double value, char digits[18], int *exponent)
{
    char text[40];
    int count = 0;
    do {
        snprintf(text, sizeof text, "%.*e", count, value);
        count++;
    } while (count < 17 && strtod(text, NULL) != value);
    digits[0] = text[0];
    if (count > 1)
        memcpy(digits + 1, text + 2, (size_t)count - 1);
    *exponent = atoi(strchr(text, 'e') + 1);
    while (count > 1 && digits[count - 1] == '0')
        count--;
    return count;
}

/* Python's repr of a positive double: an exponent iff it is below -4 or at least 16. */
static void write_decimal(struct buffer *out, const char *digits, int count, int exponent)
{
    static const char zeros[] = "0000000000000000";
    if (exponent < -4 || exponent >= 16) {
        buffer_append(out, digits, 1);
        if (count > 1) {
            buffer_append(out, ".", 1);
            buffer_append(out, digits + 1, (size_t)count - 1);
        }
        buffer_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        buffer_append(out, "0.", 2);
        buffer_append(out, zeros, (size_t)(-exponent - 1));
        buffer_append(out, digits, (size_t)count);
    } else if (count <= exponent + 1) {
        buffer_append(out, digits, (size_t)count);
        buffer_append(out, zeros, (size_t)(exponent + 1 - count));
        buffer_append(out, ".0", 2);
    } else {
        buffer_append(out, digits, (size_t)exponent + 1);
        buffer_append(out, ".", 1);
        buffer_append(out, digits + exponent + 1, (size_t)(count - exponent - 1));
    }
}

static void write_double(struct buffer *out, const char *text)
{
    char digits[18];
    int exponent;
    /* The program around the library may have chosen a locale whose decimal point is a comma. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) {
        out->failed = true;
        return;
    }
    locale_t before = uselocale(c);
    double value = strtod(text, NULL);
    if (signbit(value))
        buffer_append(out, "-", 1);
    value = fabs(value);
    if (isinf(value))
        buffer_puts(out, "Infinity");
    else if (value == 0)
        buffer_puts(out, "0.0");
    else {
        int count = shortest_digits(value, digits, &exponent);
        write_decimal(out, digits, count, exponent);
    }
    uselocale(before);
    freelocale(c);
}

static void write_number(struct buffer *out, const struct json *number)
{
    if (!is_integer(number))
        write_double(out, number->text);
    else if (strcmp(number->text, "-0") == 0)
        buffer_append(out, "0", 1);
    else
        buffer_append(out, number->text, number->length);
}

/* ---- objects ---- */

static bool same_key(const struct json *a, const struct json *b)
{
    return a->key_length == b->key_length && memcmp(a->key, b->key, a->key_length) == 0;
}

bool chat_json_members(const struct json *object, const struct json ***members, size_t *count)
{
    size_t slots = 8;
    while (slots < object->count * 2)
        slots *= 2;
    *count = 0;
    *members = qr_malloc((object->count + 1) * sizeof **members);
    size_t *table = qr_calloc(slots, sizeof *table); /* one more than a place in *members; 0: empty */
    if (!*members || !table) {
        qr_free(*members);
        qr_free(table);
        *members = NULL;
        return false;
    }
    for (const struct json *m = object->child; m; m = m->next) {
        size_t i = XXH3_64bits(m->key, m->key_length) & (slots - 1);
        while (table[i] && !same_key((*members)[table[i] - 1], m))
            i = (i + 1) & (slots - 1);
        if (!table[i])
            table[i] = ++*count;
        (*members)[table[i] - 1] = m;
    }
    qr_free(table);
    return true;
}

static void write_object(struct buffer *out, const struct json *object)
{
    const struct json **members;
    size_t count;
    if (!chat_json_members(object, &members, &count)) {
        out->failed = true;
        return;
    }
    buffer_append(out, "{", 1);
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            buffer_append(out, ", ", 2);
        chat_json_string(out, members[i]->key, members[i]->key_length);
        buffer_append(out, ": ", 2);
        chat_json_write(out, members[i]);
    }
    buffer_append(out, "}", 1);
    qr_free(members);
}

static void write_array(struct buffer *out, const struct json *array)
{
    buffer_append(out, "[", 1);
    for (const struct json *e = array->child; e; e = e->next) {
        if (e != array->child)
            buffer_append(out, ", ", 2);
        chat_json_write(out, e);
    }
    buffer_append(out, "]", 1);
}

void chat_json_write(struct buffer *out, const struct json *value)
{
    switch (value->kind) {
    case JSON_NULL:
        buffer_puts(out, "null");
        break;
    case JSON_BOOL:
        buffer_puts(out, value->boolean ? "true" : "false");
        break;
    case JSON_NUMBER:
        write_number(out, value);
        break;
    case JSON_STRING:
        chat_json_string(out, value->text, value->length);
        break;
    case JSON_ARRAY:
        write_array(out, value);
        break;
    case JSON_OBJECT:
        write_object(out, value);
        break;
    }
}
