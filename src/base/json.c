#define _GNU_SOURCE
#include "base/json.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <yajl/yajl_parse.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/json_text.h"
#include "base/yajl_memory.h"

#define MAX_DEPTH 512

/* ---- events ---- */

struct scan {
    const struct json_events *events;
    void *user;
    int depth;
    bool too_deep;
    struct yajl_memory memory;
    yajl_handle yajl;
};

static int on_null(void *p)
{
    struct scan *s = p;
    return !s->events->null || s->events->null(s->user);
}

static int on_boolean(void *p, int value)
{
    struct scan *s = p;
    return !s->events->boolean || s->events->boolean(s->user, value != 0);
}

static int on_number(void *p, const char *text, size_t length)
{
    struct scan *s = p;
    return !s->events->number || s->events->number(s->user, text, length);
}

static int on_string(void *p, const unsigned char *text, size_t length)
{
    struct scan *s = p;
    return !s->events->string || s->events->string(s->user, (const char *)text, length);
}

static int on_key(void *p, const unsigned char *text, size_t length)
{
    struct scan *s = p;
    return !s->events->key || s->events->key(s->user, (const char *)text, length);
}

static bool go_deeper(struct scan *s)
{
    s->too_deep = s->depth == MAX_DEPTH;
    s->depth++;
    return !s->too_deep;
}

static int on_start_object(void *p)
{
    struct scan *s = p;
    return go_deeper(s) && (!s->events->start_object || s->events->start_object(s->user));
}

static int on_end_object(void *p)
{
    struct scan *s = p;
    s->depth--;
    return !s->events->end_object || s->events->end_object(s->user);
}

static int on_start_array(void *p)
{
    struct scan *s = p;
    return go_deeper(s) && (!s->events->start_array || s->events->start_array(s->user));
}

static int on_end_array(void *p)
{
    struct scan *s = p;
    s->depth--;
    return !s->events->end_array || s->events->end_array(s->user);
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_start_object,
    .yajl_map_key = on_key,
    .yajl_end_map = on_end_object,
    .yajl_start_array = on_start_array,
    .yajl_end_array = on_end_array,
};

/* yajl's own words ("parse error: trailing garbage\n") without the label and the line end. */
static qr_status fail_syntax(struct scan *s, size_t offset, const char *name, qr_error *err)
{
    char *words = (char *)yajl_get_error(s->yajl, 0, NULL, 0);
    const char *from = words ? strstr(words, ": ") : NULL;
    from = from ? from + 2 : "syntax error";
    qr_status st =
        qr_fail(err, QR_BAD_FILE, "%s: not valid JSON at byte %zu: %.*s", name, offset, (int)strcspn(from, "\n"), from);
    yajl_free_error(s->yajl, (unsigned char *)words);
    return st;
}

/* The part that runs under the long jump: touches nothing of its own after one. */
static qr_status scan_text(struct scan *s, const char *data, size_t size, const char *name, qr_error *err)
{
    s->yajl = yajl_alloc(&callbacks, &s->memory.functions, s);
    yajl_config(s->yajl, yajl_dont_validate_strings, 1); /* json_text_defect did, more strictly */
    yajl_status status = yajl_parse(s->yajl, (const unsigned char *)data, size);
    size_t offset = yajl_get_bytes_consumed(s->yajl);
    offset -= offset > 0; /* the last byte it read is the one it cannot accept */
    if (status == yajl_status_ok) {
        status = yajl_complete_parse(s->yajl);
        offset = size;
    }
    /* A string that begins behind the value and never ends is no token, so yajl waits for its rest: a quotation mark
     * begins one where there is none and ends one where there is. */
    if (status == yajl_status_ok)
        status = yajl_parse(s->yajl, (const unsigned char *)"\"", 1);
    if (status == yajl_status_ok)
        return QR_OK;
    if (s->too_deep)
        return qr_fail(err, QR_BAD_FILE, "%s: JSON nested deeper than %d at byte %zu", name, MAX_DEPTH, offset);
    if (status == yajl_status_client_canceled)
        return QR_CANCELLED;
    return fail_syntax(s, offset, name, err);
}

