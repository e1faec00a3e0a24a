#include "text/chat.h"

#include <string.h>

#include "text/chat_render.h"
#include "text/chat_turns.h"

struct chat_options chat_options_default(enum chat_profile profile)
{
    return (struct chat_options){.profile = profile, .images = profile == CHAT_V41, .thinking = true};
}

static bool is_absent(const struct json *value) { return !value || value->kind == JSON_NULL; }

/* ---- tools ---- */

static qr_status read_named_choice(const struct json *choice, struct chat *out, struct chat_issue *issue, qr_error *err)
{
    const struct json *function = json_get(choice, "function");
    const char *name;
    size_t length;
    if (choice->kind != JSON_OBJECT || !json_equals(json_get(choice, "type"), "function") || !function)
        return chat_refuse(issue, err, NULL, "tool_choice",
                           "wanted \"none\", \"auto\", \"required\" or an object that names a function");
    qr_status st = tool_qualified_name(choice, function, "tool_choice", &out->messages.arena, &name, &length, issue, err);
    if (st != QR_OK)
        return st;
    out->tool_choice = TOOL_CHOICE_NAMED;
    out->forced = tool_list_find(&out->tools, name, length);
    if (!out->forced)
        return chat_refuse(issue, err, NULL, "tool_choice", "no tool %.80s is declared", name);
    return QR_OK;
}

static qr_status read_tool_choice(const struct json *choice, struct chat *out, struct chat_issue *issue, qr_error *err)
{
    out->tool_choice = TOOL_CHOICE_AUTO;
    if (is_absent(choice) || json_equals(choice, "auto"))
        return QR_OK;
    if (json_equals(choice, "none")) {
        out->tool_choice = TOOL_CHOICE_NONE;
        out->tools = (struct tool_list){0};
        return QR_OK;
    }
    if (!json_equals(choice, "required"))
        return read_named_choice(choice, out, issue, err);
    out->tool_choice = TOOL_CHOICE_REQUIRED;
    if (out->tools.count == 0)
        return chat_refuse(issue, err, NULL, "tool_choice", "a call is required and no tool is declared");
    return QR_OK;
}

static qr_status read_tools(const struct json *request, struct chat *out, struct chat_issue *issue, qr_error *err)
{
    const struct json *parallel = json_get(request, "parallel_tool_calls");
    out->parallel_calls = true;
    if (!is_absent(parallel) && !json_bool(parallel, &out->parallel_calls))
        return chat_refuse(issue, err, NULL, "parallel_tool_calls", "this is no boolean");
    qr_status st = tool_list_read(json_get(request, "tools"), false, &out->messages.arena, &out->tools, issue, err);
    return st == QR_OK ? read_tool_choice(json_get(request, "tool_choice"), out, issue, err) : st;
}

/* ---- the form of the answer ---- */

static qr_status read_format(const struct json *format, struct chat *out, struct chat_issue *issue, qr_error *err)
{
    static const char json_object[] = "json_object";
    static const struct json type = {.kind = JSON_STRING, .key = "type", .key_length = 4, .text = json_object,
                                     .length = sizeof json_object - 1};
    static const struct json any_object = {.kind = JSON_OBJECT, .child = (struct json *)&type, .count = 1};
    const struct json *name = json_get(format, "type");
    if (is_absent(format) || json_equals(name, "text"))
        return QR_OK;
    if (json_equals(name, "json_object")) {
        out->format = &any_object;
        out->any_object = true;
        return QR_OK;
    }
    if (!json_equals(name, "json_schema"))
        return chat_refuse(issue, err, NULL, "response_format",
                           "wanted an object whose type is text, json_object or json_schema");
    out->format = json_get(json_get(format, "json_schema"), "schema");
    if (!out->format || out->format->kind != JSON_OBJECT)
        return chat_refuse(issue, err, NULL, "response_format.json_schema", "there is no object \"schema\"");
    return QR_OK;
}

/* ---- how the conversation ends ---- */

static qr_status read_flag(const struct json *request, const char *member, bool *out, struct chat_issue *issue,
                           qr_error *err)
{
    const struct json *value = json_get(request, member);
    if (is_absent(value) || json_bool(value, out))
        return QR_OK;
    return chat_refuse(issue, err, NULL, member, "this is no boolean");
}

static qr_status read_ending(const struct json *request, const struct chat_messages *messages, struct chat_rendering *r,
                             struct chat_issue *issue, qr_error *err)
{
    const struct chat_message *last = &messages->items[messages->count - 1];
    qr_status st;
    r->header = true;
    if ((st = read_flag(request, "continue_final_message", &r->open, issue, err)) != QR_OK ||
        (st = read_flag(request, "add_generation_prompt", &r->header, issue, err)) != QR_OK)
        return st;
    if (r->open && last->role != CHAT_ASSISTANT)
        return chat_refuse(issue, err, NULL, "continue_final_message", "the last message is not the assistant's");
    r->open |= last->role == CHAT_ASSISTANT && last->prefix;
    r->header &= !r->open;
    return QR_OK;
}

