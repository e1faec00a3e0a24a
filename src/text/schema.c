#include "text/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/buffer.h"

enum { MOST_STEPS = 1000000, MOST_ALTERNATIVES = 256, MOST_HOPS = 64 };

/* ---- failures ---- */

/* Writes the JSON pointer of `at` below `node` to `out`; false: it is not there. */
static bool write_path(const struct json *node, const struct json *at, struct buffer *out, int depth)
{
    if (node == at)
        return true;
    const size_t length = out->length;
    size_t index = 0;
    for (const struct json *m = node->child; m && depth < 512; m = m->next, index++) {
        if (m->key)
            buffer_printf(out, "/%.40s", m->key);
        else
            buffer_printf(out, "/%zu", index);
        if (write_path(m, at, out, depth + 1))
            return true;
        out->length = length;
    }
    return false;
}

void schema_refuse(struct schema_document *d, const struct json *at, const char *format, ...)
{
    char sentence[400];
    va_list ap;
    struct buffer path = {0};
    if (d->status != QR_OK)
        return;
    va_start(ap, format);
    vsnprintf(sentence, sizeof sentence, format, ap);
    va_end(ap);
    buffer_puts(&path, "#");
    write_path(d->root, at, &path, 0);
    snprintf(d->path, sizeof d->path, "%s", path.data ? path.data : "#");
    d->status = qr_fail(d->err, QR_BAD_REQUEST, "%s: at %s: %s", d->name, d->path, sentence);
    buffer_free(&path);
}

void schema_no_memory(struct schema_document *d)
{
    if (d->status == QR_OK)
        d->status = qr_fail(d->err, QR_NO_MEMORY, "no memory for the schema of %s", d->name);
}

/* ---- values ---- */

const struct json *schema_member(const struct json *object, const char *key, size_t length)
{
    const struct json *found = NULL;
    if (!object || object->kind != JSON_OBJECT)
        return NULL;
    for (const struct json *m = object->child; m; m = m->next)
        if (m->key_length == length && memcmp(m->key, key, length) == 0)
            found = m;
    return found;
}

static bool is_whole(const struct json *number)
{
    int64_t whole;
    double value;
    if (json_int64(number, &whole))
        return true;
    if (!strpbrk(number->text, ".eE"))
        return true; /* whole, and larger than that */
    return json_double(number, &value) && value > -9e15 && value < 9e15 && value == (double)(int64_t)value;
}

unsigned schema_type_of(const struct json *value)
{
    switch (value->kind) {
    case JSON_NULL: return SCHEMA_NULL;
    case JSON_BOOL: return SCHEMA_BOOLEAN;
    case JSON_NUMBER: return is_whole(value) ? SCHEMA_INTEGER : SCHEMA_FRACTION;
    case JSON_STRING: return SCHEMA_STRING;
    case JSON_ARRAY: return SCHEMA_ARRAY;
    case JSON_OBJECT: break;
    }
    return SCHEMA_OBJECT;
}

static bool same_number(const struct json *a, const struct json *b)
{
    int64_t x, y;
    double u, v;
    if (json_int64(a, &x) && json_int64(b, &y))
        return x == y;
    if (a->length == b->length && memcmp(a->text, b->text, a->length) == 0)
        return true;
    return json_double(a, &u) && json_double(b, &v) && u == v;
}

static bool same_objects(const struct json *a, const struct json *b)
{
    if (a->count != b->count)
        return false;
    for (const struct json *m = a->child; m; m = m->next) {
        const struct json *other = schema_member(b, m->key, m->key_length);
        if (!other || !schema_same_value(m, other))
            return false;
    }
    return true;
}

bool schema_same_value(const struct json *a, const struct json *b)
{
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case JSON_NULL: return true;
    case JSON_BOOL: return a->boolean == b->boolean;
    case JSON_NUMBER: return same_number(a, b);
    case JSON_STRING: return a->length == b->length && memcmp(a->text, b->text, a->length) == 0;
    case JSON_OBJECT: return same_objects(a, b);
    case JSON_ARRAY: break;
    }
    const struct json *x = a->child, *y = b->child;
    for (; x && y && schema_same_value(x, y); x = x->next, y = y->next)
        ;
    return !x && !y;
}

/* ---- lists ---- */

void schema_list_add(const struct json **items, uint32_t *count, const struct json *schema)
{
    for (uint32_t i = 0; i < *count; i++)
        if (items[i] == schema)
            return;
    items[(*count)++] = schema;
}

