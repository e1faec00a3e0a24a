#include "serve/messages_read.h"

#include <string.h>

#include "serve/members.h"
#include "serve/messages_blocks.h"

/* ---- tools ---- */

static bool write_tool(const struct json *tool, struct translation *t, size_t index, struct refusal *refusal)
{
    const struct json *name = member_of(tool, "name");
    if (!name || name->kind != JSON_STRING)
        return refuse(refusal, 400, NULL, "tools", "tools[%zu]: the tool has no string \"name\"", index);
    translation_tool(t, (struct place){"tools", index, false});
    json_w_object(t->w);
    json_w_member_string(t->w, "type", "function");
    json_w_key(t->w, "function");
    json_w_object(t->w);
    copy_member(tool, "name", t->w, "name");
    copy_member(tool, "description", t->w, "description");
    copy_member(tool, "input_schema", t->w, "parameters");
    copy_strict(tool, t->w);
    json_w_end_object(t->w);
    json_w_end_object(t->w);
    return true;
}

/* A tool that has a type of its own is one that the service itself has. */
static bool is_of_server(const struct json *tool)
{
    const struct json *type = member_of(tool, "type");
    return type && !json_equals(type, "custom");
}

static bool write_tools(const struct json *tools, bool ignore_server_tools, const struct qr_log *log, struct translation *t,
                        struct refusal *refusal)
{
    size_t i = 0;
    if (!tools)
        return true;
    if (tools->kind != JSON_ARRAY)
        return refuse(refusal, 400, NULL, "tools", "tools: wanted a list");
    json_w_key(t->w, "tools");
    json_w_array(t->w);
    for (const struct json *tool = tools->child; tool; tool = tool->next, i++) {
        const char *type = type_of(tool) ? type_of(tool)->text : "that is no string";
        if (tool->kind != JSON_OBJECT)
            return refuse(refusal, 400, NULL, "tools", "tools[%zu]: wanted an object", i);
        if (is_of_server(tool) && !ignore_server_tools)
            return refuse(refusal, 400, NULL, "tools", "tools[%zu].type: %.80s is a tool that this server does not have", i, type);
        if (is_of_server(tool))
            qr_logf(log, QR_LOG_WARN, "a request's tool of type %.80s is passed over: this server does not have it", type);
        else if (!write_tool(tool, t, i, refusal))
            return false;
    }
    json_w_end_array(t->w);
    return true;
}

static bool write_named_choice(const struct json *choice, struct json_writer *w, struct refusal *refusal)
{
    const struct json *name = member_of(choice, "name");
    if (!name || name->kind != JSON_STRING)
        return refuse(refusal, 400, NULL, "tool_choice.name", "tool_choice.name: wanted the name of a tool");
    json_w_object(w);
    json_w_member_string(w, "type", "function");
    json_w_key(w, "function");
    json_w_object(w);
    copy_member(choice, "name", w, "name");
    json_w_end_object(w);
    json_w_end_object(w);
    return true;
}

static bool write_tool_choice(const struct json *choice, struct json_writer *w, struct refusal *refusal)
{
    static const char *const names[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const struct json *type = type_of(choice);
    qr_error err = {0};
    bool single = false;
    if (!choice)
        return true;
    if (!type)
        return refuse(refusal, 400, NULL, "tool_choice", "tool_choice: wanted an object with a string \"type\"");
    const qr_status st = member_bool(choice, "disable_parallel_tool_use", &single, &err);
    if (st != QR_OK)
        return refuse_member(refusal, st, &err);
    if (single)
        json_w_member_bool(w, "parallel_tool_calls", false);
    json_w_key(w, "tool_choice");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (json_equals(type, names[i][0])) {
            json_w_string(w, names[i][1]);
            return true;
        }
    }
    if (json_equals(type, "tool"))
        return write_named_choice(choice, w, refusal);
    return refuse(refusal, 400, NULL, "tool_choice.type", "tool_choice.type: found %.80s, wanted auto, any, tool or none", type->text);
}

/* ---- thinking and the form of the answer ---- */