qr_status json_scan(const char *data, size_t size, const char *name, const struct json_events *events, void *user,
                    qr_error *err)
{
    size_t offset;
    const char *defect = json_text_defect(data, size, &offset);
    if (defect)
        return qr_fail(err, QR_BAD_FILE, "%s: not valid JSON at byte %zu: %s", name, offset, defect);

    struct scan s = {.events = events, .user = user};
    qr_status st;
    yajl_memory_init(&s.memory);
    if (setjmp(s.memory.no_memory) == 0)
        st = scan_text(&s, data, size, name, err);
    else
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory to read %zu bytes of JSON", name, size);
    yajl_memory_free(&s.memory);
    return st;
}

/* ---- the tree ---- */

struct json_document {
    struct arena arena;
    struct json *root;
};

struct builder {
    struct json_document *doc;
    const char *name;
    bool unique_keys;
    int depth;
    struct json *open[MAX_DEPTH]; /* the containers around the next value, and the last child of each */
    struct json *last[MAX_DEPTH];
    const char *key;
    size_t key_length;
    qr_error *err;
    qr_status status; /* why a callback stopped the scan */
};

static bool no_memory(struct builder *b)
{
    b->status = qr_fail(b->err, QR_NO_MEMORY, "%s: no memory for the JSON tree", b->name);
    return false;
}

static struct json *add(struct builder *b, enum json_kind kind)
{
    struct json *v = arena_alloc(&b->doc->arena, sizeof *v);
    if (!v) {
        no_memory(b);
        return NULL;
    }
    v->kind = kind;
    v->key = b->key;
    v->key_length = b->key_length;
    b->key = NULL;
    b->key_length = 0;
    if (b->depth == 0) {
        b->doc->root = v;
        return v;
    }
    struct json *parent = b->open[b->depth - 1], *last = b->last[b->depth - 1];
    if (last)
        last->next = v;
    else
        parent->child = v;
    b->last[b->depth - 1] = v;
    parent->count++;
    return v;
}

static bool add_text(struct builder *b, enum json_kind kind, const char *text, size_t length)
{
    struct json *v = add(b, kind);
    if (!v)
        return false;
    v->text = arena_strndup(&b->doc->arena, text, length);
    v->length = length;
    return v->text || no_memory(b);
}

static bool open_container(struct builder *b, enum json_kind kind)
{
    struct json *v = add(b, kind);
    if (!v)
        return false;
    b->open[b->depth] = v;
    b->last[b->depth] = NULL;
    b->depth++;
    return true;
}

static bool same_key(const struct json *a, const struct json *b)
{
    return a->key_length == b->key_length && memcmp(a->key, b->key, a->key_length) == 0;
}

/* Finds the first member whose name an earlier one has, by open addressing. False without memory. */
static bool find_duplicate(const struct json *object, const struct json **found)
{
    size_t slots = 8;
    while (slots < object->count * 2)
        slots *= 2;
    const struct json **table = qr_calloc(slots, sizeof *table);
    if (!table)
        return false;
    *found = NULL;
    for (const struct json *member = object->child; member && !*found; member = member->next) {
        size_t i = XXH3_64bits(member->key, member->key_length) & (slots - 1);
        while (table[i] && !same_key(table[i], member))
            i = (i + 1) & (slots - 1);
        if (table[i])
            *found = member;
        table[i] = member;
    }
    qr_free(table);
    return true;
}

static bool tree_null(void *user) { return add(user, JSON_NULL) != NULL; }

static bool tree_boolean(void *user, bool value)
{
    struct json *v = add(user, JSON_BOOL);
    if (v)
        v->boolean = value;
    return v != NULL;
}

static bool tree_number(void *user, const char *text, size_t length)
{
    return add_text(user, JSON_NUMBER, text, length);
}

static bool tree_string(void *user, const char *text, size_t length)
{
    return add_text(user, JSON_STRING, text, length);
}

static bool tree_key(void *user, const char *text, size_t length)
{
    struct builder *b = user;
    b->key = arena_strndup(&b->doc->arena, text, length);
    b->key_length = length;
    return b->key || no_memory(b);
}

static bool tree_start_object(void *user) { return open_container(user, JSON_OBJECT); }
static bool tree_start_array(void *user) { return open_container(user, JSON_ARRAY); }

static bool tree_end_array(void *user)
{
    ((struct builder *)user)->depth--;
    return true;
}

