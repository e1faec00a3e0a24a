#include "text/grammar_calls.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/grammar_schema.h"

bool tool_is_strict(const struct tool *tool)
{
    bool strict = false;
    return json_bool(json_get(tool->function, "strict"), &strict) && strict;
}

static void note(struct call_grammar *c, qr_status st)
{
    if (c->status == QR_OK)
        c->status = st;
}

static bool failed(const struct call_grammar *c) { return c->status != QR_OK || grammar_failed(c->json->g); }

/* ---- tags ---- */

typedef void write_tag(struct prompt *p, enum chat_profile profile);

/* Segments of a prompt from `first` on: tokens are tokens, text is bytes. */
static grammar_node_id prompt_node(struct call_grammar *c, const struct prompt *p, size_t first, grammar_node_id next)
{
    struct grammar *g = c->json->g;
    char name[64];
    if (prompt_failed(p)) {
        g->no_memory = true;
        return GRAMMAR_NOTHING;
    }
    for (size_t i = p->count; i-- > first;) {
        const struct prompt_segment *s = &p->segments[i];
        if (!s->markup) {
            next = grammar_text(g, p->text.data + s->offset, s->length, next);
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)s->length, p->text.data + s->offset);
        next = grammar_token(g, tok_find(c->tok, name), next);
    }
    return next;
}

/* `before`, then the tag. */
static grammar_node_id tag(struct call_grammar *c, const char *before, write_tag *write, grammar_node_id next)
{
    struct prompt p = {.count = 0};
    prompt_puts(&p, before);
    write(&p, c->profile);
    next = prompt_node(c, &p, 0, next);
    prompt_free(&p);
    return next;
}

/* ---- parameters ---- */

struct parameters {
    struct call_grammar *c;
    struct schema_compiler schema;
};

/* string="true" and plain text, or string="false" and JSON that is no string; then the closing tag. */
static grammar_node_id value_node(struct parameters *p, const struct schema_list *list, grammar_node_id next)
{
    struct grammar *g = p->c->json->g;
    const grammar_node_id close = tag(p->c, "", chat_write_parameter_close, next);
    const grammar_node_id plain = schema_plain_string(&p->schema, list, close);
    const grammar_node_id json = schema_value(&p->schema, list, SCHEMA_ANY & ~SCHEMA_STRING, close);
    return grammar_puts(g, "\" string=\"", grammar_either(g, grammar_puts(g, "true\">", plain), grammar_puts(g, "false\">", json)));
}

static bool can_be_spelled(const char *name, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (memchr("\"<>\n", name[i], 5))
            return false;
    return true;
}

/* A parameter behind the quotation mark before its name. */
static grammar_node_id parameter_node(struct parameters *p, const struct schema_property *property, grammar_node_id next)
{
    const struct json_name *name = &property->name;
    if (!can_be_spelled(name->text, name->length))
        schema_refuse(&p->schema.document, p->schema.document.root, "the property \"%.60s\" has a name that no call can spell", name->text);
    const grammar_node_id value = value_node(p, &property->schemas, next);
    return grammar_text(p->c->json->g, name->text, name->length, value);
}

/* What opens the tag of all parameters that may come at one place, the first of a call or a later one. */
static grammar_node_id opened(struct parameters *p, const char *before, grammar_node_id parameters)
{
    return tag(p->c, before, chat_write_parameter_open, parameters);
}

static grammar_node_id other_parameter(struct parameters *p, const struct schema_object *o, grammar_node_id next)
{
    grammar_node_id named;
    if (!json_g_other(p->c->json, o->names, o->count, CODE_PLAIN, value_node(p, &o->others, next), &named))
        schema_refuse(&p->schema.document, p->schema.document.root,
                      "the names of properties differ in too many characters at one place");
    return named;
}

static bool is_false(const struct schema_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i]->kind == JSON_BOOL && !list->items[i]->boolean)
            return true;
    return false;
}

