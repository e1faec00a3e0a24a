/* schema.h: JSON Schema as far as it can be obeyed exactly. A place is described by several schemas at once (a property in
 * both parts of an allOf, what a $ref leads to); `schema_expand` turns them into alternatives, each a list of schema objects
 * that hold together and whose anyOf, oneOf, allOf and $ref are dealt with.
 *
 * Keywords: type, enum, const, properties, required, additionalProperties, items, prefixItems, minItems, maxItems,
 * minLength, maxLength, pattern, format, minimum, maximum, exclusiveMinimum, exclusiveMaximum (of integers; of other numbers
 * with whole values), anyOf, oneOf (whose parts
 * must exclude each other by type, or by a required property with other constants), allOf, $ref (within the document), $defs,
 * definitions. title, description, default, examples, deprecated, readOnly, writeOnly, $schema, $comment, contentEncoding,
 * contentMediaType, the root's $id and uniqueItems false say nothing about an instance. Any other keyword is refused by
 * name. */
#ifndef QR_TEXT_SCHEMA_H
#define QR_TEXT_SCHEMA_H

#include "base/arena.h"
#include "base/json.h"

enum schema_types {
    SCHEMA_NULL = 1,
    SCHEMA_BOOLEAN = 2,
    SCHEMA_OBJECT = 4,
    SCHEMA_ARRAY = 8,
    SCHEMA_STRING = 16,
    SCHEMA_INTEGER = 32,
    SCHEMA_FRACTION = 64, /* a number that is no integer */
    SCHEMA_ANY = 127
};

/* Schemas that hold together; none: anything does. Lists live in the document's arena. */
struct schema_list {
    const struct json *const *items;
    uint32_t count;
};

struct schema_alternative {
    struct schema_list schemas;
    struct schema_alternative *next;
};

struct schema_document {
    const struct json *root;
    const char *name;      /* quoted in sentences: "response_format" */
    struct arena arena;    /* of all lists */
    qr_error *err;         /* where the first failure is told */
    qr_status status;
    char path[96];         /* of what is refused: "#/properties/a" */
    uint32_t steps;        /* taken so far, which are bounded */
};

/* Refuses: "name: at #/properties/a: sentence". For the first failure only. */
void schema_refuse(struct schema_document *d, const struct json *at, const char *format, ...) __attribute__((format(printf, 3, 4)));
void schema_no_memory(struct schema_document *d);

/* NULL where nothing fits (false), and after a failure. */
struct schema_alternative *schema_expand(struct schema_document *d, const struct schema_list *list);

/* The types that all of them allow; a schema without type allows all. Values of enum and const are not looked at. */
unsigned schema_types(struct schema_document *d, const struct schema_list *list);
/* The type bit of a value. */
unsigned schema_type_of(const struct json *value);
/* As JSON Schema compares: numbers by value, objects whatever their order. */
bool schema_same_value(const struct json *a, const struct json *b);
/* A member by a name that may hold NULs; the last one. NULL: none. */
const struct json *schema_member(const struct json *object, const char *key, size_t length);
struct schema_list schema_list_of(struct schema_document *d, const struct json *schema);
/* Adds a schema that is not in the list yet; `list` has room for it. */
void schema_list_add(const struct json **items, uint32_t *count, const struct json *schema);

#endif
