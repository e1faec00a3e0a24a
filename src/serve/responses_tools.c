#include "serve/responses_tools.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "serve/members.h"

/* A list of tools on its way. */
struct reader {
    struct translation *t;
    struct json_writer *w;
    struct response_tools *out;
    const struct qr_log *log;
    struct refusal *refusal;
    char path[64];       /* of the list */
    size_t index;        /* of the tool in it, */
    struct place place;  /* and what it is called */
    bool again;          /* tools that are there already are passed over */
};

static bool wrong(const struct reader *r, const char *what)
{
    char param[96];
    snprintf(param, sizeof param, "%s[%zu]", r->path, r->index);
    return refuse(r->refusal, 400, NULL, param, "%s: %s", param, what);
}

static bool no_memory(const struct reader *r) { return refuse(r->refusal, 500, NULL, NULL, "no memory for the request"); }

void response_tools_free(struct response_tools *tools)
{
    for (size_t i = 0; i < tools->count; i++)
        qr_free(tools->items[i].name);
    qr_free(tools->items);
    *tools = (struct response_tools){0};
}

const struct response_tool *response_tools_find(const struct response_tools *tools, const char *name, size_t length)
{
    for (size_t i = 0; i < tools->count; i++)
        if (tools->items[i].length == length && memcmp(tools->items[i].name, name, length) == 0)
            return &tools->items[i];
    return NULL;
}

static const struct json *string_member(const struct json *of, const char *name)
{
    const struct json *value = member_of(of, name);
    return value && value->kind == JSON_STRING ? value : NULL;
}

/* ---- names ---- */

/* The name of a namespace, which is a string or an object; NULL: none. */
static const struct json *space_name(const struct json *space)
{
    return space && space->kind == JSON_STRING ? space : string_member(space, "name");
}

/* Remembers a tool by the name that the model calls it. */
static bool remember(struct reader *r, const struct json *space, const char *name, enum tool_form form, bool *known)
{
    const struct json *apart = space_name(space);
    struct response_tools *tools = r->out;
    struct buffer whole = {0};
    const bool joined = apart && !strstr(name, "::");
    if (joined) {
        buffer_append(&whole, apart->text, apart->length);
        buffer_puts(&whole, "::");
    }
    buffer_puts(&whole, name);
    if (whole.failed || !array_grow(&tools->items, &tools->room, tools->count, sizeof *tools->items)) {
        buffer_free(&whole);
        return no_memory(r);
    }
    *known = response_tools_find(tools, whole.data, whole.length) != NULL;
    if (*known) {
        buffer_free(&whole);
        return true;
    }
    tools->items[tools->count++] = (struct response_tool){.name = whole.data, .length = whole.length,
                                                          .space = apart ? apart->length : 0, .form = form};
    return true;
}

/* ---- one tool ---- */

/* The grammar that a free-form text follows, for the model to read. */
static void write_grammar(const struct reader *r, const struct json *format)
{
    const struct json *syntax = string_member(format, "syntax"), *definition = string_member(format, "definition");
    struct buffer text = {0};
    if (!definition)
        return;
    buffer_printf(&text, "Follows this grammar (%s):\n", syntax ? syntax->text : "lark");
    buffer_append(&text, definition->text, definition->length);
    if (text.failed)
        translation_lost(r->t);
    else
        json_w_member_string_n(r->w, "description", text.data, text.length);
    buffer_free(&text);
}

static void write_one_string(const struct reader *r, const struct json *format)
{
    struct json_writer *w = r->w;
    json_w_key(w, "parameters");
    json_w_object(w);
    json_w_member_string(w, "type", "object");
    json_w_key(w, "properties");
    json_w_object(w);
    json_w_key(w, "input");
    json_w_object(w);
    json_w_member_string(w, "type", "string");
    write_grammar(r, format);
    json_w_end_object(w);
    json_w_end_object(w);
    json_w_key(w, "required");
    json_w_array(w);
    json_w_string(w, "input");
    json_w_end_array(w);
    json_w_end_object(w);
}

static void write_space(const struct json *space, struct json_writer *w)
{
    if (!space)
        return;
    json_w_key(w, "namespace");
    json_w_object(w);
    json_w_key(w, "name");
    json_w_value(w, space_name(space));
    copy_member(space, "description", w, "description");
    json_w_end_object(w);
}

static void write_function(const struct reader *r, const struct json *tool, const char *name, enum tool_form form)
{
    struct json_writer *w = r->w;
    json_w_key(w, "function");
    json_w_object(w);
    json_w_member_string(w, "name", name);
    copy_member(tool, "description", w, "description");
    if (form == TOOL_CUSTOM || (form == TOOL_SEARCH && !member_of(tool, "parameters")))
        write_one_string(r, member_of(tool, "format"));
    else
        copy_member(tool, "parameters", w, "parameters");
    copy_strict(tool, w);
    json_w_end_object(w);
}

static bool add_tool(struct reader *r, const struct json *tool, const struct json *space, enum tool_form form)
{
    const struct json *given = string_member(tool, "name");
    const char *name = form == TOOL_SEARCH ? TOOL_SEARCH_NAME : given ? given->text : "";
    bool known = false;
    if (!*name || (given && strlen(given->text) != given->length))
        return wrong(r, "the tool has no name");
    if (!space)
        space = member_of(tool, "namespace");
    if (space && !space_name(space))
        return wrong(r, "the namespace has no name");
    if (!remember(r, space, name, form, &known))
        return false;
    if (known && r->again)
        return true;
    translation_tool(r->t, r->place);
    json_w_object(r->w);
    json_w_member_string(r->w, "type", "function");
    write_space(space, r->w);
    write_function(r, tool, name, form);
    json_w_end_object(r->w);
    return true;
}

