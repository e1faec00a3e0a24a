#include "checkpoint/config_reader.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void config_reader_open(struct config_reader *r, const char *name, const struct json *root)
{
    *r = (struct config_reader){.name = name, .prefix = "", .root = root};
}

void config_reader_scope(struct config_reader *r, const struct json *object)
{
    if (object && r->scopes < CONFIG_SCOPES)
        r->scope[r->scopes++] = object;
}

static void add_problem(struct config_reader *r, const char *id, const char *format, va_list ap)
{
    char line[300];
    vsnprintf(line, sizeof line, format, ap);
    r->problems++;
    if (id)
        r->admission = true;

    char part[320];
    int n = snprintf(part, sizeof part, "%s%s%s%s", r->used ? "; " : "", id ? id : "", id ? " " : "", line);
    if (n > 0 && r->used + (size_t)n < sizeof r->text) {
        memcpy(r->text + r->used, part, (size_t)n + 1);
        r->used += (size_t)n;
        r->shown++;
    }
}

void config_problem(struct config_reader *r, const char *id, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    add_problem(r, id, format, ap);
    va_end(ap);
}

void config_rule(struct config_reader *r, const char *id, const char *format, ...)
{
    va_list ap;
    if (r->unread)
        return;
    va_start(ap, format);
    add_problem(r, id, format, ap);
    va_end(ap);
}

bool config_missing(struct config_reader *r, const struct json *value, const char *id, const char *label)
{
    if (value)
        return false;
    config_problem(r, id, "field %s%s is missing", r->prefix, label);
    r->unread = true;
    return true;
}

qr_status config_verdict(const struct config_reader *r, qr_error *err)
{
    if (!r->problems)
        return QR_OK;
    char more[32] = "";
    if (r->shown < r->problems)
        snprintf(more, sizeof more, "; and %d more", r->problems - r->shown);
    return qr_fail(err, r->admission ? QR_REFUSED : QR_BAD_CONFIG, "%s: %s%s", r->name, r->text, more);
}

static bool same_list(const struct json *a, const struct json *b)
{
    const struct json *x = a->child, *y = b->child;
    for (; x && y; x = x->next, y = y->next) {
        if (a->kind == JSON_OBJECT && (x->key_length != y->key_length || memcmp(x->key, y->key, x->key_length) != 0))
            return false;
        if (!config_same(x, y))
            return false;
    }
    return !x && !y;
}

bool config_same(const struct json *a, const struct json *b)
{
    double x, y;
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case JSON_NULL: return true;
    case JSON_BOOL: return a->boolean == b->boolean;
    case JSON_NUMBER: return json_double(a, &x) && json_double(b, &y) && x == y;
    case JSON_STRING: return a->length == b->length && !memcmp(a->text, b->text, a->length);
    default: return same_list(a, b);
    }
}

const char *config_shown(const struct json *value, char room[64])
{
    if (!value)
        return "missing";
    switch (value->kind) {
    case JSON_NULL: return "null";
    case JSON_BOOL: return value->boolean ? "true" : "false";
    case JSON_ARRAY: snprintf(room, 64, "a list of %zu", value->count); return room;
    case JSON_OBJECT: return "an object";
    default: break;
    }
    const char *quote = value->kind == JSON_STRING ? "\"" : "";
    int length = value->length > 40 ? 40 : (int)value->length;
    snprintf(room, 64, "%s%.*s%s%s", quote, length, value->text, value->length > 40 ? "..." : "", quote);
    return room;
}

const struct json *config_find(struct config_reader *r, const char *key, const char *other)
{
    const char *names[2] = {key, other};
    const struct json *found = NULL;
    const char *found_as = NULL;
    char a[64], b[64];
    for (int s = 0; s < r->scopes; s++)
        for (int i = 0; i < 2; i++) {
            const struct json *v = names[i] ? json_get(r->scope[s], names[i]) : NULL;
            if (!v || v->kind == JSON_NULL)
                continue;
            if (!found) {
                found = v;
                found_as = names[i];
            } else if (!config_same(found, v)) {
                config_problem(r, NULL, "%s is %s, but %s is %s", found_as, config_shown(found, a), names[i],
                               config_shown(v, b));
            }
        }
    return found;
}

