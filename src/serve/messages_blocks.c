#include "serve/messages_blocks.h"

#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/utf8.h"
#include "serve/members.h"
#include "serve/messages_read.h"

/* A message on its way. */
struct reader {
    struct translation *t;
    struct json_writer *w;
    struct refusal *refusal;
    size_t index;     /* of it in the client's list */
    const char *role;
};

static bool wrong(const struct reader *r, const char *where, const char *what)
{
    char param[96];
    snprintf(param, sizeof param, "messages[%zu]%s", r->index, where);
    return refuse(r->refusal, 400, NULL, param, "%s: %s", param, what);
}

static bool wrong_block(const struct reader *r, size_t block, const char *what)
{
    char where[40];
    snprintf(where, sizeof where, ".content[%zu]", block);
    return wrong(r, where, what);
}

static bool is(const struct json *block, const char *type) { return json_equals(type_of(block), type); }

static const struct json *string_member(const struct json *of, const char *name)
{
    const struct json *value = member_of(of, name);
    return value && value->kind == JSON_STRING ? value : NULL;
}

/* ---- system texts ---- */

/* Claude Code writes a line that is another one in every request; what starts with it could never be found in the cache. */
static void skip_billing(const char **text, size_t *length)
{
    static const char line[] = "x-anthropic-billing-header";
    while (*length >= sizeof line - 1 && memcmp(*text, line, sizeof line - 1) == 0) {
        const char *end = memchr(*text, '\n', *length);
        const size_t cut = end ? (size_t)(end - *text) + 1 : *length;
        *text += cut;
        *length -= cut;
    }
}

static bool is_blank(const char *text, size_t length)
{
    while (length && strchr(" \t\r\n", *text)) {
        text++;
        length--;
    }
    return length == 0;
}

/* What is left of a text without the line. False: it was nothing else. */
static bool rest_of(const struct json *value, const char **text, size_t *length)
{
    *text = value->text;
    *length = value->length;
    skip_billing(text, length);
    return *length == value->length || !is_blank(*text, *length);
}

/* A string or text blocks. `param` names them. */
static bool check_system(const struct json *content, const char *param, struct refusal *refusal)
{
    size_t i = 0;
    if (content->kind != JSON_STRING && content->kind != JSON_ARRAY)
        return refuse(refusal, 400, NULL, param, "%s: wanted a string or a list of text blocks", param);
    for (const struct json *block = content->kind == JSON_ARRAY ? content->child : NULL; block; block = block->next, i++)
        if (!is(block, "text") || !string_member(block, "text"))
            return refuse(refusal, 400, NULL, param, "%s[%zu]: wanted a block of type text with a string \"text\"", param, i);
    return true;
}

/* The texts of a content that was checked, one by one: the string itself, or its first block's. */
static const struct json *first_text(const struct json *content)
{
    return content->kind == JSON_STRING ? content : content->child;
}
static const struct json *next_text(const struct json *content, const struct json *at)
{
    return content->kind == JSON_STRING ? NULL : at->next;
}
static const struct json *text_at(const struct json *content, const struct json *at)
{
    return content->kind == JSON_STRING ? at : string_member(at, "text");
}

/* An empty system message is not the same prompt as none. */
static bool says_something(const struct json *content)
{
    const char *text;
    size_t length;
    for (const struct json *at = first_text(content); at; at = next_text(content, at))
        if (rest_of(text_at(content, at), &text, &length) && length)
            return true;
    return false;
}

static void write_system_parts(struct json_writer *w, const struct json *content)
{
    const char *text;
    size_t length;
    json_w_key(w, "content");
    json_w_array(w);
    for (const struct json *at = first_text(content); at; at = next_text(content, at))
        if (rest_of(text_at(content, at), &text, &length))
            part_text(w, text, length);
    json_w_end_array(w);
}

static bool write_system(struct translation *t, const struct json *system, struct refusal *refusal)
{
    if (!system)
        return true;
    if (!check_system(system, "system", refusal))
        return false;
    if (!says_something(system))
        return true;
    translation_message(t, (struct place){"system", PLACE_WHOLE, false});
    json_w_object(t->w);
    json_w_member_string(t->w, "role", "system");
    write_system_parts(t->w, system);
    json_w_end_object(t->w);
    return true;
}

/* ---- parts ---- */

/* A picture as chats say it; without an address where the client's says none that can be read: the chat request, which knows
 * whether the model sees, answers for it. */
static void write_image(const struct reader *r, const struct json *block)
{
    const struct json *source = member_of(block, "source"), *type = string_member(source, "media_type"),
                      *data = string_member(source, "data"), *url = string_member(source, "url");
    struct buffer address = {0};
    if (is(source, "base64") && type && data) {
        buffer_puts(&address, "data:");
        buffer_append(&address, type->text, type->length);
        buffer_puts(&address, ";base64,");
        buffer_append(&address, data->text, data->length);
    } else if (is(source, "url") && url) {
        buffer_append(&address, url->text, url->length);
    }
    if (address.failed)
        translation_lost(r->t);
    json_w_object(r->w);
    json_w_member_string(r->w, "type", "image");
    if (address.length)
        json_w_member_string_n(r->w, "image", address.data, address.length);
    json_w_end_object(r->w);
    buffer_free(&address);
}