struct schema_list schema_list_of(struct schema_document *d, const struct json *schema)
{
    const struct json **items = arena_alloc(&d->arena, sizeof *items);
    if (!items) {
        schema_no_memory(d);
        return (struct schema_list){NULL, 0};
    }
    items[0] = schema;
    return (struct schema_list){items, 1};
}

/* ---- types ---- */

static unsigned type_named(const struct json *name)
{
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {{"null", SCHEMA_NULL},     {"boolean", SCHEMA_BOOLEAN}, {"object", SCHEMA_OBJECT},
                 {"array", SCHEMA_ARRAY},   {"string", SCHEMA_STRING},   {"integer", SCHEMA_INTEGER},
                 {"number", SCHEMA_INTEGER | SCHEMA_FRACTION}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (json_equals(name, types[i].name))
            return types[i].bits;
    return 0;
}

static unsigned types_of(struct schema_document *d, const struct json *schema)
{
    const struct json *type = json_get(schema, "type");
    unsigned bits = 0;
    if (!type)
        return SCHEMA_ANY;
    for (const struct json *t = type->kind == JSON_ARRAY ? type->child : type; t; t = type->kind == JSON_ARRAY ? t->next : NULL) {
        if (!type_named(t))
            schema_refuse(d, type, "type is none of null, boolean, object, array, string, number and integer, nor a list of them");
        bits |= type_named(t);
    }
    if (!bits)
        schema_refuse(d, type, "type is an empty list");
    return bits;
}

unsigned schema_types(struct schema_document *d, const struct schema_list *list)
{
    unsigned bits = SCHEMA_ANY;
    for (uint32_t i = 0; i < list->count; i++)
        bits &= types_of(d, list->items[i]);
    return bits;
}

/* ---- keywords ---- */

enum wanted { ANYTHING, AN_OBJECT, A_STRING, A_NUMBER, A_COUNT, A_SCHEMA, SCHEMAS, NAMES, VALUES, NOT_TRUE, AT_ROOT };

static const struct keyword {
    const char *name;
    enum wanted wanted;
} keywords[] = {
    {"type", ANYTHING},          {"enum", VALUES},          {"const", ANYTHING},        {"properties", AN_OBJECT},
    {"required", NAMES},         {"items", A_SCHEMA},       {"prefixItems", SCHEMAS},   {"additionalProperties", A_SCHEMA},
    {"minItems", A_COUNT},       {"maxItems", A_COUNT},     {"minLength", A_COUNT},     {"maxLength", A_COUNT},
    {"pattern", A_STRING},       {"format", A_STRING},      {"minimum", A_NUMBER},      {"maximum", A_NUMBER},
    {"exclusiveMinimum", A_NUMBER}, {"exclusiveMaximum", A_NUMBER}, {"anyOf", SCHEMAS}, {"oneOf", SCHEMAS},
    {"allOf", SCHEMAS},          {"$ref", A_STRING},        {"$defs", AN_OBJECT},       {"definitions", AN_OBJECT},
    {"title", ANYTHING},         {"description", ANYTHING}, {"default", ANYTHING},      {"examples", ANYTHING},
    {"deprecated", ANYTHING},    {"readOnly", ANYTHING},    {"writeOnly", ANYTHING},    {"$schema", ANYTHING},
    {"$comment", ANYTHING},      {"contentEncoding", ANYTHING}, {"contentMediaType", ANYTHING}, {"$id", AT_ROOT},
    {"uniqueItems", NOT_TRUE}};

static bool is_schema(const struct json *v) { return v->kind == JSON_OBJECT || v->kind == JSON_BOOL; }

static bool all_are(const struct json *list, bool (*is)(const struct json *v))
{
    for (const struct json *v = list->child; v; v = v->next)
        if (!is(v))
            return false;
    return true;
}

static bool is_string(const struct json *v) { return v->kind == JSON_STRING; }

static bool is_count(const struct json *v)
{
    double n;
    return v->kind == JSON_NUMBER && json_double(v, &n) && n >= 0 && n < 1e9 && n == (double)(int64_t)n;
}

/* What a keyword's value has to be; NULL: it is. */
static const char *wrong_value(const struct schema_document *d, const struct json *schema, const struct json *v, enum wanted wanted)
{
    const bool list = v->kind == JSON_ARRAY;
    switch (wanted) {
    case ANYTHING: return NULL;
    case AN_OBJECT: return v->kind == JSON_OBJECT && all_are(v, is_schema) ? NULL : "an object of schemas";
    case A_STRING: return v->kind == JSON_STRING ? NULL : "a string";
    case A_NUMBER: return v->kind == JSON_NUMBER ? NULL : "a number";
    case A_COUNT: return is_count(v) ? NULL : "a whole number from 0 to 999999999";
    case A_SCHEMA: return is_schema(v) ? NULL : "a schema (a list in its place is not supported)";
    case SCHEMAS: return list && v->child && all_are(v, is_schema) ? NULL : "a list of schemas";
    case NAMES: return list && all_are(v, is_string) ? NULL : "a list of names";
    case VALUES: return list && v->child ? NULL : "a list with at least one value";
    case NOT_TRUE: return v->kind == JSON_BOOL && !v->boolean ? NULL : "false: true is not supported";
    case AT_ROOT: break;
    }
    return schema == d->root && v->kind == JSON_STRING ? NULL : "nothing: a $id below the root is not supported";
}

/* Work is bounded, whatever a schema says how often. False: it has been too much. */
static bool take_steps(struct schema_document *d, const struct json *at, size_t steps)
{
    d->steps = steps < MOST_STEPS && d->steps < MOST_STEPS ? d->steps + (uint32_t)steps : MOST_STEPS + 1;
    if (d->steps > MOST_STEPS)
        schema_refuse(d, at, "the schema takes too much work");
    return d->steps <= MOST_STEPS;
}

static void check_keywords(struct schema_document *d, const struct json *schema)
{
    const size_t count = sizeof keywords / sizeof *keywords;
    for (const struct json *m = schema->child; m && d->status == QR_OK; m = m->next) {
        size_t i = 0;
        take_steps(d, schema, 1 + m->count);
        while (i < count && (strlen(keywords[i].name) != m->key_length || memcmp(keywords[i].name, m->key, m->key_length) != 0))
            i++;
        const char *wanted = i < count ? wrong_value(d, schema, m, keywords[i].wanted) : NULL;
        if (i == count)
            schema_refuse(d, schema, "the keyword \"%.80s\" is not supported", m->key);
        else if (wanted)
            schema_refuse(d, schema, "the value of \"%s\" is not what is supported, %s", m->key, wanted);
    }
}

/* ---- references ---- */

static int hex_value(char c)
{
    const char low = (char)(c | 0x20);
    return c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

/* One piece of a JSON pointer in a URI, decoded: %xx, ~0 and ~1. Returns its length. */
static size_t decode_piece(const char *s, size_t n, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '%' && i + 2 < n && hex_value(s[i + 1]) >= 0 && hex_value(s[i + 2]) >= 0) {
            c = (char)(hex_value(s[i + 1]) << 4 | hex_value(s[i + 2]));
            i += 2;
        }
        if (length > 0 && out[length - 1] == '~' && (c == '0' || c == '1'))
            out[length - 1] = c == '0' ? '\x01' : '/'; /* a ~ that is done is put back below */
        else
            out[length++] = c;
    }
    for (size_t i = 0; i < length; i++)
        if (out[i] == '\x01')
            out[i] = '~';
    return length;
}