static bool int_in(struct config_reader *r, const struct json *v, const char *key, int64_t low, int64_t high,
                   int64_t *out)
{
    char room[64];
    if (config_missing(r, v, NULL, key))
        return false;
    if (json_int64(v, out) && *out >= low && *out <= high)
        return true;
    r->unread = true;
    config_problem(r, NULL, "%s%s is %s, wanted an integer from %lld to %lld", r->prefix, key, config_shown(v, room),
                   (long long)low, (long long)high);
    return false;
}

bool config_int64(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int64_t *out)
{
    int64_t value;
    const struct json *v = config_find(r, key, other);
    if (!int_in(r, v, key, low, high, &value))
        return false;
    *out = value;
    return true;
}

bool config_int(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int32_t *out)
{
    int64_t value;
    if (!config_int64(r, key, other, low, high, &value))
        return false;
    *out = (int32_t)value;
    return true;
}

void config_int_or(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int32_t *out)
{
    int64_t value;
    const struct json *v = config_find(r, key, other);
    if (v && int_in(r, v, key, low, high, &value))
        *out = (int32_t)value;
}

bool config_double(struct config_reader *r, const char *key, const char *other, double low, double high, double *out)
{
    char room[64];
    double value;
    const struct json *v = config_find(r, key, other);
    if (config_missing(r, v, NULL, key))
        return false;
    if (json_double(v, &value) && value >= low && value <= high) {
        *out = value;
        return true;
    }
    config_problem(r, NULL, "%s%s is %s, wanted a number from %g to %g", r->prefix, key, config_shown(v, room), low,
                   high);
    return false;
}

bool config_float(struct config_reader *r, const char *key, const char *other, double low, double high, float *out)
{
    double value;
    if (!config_double(r, key, other, low, high, &value))
        return false;
    *out = (float)value;
    return true;
}

void config_bool_or(struct config_reader *r, const char *key, const char *other, bool *out)
{
    char room[64];
    const struct json *v = config_find(r, key, other);
    if (v && !json_bool(v, out))
        config_problem(r, NULL, "%s is %s, wanted true or false", key, config_shown(v, room));
}

bool config_int64s(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int32_t room,
                   int64_t *out, int32_t *count)
{
    char shown[64];
    const struct json *v = config_find(r, key, other);
    if (config_missing(r, v, NULL, key))
        return false;
    if (v->kind != JSON_ARRAY) {
        r->unread = true;
        config_problem(r, NULL, "%s is %s, wanted a list of integers", key, config_shown(v, shown));
        return false;
    }
    if (v->count > (size_t)room) {
        config_problem(r, NULL, "%s has %zu entries, wanted at most %d", key, v->count, (int)room);
        return false;
    }
    int32_t n = 0;
    for (const struct json *item = v->child; item; item = item->next, n++) {
        char label[80];
        snprintf(label, sizeof label, "%s[%d]", key, (int)n);
        if (!int_in(r, item, label, low, high, &out[n]))
            return false;
    }
    *count = n;
    return true;
}

bool config_ints(struct config_reader *r, const char *key, const char *other, int64_t low, int64_t high, int32_t room,
                 int32_t *out, int32_t *count)
{
    int64_t wide[QR_MAX_LAYERS];
    int32_t n;
    if (!config_int64s(r, key, other, low, high, room < QR_MAX_LAYERS ? room : QR_MAX_LAYERS, wide, &n))
        return false;
    for (int32_t i = 0; i < n; i++)
        out[i] = (int32_t)wide[i];
    *count = n;
    return true;
}

void config_must_be_text(struct config_reader *r, const struct json *value, const char *id, const char *label,
                         const char *wanted, bool required)
{
    char room[64];
    if (value ? json_equals(value, wanted) : !required || config_missing(r, value, id, label))
        return;
    config_problem(r, id, "%s%s is %s, wanted \"%s\"", r->prefix, label, config_shown(value, room), wanted);
}

void config_must_be_int(struct config_reader *r, const struct json *value, const char *id, const char *label,
                        int64_t wanted, bool required)
{
    char room[64];
    int64_t found;
    if (value ? json_int64(value, &found) && found == wanted : !required || config_missing(r, value, id, label))
        return;
    config_problem(r, id, "%s is %s, wanted %lld", label, config_shown(value, room), (long long)wanted);
}

void config_must_be_bool(struct config_reader *r, const struct json *value, const char *label, bool wanted)
{
    char room[64];
    bool found;
    if (!value || (json_bool(value, &found) && found == wanted))
        return;
    config_problem(r, NULL, "%s is %s, wanted %s", label, config_shown(value, room), wanted ? "true" : "false");
}
