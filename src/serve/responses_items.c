#include "serve/responses_items.h"

#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/utf8.h"
#include "serve/members.h"
#include "serve/responses_tools.h"

/* Where in the input we are. */
struct reader {
    struct translation *t;
    struct json_writer *w;
    struct refusal *refusal;
    const struct json *item; /* NULL: at its end */
    size_t index;
};

static bool wrong(const struct reader *r, const char *where, const char *what)
{
    char param[96];
    snprintf(param, sizeof param, "input[%zu]%s", r->index, where);
    return refuse(r->refusal, 400, NULL, param, "%s: %s", param, what);
}

static const struct json *string_member(const struct json *of, const char *name)
{
    const struct json *value = member_of(of, name);
    return value && value->kind == JSON_STRING ? value : NULL;
}

/* ---- what an item is ---- */

static bool is(const struct json *item, const char *type) { return item && json_equals(type_of(item), type); }

/* A message may leave out its type. */
static bool is_message(const struct json *item) { return is(item, "message") || (item && !type_of(item) && member_of(item, "role")); }

static bool is_reply(const struct json *item) { return is_message(item) && json_equals(member_of(item, "role"), "assistant"); }

static bool is_call(const struct json *item)
{
    return is(item, "function_call") || is(item, "custom_tool_call") || is(item, "tool_search_call");
}

static bool is_result(const struct json *item)
{
    return is(item, "function_call_output") || is(item, "custom_tool_call_output") || is(item, "tool_search_output");
}

/* To the next item that belongs to a message. */
static void skip_tools(struct reader *r)
{
    for (; is(r->item, "additional_tools"); r->index++)
        r->item = r->item->next;
}

static void advance(struct reader *r)
{
    r->item = r->item->next;
    r->index++;
    skip_tools(r);
}

static void open_message(const struct reader *r, const char *role, bool same)
{
    translation_message(r->t, (struct place){"input", r->index, same});
    json_w_object(r->w);
    json_w_member_string(r->w, "role", role);
}

/* ---- parts ---- */

static void write_image(struct json_writer *w, const struct json *part)
{
    json_w_object(w);
    copy_member(part, "type", w, "type");
    copy_member(part, "image_url", w, "image_url");
    copy_member(part, "detail", w, "detail");
    json_w_end_object(w);
}

/* A part that is text, or NULL. */
static const struct json *text_of_part(const struct json *part)
{
    if (is(part, "input_text") || is(part, "output_text") || is(part, "text"))
        return string_member(part, "text");
    return is(part, "refusal") ? string_member(part, "refusal") : NULL;
}

/* A string or parts, where parts that the chat request does not know are for it to answer: it refuses them in a message, and
 * names them to the model in a result. */
static bool write_content(const struct reader *r, const struct json *content, const char *where)
{
    json_w_key(r->w, "content");
    if (!content || content->kind == JSON_STRING) {
        json_w_string_n(r->w, content ? content->text : "", content ? content->length : 0);
        return true;
    }
    if (content->kind != JSON_ARRAY)
        return wrong(r, where, "wanted a string or a list of parts");
    json_w_array(r->w);
    for (const struct json *part = content->child; part; part = part->next) {
        const struct json *text = text_of_part(part);
        if (!type_of(part))
            return wrong(r, where, "a part is no object with a string \"type\"");
        if (text)
            part_text(r->w, text->text, text->length);
        else if (is(part, "input_image"))
            write_image(r->w, part);
        else
            part_bare(r->w, type_of(part));
    }
    json_w_end_array(r->w);
    return true;
}

static bool write_message(struct reader *r)
{
    static const char *const roles[] = {"user", "system", "developer"};
    const struct json *role = member_of(r->item, "role");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (!json_equals(role, roles[i]))
            continue;
        open_message(r, roles[i], true);
        if (!write_content(r, member_of(r->item, "content"), ".content"))
            return false;
        json_w_end_object(r->w);
        advance(r);
        return true;
    }
    return wrong(r, ".role", "wanted user, assistant, system or developer");
}

/* The tools that were found, as the text of the result. */
static void write_tool_list(const struct reader *r, const struct json *tools)
{
    struct json_writer *inner = tools ? json_writer_open(false) : NULL;
    const char *text = "";
    size_t length = 0;
    if (inner)
        json_w_value(inner, tools);
    if (tools && (!inner || json_finish(inner, &text, &length, NULL) != QR_OK))
        translation_lost(r->t);
    json_w_member_string_n(r->w, "content", text, length);
    json_writer_close(inner);
}

static bool write_result(struct reader *r)
{
    const struct json *id = string_member(r->item, "call_id");
    open_message(r, "tool", false);
    if (id)
        json_w_member_string_n(r->w, "tool_call_id", id->text, id->length);
    if (is(r->item, "tool_search_output"))
        write_tool_list(r, member_of(r->item, "tools"));
    else if (!write_content(r, member_of(r->item, "output"), ".output"))
        return false;
    json_w_end_object(r->w);
    advance(r);
    return true;
}

/* ---- a turn of the assistant: reasoning, a message, calls ---- */

static bool add_texts(const struct json *list, const char *type, struct buffer *out)
{
    const size_t before = out->length;
    for (const struct json *part = list && list->kind == JSON_ARRAY ? list->child : NULL; part; part = part->next) {
        const struct json *text = is(part, type) || is(part, "text") ? string_member(part, "text") : NULL;
        if (!text)
            continue;
        if (out->length > before)
            buffer_puts(out, "\n\n");
        buffer_append(out, text->text, text->length);
    }
    return out->length > before;
}

