#include "serve/guided.h"

#include <stdio.h>
#include <string.h>

/* One member that was found. */
struct guide {
    char param[64];
    const struct json *value;
    qr_grammar_kind kind;
};

/* Notes a member; false: there was one already. */
static bool note(struct guide *g, const char *prefix, const char *name, const struct json *value, qr_grammar_kind kind,
                 struct refusal *refusal)
{
    if (!value || (kind == QR_GRAMMAR_JSON_OBJECT && value->kind == JSON_BOOL && !value->boolean))
        return true;
    if (g->value)
        return refuse(refusal, 400, NULL, name, "%s%s: not with %s", prefix, name, g->param);
    *g = (struct guide){.value = value, .kind = kind};
    snprintf(g->param, sizeof g->param, "%s%s", prefix, name);
    return true;
}

static const struct {
    const char *guided, *structured;
    qr_grammar_kind kind;
} guides[] = {{"guided_json", "json", QR_GRAMMAR_JSON_SCHEMA},
              {"guided_regex", "regex", QR_GRAMMAR_REGEX},
              {"guided_choice", "choice", QR_GRAMMAR_CHOICE},
              {"guided_json_object", "json_object", QR_GRAMMAR_JSON_OBJECT}};
enum { GUIDES = sizeof guides / sizeof *guides };

static bool read_structured(const struct json *body, struct guide *g, struct refusal *refusal)
{
    static const char prefix[] = "structured_outputs.";
    const struct json *structured = member_of(body, "structured_outputs");
    if (!structured)
        return true;
    if (structured->kind != JSON_OBJECT)
        return refuse(refusal, 400, NULL, "structured_outputs", "structured_outputs: wanted an object");
    for (const struct json *m = structured->child; m; m = m->next) {
        int i = 0;
        while (i < GUIDES && strcmp(guides[i].structured, m->key) != 0)
            i++;
        if (i == GUIDES && m->kind != JSON_NULL)
            return refuse(refusal, 400, "unsupported_parameter", "structured_outputs",
                          "structured_outputs: %.60s is not built, but json, regex, choice and json_object are", m->key);
        if (i < GUIDES && m->kind != JSON_NULL && !note(g, prefix, m->key, m, guides[i].kind, refusal))
            return false;
    }
    return true;
}

static bool read_format(const struct json *body, struct guide *g, struct refusal *refusal)
{
    const struct json *format = member_of(body, "response_format"), *type = json_get(format, "type");
    if (!format || json_equals(type, "text"))
        return true;
    if (json_equals(type, "json_object"))
        return note(g, "", "response_format", format, QR_GRAMMAR_JSON_OBJECT, refusal);
    const struct json *schema = json_get(json_get(format, "json_schema"), "schema");
    if (!json_equals(type, "json_schema") || !schema)
        return refuse(refusal, 400, NULL, "response_format",
                      "response_format: wanted a type that is text, json_object or json_schema, with its schema");
    return note(g, "", "response_format", schema, QR_GRAMMAR_JSON_SCHEMA, refusal);
}

/* A string is text itself (an expression, a schema that was sent as one); other values are their JSON. */
static bool open_grammar(const qr_model *model, const struct guide *g, struct request_text *out, struct refusal *refusal)
{
    struct json_writer *w = NULL;
    const char *text = g->value->text;
    size_t length = g->value->length;
    qr_error err = {0};
    qr_issue issue = {0};
    qr_status st = QR_OK;
    if (g->kind == QR_GRAMMAR_REGEX && g->value->kind != JSON_STRING)
        return refuse(refusal, 400, NULL, g->param, "%s: wanted a string", g->param);
    if (g->value->kind != JSON_STRING) {
        w = json_writer_open(false);
        if (!w)
            return refuse(refusal, 500, NULL, NULL, "no memory for the request");
        json_w_value(w, g->value);
        st = json_finish(w, &text, &length, &err);
    }
    if (st == QR_OK)
        st = qr_grammar_open(model, g->kind, text, length, &out->grammar, &issue, &err);
    json_writer_close(w);
    if (st == QR_OK)
        return true;
    if (st != QR_BAD_REQUEST)
        return refuse_for(refusal, st, &err, NULL);
    char param[200];
    snprintf(param, sizeof param, "%s%s", g->param, issue.param);
    return refuse(refusal, 400, NULL, param, "%s: %s", g->param, err.message);
}

bool guided_read(const qr_model *model, const struct json *body, bool raw, struct request_text *out, struct refusal *refusal)
{
    struct guide g = {.value = NULL};
    for (int i = 0; i < GUIDES; i++)
        if (!note(&g, "", guides[i].guided, member_of(body, guides[i].guided), guides[i].kind, refusal))
            return false;
    if (!read_structured(body, &g, refusal) || (raw && !read_format(body, &g, refusal)))
        return false;
    return !g.value || open_grammar(model, &g, out, refusal);
}