/* Built as schema_object_node is. */
static grammar_node_id object_parameters(struct parameters *p, const struct schema_list *list, grammar_node_id next)
{
    struct grammar *g = p->c->json->g;
    struct schema_object o;
    bool needed = false;
    if (!(schema_types(&p->schema.document, list) & SCHEMA_OBJECT) || !schema_object_read(&p->schema, list, &o))
        return GRAMMAR_NOTHING;
    grammar_node_id undeclared = next, first = next, names = GRAMMAR_NOTHING;
    if (o.says_others && !is_false(&o.others)) {
        undeclared = grammar_loop(g);
        const grammar_node_id other = other_parameter(p, &o, undeclared);
        grammar_set_loop(g, undeclared, opened(p, "\n", other), next);
        first = grammar_either(g, opened(p, "", other), next);
    }
    grammar_node_id behind = undeclared;
    for (uint32_t i = o.count; i-- > 0 && p->schema.document.status == QR_OK && !failed(p->c);) {
        const struct schema_property *q = &o.properties[i];
        const grammar_node_id here = is_false(&q->schemas) ? GRAMMAR_NOTHING : parameter_node(p, q, behind);
        needed |= q->required;
        names = q->required ? here : grammar_either(g, here, names);
        behind = opened(p, "\n", names);
        behind = needed ? behind : grammar_either(g, behind, undeclared);
    }
    const grammar_node_id named = opened(p, "", names);
    return needed ? named : grammar_either(g, named, first);
}

static grammar_node_id schema_parameters(struct parameters *p, const struct json *schema, grammar_node_id next)
{
    struct schema_document *d = &p->schema.document;
    grammar_node_id ways = GRAMMAR_NOTHING;
    const struct schema_list list = schema_list_of(d, schema);
    const struct schema_alternative *a = d->status == QR_OK ? schema_expand(d, &list) : NULL;
    for (; a && d->status == QR_OK && !failed(p->c); a = a->next)
        ways = grammar_either(p->c->json->g, ways, object_parameters(p, &a->schemas, next));
    return ways;
}

/* Any parameters, in any number. */
static grammar_node_id free_parameters(struct parameters *p, grammar_node_id next)
{
    static const struct schema_object any = {.count = 0};
    const grammar_node_id behind = grammar_loop(p->c->json->g), parameter = other_parameter(p, &any, behind);
    grammar_set_loop(p->c->json->g, behind, opened(p, "\n", parameter), next);
    return grammar_either(p->c->json->g, opened(p, "", parameter), next);
}

/* All the tool's names that a call can spell, each with any value of the kind that it gives as its one type; any names where it
 * declares none. */
static grammar_node_id declared_parameters(struct call_grammar *c, const struct tool *tool, grammar_node_id next)
{
    static const char text[] = "{\"type\":\"string\"}";
    struct grammar *g = c->json->g;
    struct parameters p = {.c = c};
    struct json_document *string = NULL;
    grammar_node_id behind = next, names = GRAMMAR_NOTHING;
    const size_t count = tool->properties ? tool->properties->count : 0;
    const struct json **members = qr_calloc(count + 1, sizeof *members);
    if (!members || json_parse(text, strlen(text), "schema", true, &string, NULL) != QR_OK) {
        qr_free(members);
        g->no_memory = true;
        return GRAMMAR_NOTHING;
    }
    schema_compiler_begin(&p.schema, json_root(string), "parameters", c->json, c->err);
    size_t n = 0;
    for (const struct json *m = count ? tool->properties->child : NULL; m; m = m->next)
        if (can_be_spelled(m->key, m->key_length))
            members[n++] = m;
    grammar_node_id first = tool->properties ? next : free_parameters(&p, next);
    while (n-- > 0 && !failed(c) && p.schema.document.status == QR_OK) {
        struct schema_property q = {.name = {members[n]->key, members[n]->key_length}};
        if (tool_wants_string(tool, q.name.text, q.name.length))
            q.schemas = schema_list_of(&p.schema.document, json_root(string));
        names = grammar_either(g, parameter_node(&p, &q, behind), names);
        behind = grammar_either(g, opened(&p, "\n", names), next);
    }
    first = grammar_either(g, opened(&p, "", names), first);
    note(c, schema_compiler_end(&p.schema));
    json_close(string);
    qr_free(members);
    return first;
}

