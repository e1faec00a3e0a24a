#include "text/grammar_json.h"

#include <string.h>

enum { MOST_INDENT = 32 };

/* ---- space ---- */

grammar_node_id json_g_space(struct json_grammar *j, grammar_node_id next)
{
    struct grammar *g = j->g;
    if (!j->space) {
        const uint32_t rule = grammar_rule(g);
        grammar_node_id indent = GRAMMAR_RETURN;
        for (int i = 0; i < MOST_INDENT; i++)
            indent = grammar_either(g, grammar_byte(g, ' ', indent), GRAMMAR_RETURN);
        grammar_node_id ways = grammar_either(g, grammar_byte(g, ' ', GRAMMAR_RETURN), GRAMMAR_RETURN);
        grammar_set_rule(g, rule, grammar_either(g, grammar_byte(g, '\n', indent), ways));
        j->space = rule + 1;
    }
    return grammar_call(g, j->space - 1, next);
}

/* ---- strings ---- */

static grammar_node_id hex(struct grammar *g, const char *which, grammar_node_id next)
{
    struct byte_set set = {{0}};
    for (const char *c = which; *c; c++)
        byte_set_add(&set, (uint8_t)*c, (uint8_t)*c);
    return grammar_set(g, &set, next);
}

#define ANY_HEX "0123456789abcdefABCDEF"

/* What stands behind \u: a character that is no surrogate, or a pair of them. */
static grammar_node_id unicode_escape(struct grammar *g, grammar_node_id next)
{
    const grammar_node_id one = hex(g, ANY_HEX, next), two = hex(g, ANY_HEX, one), three = hex(g, ANY_HEX, two);
    const grammar_node_id low = grammar_puts(g, "\\u", hex(g, "dD", hex(g, "cdefCDEF", two)));
    const grammar_node_id high = hex(g, "89abAB", hex(g, ANY_HEX, hex(g, ANY_HEX, low)));
    const grammar_node_id d = hex(g, "dD", grammar_either(g, hex(g, "01234567", two), high));
    return grammar_either(g, hex(g, "0123456789abcefABCEF", three), d);
}

/* A character, by itself or escaped. */
static grammar_node_id any_character(struct grammar *g, grammar_node_id next)
{
    struct code_points plain = {.count = 0};
    code_points_add(&plain, 0, 0x1f);
    code_points_add(&plain, '"', '"');
    code_points_add(&plain, '\\', '\\');
    code_points_turn(&plain);
    const grammar_node_id escaped = grammar_either(g, hex(g, "\"\\/bfnrt", next), grammar_byte(g, 'u', unicode_escape(g, next)));
    return grammar_either(g, code_points_node(g, &plain, CODE_PLAIN, next), grammar_byte(g, '\\', escaped));
}

grammar_node_id json_g_character(struct json_grammar *j, grammar_node_id next)
{
    if (!j->character) {
        const uint32_t rule = grammar_rule(j->g);
        grammar_set_rule(j->g, rule, any_character(j->g, GRAMMAR_RETURN));
        j->character = rule + 1;
    }
    return grammar_call(j->g, j->character - 1, next);
}

/* Characters up to the quotation mark. */
static grammar_node_id string_rest(struct grammar *g, grammar_node_id next)
{
    const grammar_node_id loop = grammar_loop(g);
    grammar_set_loop(g, loop, any_character(g, loop), grammar_byte(g, '"', next));
    return loop;
}

grammar_node_id json_g_string(struct json_grammar *j, grammar_node_id next)
{
    if (!j->string) {
        const uint32_t rule = grammar_rule(j->g);
        grammar_set_rule(j->g, rule, grammar_byte(j->g, '"', string_rest(j->g, GRAMMAR_RETURN)));
        j->string = rule + 1;
    }
    return grammar_call(j->g, j->string - 1, next);
}

/* ---- numbers ---- */

static grammar_node_id some_digits(struct grammar *g, grammar_node_id next)
{
    const grammar_node_id loop = grammar_loop(g);
    grammar_set_loop(g, loop, hex(g, "0123456789", loop), next);
    return hex(g, "0123456789", loop);
}

static grammar_node_id exponent(struct grammar *g, grammar_node_id next)
{
    const grammar_node_id last = hex(g, "0123456789", next);
    const grammar_node_id digits = grammar_either(g, hex(g, "0123456789", last), last);
    return hex(g, "eE", grammar_either(g, hex(g, "+-", digits), digits));
}

