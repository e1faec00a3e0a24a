#include "text/grammar_schema.h"

#include <stdlib.h>
#include <string.h>

#include "text/grammar_integer.h"

enum { MOST_RULES = 4096, MOST_DEPTH = 100, MOST_ITEMS = 4096, MOST_VALUES = 4096 };

struct schema_rule {
    struct schema_list list;
    unsigned types;
    uint32_t rule;
    struct schema_rule *next;
};

/* ---- life ---- */

void schema_compiler_begin(struct schema_compiler *c, const struct json *root, const char *name, struct json_grammar *json,
                           qr_error *err)
{
    *c = (struct schema_compiler){.json = json, .document = {.root = root, .name = name, .err = err, .status = QR_OK}};
    arena_init(&c->document.arena, 16 * 1024);
}

qr_status schema_compiler_end(struct schema_compiler *c)
{
    arena_free(&c->document.arena);
    return c->document.status;
}

static bool failed(const struct schema_compiler *c) { return c->document.status != QR_OK || grammar_failed(c->json->g); }

/* ---- what a list says ---- */

static const struct json *first_with(const struct schema_list *list, const char *keyword)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct json *v = json_get(list->items[i], keyword);
        if (v)
            return v;
    }
    return NULL;
}

/* ---- given values ---- */

static bool listed(const struct json *schema, const struct json *value)
{
    const struct json *list = json_get(schema, "enum"), *one = json_get(schema, "const");
    bool found = !list;
    for (const struct json *v = list ? list->child : NULL; v && !found; v = v->next)
        found = schema_same_value(v, value);
    return found && (!one || schema_same_value(one, value));
}

static bool fits_all(struct schema_compiler *c, const struct schema_list *list, const struct json *value, unsigned types)
{
    bool fits = (schema_type_of(value) & types & schema_types(&c->document, list)) != 0;
    for (uint32_t i = 0; fits && i < list->count; i++)
        fits = listed(list->items[i], value);
    return fits;
}

static size_t count_values(const struct json *value)
{
    size_t n = 1;
    for (const struct json *v = value->child; v && n < 2 * MOST_VALUES; v = v->next)
        n += count_values(v);
    return n;
}

/* Nothing but types may stand beside values: whether they fit more is not looked at. */
static void check_beside_values(struct schema_compiler *c, const struct schema_list *list)
{
    static const char *const names[] = {"properties", "required", "additionalProperties", "items", "prefixItems", "minItems",
                                        "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum",
                                        "exclusiveMinimum", "exclusiveMaximum"};
    for (uint32_t i = 0; i < list->count; i++) {
        const struct json *values = json_get(list->items[i], "enum");
        if (values && values->count > MOST_VALUES)
            schema_refuse(&c->document, values, "enum holds more than %d values", MOST_VALUES);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct json *v = first_with(list, names[i]);
        if (v)
            schema_refuse(&c->document, v, "\"%s\" beside enum or const is not supported", names[i]);
    }
}

/* Enum or const of the list, of which every value is asked the others. */
static const struct json *given_values(const struct schema_list *list, bool *one)
{
    const struct json *value = first_with(list, "const");
    *one = value != NULL;
    return value ? value : first_with(list, "enum");
}

static grammar_node_id value_nodes(struct schema_compiler *c, const struct schema_list *list, unsigned types, enum code_form form,
                                   grammar_node_id next)
{
    struct grammar *g = c->json->g;
    bool one;
    const struct json *values = given_values(list, &one);
    grammar_node_id ways = GRAMMAR_NOTHING;
    check_beside_values(c, list);
    if (count_values(values) > MOST_VALUES)
        schema_refuse(&c->document, values, "enum and const hold more than %d values", MOST_VALUES);
    for (const struct json *v = one ? values : values->child; v && !failed(c); v = one ? NULL : v->next) {
        if (!fits_all(c, list, v, types))
            continue;
        if (form == CODE_PLAIN)
            ways = grammar_either(g, json_g_text(g, v->text, v->length, form, next), ways);
        else
            ways = grammar_either(g, json_g_literal(c->json, v, next), ways);
    }
    return ways;
}

