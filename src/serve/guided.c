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
static bool note(struct guide *g, const char *param, const struct json *value, qr_grammar_kind kind, struct refusal *refusal)
{
    if (g->value)
        return refuse(refusal, 400, NULL, param, "%s: not with %s", param, g->param);
    *g = (struct guide){.value = value, .kind = kind};
    snprintf(g->param, sizeof g->param, "%s", param);
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
static const char structured_outputs[] = "structured_outputs";

/* Any object is asked for by true, and by nothing else. */
static bool note_guide(struct guide *g, const char *param, const struct json *value, qr_grammar_kind kind, struct refusal *refusal)
{
    bool wanted = true;
    if (kind == QR_GRAMMAR_JSON_OBJECT && !json_bool(value, &wanted))
        return refuse(refusal, 400, NULL, param, "%s: wanted true or false", param);
    return !wanted || note(g, param, value, kind, refusal);
}

static bool read_structured(const struct json *body, struct guide *g, struct refusal *refusal)
{
    const struct json *structured = member_of(body, structured_outputs);
    char param[sizeof g->param];
    if (!structured)
        return true;
    if (structured->kind != JSON_OBJECT)
        return refuse(refusal, 400, NULL, structured_outputs, "%s: wanted an object", structured_outputs);
    for (const struct json *m = structured->child; m; m = m->next) {
        int i = 0;
        while (i < GUIDES && strcmp(guides[i].structured, m->key) != 0)
            i++;
        if (m->kind == JSON_NULL)
            continue;
        snprintf(param, sizeof param, "%s.%.40s", structured_outputs, m->key);
        if (i == GUIDES)
            return refuse(refusal, 400, "unsupported_parameter", param, "%s: is not built, but json, regex, choice and json_object are", param);
        if (!note_guide(g, param, m, guides[i].kind, refusal))
            return false;
    }
    return true;
}

static bool read_format(const struct json *body, struct guide *g, struct refusal *refusal)
{
    static const char response_format[] = "response_format";
    const struct json *format = member_of(body, response_format), *type = json_get(format, "type");
    if (!format || json_equals(type, "text"))
        return true;
    if (json_equals(type, "json_object"))
        return note(g, response_format, format, QR_GRAMMAR_JSON_OBJECT, refusal);
    const struct json *schema = json_get(json_get(format, "json_schema"), "schema");
    if (!json_equals(type, "json_schema") || !schema)
        return refuse(refusal, 400, NULL, response_format, "%s: wanted a type that is text, json_object or json_schema, with its schema",
                      response_format);
    return note(g, response_format, schema, QR_GRAMMAR_JSON_SCHEMA, refusal);
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

/* What a request that is not raw says of it. */
static bool find_guide(const struct json *body, struct guide *g, struct refusal *refusal)
{
    *g = (struct guide){.value = NULL};
    for (int i = 0; i < GUIDES; i++) {
        const struct json *value = member_of(body, guides[i].guided);
        if (value && !note_guide(g, guides[i].guided, value, guides[i].kind, refusal))
            return false;
    }
    return read_structured(body, g, refusal);
}

bool guided_read(const qr_model *model, const struct json *body, bool raw, struct request_text *out, struct refusal *refusal)
{
    struct guide g;
    if (!find_guide(body, &g, refusal) || (raw && !read_format(body, &g, refusal)))
        return false;
    return !g.value || open_grammar(model, &g, out, refusal);
}

bool guided_alone(const struct json *body, const struct request_text *text, const qr_chat *chat, struct refusal *refusal)
{
    struct guide g;
    if (!text->grammar || !qr_chat_grammar(chat) || !find_guide(body, &g, refusal))
        return true;
    return refuse(refusal, 400, NULL, g.param, "%s: not with response_format (text.format, output_config.format), a forced tool_choice or strict tools", g.param);
}