static bool tree_end_object(void *user)
{
    struct builder *b = user;
    const struct json *object = b->open[--b->depth], *duplicate;
    if (!b->unique_keys || object->count < 2)
        return true;
    if (!find_duplicate(object, &duplicate))
        return no_memory(b);
    if (!duplicate)
        return true;
    b->status =
        qr_fail(b->err, QR_BAD_FILE, "%s: key \"%.200s\" stands twice in one JSON object", b->name, duplicate->key);
    return false;
}

qr_status json_parse(const char *data, size_t size, const char *name, bool unique_keys, struct json_document **out,
                     qr_error *err)
{
    static const struct json_events events = {
        .null = tree_null,
        .boolean = tree_boolean,
        .number = tree_number,
        .string = tree_string,
        .key = tree_key,
        .start_object = tree_start_object,
        .end_object = tree_end_object,
        .start_array = tree_start_array,
        .end_array = tree_end_array,
    };
    *out = NULL;
    struct builder *b = qr_calloc(1, sizeof *b);
    struct json_document *doc = qr_calloc(1, sizeof *doc);
    qr_status st;
    if (!b || !doc) {
        st = qr_fail(err, QR_NO_MEMORY, "%s: no memory for the JSON tree", name);
        goto cleanup;
    }
    /* Small documents are many (one a line): do not take 64 KiB for each. */
    arena_init(&doc->arena, size < 16384 ? 4096 : 0);
    *b = (struct builder){.doc = doc, .name = name, .unique_keys = unique_keys, .err = err};
    st = json_scan(data, size, name, &events, b, err);
    if (st == QR_CANCELLED)
        st = b->status;
    if (st == QR_OK) {
        *out = doc;
        doc = NULL;
    }

cleanup:
    json_close(doc);
    qr_free(b);
    return st;
}

const struct json *json_root(const struct json_document *doc) { return doc->root; }

void json_close(struct json_document *doc)
{
    if (!doc)
        return;
    arena_free(&doc->arena);
    qr_free(doc);
}

/* ---- looking at values ---- */

const struct json *json_get(const struct json *object, const char *key)
{
    const struct json *found = NULL;
    if (!object || object->kind != JSON_OBJECT)
        return NULL;
    size_t length = strlen(key);
    for (const struct json *member = object->child; member; member = member->next)
        if (member->key_length == length && memcmp(member->key, key, length) == 0)
            found = member;
    return found;
}

const struct json *json_at(const struct json *array, size_t index)
{
    if (!array || array->kind != JSON_ARRAY || index >= array->count)
        return NULL;
    const struct json *element = array->child;
    while (index--)
        element = element->next;
    return element;
}

bool json_equals(const struct json *string, const char *text)
{
    return string && string->kind == JSON_STRING && string->length == strlen(text) &&
           memcmp(string->text, text, string->length) == 0;
}

/* The magnitude of integer text; false when it is no integer or does not fit. */
static bool magnitude(const struct json *value, bool *negative, uint64_t *out)
{
    if (!value || value->kind != JSON_NUMBER)
        return false;
    const char *p = value->text;
    *negative = *p == '-';
    p += *negative;
    uint64_t n = 0;
    for (; *p; p++)
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
            return false;
    *out = n;
    return true;
}

bool json_int64(const struct json *value, int64_t *out)
{
    bool negative;
    uint64_t n;
    if (!magnitude(value, &negative, &n) || n > (uint64_t)INT64_MAX + negative)
        return false;
    *out = negative ? (int64_t)-n : (int64_t)n;
    return true;
}

bool json_uint64(const struct json *value, uint64_t *out)
{
    bool negative;
    uint64_t n;
    if (!magnitude(value, &negative, &n) || (negative && n != 0))
        return false;
    *out = n;
    return true;
}

bool json_double(const struct json *value, double *out)
{
    if (!value || value->kind != JSON_NUMBER)
        return false;
    /* The program around the library may have chosen a locale whose decimal point is a comma. */
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c)
        return false;
    double d = strtod_l(value->text, NULL, c);
    freelocale(c);
    if (!isfinite(d))
        return false;
    *out = d;
    return true;
}

bool json_bool(const struct json *value, bool *out)
{
    if (!value || value->kind != JSON_BOOL)
        return false;
    *out = value->boolean;
    return true;
}