static const struct json *find_reference(struct schema_document *d, const struct json *ref)
{
    const char *s = ref->text, *end = ref->text + ref->length;
    const struct json *at = d->root;
    char *piece = arena_alloc(&d->arena, ref->length + 1);
    if (!piece) {
        schema_no_memory(d);
        return NULL;
    }
    if (s == end || *s != '#' || (s + 1 < end && s[1] != '/')) {
        schema_refuse(d, ref, "$ref \"%.80s\" leads out of the document or to a name, wanted \"#/...\"", ref->text);
        return NULL;
    }
    for (s++; at && s < end;) {
        const char *next = memchr(s + 1, '/', (size_t)(end - s - 1));
        if (!next)
            next = end;
        const size_t length = decode_piece(s + 1, (size_t)(next - s - 1), piece);
        piece[length] = '\0';
        if (at->kind == JSON_ARRAY) {
            size_t index = 0;
            bool digits = length > 0 && length < 9;
            for (size_t i = 0; i < length && digits; i++) {
                digits = piece[i] >= '0' && piece[i] <= '9';
                index = index * 10 + (size_t)(piece[i] - '0');
            }
            at = digits ? json_at(at, index) : NULL;
        } else {
            at = schema_member(at, piece, length);
        }
        s = next;
    }
    if (!at || !is_schema(at))
        schema_refuse(d, ref, "$ref \"%.80s\" leads to no schema", ref->text);
    return at && is_schema(at) ? at : NULL;
}

