#include <stdlib.h>
#include <string.h>

#include "text/grammar_schema.h"

enum { MOST_NAMES = 1024, MOST_NAME = 200 };

static bool failed(const struct schema_compiler *c) { return c->document.status != QR_OK || grammar_failed(c->json->g); }

/* ---- names ---- */

static bool is_named(const struct schema_property *p, const char *text, size_t length)
{
    return p->name.length == length && memcmp(p->name.text, text, length) == 0;
}

static struct schema_property *find_property(const struct schema_object *o, const char *text, size_t length)
{
    for (uint32_t i = 0; i < o->count; i++)
        if (is_named(&o->properties[i], text, length))
            return &o->properties[i];
    return NULL;
}

static void add_name(struct schema_compiler *c, struct schema_object *o, const struct json *at, const char *text, size_t length,
                     bool required)
{
    struct schema_property *p = find_property(o, text, length);
    if (length > MOST_NAME || (!p && o->count == MOST_NAMES)) {
        schema_refuse(&c->document, at, "more than %d properties, or a name of more than %d bytes", MOST_NAMES, MOST_NAME);
        return;
    }
    if (!p) {
        p = &o->properties[o->count++];
        *p = (struct schema_property){.name = {text, length}};
    }
    p->required |= required;
}

/* Every name that the list mentions: declared ones, then those that are only required. */
static void collect_names(struct schema_compiler *c, const struct schema_list *list, struct schema_object *o)
{
    for (uint32_t i = 0; i < list->count; i++) {
        const struct json *properties = json_get(list->items[i], "properties");
        if (properties && properties->count > MOST_NAMES)
            schema_refuse(&c->document, properties, "more than %d properties", MOST_NAMES);
        for (const struct json *m = properties ? properties->child : NULL; m && !failed(c); m = m->next)
            add_name(c, o, m, m->key, m->key_length, false);
    }
    for (uint32_t i = 0; i < list->count; i++) {
        const struct json *required = json_get(list->items[i], "required");
        for (const struct json *r = required ? required->child : NULL; r && !failed(c); r = r->next)
            add_name(c, o, required, r->text, r->length, true);
    }
}

static size_t count_mentions(const struct schema_list *list)
{
    size_t n = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const struct json *properties = json_get(list->items[i], "properties"), *required = json_get(list->items[i], "required");
        n += (properties ? properties->count : 0) + (required ? required->count : 0);
    }
    return n < MOST_NAMES ? n : MOST_NAMES;
}

/* What each schema of the list says of a name: as it declares it, else as its additionalProperties do. `name` NULL: of one
 * that none declares. */
static struct schema_list schemas_of(struct schema_compiler *c, const struct schema_list *list, const struct json_name *name)
{
    const struct json **items = arena_alloc(&c->document.arena, (list->count + 1) * sizeof *items);
    uint32_t count = 0;
    if (!items)
        schema_no_memory(&c->document);
    for (uint32_t i = 0; items && i < list->count; i++) {
        const struct json *says = name ? schema_member(json_get(list->items[i], "properties"), name->text, name->length) : NULL;
        if (!says)
            says = json_get(list->items[i], "additionalProperties");
        if (says)
            schema_list_add(items, &count, says);
    }
    return (struct schema_list){items, count};
}

static int by_name(const void *left, const void *right)
{
    const struct json_name *a = left, *b = right;
    const size_t common = a->length < b->length ? a->length : b->length;
    const int order = common ? memcmp(a->text, b->text, common) : 0;
    return order ? order : a->length < b->length ? -1 : a->length > b->length;
}

bool schema_object_read(struct schema_compiler *c, const struct schema_list *list, struct schema_object *out)
{
    struct arena *arena = &c->document.arena;
    const size_t room = count_mentions(list) + 1;
    *out = (struct schema_object){.properties = arena_alloc(arena, room * sizeof *out->properties),
                                  .names = arena_alloc(arena, room * sizeof *out->names)};
    if (!out->properties || !out->names)
        schema_no_memory(&c->document);
    if (failed(c))
        return false;
    collect_names(c, list, out);
    for (uint32_t i = 0; i < out->count && !failed(c); i++) {
        out->properties[i].schemas = schemas_of(c, list, &out->properties[i].name);
        out->names[i] = out->properties[i].name;
    }
    qsort(out->names, out->count, sizeof *out->names, by_name);
    out->others = schemas_of(c, list, NULL);
    out->says_others = out->others.count > 0;
    return !failed(c);
}

/* ---- objects in JSON ---- */

static bool forbids(const struct schema_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i]->kind == JSON_BOOL && !list->items[i]->boolean)
            return true;
    return false;
}

/* `name": value`, behind the quotation mark before the name. */
static grammar_node_id property_node(struct schema_compiler *c, const struct schema_property *p, grammar_node_id next)
{
    struct grammar *g = c->json->g;
    const grammar_node_id value = json_g_space(c->json, schema_value(c, &p->schemas, SCHEMA_ANY, next));
    return json_g_text(g, p->name.text, p->name.length, CODE_JSON, grammar_byte(g, '"', grammar_byte(g, ':', value)));
}

/* What stands before all names that may come at one place: once, so that not every name is a way of its own through it. */
static grammar_node_id names_node(struct schema_compiler *c, bool comma, grammar_node_id names)
{
    struct grammar *g = c->json->g;
    const grammar_node_id at = json_g_space(c->json, grammar_byte(g, '"', names));
    return comma ? grammar_byte(g, ',', at) : at;
}

/* A name that is not declared, its value, then `next`. */
static grammar_node_id other_node(struct schema_compiler *c, const struct schema_object *o, grammar_node_id next)
{
    struct grammar *g = c->json->g;
    grammar_node_id at = grammar_byte(g, ':', json_g_space(c->json, schema_value(c, &o->others, SCHEMA_ANY, next)));
    if (!json_g_other(c->json, o->names, o->count, CODE_JSON, at, &at))
        schema_refuse(&c->document, c->document.root, "the names of properties differ in too many characters at one place");
    return json_g_space(c->json, at);
}

/* Built from the last property to the first: `names` are those that may come next. */
grammar_node_id schema_object_node(struct schema_compiler *c, const struct schema_list *list, grammar_node_id next)
{
    struct grammar *g = c->json->g;
    struct schema_object o;
    bool needed = false;
    if (!schema_object_read(c, list, &o))
        return GRAMMAR_NOTHING;
    const grammar_node_id close = json_g_space(c->json, grammar_byte(g, '}', next));
    grammar_node_id undeclared = close, first = close, names = GRAMMAR_NOTHING;
    if (!forbids(&o.others)) {
        undeclared = grammar_loop(g);
        const grammar_node_id other = other_node(c, &o, undeclared);
        grammar_set_loop(g, undeclared, grammar_byte(g, ',', other), close);
        first = grammar_either(g, other, close);
    }
    grammar_node_id behind = undeclared;
    for (uint32_t i = o.count; i-- > 0 && !failed(c);) {
        const struct schema_property *p = &o.properties[i];
        const grammar_node_id here = forbids(&p->schemas) ? GRAMMAR_NOTHING : property_node(c, p, behind);
        needed |= p->required;
        names = p->required ? here : grammar_either(g, here, names);
        behind = names_node(c, true, names);
        behind = needed ? behind : grammar_either(g, behind, undeclared);
    }
    const grammar_node_id named = names_node(c, false, names);
    return grammar_byte(g, '{', needed ? named : grammar_either(g, named, first));
}