/* ---- kinds of tools ---- */

/* What the service runs itself: answers do without. */
static bool is_hosted(const struct json *tool)
{
    static const char *const types[] = {"code_interpreter", "file_search", "image_generation", "mcp"};
    static const char web[] = "web_search";
    const struct json *type = type_of(tool);
    if (strncmp(type->text, web, sizeof web - 1) == 0)
        return true;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (json_equals(type, types[i]))
            return true;
    return json_equals(type, TOOL_SEARCH_NAME) && !json_equals(member_of(tool, "execution"), "client");
}

static bool read_tool(struct reader *r, const struct json *tool, const struct json *space);

static bool read_space(struct reader *r, const struct json *space)
{
    const struct json *tools = member_of(space, "tools");
    if (!space_name(space))
        return wrong(r, "the namespace has no name");
    if (!tools || tools->kind != JSON_ARRAY)
        return wrong(r, "the namespace has no list \"tools\"");
    for (const struct json *tool = tools->child; tool; tool = tool->next)
        if (!read_tool(r, tool, space))
            return false;
    return true;
}

static bool read_tool(struct reader *r, const struct json *tool, const struct json *space)
{
    char what[160];
    const struct json *type = type_of(tool);
    if (!type)
        return wrong(r, "the tool is no object with a string \"type\"");
    if (json_equals(type, "function"))
        return add_tool(r, tool, space, TOOL_FUNCTION);
    if (json_equals(type, "custom"))
        return add_tool(r, tool, space, TOOL_CUSTOM);
    if (json_equals(type, "namespace") && !space)
        return read_space(r, tool);
    if (is_hosted(tool)) {
        qr_logf(r->log, QR_LOG_WARN, "a request's tool of type %.80s is passed over: this server does not have it", type->text);
        return true;
    }
    if (json_equals(type, TOOL_SEARCH_NAME))
        return add_tool(r, tool, space, TOOL_SEARCH);
    snprintf(what, sizeof what, "a tool of type %.80s, which this server does not have", type->text);
    return wrong(r, what);
}

/* ---- all of them ---- */

static bool read_list(struct reader *r, const struct json *tools)
{
    if (!tools)
        return true;
    if (tools->kind != JSON_ARRAY)
        return refuse(r->refusal, 400, NULL, r->path, "%s: wanted a list", r->path);
    r->index = 0;
    for (const struct json *tool = tools->child; tool; tool = tool->next, r->index++) {
        if (!r->again)
            r->place = (struct place){"tools", r->index, false};
        if (!read_tool(r, tool, NULL))
            return false;
    }
    return true;
}

static bool brings_tools(const struct json *item)
{
    return json_equals(type_of(item), "additional_tools") || json_equals(type_of(item), "tool_search_output");
}

bool response_tools_write(const struct json *body, const struct qr_log *log, struct translation *t, struct response_tools *out,
                          struct refusal *refusal)
{
    struct reader r = {.t = t, .w = t->w, .out = out, .log = log, .refusal = refusal, .path = "tools"};
    const struct json *input = member_of(body, "input");
    json_w_key(t->w, "tools");
    json_w_array(t->w);
    if (!read_list(&r, member_of(body, "tools")))
        return false;
    r.again = true;
    size_t i = 0;
    for (const struct json *item = input && input->kind == JSON_ARRAY ? input->child : NULL; item; item = item->next, i++) {
        if (!brings_tools(item))
            continue;
        snprintf(r.path, sizeof r.path, "input[%zu].tools", i);
        r.place = (struct place){"input", i, false};
        if (!read_list(&r, member_of(item, "tools")))
            return false;
    }
    json_w_end_array(t->w);
    return true;
}

bool response_choice_write(const struct json *choice, struct json_writer *w, struct refusal *refusal)
{
    static const char name[] = "tool_choice";
    const struct json *type = type_of(choice);
    if (!choice)
        return true;
    if (choice->kind == JSON_STRING) {
        json_w_key(w, name);
        json_w_value(w, choice);
        return true;
    }
    if (!type)
        return refuse(refusal, 400, NULL, name, "%s: wanted a string or an object with a string \"type\"", name);
    const bool search = json_equals(type, TOOL_SEARCH_NAME);
    if (!search && !json_equals(type, "function") && !json_equals(type, "custom"))
        return refuse(refusal, 400, "unsupported_value", name, "%s: %.80s cannot be chosen here, wanted none, auto, required, function or custom",
                      name, type->text);
    if (!search && !string_member(choice, "name"))
        return refuse(refusal, 400, NULL, name, "%s: wanted the name of a tool", name);
    json_w_key(w, name);
    json_w_object(w);
    json_w_member_string(w, "type", "function");
    copy_member(choice, "namespace", w, "namespace");
    json_w_key(w, "function");
    json_w_object(w);
    json_w_member_string(w, "name", search ? TOOL_SEARCH_NAME : string_member(choice, "name")->text);
    json_w_end_object(w);
    json_w_end_object(w);
    return true;
}