/* ---- numbers ---- */

/* A bound as the integer next to it that is within; false: it is no bound for any int64. */
static void tighten(struct schema_compiler *c, const struct json *bound, bool below, bool strict, struct integer_range *r)
{
    int64_t whole;
    double value;
    if (!json_int64(bound, &whole)) {
        if (!json_double(bound, &value) || value < -9e15 || value > 9e15) {
            schema_refuse(&c->document, bound, "a bound of integers is beyond 64 bits");
            return;
        }
        whole = (int64_t)value;
        if (below && (double)whole < value)
            whole++;
        if (!below && (double)whole > value)
            whole--;
        strict &= (double)whole == value;
    }
    if (strict && ((below && whole == INT64_MAX) || (!below && whole == INT64_MIN))) {
        schema_refuse(&c->document, bound, "a bound of integers is beyond 64 bits");
        return;
    }
    whole += strict ? (below ? 1 : -1) : 0;
    if (below && (!r->bounded_below || whole > r->least)) {
        r->bounded_below = true;
        r->least = whole;
    }
    if (!below && (!r->bounded_above || whole < r->most)) {
        r->bounded_above = true;
        r->most = whole;
    }
}

static const struct bound {
    const char *name;
    bool below, strict;
} bounds[] = {{"minimum", true, false}, {"exclusiveMinimum", true, true}, {"maximum", false, false}, {"exclusiveMaximum", false, true}};

/* A bound of any numbers, which has to be a whole one here. */
static void tighten_decimal(struct schema_compiler *c, const struct json *bound, const struct bound *b, struct decimal_range *r)
{
    struct integer_range *w = &r->whole;
    int64_t whole;
    double value;
    if (!json_int64(bound, &whole)) {
        if (!json_double(bound, &value) || value < -9e15 || value > 9e15 || value != (double)(int64_t)value) {
            schema_refuse(&c->document, bound, "\"%s\" of a number that is no integer is supported with a whole value only", b->name);
            return;
        }
        whole = (int64_t)value;
    }
    if (b->below && (!w->bounded_below || whole >= w->least)) {
        r->above_least = b->strict || (w->bounded_below && whole == w->least && r->above_least);
        w->bounded_below = true;
        w->least = whole;
    }
    if (!b->below && (!w->bounded_above || whole <= w->most)) {
        r->below_most = b->strict || (w->bounded_above && whole == w->most && r->below_most);
        w->bounded_above = true;
        w->most = whole;
    }
}

static grammar_node_id number_node(struct schema_compiler *c, const struct schema_list *list, unsigned types, grammar_node_id next)
{
    struct integer_range range = {.bounded_below = false};
    struct decimal_range decimal = {.above_least = false};
    for (uint32_t i = 0; i < list->count; i++)
        for (size_t k = 0; k < sizeof bounds / sizeof *bounds; k++) {
            const struct json *bound = json_get(list->items[i], bounds[k].name);
            if (bound && (types & SCHEMA_FRACTION))
                tighten_decimal(c, bound, &bounds[k], &decimal);
            else if (bound)
                tighten(c, bound, bounds[k].below, bounds[k].strict, &range);
        }
    if (failed(c))
        return GRAMMAR_NOTHING;
    if (!(types & SCHEMA_FRACTION))
        return grammar_integer(c->json->g, &range, next);
    if (decimal.whole.bounded_below || decimal.whole.bounded_above)
        return grammar_decimal(c->json->g, &decimal, next);
    return types & SCHEMA_INTEGER ? json_g_number(c->json, next) : json_g_fraction(c->json, next);
}

/* ---- arrays ---- */

struct items {
    struct schema_list *first; /* of the elements at the beginning */
    uint32_t first_count;
    struct schema_list rest;
    bool may_go_on;
    uint32_t least, most; /* UINT32_MAX: no bound */
};