static grammar_node_id whole_part(struct grammar *g, grammar_node_id next)
{
    const grammar_node_id loop = grammar_loop(g);
    grammar_set_loop(g, loop, hex(g, "0123456789", loop), next);
    const grammar_node_id digits = grammar_either(g, hex(g, "123456789", loop), grammar_byte(g, '0', next));
    return grammar_either(g, grammar_byte(g, '-', digits), digits);
}

grammar_node_id json_g_fraction(struct json_grammar *j, grammar_node_id next)
{
    struct grammar *g = j->g;
    const grammar_node_id power = exponent(g, next);
    const grammar_node_id point = grammar_byte(g, '.', some_digits(g, grammar_either(g, power, next)));
    return whole_part(g, grammar_either(g, point, power));
}

grammar_node_id json_g_number(struct json_grammar *j, grammar_node_id next)
{
    struct grammar *g = j->g;
    if (!j->number) {
        const uint32_t rule = grammar_rule(g);
        const grammar_node_id power = grammar_either(g, exponent(g, GRAMMAR_RETURN), GRAMMAR_RETURN);
        const grammar_node_id point = grammar_byte(g, '.', some_digits(g, power));
        grammar_set_rule(g, rule, whole_part(g, grammar_either(g, point, power)));
        j->number = rule + 1;
    }
    return grammar_call(g, j->number - 1, next);
}

/* ---- values ---- */

static grammar_node_id member(struct json_grammar *j, grammar_node_id next)
{
    return json_g_string(j, grammar_byte(j->g, ':', json_g_space(j, json_g_value(j, next))));
}

static grammar_node_id element(struct json_grammar *j, grammar_node_id next) { return json_g_value(j, next); }

/* Items with commas between them, in brackets. */
static grammar_node_id listed(struct json_grammar *j, const char *brackets,
                              grammar_node_id (*item)(struct json_grammar *j, grammar_node_id next), grammar_node_id next)
{
    struct grammar *g = j->g;
    const grammar_node_id close = grammar_byte(g, (uint8_t)brackets[1], next), spaced = json_g_space(j, close);
    const grammar_node_id more = grammar_loop(g), items = json_g_space(j, item(j, more));
    grammar_set_loop(g, more, grammar_byte(g, ',', items), spaced);
    return grammar_byte(g, (uint8_t)brackets[0], grammar_either(g, items, spaced));
}

grammar_node_id json_g_object(struct json_grammar *j, grammar_node_id next)
{
    if (!j->object) {
        const uint32_t rule = grammar_rule(j->g);
        j->object = rule + 1;
        grammar_set_rule(j->g, rule, listed(j, "{}", member, GRAMMAR_RETURN));
    }
    return grammar_call(j->g, j->object - 1, next);
}

grammar_node_id json_g_array(struct json_grammar *j, grammar_node_id next)
{
    if (!j->array) {
        const uint32_t rule = grammar_rule(j->g);
        j->array = rule + 1;
        grammar_set_rule(j->g, rule, listed(j, "[]", element, GRAMMAR_RETURN));
    }
    return grammar_call(j->g, j->array - 1, next);
}

static grammar_node_id words(struct grammar *g, grammar_node_id next)
{
    return grammar_either(g, grammar_puts(g, "true", next),
                          grammar_either(g, grammar_puts(g, "false", next), grammar_puts(g, "null", next)));
}

grammar_node_id json_g_value(struct json_grammar *j, grammar_node_id next)
{
    if (!j->value) {
        const uint32_t rule = grammar_rule(j->g);
        j->value = rule + 1;
        grammar_node_id ways = grammar_either(j->g, json_g_object(j, GRAMMAR_RETURN), json_g_array(j, GRAMMAR_RETURN));
        ways = grammar_either(j->g, ways, json_g_string(j, GRAMMAR_RETURN));
        ways = grammar_either(j->g, ways, json_g_number(j, GRAMMAR_RETURN));
        grammar_set_rule(j->g, rule, grammar_either(j->g, ways, words(j->g, GRAMMAR_RETURN)));
    }
    return grammar_call(j->g, j->value - 1, next);
}

/* ---- literals ---- */

static uint32_t character_at(const char *text, size_t *at)
{
    const uint8_t *s = (const uint8_t *)text + *at;
    const size_t n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t c = n == 1 ? s[0] : s[0] & (0x3fu >> (n - 1));
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (s[i] & 0x3fu);
    *at += n;
    return c;
}