static qr_status by_schema(struct call_grammar *c, const struct tool *tool, qr_error *err, grammar_node_id next, grammar_node_id *out)
{
    struct parameters p = {.c = c};
    char name[160];
    const struct json *schema = json_get(tool->function, "parameters");
    snprintf(name, sizeof name, "the parameters of %.100s", tool->name);
    *out = next;
    if (!schema || schema->kind == JSON_NULL)
        return QR_OK;
    schema_compiler_begin(&p.schema, schema, name, c->json, err);
    *out = schema_parameters(&p, schema, next);
    const qr_status st = schema_compiler_end(&p.schema);
    if (st == QR_BAD_REQUEST && c->path)
        snprintf(c->path, 96, "%s", p.schema.document.path);
    return st;
}

/* How far a tool that is not strict is held to what it declares. */
enum hold { HOLD_SCHEMA, HOLD_NAMES, HOLD_NOTHING };

static void tell_hint(const struct call_grammar *c, const struct tool *tool, bool names, const char *why)
{
    qr_logf(c->log, QR_LOG_WARN, "the schema of the tool %.100s is only a hint, of its parameters %s: %s", tool->name,
            names ? "the declared names are held to" : "nothing is held to", why);
}

/* What the parameters of a tool take, by its schema or by its names, tried on a grammar of their own. QR_BAD_REQUEST: they do not
 * go. */
static qr_status try_parameters(struct call_grammar *c, const struct tool *tool, enum hold hold, size_t *nodes, qr_error *why)
{
    struct json_grammar json = {.g = grammar_begin()};
    struct call_grammar trial = *c;
    grammar_node_id out = GRAMMAR_NOTHING;
    if (!json.g) {
        c->json->g->no_memory = true;
        return QR_NO_MEMORY;
    }
    trial.json = &json;
    trial.path = NULL;
    trial.err = why;
    qr_status st = QR_OK;
    if (hold == HOLD_SCHEMA)
        st = by_schema(&trial, tool, why, GRAMMAR_RETURN, &out);
    else
        out = declared_parameters(&trial, tool, GRAMMAR_RETURN);
    st = st == QR_OK ? trial.status : st;
    if (st == QR_NO_MEMORY || json.g->no_memory)
        c->json->g->no_memory = true;
    const bool large = json.g->too_large || (hold == HOLD_SCHEMA && json.g->node_count >= GRAMMAR_MOST_HINT);
    *nodes = json.g->node_count;
    grammar_release(json.g);
    if (st == QR_OK && large)
        return qr_fail(why, QR_BAD_REQUEST, "it takes more than %d nodes of a grammar", GRAMMAR_MOST_HINT);
    if (st == QR_OK && out == GRAMMAR_NOTHING)
        return qr_fail(why, QR_BAD_REQUEST, "no call could fit it");
    return st;
}

/* How far there is room, and the grammar is able, to hold the tool. */
static enum hold choose_hold(struct call_grammar *c, const struct tool *tool)
{
    qr_error why = {0}, other;
    size_t nodes;
    const size_t taken = c->json->g->node_count;
    qr_status st = try_parameters(c, tool, HOLD_SCHEMA, &nodes, &why);
    if (st == QR_OK && taken + nodes > GRAMMAR_MOST_OBEYED)
        st = qr_fail(&why, QR_BAD_REQUEST, "with the tools before it it takes more than %d nodes of a grammar", GRAMMAR_MOST_OBEYED);
    if (st == QR_OK || failed(c))
        return HOLD_SCHEMA;
    const bool names = try_parameters(c, tool, HOLD_NAMES, &nodes, &other) == QR_OK && taken + nodes <= GRAMMAR_MOST_DECLARED;
    if (!failed(c))
        tell_hint(c, tool, names && tool->properties, why.message);
    return names ? HOLD_NAMES : HOLD_NOTHING;
}

static grammar_node_id any_parameters(struct call_grammar *c, grammar_node_id next)
{
    struct parameters p = {.c = c};
    struct json_document *any = NULL;
    if (c->any)
        return c->any;
    if (json_parse("{}", 2, "schema", true, &any, NULL) != QR_OK) {
        c->json->g->no_memory = true;
        return GRAMMAR_NOTHING;
    }
    schema_compiler_begin(&p.schema, json_root(any), "parameters", c->json, c->err);
    c->any = free_parameters(&p, next);
    note(c, schema_compiler_end(&p.schema));
    json_close(any);
    return c->any;
}

