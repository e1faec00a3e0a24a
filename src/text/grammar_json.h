/* grammar_json.h: JSON as grammar. White space is JSON's, but bounded: after { [ , : and before } ] at most one space, or
 * one line feed and at most 32 spaces; none anywhere else. Numbers have at most two digits of exponent. Strings are UTF-8,
 * escapes are JSON's (a surrogate pair too, half of one not). */
#ifndef QR_TEXT_GRAMMAR_JSON_H
#define QR_TEXT_GRAMMAR_JSON_H

#include "base/json.h"
#include "text/code_points.h"

/* Rules that are made when they are first wanted. */
struct json_grammar {
    struct grammar *g;
    uint32_t space, character, string, number, value, object, array; /* rule and one; 0: not made yet */
};

grammar_node_id json_g_space(struct json_grammar *j, grammar_node_id next);
/* A character of a string, as itself or escaped in any way. */
grammar_node_id json_g_character(struct json_grammar *j, grammar_node_id next);
grammar_node_id json_g_string(struct json_grammar *j, grammar_node_id next);
grammar_node_id json_g_number(struct json_grammar *j, grammar_node_id next);
/* A number that is written with a fraction or an exponent. */
grammar_node_id json_g_fraction(struct json_grammar *j, grammar_node_id next);
grammar_node_id json_g_object(struct json_grammar *j, grammar_node_id next);
grammar_node_id json_g_array(struct json_grammar *j, grammar_node_id next);
grammar_node_id json_g_value(struct json_grammar *j, grammar_node_id next);

/* Exactly this value; white space, as above. Strings are escaped in the short way. */
grammar_node_id json_g_literal(struct json_grammar *j, const struct json *value, grammar_node_id next);
/* Text as it stands inside of a string, by `form`. `text` is UTF-8. */
grammar_node_id json_g_text(struct grammar *g, const char *text, size_t length, enum code_form form, grammar_node_id next);

/* Any string with its quotation marks but these, which are sorted and differ. Fails (false) when too many of them part at
 * one character. PLAIN: without quotation marks, at least one character, and none of " < > and control characters. */
struct json_name {
    const char *text;
    size_t length;
};
bool json_g_other(struct json_grammar *j, const struct json_name *names, size_t count, enum code_form form,
                  grammar_node_id next, grammar_node_id *out);

#endif