/* ---- oneOf ---- */

static bool exclude(struct schema_document *d, const struct json *a, const struct json *b, int depth);

/* Its enum, or its const as a list of one in *one. */
static const struct json *values_of(const struct json *schema, struct json *one)
{
    const struct json *list = json_get(schema, "enum"), *value = json_get(schema, "const");
    if (!value)
        return list;
    *one = (struct json){.kind = JSON_ARRAY, .child = (struct json *)value, .count = 1};
    return one;
}

/* `next` of a const is another keyword: lists are walked by their count. */
static bool share_value(const struct json *a, const struct json *b)
{
    const struct json *x = a->child;
    for (size_t i = 0; i < a->count; i++, x = x->next) {
        const struct json *y = b->child;
        for (size_t k = 0; k < b->count; k++, y = y->next)
            if (schema_same_value(x, y))
                return true;
    }
    return false;
}

static bool requires(const struct json *schema, const struct json *name)
{
    const struct json *required = json_get(schema, "required");
    for (const struct json *r = required ? required->child : NULL; r; r = r->next)
        if (r->kind == JSON_STRING && r->length == name->key_length && memcmp(r->text, name->key, r->length) == 0)
            return true;
    return false;
}

static const struct json *followed(struct schema_document *d, const struct json *schema)
{
    for (int i = 0; i < 8 && schema && schema->kind == JSON_OBJECT; i++) {
        const struct json *ref = json_get(schema, "$ref");
        if (!ref || ref->kind != JSON_STRING || schema->count > 1)
            return schema;
        schema = find_reference(d, ref);
    }
    return schema;
}

/* A property that both require and that can never be the same in both. */
static bool exclude_by_property(struct schema_document *d, const struct json *a, const struct json *b, int depth)
{
    const struct json *mine = json_get(a, "properties"), *theirs = json_get(b, "properties");
    for (const struct json *m = mine && mine->kind == JSON_OBJECT ? mine->child : NULL; m; m = m->next) {
        const struct json *other = schema_member(theirs, m->key, m->key_length);
        if (!take_steps(d, a, theirs ? theirs->count : 0))
            return false;
        if (other && requires(a, m) && requires(b, m) && exclude(d, m, other, depth + 1))
            return true;
    }
    return false;
}

/* Whether no value fits both, as far as their own keywords say. */
static bool exclude(struct schema_document *d, const struct json *a, const struct json *b, int depth)
{
    struct json one, other;
    a = followed(d, a);
    b = followed(d, b);
    if (!a || !b || depth > 8 || !take_steps(d, a, 1))
        return false;
    if (a->kind == JSON_BOOL || b->kind == JSON_BOOL)
        return (a->kind == JSON_BOOL && !a->boolean) || (b->kind == JSON_BOOL && !b->boolean);
    const unsigned common = types_of(d, a) & types_of(d, b);
    if (common == 0)
        return true;
    const struct json *mine = values_of(a, &one), *theirs = values_of(b, &other);
    if (mine && theirs && mine->kind == JSON_ARRAY && theirs->kind == JSON_ARRAY)
        return take_steps(d, a, mine->count * theirs->count) && !share_value(mine, theirs);
    return common == SCHEMA_OBJECT && exclude_by_property(d, a, b, depth);
}

static void check_one_of(struct schema_document *d, const struct json *list)
{
    for (const struct json *a = list->child; a && d->status == QR_OK; a = a->next)
        for (const struct json *b = a->next; b && d->status == QR_OK; b = b->next)
            if (!exclude(d, a, b, 0))
                schema_refuse(d, list, "oneOf is supported only where its parts exclude each other, by their types or by a "
                                       "required property with different constants; anyOf says what is meant otherwise");
}

/* ---- alternatives ---- */

/* What is still to be looked at: a schema, or one of a list of them. */
struct pending {
    const struct json *schema, *choice;
    int hops; /* references and combinations since the place itself */
    const struct pending *next;
};

struct taken {
    const struct json *schema;
    const struct taken *next;
    uint32_t count;
};

struct expansion {
    struct schema_document *d;
    struct schema_alternative *first, **last;
    uint32_t count;
};