static bool write_text(const struct reader *r, const struct json *block, size_t number)
{
    const struct json *text = string_member(block, "text");
    if (!text)
        return wrong_block(r, number, "the block of type text has no string \"text\"");
    part_text(r->w, text->text, text->length);
    return true;
}

/* ---- messages of the user ---- */

/* The content of a result: what it cannot show is named to the model by its type. */
static bool write_result_parts(const struct reader *r, const struct json *content, size_t number)
{
    json_w_key(r->w, "content");
    if (!content) {
        json_w_string(r->w, "");
        return true;
    }
    if (content->kind == JSON_STRING) {
        json_w_value(r->w, content);
        return true;
    }
    if (content->kind != JSON_ARRAY)
        return wrong_block(r, number, "the content of a tool_result is neither a string nor a list of blocks");
    json_w_array(r->w);
    for (const struct json *part = content->child; part; part = part->next) {
        const struct json *type = type_of(part);
        if (!type)
            return wrong_block(r, number, "a block of the tool_result is no object with a string \"type\"");
        if (is(part, "image"))
            write_image(r, part);
        else if (!is(part, "text"))
            part_bare(r->w, type);
        else if (!write_text(r, part, number))
            return false;
    }
    json_w_end_array(r->w);
    return true;
}

static bool write_result(const struct reader *r, const struct json *block, size_t number)
{
    const struct json *id = string_member(block, "tool_use_id");
    if (!id)
        return wrong_block(r, number, "the tool_result has no string \"tool_use_id\"");
    translation_message(r->t, (struct place){"messages", r->index, false});
    json_w_object(r->w);
    json_w_member_string(r->w, "role", "tool");
    json_w_member_string_n(r->w, "tool_call_id", id->text, id->length);
    if (!write_result_parts(r, member_of(block, "content"), number))
        return false;
    json_w_end_object(r->w);
    return true;
}

/* A block whose type does not belong to messages of this role. */
static bool refuse_block(const struct reader *r, const struct json *block, size_t number)
{
    char what[160];
    const struct json *type = type_of(block);
    if (!type)
        return wrong_block(r, number, "the block is no object with a string \"type\"");
    snprintf(what, sizeof what, "a block of type %.80s in a message of role %s", type->text, r->role);
    return wrong_block(r, number, what);
}

/* Text and images; of an answer's turn reasoning and calls, of a question's the results, stand elsewhere. */
static bool stands_elsewhere(const struct json *block, bool answer)
{
    return answer ? is(block, "thinking") || is(block, "redacted_thinking") || is(block, "tool_use") : is(block, "tool_result");
}

static bool write_parts(const struct reader *r, const struct json *blocks, bool answer)
{
    size_t i = 0;
    json_w_key(r->w, "content");
    json_w_array(r->w);
    for (const struct json *block = blocks->child; block; block = block->next, i++) {
        if (stands_elsewhere(block, answer))
            continue;
        if (is(block, "image"))
            write_image(r, block);
        else if (!is(block, "text"))
            return refuse_block(r, block, i);
        else if (!write_text(r, block, i))
            return false;
    }
    json_w_end_array(r->w);
    return true;
}

static void open_message(const struct reader *r, bool same)
{
    translation_message(r->t, (struct place){"messages", r->index, same});
    json_w_object(r->w);
    json_w_member_string(r->w, "role", r->role);
}

/* Results come first in a turn, wherever they stand in its message; the chat request joins what follows to them. */
static bool write_user(const struct reader *r, const struct json *content)
{
    size_t results = 0, i = 0;
    for (const struct json *block = content->child; block; block = block->next, i++) {
        if (!is(block, "tool_result"))
            continue;
        results++;
        if (!write_result(r, block, i))
            return false;
    }
    if (results && results == content->count)
        return true;
    open_message(r, results == 0);
    if (!write_parts(r, content, false))
        return false;
    json_w_end_object(r->w);
    return true;
}

/* ---- messages of the assistant ---- */

/* What was thought: as it was shown, or out of the signature. */
static bool collect_thinking(const struct reader *r, const struct json *block, size_t number, struct buffer *reasoning)
{
    const struct json *text = string_member(block, "thinking"), *signature = string_member(block, "signature");
    const size_t start = strlen(SIGNATURE_START), before = reasoning->length;
    if (!text)
        return wrong_block(r, number, "the block of type thinking has no string \"thinking\"");
    buffer_append(reasoning, text->text, text->length);
    if (text->length || !signature || strncmp(signature->text, SIGNATURE_START, start) != 0)
        return true;
    const bool read = base64_decode(reasoning, signature->text + start, signature->length - start);
    if (!read || utf8_valid_prefix(reasoning->data + before, reasoning->length - before) != reasoning->length - before)
        reasoning->length = before; /* a signature that somebody else has made */
    return true;
}