static grammar_node_id parameters_node(struct call_grammar *c, const struct tool *tool, grammar_node_id next)
{
    grammar_node_id out = GRAMMAR_NOTHING;
    const enum hold hold = tool_is_strict(tool) ? HOLD_SCHEMA : choose_hold(c, tool);
    if (failed(c)) /* what is wrong with the schema is not why */
        return GRAMMAR_NOTHING;
    if (hold == HOLD_NAMES)
        return declared_parameters(c, tool, next);
    if (hold == HOLD_NOTHING)
        return any_parameters(c, next);
    note(c, by_schema(c, tool, c->err, next, &out));
    if (c->status == QR_OK && c->json->g->too_large)
        note(c, qr_fail(c->err, QR_BAD_REQUEST, "the parameters of %.100s take too large a grammar: more than %d nodes with what "
                        "stands beside them", tool->name, GRAMMAR_MOST_NODES));
    return out;
}

/* ---- calls ---- */

/* Behind the first quotation mark of a call: a name, its parameters, the end of the call, then `next`. */
static grammar_node_id named(struct call_grammar *c, grammar_node_id next)
{
    struct grammar *g = c->json->g;
    const size_t count = c->only ? 1 : c->tools->count;
    struct grammar_choice *choices = qr_calloc(count, sizeof *choices);
    grammar_node_id ways = GRAMMAR_NOTHING;
    if (!choices) {
        g->no_memory = true;
        return ways;
    }
    const grammar_node_id close = tag(c, "\n", chat_write_call_close, next);
    c->any = 0;
    for (size_t i = 0; i < count && !failed(c); i++) {
        const struct tool *tool = c->only ? c->only : &c->tools->items[i];
        const grammar_node_id body = grammar_puts(g, "\">\n", parameters_node(c, tool, close));
        choices[i] = (struct grammar_choice){tool->name, tool->name_length, body};
    }
    if (!failed(c))
        ways = grammar_choose(g, choices, count);
    qr_free(choices);
    return ways;
}

grammar_node_id call_grammar_named(struct call_grammar *c, grammar_node_id next)
{
    struct grammar *g = c->json->g;
    const grammar_node_id behind = grammar_loop(g), first = named(c, behind);
    const grammar_node_id close = tag(c, "\n", chat_write_block_close, next);
    const grammar_node_id more = c->many ? tag(c, "\n", chat_write_call_open, first) : GRAMMAR_NOTHING;
    grammar_set_loop(g, behind, close, more);
    return first;
}

grammar_node_id call_grammar_forced(struct call_grammar *c, grammar_node_id next)
{
    struct prompt p = {.count = 0};
    struct tok_ids ids = {.count = 0};
    chat_write_forced_call(&p, c->profile);
    qr_status st = prompt_failed(&p) ? qr_fail(c->err, QR_NO_MEMORY, "no memory for a forced call") : prompt_ids(&p, c->tok, &ids, c->err);
    note(c, st);
    next = call_grammar_named(c, next);
    for (size_t i = ids.count; st == QR_OK && i-- > 0;)
        next = grammar_token(c->json->g, ids.data[i], next);
    tok_ids_free(&ids);
    prompt_free(&p);
    return next;
}

grammar_node_id call_grammar_block(struct call_grammar *c, grammar_node_id next)
{
    next = tag(c, "\n", chat_write_call_open, call_grammar_named(c, next));
    return tag(c, "\n\n", chat_write_block_open, next);
}

grammar_node_id call_grammar_opened(struct call_grammar *c, grammar_node_id next)
{
    struct prompt p = {.count = 0};
    next = tag(c, "\n", chat_write_call_open, call_grammar_named(c, next));
    chat_write_block_open(&p, c->profile); /* "<", the token, the rest */
    next = prompt_node(c, &p, 2, next);
    prompt_free(&p);
    return next;
}
