/* grammar_schema.h: JSON Schema (schema.h says which part of it) as grammar. What it lets through is valid by the schema;
 * of what is valid it lets through what is written like this: properties in the order in which they are declared, then
 * those that only `required` names, then others where additionalProperties lets them be (it does unless it says otherwise),
 * whose names hold no escapes up to where they part from declared ones; integers without fraction and exponent; strings
 * under pattern or format with escapes only where JSON needs them; white space as grammar_json.h says. */
#ifndef QR_TEXT_GRAMMAR_SCHEMA_H
#define QR_TEXT_GRAMMAR_SCHEMA_H

#include "text/grammar_json.h"
#include "text/schema.h"

struct schema_rule; /* a rule that was made for a list of schemas */

/* Zero-initialise `rules`, set the others. `document` must be set up with root, name, err and an arena. */
struct schema_compiler {
    struct schema_document document;
    struct json_grammar *json;
    struct schema_rule *rules;
    uint32_t rule_count;
    int depth;
};

void schema_compiler_begin(struct schema_compiler *c, const struct json *root, const char *name, struct json_grammar *json,
                           qr_error *err);
/* Frees its lists; returns the first failure. */
qr_status schema_compiler_end(struct schema_compiler *c);

/* A value of one of these types that fits all schemas of the list. */
grammar_node_id schema_value(struct schema_compiler *c, const struct schema_list *list, unsigned types, grammar_node_id next);
/* A string that fits them, as plain text: no quotation marks, no escapes. GRAMMAR_NOTHING where none does. */
grammar_node_id schema_plain_string(struct schema_compiler *c, const struct schema_list *list, grammar_node_id next);

/* ---- objects ---- */

struct schema_property {
    struct json_name name;
    struct schema_list schemas;
    bool required;
};

/* What one alternative says of objects. */
struct schema_object {
    struct schema_property *properties;
    uint32_t count;
    struct schema_list others; /* of names beside them */
    bool says_others;          /* additionalProperties is there */
    struct json_name *names;   /* those of the properties, sorted */
};
/* False after a failure. */
bool schema_object_read(struct schema_compiler *c, const struct schema_list *list, struct schema_object *out);
grammar_node_id schema_object_node(struct schema_compiler *c, const struct schema_list *list, grammar_node_id next);

/* A string without enum, by the keywords of the list. */
grammar_node_id schema_string_node(struct schema_compiler *c, const struct schema_list *list, enum code_form form,
                                   grammar_node_id next);

#endif