static const struct pending *put(struct expansion *e, const struct json *schema, const struct json *choice, int hops,
                                 const struct pending *rest)
{
    struct pending *p = arena_alloc(&e->d->arena, sizeof *p);
    if (!p)
        schema_no_memory(e->d);
    else
        *p = (struct pending){schema, choice, hops, rest};
    return p;
}

static void emit(struct expansion *e, const struct taken *taken)
{
    struct schema_document *d = e->d;
    const uint32_t count = taken ? taken->count : 0;
    struct schema_alternative *a = arena_alloc(&d->arena, sizeof *a);
    const struct json **items = arena_alloc(&d->arena, (count + 1) * sizeof *items);
    if (!a || !items) {
        schema_no_memory(d);
        return;
    }
    if (++e->count > MOST_ALTERNATIVES) {
        schema_refuse(d, d->root, "anyOf and oneOf combine to more than %d alternatives", MOST_ALTERNATIVES);
        return;
    }
    for (const struct taken *t = taken; t; t = t->next)
        items[t->count - 1] = t->schema;
    a->schemas = (struct schema_list){items, count};
    *e->last = a;
    e->last = &a->next;
}

static void expand(struct expansion *e, const struct pending *todo, const struct taken *taken, int depth);

static const struct pending *put_combined(struct expansion *e, const struct json *schema, int hops, const struct pending *rest)
{
    struct schema_document *d = e->d;
    const struct json *ref = json_get(schema, "$ref"), *all = json_get(schema, "allOf");
    const struct json *any = json_get(schema, "anyOf"), *one = json_get(schema, "oneOf");
    if ((ref || all || any || one) && hops >= MOST_HOPS) {
        schema_refuse(d, schema, "the schema is made of itself with nothing in between");
        return NULL;
    }
    if (one) {
        check_one_of(d, one);
        rest = put(e, NULL, one, hops + 1, rest);
    }
    if (any)
        rest = put(e, NULL, any, hops + 1, rest);
    if (all && all->count > MOST_ALTERNATIVES)
        schema_refuse(d, all, "allOf has more than %d parts", MOST_ALTERNATIVES);
    for (size_t i = all ? all->count : 0; i-- > 0 && d->status == QR_OK;)
        rest = put(e, json_at(all, i), NULL, hops + 1, rest);
    if (ref) {
        const struct json *target = find_reference(d, ref);
        rest = target ? put(e, target, NULL, hops + 1, rest) : rest;
    }
    return rest;
}

static void expand_schema(struct expansion *e, const struct pending *p, const struct taken *taken, int depth)
{
    struct schema_document *d = e->d;
    if (p->schema->kind == JSON_BOOL) {
        if (p->schema->boolean)
            expand(e, p->next, taken, depth + 1);
        return;
    }
    if (p->schema->kind != JSON_OBJECT) {
        schema_refuse(d, p->schema, "a schema is an object, true or false");
        return;
    }
    check_keywords(d, p->schema);
    struct taken *more = d->status == QR_OK ? arena_alloc(&d->arena, sizeof *more) : NULL;
    if (!more) {
        schema_no_memory(d);
        return;
    }
    *more = (struct taken){p->schema, taken, (taken ? taken->count : 0) + 1};
    const struct pending *todo = put_combined(e, p->schema, p->hops, p->next);
    if (d->status == QR_OK)
        expand(e, todo, more, depth + 1);
}

static void expand(struct expansion *e, const struct pending *todo, const struct taken *taken, int depth)
{
    struct schema_document *d = e->d;
    if (d->status != QR_OK)
        return;
    if (!take_steps(d, d->root, 1))
        return;
    if (depth > 1000) {
        schema_refuse(d, d->root, "the schema combines too many schemas");
        return;
    }
    if (!todo) {
        emit(e, taken);
        return;
    }
    if (todo->schema) {
        expand_schema(e, todo, taken, depth);
        return;
    }
    for (const struct json *s = todo->choice->child; s && d->status == QR_OK; s = s->next) {
        const struct pending *one = put(e, s, NULL, todo->hops, todo->next);
        if (one)
            expand(e, one, taken, depth + 1);
    }
}

struct schema_alternative *schema_expand(struct schema_document *d, const struct schema_list *list)
{
    struct expansion e = {.d = d, .first = NULL};
    const struct pending *todo = NULL;
    e.last = &e.first;
    for (uint32_t i = list->count; i-- > 0 && d->status == QR_OK;)
        todo = put(&e, list->items[i], NULL, 0, todo);
    expand(&e, todo, NULL, 0);
    return d->status == QR_OK ? e.first : NULL;
}