static uint32_t count_of(const struct json *v)
{
    double n = 0;
    json_double(v, &n);
    return (uint32_t)n;
}

/* What element `index` has to be; UINT32_MAX: one behind all of prefixItems. */
static struct schema_list element_schemas(struct schema_compiler *c, const struct schema_list *list, uint32_t index)
{
    const struct json **items = arena_alloc(&c->document.arena, (list->count + 1) * sizeof *items);
    uint32_t count = 0;
    if (!items)
        schema_no_memory(&c->document);
    for (uint32_t i = 0; items && i < list->count; i++) {
        const struct json *at = json_at(json_get(list->items[i], "prefixItems"), index);
        if (!at)
            at = json_get(list->items[i], "items");
        if (at)
            schema_list_add(items, &count, at);
    }
    return (struct schema_list){items, count};
}

static void read_items(struct schema_compiler *c, const struct schema_list *list, struct items *out)
{
    *out = (struct items){.most = UINT32_MAX};
    for (uint32_t i = 0; i < list->count; i++) {
        const struct json *s = list->items[i], *prefix = json_get(s, "prefixItems");
        const struct json *least = json_get(s, "minItems"), *most = json_get(s, "maxItems");
        if (prefix && prefix->count > out->first_count)
            out->first_count = prefix->count > MOST_ITEMS ? MOST_ITEMS + 1 : (uint32_t)prefix->count;
        if (least && count_of(least) > out->least)
            out->least = count_of(least);
        if (most && count_of(most) < out->most)
            out->most = count_of(most);
    }
    if (out->first_count > MOST_ITEMS || out->least > MOST_ITEMS || (out->most > MOST_ITEMS && out->most != UINT32_MAX))
        schema_refuse(&c->document, list->items[0], "prefixItems, minItems or maxItems ask for more than %d elements", MOST_ITEMS);
    out->first = arena_alloc(&c->document.arena, (out->first_count + 1) * sizeof *out->first);
    if (!out->first)
        schema_no_memory(&c->document);
    for (uint32_t i = 0; !failed(c) && i < out->first_count; i++)
        out->first[i] = element_schemas(c, list, i);
    out->rest = element_schemas(c, list, UINT32_MAX);
}

/* Element i, with the comma before it, then `next`. */
static grammar_node_id element_node(struct schema_compiler *c, const struct items *a, uint32_t i, grammar_node_id next)
{
    const struct schema_list *list = i < a->first_count ? &a->first[i] : &a->rest;
    const grammar_node_id at = json_g_space(c->json, schema_value(c, list, SCHEMA_ANY, next));
    return i ? grammar_byte(c->json->g, ',', at) : at;
}

static grammar_node_id array_node(struct schema_compiler *c, const struct schema_list *list, grammar_node_id next)
{
    struct grammar *g = c->json->g;
    struct items a;
    read_items(c, list, &a);
    if (failed(c))
        return GRAMMAR_NOTHING;
    const grammar_node_id close = json_g_space(c->json, grammar_byte(g, ']', next));
    uint32_t from = a.least > a.first_count ? a.least : a.first_count; /* behind so many elements all are alike */
    grammar_node_id at = close;
    if (a.most != UINT32_MAX) {
        from = a.most;
    } else {
        from += from == 0; /* the first has no comma */
        at = grammar_loop(g);
        grammar_set_loop(g, at, element_node(c, &a, from, at), close);
    }
    if (a.least > from)
        return GRAMMAR_NOTHING;
    for (uint32_t i = from; i-- > 0 && !failed(c);) {
        at = element_node(c, &a, i, at);
        if (i >= a.least)
            at = grammar_either(g, at, close);
    }
    return grammar_byte(g, '[', at);
}

/* ---- any value ---- */

