#include <string.h>

#include "text/grammar_regex.h"
#include "text/grammar_schema.h"

enum { MOST_LENGTH = 16384 };

struct text_rules {
    const struct json *pattern, *format, *bound; /* one of each; the last: a length that was given */
    uint32_t least, most;                        /* UINT32_MAX: no bound */
};

static bool failed(const struct schema_compiler *c) { return c->document.status != QR_OK || grammar_failed(c->json->g); }

/* ---- formats ---- */

#define DATE                                                                                             \
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"            \
    "02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

static const struct {
    const char *name, *regex;
} formats[] = {{"date", DATE},
               {"time", TIME},
               {"date-time", DATE "T" TIME},
               {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
               {"email", "[A-Za-z0-9_+-]{1,20}(\\.[A-Za-z0-9_+-]{1,10}){0,3}@" LABEL "(\\." LABEL "){1,3}"}};

static grammar_node_id format_node(struct schema_compiler *c, const struct json *format, enum code_form form, grammar_node_id next)
{
    grammar_node_id out = GRAMMAR_NOTHING;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (json_equals(format, formats[i].name)) {
            const qr_status st = grammar_regex(c->json->g, formats[i].regex, strlen(formats[i].regex), REGEX_WHOLE, form,
                                               "format", next, &out, NULL);
            if (st != QR_OK)
                schema_no_memory(&c->document);
            return out;
        }
    schema_refuse(&c->document, format, "the format \"%.60s\" is not supported, but date, time, date-time, uuid and email are",
                  format->text);
    return out;
}

static grammar_node_id pattern_node(struct schema_compiler *c, const struct json *pattern, enum code_form form, grammar_node_id next)
{
    qr_error err = {0};
    grammar_node_id out = GRAMMAR_NOTHING;
    const qr_status st = grammar_regex(c->json->g, pattern->text, pattern->length, REGEX_FIND, form, "pattern", next, &out, &err);
    if (st == QR_NO_MEMORY)
        schema_no_memory(&c->document);
    else if (st != QR_OK)
        schema_refuse(&c->document, pattern, "%s", err.message);
    return out;
}

/* ---- lengths ---- */

static grammar_node_id any_plain(struct grammar *g, grammar_node_id next)
{
    struct code_points all = {.count = 0};
    code_points_add(&all, 0, CODE_LAST);
    return code_points_node(g, &all, CODE_PLAIN, next);
}

static grammar_node_id character(struct schema_compiler *c, enum code_form form, grammar_node_id next)
{
    return form == CODE_JSON ? json_g_character(c->json, next) : any_plain(c->json->g, next);
}

static grammar_node_id sized(struct schema_compiler *c, const struct text_rules *r, enum code_form form, grammar_node_id next)
{
    struct grammar *g = c->json->g;
    grammar_node_id at = next;
    if (r->least > MOST_LENGTH || (r->most > MOST_LENGTH && r->most != UINT32_MAX)) {
        schema_refuse(&c->document, r->bound, "minLength and maxLength are supported up to %d", MOST_LENGTH);
        return GRAMMAR_NOTHING;
    }
    if (r->least > r->most)
        return GRAMMAR_NOTHING;
    if (r->most == UINT32_MAX) {
        at = grammar_loop(g);
        grammar_set_loop(g, at, character(c, form, at), next);
    }
    for (uint32_t i = r->least; r->most != UINT32_MAX && i < r->most && !failed(c); i++)
        at = grammar_either(g, character(c, form, at), next);
    for (uint32_t i = 0; i < r->least && !failed(c); i++)
        at = character(c, form, at);
    return at;
}

/* ---- strings ---- */

static uint32_t count_of(const struct json *v)
{
    double n = 0;
    json_double(v, &n);
    return (uint32_t)n;
}

static void read_rules(struct schema_compiler *c, const struct schema_list *list, struct text_rules *out)
{
    *out = (struct text_rules){.most = UINT32_MAX};
    for (uint32_t i = 0; i < list->count; i++) {
        const struct json *s = list->items[i], *pattern = json_get(s, "pattern"), *format = json_get(s, "format");
        const struct json *least = json_get(s, "minLength"), *most = json_get(s, "maxLength");
        if ((pattern && (out->pattern || out->format)) || (format && (out->format || out->pattern || pattern)))
            schema_refuse(&c->document, pattern ? pattern : format, "more than one pattern or format for one string is not supported");
        out->pattern = pattern ? pattern : out->pattern;
        out->format = format ? format : out->format;
        out->bound = least ? least : most ? most : out->bound;
        if (least && count_of(least) > out->least)
            out->least = count_of(least);
        if (most && count_of(most) < out->most)
            out->most = count_of(most);
    }
    if (out->bound && (out->pattern || out->format))
        schema_refuse(&c->document, out->bound, "minLength and maxLength beside a pattern or format are not supported");
}

grammar_node_id schema_string_node(struct schema_compiler *c, const struct schema_list *list, enum code_form form,
                                   grammar_node_id next)
{
    struct grammar *g = c->json->g;
    struct text_rules r;
    read_rules(c, list, &r);
    if (failed(c))
        return GRAMMAR_NOTHING;
    if (form == CODE_JSON && !r.pattern && !r.format && !r.bound)
        return json_g_string(c->json, next);
    grammar_node_id at = form == CODE_JSON ? grammar_byte(g, '"', next) : next;
    at = r.pattern ? pattern_node(c, r.pattern, form, at) : r.format ? format_node(c, r.format, form, at) : sized(c, &r, form, at);
    return form == CODE_JSON ? grammar_byte(g, '"', at) : at;
}