static qr_status read_keep(const struct json *request, struct chat_rendering *r, struct chat_issue *issue, qr_error *err)
{
    const struct json *drop = json_get(json_get(request, "chat_template_kwargs"), "drop_thinking");
    bool drops = true;
    if (!is_absent(drop) && !json_bool(drop, &drops))
        return chat_refuse(issue, err, NULL, "chat_template_kwargs.drop_thinking", "this is no boolean");
    r->keep_reasoning = !drops;
    return QR_OK;
}

/* ---- what the prompt turned out to be ---- */

static bool segment_is(const struct prompt *p, const struct prompt_segment *s, const char *token)
{
    return s->markup && s->length == strlen(token) && memcmp(p->text.data + s->offset, token, s->length) == 0;
}

static enum chat_section find_start(const struct prompt *p)
{
    for (size_t i = p->count; i-- > 0;) {
        if (segment_is(p, &p->segments[i], TOKEN_THINK))
            return CHAT_REASONING;
        if (segment_is(p, &p->segments[i], TOKEN_END_THINK))
            return CHAT_CONTENT;
    }
    return CHAT_CONTENT;
}

static bool continues_something(const struct chat_message *last, enum chat_section start)
{
    if (start == CHAT_REASONING)
        return last->reasoning_length > 0;
    return last->blocks->length > 0 || last->blocks->next || last->calls;
}

static size_t count_images(const struct chat_block *blocks, const struct chat_image **out)
{
    size_t count = 0;
    for (const struct chat_block *b = blocks; b; b = b->next) {
        if (b->kind == BLOCK_RESULT)
            count += count_images(b->parts, out ? out + count : NULL);
        if (b->kind != BLOCK_IMAGE)
            continue;
        if (out)
            out[count] = b->image;
        count++;
    }
    return count;
}

static qr_status collect_images(struct chat *out, qr_error *err)
{
    size_t count = 0;
    for (size_t i = 0; i < out->messages.count; i++)
        count += count_images(out->messages.items[i].blocks, NULL);
    out->images = arena_alloc(&out->messages.arena, count * sizeof *out->images);
    if (!out->images)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu pictures", count);
    for (size_t i = 0; i < out->messages.count; i++)
        out->image_count += count_images(out->messages.items[i].blocks, out->images + out->image_count);
    return QR_OK;
}

/* ---- all of it ---- */

static qr_status read_request(const struct json *request, const struct chat_options *options, struct chat *out,
                              struct chat_rendering *r, struct chat_issue *issue, qr_error *err)
{
    const struct chat_message_rules rules = {options->images, options->vendor_extensions};
    qr_status st;
    if (!request || request->kind != JSON_OBJECT)
        return chat_refuse(issue, err, NULL, "request", "this is no JSON object");
    st = chat_thinking_resolve(request, options->profile, options->thinking, options->effort, &out->thinking, issue, err);
    if (st != QR_OK)
        return st;
    if ((st = read_tools(request, out, issue, err)) != QR_OK ||
        (st = read_format(json_get(request, "response_format"), out, issue, err)) != QR_OK ||
        (st = chat_messages_read(json_get(request, "messages"), &rules, &out->messages, issue, err)) != QR_OK ||
        (st = read_ending(request, &out->messages, r, issue, err)) != QR_OK)
        return st;
    return read_keep(request, r, issue, err);
}

qr_status chat_render(const struct json *request, const struct chat_options *options, struct chat *out,
                      struct chat_issue *issue, qr_error *err)
{
    struct chat_rendering r = {.profile = options->profile,
                               .messages = &out->messages,
                               .tools = &out->tools,
                               .call_blocks = options->call_blocks};
    *out = (struct chat){0};
    arena_init(&out->messages.arena, 8192);
    qr_status st = read_request(request, options, out, &r, issue, err);
    if (st != QR_OK)
        goto cleanup;
    r.thinking = out->thinking;
    r.format = out->format;
    st = chat_turns_arrange(&out->messages, options->profile, out->tools.count > 0 || out->format, err);
    if (st != QR_OK)
        goto cleanup;
    chat_render_messages(&r, &out->prompt);
    if (prompt_failed(&out->prompt)) {
        st = qr_fail(err, QR_NO_MEMORY, "no memory for a prompt of more than %zu bytes", out->prompt.text.length);
        goto cleanup;
    }
    out->start = find_start(&out->prompt);
    out->continued = r.open && continues_something(&out->messages.items[out->messages.count - 1], out->start);
    st = collect_images(out, err);

cleanup:
    if (st != QR_OK)
        chat_free(out);
    return st;
}

void chat_free(struct chat *chat)
{
    prompt_free(&chat->prompt);
    chat_messages_free(&chat->messages);
    *chat = (struct chat){0};
}

void chat_write_forced_call(struct prompt *p, enum chat_profile profile)
{
    prompt_puts(p, "\n\n");
    chat_write_block_open(p, profile);
    prompt_puts(p, "\n");
    chat_write_call_open(p, profile);
}