static grammar_node_id alternative_node(struct schema_compiler *c, const struct schema_list *list, unsigned wanted, grammar_node_id next)
{
    struct grammar *g = c->json->g;
    const unsigned types = wanted & schema_types(&c->document, list);
    grammar_node_id ways = GRAMMAR_NOTHING;
    bool one;
    if (given_values(list, &one))
        return value_nodes(c, list, types, CODE_JSON, next);
    if (types & SCHEMA_OBJECT)
        ways = grammar_either(g, ways, schema_object_node(c, list, next));
    if (types & SCHEMA_ARRAY)
        ways = grammar_either(g, ways, array_node(c, list, next));
    if (types & SCHEMA_STRING)
        ways = grammar_either(g, ways, schema_string_node(c, list, CODE_JSON, next));
    if (types & (SCHEMA_INTEGER | SCHEMA_FRACTION))
        ways = grammar_either(g, ways, number_node(c, list, types, next));
    if (types & SCHEMA_BOOLEAN)
        ways = grammar_either(g, ways, grammar_either(g, grammar_puts(g, "true", next), grammar_puts(g, "false", next)));
    if (types & SCHEMA_NULL)
        ways = grammar_either(g, ways, grammar_puts(g, "null", next));
    return ways;
}

/* Nothing is said of the value. */
static bool says_nothing(const struct schema_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (!(list->items[i]->kind == JSON_BOOL && list->items[i]->boolean) &&
            !(list->items[i]->kind == JSON_OBJECT && list->items[i]->count == 0))
            return false;
    return true;
}

static struct schema_rule *find_rule(const struct schema_compiler *c, const struct schema_list *list, unsigned types)
{
    for (struct schema_rule *r = c->rules; r; r = r->next)
        if (r->types == types && r->list.count == list->count &&
            (list->count == 0 || memcmp(r->list.items, list->items, list->count * sizeof *list->items) == 0))
            return r;
    return NULL;
}

static struct schema_rule *make_rule(struct schema_compiler *c, const struct schema_list *list, unsigned types)
{
    struct schema_rule *r = arena_alloc(&c->document.arena, sizeof *r);
    if (!r) {
        schema_no_memory(&c->document);
        return NULL;
    }
    if (++c->rule_count > MOST_RULES || c->depth >= MOST_DEPTH) {
        schema_refuse(&c->document, list->count ? list->items[0] : c->document.root,
                      "the schema is too large: more than %d places or %d inside of each other", MOST_RULES, MOST_DEPTH);
        return NULL;
    }
    *r = (struct schema_rule){*list, types, grammar_rule(c->json->g), c->rules};
    c->rules = r;
    c->depth++;
    grammar_node_id ways = GRAMMAR_NOTHING;
    const struct schema_alternative *a = schema_expand(&c->document, list);
    for (; a && !failed(c); a = a->next)
        ways = grammar_either(c->json->g, ways, alternative_node(c, &a->schemas, types, GRAMMAR_RETURN));
    c->depth--;
    grammar_set_rule(c->json->g, r->rule, ways);
    return r;
}

grammar_node_id schema_value(struct schema_compiler *c, const struct schema_list *list, unsigned types, grammar_node_id next)
{
    if (failed(c))
        return GRAMMAR_NOTHING;
    if (types == SCHEMA_ANY && says_nothing(list))
        return json_g_value(c->json, next);
    const struct schema_rule *r = find_rule(c, list, types);
    if (!r)
        r = make_rule(c, list, types);
    return r ? grammar_call(c->json->g, r->rule, next) : GRAMMAR_NOTHING;
}

grammar_node_id schema_plain_string(struct schema_compiler *c, const struct schema_list *list, grammar_node_id next)
{
    grammar_node_id ways = GRAMMAR_NOTHING;
    bool one;
    for (const struct schema_alternative *a = schema_expand(&c->document, list); a && !failed(c); a = a->next) {
        if (!(schema_types(&c->document, &a->schemas) & SCHEMA_STRING))
            continue;
        const grammar_node_id way = given_values(&a->schemas, &one)
                                        ? value_nodes(c, &a->schemas, SCHEMA_STRING, CODE_PLAIN, next)
                                        : schema_string_node(c, &a->schemas, CODE_PLAIN, next);
        ways = grammar_either(c->json->g, ways, way);
    }
    return ways;
}