/* Built from the end, so each character is looked for from there. */
grammar_node_id json_g_text(struct grammar *g, const char *text, size_t length, enum code_form form, grammar_node_id next)
{
    char out[8];
    while (length > 0) {
        size_t at = length - 1;
        while (at > 0 && ((uint8_t)text[at] & 0xc0) == 0x80)
            at--;
        length = at;
        const uint32_t c = character_at(text, &at);
        next = grammar_text(g, out, code_point_write(c, form, out), next);
    }
    return next;
}

static grammar_node_id quoted(struct grammar *g, const char *text, size_t length, grammar_node_id next)
{
    return grammar_byte(g, '"', json_g_text(g, text, length, CODE_JSON, grammar_byte(g, '"', next)));
}

/* Children are linked forwards and built from the end. */
static grammar_node_id literal_items(struct json_grammar *j, const struct json *item, bool first, grammar_node_id close)
{
    struct grammar *g = j->g;
    if (!item)
        return json_g_space(j, close);
    grammar_node_id at = json_g_literal(j, item, literal_items(j, item->next, false, close));
    if (item->key)
        at = quoted(g, item->key, item->key_length, grammar_byte(g, ':', json_g_space(j, at)));
    at = json_g_space(j, at);
    return first ? at : grammar_byte(g, ',', at);
}

grammar_node_id json_g_literal(struct json_grammar *j, const struct json *value, grammar_node_id next)
{
    struct grammar *g = j->g;
    switch (value->kind) {
    case JSON_NULL: return grammar_puts(g, "null", next);
    case JSON_BOOL: return grammar_puts(g, value->boolean ? "true" : "false", next);
    case JSON_NUMBER: return grammar_text(g, value->text, value->length, next);
    case JSON_STRING: return quoted(g, value->text, value->length, next);
    case JSON_ARRAY: return grammar_byte(g, '[', literal_items(j, value->child, true, grammar_byte(g, ']', next)));
    case JSON_OBJECT: break;
    }
    return grammar_byte(g, '{', literal_items(j, value->child, true, grammar_byte(g, '}', next)));
}

/* ---- all strings but some ---- */

struct others {
    struct json_grammar *j;
    enum code_form form;
    struct code_points all;  /* characters that may be in one */
    grammar_node_id end;     /* behind the last character */
    grammar_node_id rest;    /* any characters up to the end */
    bool failed;
};

/* Behind the first `depth` bytes, which these names share. */
static grammar_node_id other_from(struct others *o, const struct json_name *names, size_t count, size_t depth)
{
    struct grammar *g = o->j->g;
    struct code_points left = {.count = 0};
    grammar_node_id ways = GRAMMAR_NOTHING;
    size_t i = 0;
    const bool named = count > 0 && names[0].length == depth;
    if (!named && (depth > 0 || o->form == CODE_JSON))
        ways = o->end;
    for (i += named; i < count && !grammar_failed(g);) {
        size_t behind = depth, end = i + 1;
        struct code_points one = {.count = 0};
        const uint32_t c = character_at(names[i].text, &behind);
        while (end < count && names[end].length >= behind && memcmp(names[end].text + depth, names[i].text + depth, behind - depth) == 0)
            end++;
        code_points_add(&one, c, c);
        code_points_add(&left, c, c);
        ways = grammar_either(g, ways, code_points_node(g, &one, o->form, other_from(o, names + i, end - i, behind)));
        i = end;
    }
    struct code_points none = o->all;
    code_points_turn(&none);
    code_points_join(&left, &none);
    code_points_turn(&left);
    o->failed |= left.full;
    return grammar_either(g, ways, code_points_node(g, &left, o->form, o->rest));
}

bool json_g_other(struct json_grammar *j, const struct json_name *names, size_t count, enum code_form form,
                  grammar_node_id next, grammar_node_id *out)
{
    struct grammar *g = j->g;
    struct others o = {.j = j, .form = form};
    if (form == CODE_PLAIN) {
        code_points_add(&o.all, 0, 0x1f);
        code_points_add(&o.all, '"', '"');
        code_points_add(&o.all, '<', '<');
        code_points_add(&o.all, '>', '>');
        code_points_add(&o.all, 0x7f, 0x9f);
        code_points_turn(&o.all);
        o.end = next;
        o.rest = grammar_loop(g);
        grammar_set_loop(g, o.rest, code_points_node(g, &o.all, form, o.rest), next);
    } else {
        code_points_add(&o.all, 0, CODE_LAST);
        o.end = grammar_byte(g, '"', next);
        o.rest = string_rest(g, next);
    }
    *out = other_from(&o, names, count, 0);
    if (form == CODE_JSON)
        *out = grammar_byte(g, '"', *out);
    return !o.failed;
}
