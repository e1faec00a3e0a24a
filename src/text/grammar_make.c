#include "text/grammar_make.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/grammar_calls.h"
#include "text/grammar_regex.h"
#include "text/grammar_schema.h"

enum { MOST_CHOICES = 8192 };

static qr_status no_memory(qr_error *err) { return qr_fail(err, QR_NO_MEMORY, "no memory for a grammar"); }

/* The one rule of `entry`; takes the grammar over. */
static qr_status finish(struct grammar *g, grammar_node_id entry, const char *name, struct grammar **out, qr_error *err)
{
    const uint32_t rule = grammar_rule(g);
    grammar_set_rule(g, rule, entry);
    const qr_status st = grammar_finish(g, rule, out, err);
    return st == QR_BAD_REQUEST ? qr_fail_in(err, st, "%s", name) : st;
}

/* ---- schemas ---- */

/* The value that a schema describes, then `next`. */
static qr_status schema_node(struct json_grammar *json, const struct json *schema, const char *name, grammar_node_id next,
                             grammar_node_id *out, char *path, qr_error *err)
{
    struct schema_compiler c;
    *out = GRAMMAR_NOTHING;
    schema_compiler_begin(&c, schema, name, json, err);
    const struct schema_list list = schema_list_of(&c.document, schema);
    if (c.document.status == QR_OK)
        *out = schema_value(&c, &list, SCHEMA_ANY, next);
    const qr_status st = schema_compiler_end(&c);
    if (st == QR_BAD_REQUEST && path)
        snprintf(path, 96, "%s", c.document.path);
    return st;
}

qr_status grammar_make_schema(const struct json *schema, const char *name, struct grammar **out, char *path, qr_error *err)
{
    struct json_grammar json = {.g = grammar_begin()};
    grammar_node_id entry;
    *out = NULL;
    if (!json.g)
        return no_memory(err);
    const qr_status st = schema_node(&json, schema, name, GRAMMAR_RETURN, &entry, path, err);
    if (st != QR_OK) {
        grammar_release(json.g);
        return st;
    }
    return finish(json.g, entry, name, out, err);
}

/* ---- choices ---- */

qr_status grammar_make_choice(const struct json *list, const char *name, struct grammar **out, qr_error *err)
{
    *out = NULL;
    if (!list || list->kind != JSON_ARRAY || !list->child)
        return qr_fail(err, QR_BAD_REQUEST, "%s: wanted a list of strings with at least one", name);
    if (list->count > MOST_CHOICES)
        return qr_fail(err, QR_BAD_REQUEST, "%s: %zu strings, wanted at most %d", name, list->count, MOST_CHOICES);
    struct grammar_choice *choices = qr_calloc(list->count, sizeof *choices);
    struct grammar *g = grammar_begin();
    size_t n = 0;
    qr_status st = choices && g ? QR_OK : no_memory(err);
    for (const struct json *s = list->child; s && st == QR_OK; s = s->next) {
        if (s->kind != JSON_STRING || s->length == 0)
            st = qr_fail(err, QR_BAD_REQUEST, "%s: entry %zu is no string, or an empty one", name, n);
        else
            choices[n++] = (struct grammar_choice){s->text, s->length, GRAMMAR_RETURN};
    }
    const grammar_node_id entry = st == QR_OK ? grammar_choose(g, choices, n) : GRAMMAR_NOTHING;
    qr_free(choices);
    if (st != QR_OK) {
        grammar_release(g);
        return st;
    }
    return finish(g, entry, name, out, err);
}

/* ---- by kind ---- */

static qr_status make_regex(const char *text, size_t length, const char *name, struct grammar **out, qr_error *err)
{
    struct grammar *g = grammar_begin();
    grammar_node_id entry;
    if (!g)
        return no_memory(err);
    const qr_status st = grammar_regex(g, text, length, REGEX_WHOLE, CODE_PLAIN, name, GRAMMAR_RETURN, &entry, err);
    if (st != QR_OK) {
        grammar_release(g);
        return st;
    }
    return finish(g, entry, name, out, err);
}

static qr_status make_object(const char *name, struct grammar **out, qr_error *err)
{
    struct json_grammar json = {.g = grammar_begin()};
    if (!json.g)
        return no_memory(err);
    return finish(json.g, json_g_object(&json, GRAMMAR_RETURN), name, out, err);
}