static bool write_thinking(const struct json *thinking, struct json_writer *w, struct messages_asked *out, struct refusal *refusal)
{
    const struct json *display = member_of(thinking, "display");
    if (!thinking)
        return true;
    if (!type_of(thinking))
        return refuse(refusal, 400, NULL, "thinking", "thinking: wanted an object whose type is enabled, disabled or adaptive");
    out->hides_thinking = json_equals(display, "omitted");
    if (display && !out->hides_thinking && !json_equals(display, "summarized"))
        return refuse(refusal, 400, NULL, "thinking.display", "thinking.display: wanted summarized or omitted");
    json_w_key(w, "thinking");
    json_w_object(w);
    copy_member(thinking, "type", w, "type");
    json_w_end_object(w);
    return true;
}

/* "output_config": how hard to think, and a schema to reply by (which was a member of its own once). */
static bool write_output(const struct json *body, struct translation *t, struct refusal *refusal)
{
    struct json_writer *w = t->w;
    const struct json *config = member_of(body, "output_config"), *format = member_of(config, "format");
    if (config && config->kind != JSON_OBJECT)
        return refuse(refusal, 400, NULL, "output_config", "output_config: wanted an object");
    if (member_of(config, "effort")) {
        json_w_key(w, "output_config");
        json_w_object(w);
        copy_member(config, "effort", w, "effort");
        json_w_end_object(w);
    }
    if (!format && (format = member_of(body, "output_format")))
        t->format = "output_format";
    if (!format)
        return true;
    if (!json_equals(type_of(format), "json_schema") || !member_of(format, "schema"))
        return refuse(refusal, 400, NULL, t->format, "%s: wanted an object of type json_schema with a \"schema\"", t->format);
    json_w_key(w, "response_format");
    json_w_object(w);
    json_w_member_string(w, "type", "json_schema");
    json_w_key(w, "json_schema");
    json_w_object(w);
    json_w_member_string(w, "name", "answer");
    copy_member(format, "schema", w, "schema");
    json_w_end_object(w);
    json_w_end_object(w);
    return true;
}

/* ---- how tokens are drawn ---- */

enum { MOST_STOPS = 16 };

static bool write_stops(const struct json *stops, struct json_writer *w, struct refusal *refusal)
{
    static const char name[] = "stop_sequences";
    if (!stops)
        return true;
    if (stops->kind != JSON_ARRAY)
        return refuse(refusal, 400, NULL, name, "%s: wanted a list of strings", name);
    if (stops->count > MOST_STOPS)
        return refuse(refusal, 400, NULL, name, "%s: %zu strings, wanted at most %d", name, stops->count, MOST_STOPS);
    for (const struct json *s = stops->child; s; s = s->next)
        if (s->kind != JSON_STRING || s->length == 0 || strlen(s->text) != s->length)
            return refuse(refusal, 400, NULL, name, "%s: wanted strings that are not empty and hold no NUL", name);
    json_w_key(w, "stop");
    json_w_value(w, stops);
    return true;
}

static void write_plain_members(const struct json *body, struct json_writer *w)
{
    static const char *const names[] = {"max_tokens", "temperature", "top_p", "top_k", "stream"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        copy_member(body, names[i], w, names[i]);
    copy_extensions(body, w);
}

/* The name decides about thinking where nothing else does (protocol.md 2.6); those of Anthropic's models say nothing. */
static bool write_model(const struct json *model, struct json_writer *w, struct refusal *refusal)
{
    if (!model)
        return true;
    if (model->kind != JSON_STRING)
        return refuse(refusal, 400, NULL, "model", "model: wanted a string");
    if (strncmp(model->text, "claude-", 7) != 0)
        json_w_member_string_n(w, "model", model->text, model_name_length(model->text, model->length));
    return true;
}

bool messages_read(const struct json *body, bool ignore_server_tools, const struct qr_log *log, struct translation *t,
                   struct messages_asked *out, struct refusal *refusal)
{
    *out = (struct messages_asked){0};
    if (!translation_open(t, "messages", "output_config.format", refusal))
        return false;
    write_plain_members(body, t->w);
    return write_model(member_of(body, "model"), t->w, refusal) && write_stops(member_of(body, "stop_sequences"), t->w, refusal) &&
           write_thinking(member_of(body, "thinking"), t->w, out, refusal) && write_output(body, t, refusal) &&
           write_tools(member_of(body, "tools"), ignore_server_tools, log, t, refusal) &&
           write_tool_choice(member_of(body, "tool_choice"), t->w, refusal) && messages_write(body, t, refusal) &&
           translation_finish(t, refusal);
}
