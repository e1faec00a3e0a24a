#include "serve/responses_read.h"

#include <string.h>

#include "serve/members.h"
#include "serve/responses_items.h"

/* Bodies are repeated inside of events, which writers nest so deep and no deeper. */
enum { MOST_LEVELS = 120, MOST_TOP = 20 };

static int levels_of(const struct json *value)
{
    int most = 0;
    if (value->kind != JSON_ARRAY && value->kind != JSON_OBJECT)
        return 0;
    for (const struct json *child = value->child; child; child = child->next) {
        const int levels = levels_of(child);
        most = levels > most ? levels : most;
    }
    return most + 1;
}

/* ---- what is not here ---- */

static bool refuse_member_of(const char *name, const char *why, struct refusal *refusal)
{
    return refuse(refusal, 400, "unsupported_parameter", name, "%s: %s", name, why);
}

/* Nothing is stored here, and nothing goes on after its answer. */
static bool check_unbuilt(const struct json *body, struct refusal *refusal)
{
    static const char *const stored[] = {"previous_response_id", "conversation", "prompt"};
    bool background = false;
    for (size_t i = 0; i < sizeof stored / sizeof *stored; i++)
        if (member_of(body, stored[i]))
            return refuse_member_of(stored[i], "nothing is stored here: send all of it as input", refusal);
    if (json_bool(member_of(body, "background"), &background) && background)
        return refuse_member_of("background", "answers are made while the client waits", refusal);
    return true;
}

static bool read_include(const struct json *include, struct responses_asked *out, struct refusal *refusal)
{
    if (!include)
        return true;
    if (include->kind != JSON_ARRAY)
        return refuse(refusal, 400, NULL, "include", "include: wanted a list of strings");
    for (const struct json *what = include->child; what; what = what->next) {
        out->logprobs |= json_equals(what, "message.output_text.logprobs");
        out->encrypted |= json_equals(what, "reasoning.encrypted_content");
    }
    return true;
}

/* The likeliest tokens beside each of the text; who wants some wants log probabilities, whatever is included. */
static bool write_logprobs(const struct json *body, struct json_writer *w, struct responses_asked *out, struct refusal *refusal)
{
    qr_error err = {0};
    int32_t top = 0;
    const qr_status st = member_int(body, "top_logprobs", 0, MOST_TOP, &top, &err);
    if (st != QR_OK)
        return refuse_member(refusal, st, &err);
    out->logprobs |= top > 0;
    if (out->logprobs) {
        json_w_member_bool(w, "logprobs", true);
        json_w_member_int(w, "top_logprobs", top);
    }
    return true;
}

/* ---- members ---- */

static bool write_reasoning(const struct json *reasoning, struct json_writer *w, struct responses_asked *out, struct refusal *refusal)
{
    static const char *const kinds[] = {"auto", "concise", "detailed"};
    const struct json *summary = member_of(reasoning, "summary");
    if (!reasoning)
        return true;
    if (reasoning->kind != JSON_OBJECT)
        return refuse(refusal, 400, NULL, "reasoning", "reasoning: wanted an object");
    if (!summary)
        summary = member_of(reasoning, "generate_summary");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        out->summary |= json_equals(summary, kinds[i]);
    if (summary && !out->summary && !json_equals(summary, "none"))
        return refuse(refusal, 400, NULL, "reasoning.summary", "reasoning.summary: wanted auto, concise, detailed or none");
    if (!member_of(reasoning, "effort"))
        return true;
    json_w_key(w, "reasoning");
    json_w_object(w);
    copy_member(reasoning, "effort", w, "effort");
    json_w_end_object(w);
    return true;
}

static bool write_format(const struct json *text, struct json_writer *w, struct refusal *refusal)
{
    const struct json *format = member_of(text, "format");
    if (text && text->kind != JSON_OBJECT)
        return refuse(refusal, 400, NULL, "text", "text: wanted an object");
    if (!format)
        return true;
    if (!type_of(format))
        return refuse(refusal, 400, NULL, "text.format", "text.format: wanted an object with a string \"type\"");
    json_w_key(w, "response_format");
    json_w_object(w);
    copy_member(format, "type", w, "type");
    if (json_equals(type_of(format), "json_schema")) {
        json_w_key(w, "json_schema");
        json_w_object(w);
        copy_member(format, "name", w, "name");
        copy_member(format, "strict", w, "strict");
        copy_member(format, "schema", w, "schema");
        json_w_end_object(w);
    }
    json_w_end_object(w);
    return true;
}

static bool write_limit(const struct json *body, struct json_writer *w, struct refusal *refusal)
{
    static const char name[] = "max_output_tokens";
    qr_error err = {0};
    int32_t most = 0;
    const qr_status st = member_most(body, name, 1, &most, &err);
    if (st != QR_OK)
        return refuse_member(refusal, st, &err);
    copy_member(body, name, w, "max_tokens");
    return true;
}

static bool check_metadata(const struct json *metadata, struct refusal *refusal)
{
    bool good = !metadata || metadata->kind == JSON_OBJECT;
    for (const struct json *m = metadata ? metadata->child : NULL; m; m = m->next)
        good &= m->kind == JSON_STRING;
    return good || refuse(refusal, 400, NULL, "metadata", "metadata: wanted an object of strings");
}

static void write_plain_members(const struct json *body, struct json_writer *w)
{
    static const char *const names[] = {"temperature", "top_p", "top_k", "stream", "parallel_tool_calls"};
    const struct json *model = member_of(body, "model");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        copy_member(body, names[i], w, names[i]);
    if (model && model->kind == JSON_STRING)
        json_w_member_string_n(w, "model", model->text, model_name_length(model->text, model->length));
    else
        copy_member(body, "model", w, "model");
    copy_extensions(body, w);
}

bool responses_read(const struct json *body, const struct qr_log *log, struct translation *t, struct responses_asked *out,
                    struct refusal *refusal)
{
    *out = (struct responses_asked){.summary = false};
    if (!check_unbuilt(body, refusal))
        return false;
    if (levels_of(body) > MOST_LEVELS)
        return refuse(refusal, 400, NULL, NULL, "the request's body: JSON nested deeper than %d", MOST_LEVELS);
    if (!translation_open(t, "input", "text.format", refusal))
        return false;
    write_plain_members(body, t->w);
    return read_include(member_of(body, "include"), out, refusal) && check_metadata(member_of(body, "metadata"), refusal) &&
           write_logprobs(body, t->w, out, refusal) && write_limit(body, t->w, refusal) && write_reasoning(member_of(body, "reasoning"), t->w, out, refusal) &&
           write_format(member_of(body, "text"), t->w, refusal) && response_tools_write(body, log, t, &out->tools, refusal) &&
           response_choice_write(member_of(body, "tool_choice"), t->w, refusal) && response_items_write(body, t, refusal) &&
           translation_finish(t, refusal);
}