qr_status grammar_make(enum grammar_kind kind, const char *text, size_t length, const char *name, struct grammar **out,
                       char *path, qr_error *err)
{
    struct json_document *doc;
    *out = NULL;
    if (path)
        *path = '\0';
    if (kind == GRAMMAR_JSON_OBJECT)
        return make_object(name, out, err);
    if (kind == GRAMMAR_REGEX)
        return make_regex(text, length, name, out, err);
    qr_status st = json_parse(text, length, name, false, &doc, err);
    if (st == QR_BAD_FILE) /* what is no JSON is the request's fault here */
        st = err ? err->status = QR_BAD_REQUEST : QR_BAD_REQUEST;
    if (st != QR_OK)
        return st;
    st = kind == GRAMMAR_JSON_SCHEMA ? grammar_make_schema(json_root(doc), name, out, path, err)
                                     : grammar_make_choice(json_root(doc), name, out, err);
    json_close(doc);
    return st;
}

/* ---- answers of chats ---- */

static bool any_strict(const struct chat *chat)
{
    for (size_t i = 0; i < chat->tools.count; i++)
        if (tool_is_strict(&chat->tools.items[i]))
            return true;
    return false;
}

static bool is_forced(const struct chat *chat)
{
    return chat->tool_choice == TOOL_CHOICE_REQUIRED || chat->tool_choice == TOOL_CHOICE_NAMED;
}

/* Text of any kind, and behind a "<" perhaps the token that opens a block: then no more text. */
static grammar_node_id text_then_calls(struct call_grammar *calls, grammar_node_id next)
{
    struct grammar *g = calls->json->g;
    struct byte_set others = {{0}}, plain;
    byte_set_add(&others, 0, 255);
    byte_set_drop(&others, '<');
    plain = others;
    const grammar_node_id text = grammar_loop(g), opened = grammar_loop(g);
    const grammar_node_id block = grammar_token(g, tok_find(calls->tok, TOKEN_DSML), call_grammar_opened(calls, next));
    const grammar_node_id angle = grammar_byte(g, '<', opened);
    grammar_set_loop(g, text, grammar_either(g, grammar_set(g, &plain, text), angle), next);
    grammar_set_loop(g, opened, grammar_either(g, grammar_either(g, grammar_set(g, &others, text), angle), block), next);
    return text;
}

static qr_status format_node(const struct chat *chat, struct json_grammar *json, grammar_node_id *out, char *path, qr_error *err)
{
    if (chat->any_object) {
        *out = json_g_object(json, GRAMMAR_RETURN);
        return QR_OK;
    }
    return schema_node(json, chat->format, "response_format", GRAMMAR_RETURN, out, path, err);
}

static qr_status answer_node(const struct chat *chat, struct call_grammar *calls, grammar_node_id *out, char *path,
                             const char **param, qr_error *err)
{
    struct json_grammar *json = calls->json;
    *param = "tools";
    if (is_forced(chat)) {
        *out = call_grammar_forced(calls, GRAMMAR_RETURN);
        return calls->status;
    }
    if (!chat->format) {
        *out = text_then_calls(calls, GRAMMAR_RETURN);
        return calls->status;
    }
    if (chat->tools.count > 0) {
        *out = call_grammar_block(calls, GRAMMAR_RETURN);
        if (calls->status != QR_OK)
            return calls->status;
    }
    grammar_node_id value;
    *param = "response_format";
    const qr_status st = format_node(chat, json, &value, path, err);
    *out = grammar_either(json->g, value, *out);
    return st;
}

qr_status grammar_make_answer(const struct chat *chat, enum chat_profile profile, const struct tokenizer *tok,
                              const struct qr_log *log, struct grammar **out, char *path, const char **param, qr_error *err)
{
    *out = NULL;
    *param = "continue_final_message";
    if (path)
        *path = '\0';
    if (!is_forced(chat) && !chat->format && !any_strict(chat))
        return QR_OK;
    if (chat->continued && chat->start == CHAT_CONTENT)
        return qr_fail(err, QR_BAD_REQUEST, "continue_final_message: not with response_format, a forced call or strict tools");
    struct json_grammar json = {.g = grammar_begin()};
    if (!json.g)
        return no_memory(err);
    grammar_node_id entry = GRAMMAR_NOTHING;
    struct call_grammar calls = {.json = &json, .tok = tok, .profile = profile, .tools = &chat->tools, .log = log, .path = path, .err = err,
                                 .only = chat->tool_choice == TOOL_CHOICE_NAMED ? chat->forced : NULL, .status = QR_OK};
    calls.many = chat->parallel_calls && !calls.only;
    const qr_status st = answer_node(chat, &calls, &entry, path, param, err);
    if (st != QR_OK) {
        grammar_release(json.g);
        return st;
    }
    return finish(json.g, entry, *param, out, err);
}