static bool write_reasoning(const struct reader *r, const struct json *blocks)
{
    struct buffer reasoning = {0};
    size_t i = 0;
    bool good = true;
    for (const struct json *block = blocks->child; block && good; block = block->next, i++)
        if (is(block, "thinking"))
            good = collect_thinking(r, block, i, &reasoning);
    if (good && reasoning.failed)
        good = refuse(r->refusal, 500, NULL, NULL, "no memory for the request");
    if (good && reasoning.length)
        json_w_member_string_n(r->w, "reasoning_content", reasoning.data, reasoning.length);
    buffer_free(&reasoning);
    return good;
}

static bool write_call(const struct reader *r, const struct json *block, size_t number)
{
    const struct json *id = string_member(block, "id"), *name = string_member(block, "name"), *input = member_of(block, "input");
    if (!id || !name)
        return wrong_block(r, number, "the tool_use has no strings \"id\" and \"name\"");
    if (input && input->kind != JSON_OBJECT)
        return wrong_block(r, number, "the input of the tool_use is no object");
    json_w_object(r->w);
    json_w_member_string_n(r->w, "id", id->text, id->length);
    json_w_member_string(r->w, "type", "function");
    json_w_key(r->w, "function");
    json_w_object(r->w);
    json_w_member_string_n(r->w, "name", name->text, name->length);
    copy_member(block, "input", r->w, "arguments");
    json_w_end_object(r->w);
    json_w_end_object(r->w);
    return true;
}

static bool write_calls(const struct reader *r, const struct json *blocks)
{
    size_t i = 0;
    bool any = false;
    for (const struct json *block = blocks->child; block; block = block->next, i++) {
        if (!is(block, "tool_use"))
            continue;
        if (!any) {
            json_w_key(r->w, "tool_calls");
            json_w_array(r->w);
        }
        any = true;
        if (!write_call(r, block, i))
            return false;
    }
    if (any)
        json_w_end_array(r->w);
    return true;
}

static bool write_assistant(const struct reader *r, const struct json *content, bool last)
{
    open_message(r, false);
    if (last)
        json_w_member_bool(r->w, "prefix", true);
    if (content->kind == JSON_STRING) {
        json_w_key(r->w, "content");
        json_w_value(r->w, content);
    } else if (!write_reasoning(r, content) || !write_parts(r, content, true) || !write_calls(r, content)) {
        return false;
    }
    json_w_end_object(r->w);
    return true;
}

/* ---- all messages ---- */

static bool write_later_system(const struct reader *r, const struct json *content)
{
    char param[40];
    snprintf(param, sizeof param, "messages[%zu].content", r->index);
    if (!check_system(content, param, r->refusal))
        return false;
    open_message(r, false);
    write_system_parts(r->w, content);
    json_w_end_object(r->w);
    return true;
}

static bool write_plain(const struct reader *r, const struct json *content)
{
    open_message(r, true);
    json_w_key(r->w, "content");
    json_w_value(r->w, content);
    json_w_end_object(r->w);
    return true;
}

static bool write_message(struct reader *r, const struct json *message)
{
    const struct json *role = string_member(message, "role"), *content = member_of(message, "content");
    if (!role)
        return wrong(r, "", "the message is no object with a string \"role\"");
    if (!content || (content->kind != JSON_STRING && content->kind != JSON_ARRAY))
        return wrong(r, ".content", "wanted a string or a list of blocks");
    r->role = role->text;
    if (json_equals(role, "assistant"))
        return write_assistant(r, content, !message->next);
    if (json_equals(role, "system"))
        return write_later_system(r, content);
    if (!json_equals(role, "user"))
        return wrong(r, ".role", "wanted user, assistant or system");
    return content->kind == JSON_STRING ? write_plain(r, content) : write_user(r, content);
}

bool messages_write(const struct json *body, struct translation *t, struct refusal *refusal)
{
    const struct json *messages = member_of(body, "messages");
    struct reader r = {.t = t, .w = t->w, .refusal = refusal};
    if (!messages || messages->kind != JSON_ARRAY || messages->count == 0)
        return refuse(refusal, 400, NULL, "messages", "messages: wanted a list of at least one message");
    json_w_key(t->w, "messages");
    json_w_array(t->w);
    if (!write_system(t, member_of(body, "system"), refusal))
        return false;
    for (const struct json *m = messages->child; m; m = m->next, r.index++)
        if (!write_message(&r, m))
            return false;
    json_w_end_array(t->w);
    return true;
}