/* Its own text, a summary of it, or what this server has hidden in it. What others have hidden stays hidden. */
static void add_reasoning(const struct json *item, struct buffer *out)
{
    const struct json *hidden = string_member(item, "encrypted_content");
    const size_t before = out->length;
    if (add_texts(member_of(item, "content"), "reasoning_text", out) || add_texts(member_of(item, "summary"), "summary_text", out) || !hidden)
        return;
    if (!base64_decode(out, hidden->text, hidden->length) ||
        utf8_valid_prefix(out->data + before, out->length - before) != out->length - before)
        out->length = before;
}

static bool write_reasoning(struct reader *r)
{
    struct buffer text = {0};
    for (; is(r->item, "reasoning"); advance(r))
        add_reasoning(r->item, &text);
    if (text.length)
        json_w_member_string_n(r->w, "reasoning_content", text.data, text.length);
    const bool failed = text.failed;
    buffer_free(&text);
    return !failed || refuse(r->refusal, 500, NULL, NULL, "no memory for the request");
}

static void write_arguments(struct json_writer *w, const struct json *item)
{
    if (!is(item, "custom_tool_call")) {
        copy_member(item, "arguments", w, "arguments");
        return;
    }
    json_w_key(w, "arguments");
    json_w_object(w);
    copy_member(item, "input", w, "input");
    json_w_end_object(w);
}

static bool write_call(struct reader *r)
{
    const struct json *id = string_member(r->item, "call_id"), *name = string_member(r->item, "name");
    const bool search = is(r->item, "tool_search_call");
    if (!search && !name)
        return wrong(r, "", "the call has no string \"name\"");
    if (is(r->item, "custom_tool_call") && !string_member(r->item, "input"))
        return wrong(r, "", "the call has no string \"input\"");
    json_w_object(r->w);
    if (id)
        json_w_member_string_n(r->w, "id", id->text, id->length);
    json_w_member_string(r->w, "type", "function");
    if (!search)
        copy_member(r->item, "namespace", r->w, "namespace");
    json_w_key(r->w, "function");
    json_w_object(r->w);
    if (search)
        json_w_member_string(r->w, "name", TOOL_SEARCH_NAME);
    else
        json_w_member_string_n(r->w, "name", name->text, name->length);
    write_arguments(r->w, r->item);
    json_w_end_object(r->w);
    json_w_end_object(r->w);
    return true;
}

static bool write_calls(struct reader *r)
{
    if (!is_call(r->item))
        return true;
    json_w_key(r->w, "tool_calls");
    json_w_array(r->w);
    for (; is_call(r->item); advance(r))
        if (!write_call(r))
            return false;
    json_w_end_array(r->w);
    return true;
}

static bool write_turn(struct reader *r)
{
    open_message(r, "assistant", is_reply(r->item));
    if (!write_reasoning(r))
        return false;
    if (is_reply(r->item)) {
        if (!write_content(r, member_of(r->item, "content"), ".content"))
            return false;
        advance(r);
    } else {
        json_w_member_string(r->w, "content", "");
    }
    if (!write_calls(r))
        return false;
    json_w_end_object(r->w);
    return true;
}

/* ---- the input ---- */

static bool write_item(struct reader *r)
{
    char what[160];
    const struct json *type = type_of(r->item);
    if (is(r->item, "reasoning") || is_reply(r->item) || is_call(r->item))
        return write_turn(r);
    if (is_message(r->item))
        return write_message(r);
    if (is_result(r->item))
        return write_result(r);
    if (!type)
        return wrong(r, "", "the item is no object with a string \"type\"");
    snprintf(what, sizeof what, "an item of type %.80s, which is not understood here", type->text);
    return wrong(r, "", what);
}

static bool write_instructions(const struct json *instructions, struct translation *t, struct refusal *refusal)
{
    if (!instructions)
        return true;
    if (instructions->kind != JSON_STRING)
        return refuse(refusal, 400, NULL, "instructions", "instructions: wanted a string");
    if (instructions->length == 0)
        return true;
    translation_message(t, (struct place){"instructions", PLACE_WHOLE, false});
    json_w_object(t->w);
    json_w_member_string(t->w, "role", "system");
    json_w_key(t->w, "content");
    json_w_value(t->w, instructions);
    json_w_end_object(t->w);
    return true;
}

static void write_question(const struct json *text, struct translation *t)
{
    translation_message(t, (struct place){"input", PLACE_WHOLE, false});
    json_w_object(t->w);
    json_w_member_string(t->w, "role", "user");
    json_w_key(t->w, "content");
    json_w_value(t->w, text);
    json_w_end_object(t->w);
}

bool response_items_write(const struct json *body, struct translation *t, struct refusal *refusal)
{
    const struct json *input = member_of(body, "input");
    struct reader r = {.t = t, .w = t->w, .refusal = refusal};
    if (!input || (input->kind != JSON_STRING && input->kind != JSON_ARRAY))
        return refuse(refusal, 400, NULL, "input", "input: wanted a string or a list of items");
    json_w_key(t->w, "messages");
    json_w_array(t->w);
    if (!write_instructions(member_of(body, "instructions"), t, refusal))
        return false;
    if (input->kind == JSON_STRING)
        write_question(input, t);
    else
        r.item = input->child;
    skip_tools(&r);
    while (r.item)
        if (!write_item(&r))
            return false;
    json_w_end_array(t->w);
    return true;
}
