#include "serve/translation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/members.h"

bool translation_open(struct translation *t, const char *list, const char *format, struct refusal *refusal)
{
    *t = (struct translation){.w = json_writer_open(false), .list = list, .format = format};
    if (!t->w)
        return refuse(refusal, 500, NULL, NULL, "no memory for the request");
    json_w_object(t->w);
    return true;
}

void translation_message(struct translation *t, struct place from) { buffer_append(&t->messages, &from, sizeof from); }
void translation_tool(struct translation *t, struct place from) { buffer_append(&t->tools, &from, sizeof from); }
void translation_lost(struct translation *t) { t->messages.failed = true; }

bool translation_finish(struct translation *t, struct refusal *refusal)
{
    qr_error err = {0};
    json_w_end_object(t->w);
    const qr_status st = json_finish(t->w, &t->text, &t->length, &err);
    if (st == QR_OK && !t->messages.failed && !t->tools.failed)
        return true;
    if (st == QR_BAD_ARGUMENT)
        return refuse(refusal, 400, NULL, NULL, "the request as a chat: %s", err.message);
    return refuse(refusal, 500, NULL, NULL, "no memory for the request");
}

void translation_free(struct translation *t)
{
    json_writer_close(t->w);
    buffer_free(&t->messages);
    buffer_free(&t->tools);
    *t = (struct translation){0};
}

/* ---- where a refusal belongs ---- */

/* "messages[2].content[0]" with this list's name before it: the place of its element, and what stands behind the bracket. */
static const struct place *element_of(const char *param, const char *list, const struct buffer *places, const char **rest)
{
    const size_t length = strlen(list);
    if (strncmp(param, list, length) != 0 || param[length] != '[')
        return NULL;
    char *end;
    const unsigned long index = strtoul(param + length + 1, &end, 10);
    if (*end != ']' || index >= places->length / sizeof(struct place))
        return NULL;
    *rest = end + 1;
    return (const struct place *)(void *)places->data + index;
}

static void name_place(const struct place *p, const char *rest, char *out, size_t size)
{
    if (p->index == PLACE_WHOLE)
        snprintf(out, size, "%s", p->name);
    else
        snprintf(out, size, "%s[%zu]%s", p->name, p->index, p->same ? rest : "");
}

static bool clients_name(const struct translation *t, const char *param, char *out, size_t size)
{
    static const char format[] = "response_format";
    const char *rest = "";
    const struct place *p = element_of(param, "messages", &t->messages, &rest);
    if (!p)
        p = element_of(param, "tools", &t->tools, &rest);
    if (p)
        name_place(p, rest, out, size);
    else if (strcmp(param, "messages") == 0)
        snprintf(out, size, "%s", t->list);
    else if (strncmp(param, format, strlen(format)) == 0) /* a place in its schema stays: "#/properties/a" */
        snprintf(out, size, "%s%s", t->format, strchr(param, '#') ? strchr(param, '#') : "");
    else
        return false;
    return true;
}

void translation_locate(const struct translation *t, struct refusal *refusal)
{
    char name[sizeof refusal->param], message[sizeof refusal->message];
    const size_t named = strcspn(refusal->message, ":"); /* a sentence begins with the path, or with what is above it */
    if (!refusal->param[0] || !clients_name(t, refusal->param, name, sizeof name))
        return;
    if (named <= strlen(refusal->param) && strncmp(refusal->message, refusal->param, named) == 0) {
        snprintf(message, sizeof message, "%.*s%s", (int)strcspn(name, "#"), name, refusal->message + named); /* it says the place itself */
        memcpy(refusal->message, message, sizeof message);
    }
    memcpy(refusal->param, name, sizeof name);
}

/* ---- for translators ---- */

void copy_member(const struct json *from, const char *name, struct json_writer *w, const char *as)
{
    const struct json *value = member_of(from, name);
    if (!value)
        return;
    json_w_key(w, as);
    json_w_value(w, value);
}

void copy_extensions(const struct json *from, struct json_writer *w)
{
    static const char *const names[] = {
        "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "banned", "stop_token_ids", "min_tokens",
        "ignore_eos", "cache_salt", "guided_json", "guided_regex", "guided_choice", "guided_json_object", "structured_outputs",
        /* which are refused: */
        "guided_grammar", "guided_whitespace_pattern", "allowed_token_ids", "bad_words", "use_beam_search", "truncate_prompt_tokens"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        copy_member(from, names[i], w, names[i]);
}

void copy_strict(const struct json *tool, struct json_writer *w)
{
    bool strict;
    if (json_bool(member_of(tool, "strict"), &strict) && strict)
        json_w_member_bool(w, "strict", true);
}

void part_text(struct json_writer *w, const char *text, size_t length)
{
    json_w_object(w);
    json_w_member_string(w, "type", "text");
    json_w_member_string_n(w, "text", text, length);
    json_w_end_object(w);
}

void part_bare(struct json_writer *w, const struct json *type)
{
    json_w_object(w);
    json_w_member_string_n(w, "type", type->text, type->length);
    json_w_end_object(w);
}

const struct json *type_of(const struct json *value)
{
    const struct json *type = json_get(value, "type");
    return type && type->kind == JSON_STRING ? type : NULL;
}

size_t model_name_length(const char *name, size_t length)
{
    static const char wide[] = "[1m]";
    while (length && name[length - 1] == '/')
        length--;
    if (length > sizeof wide - 1 && memcmp(name + length - (sizeof wide - 1), wide, sizeof wide - 1) == 0)
        length -= sizeof wide - 1;
    return length;
}
