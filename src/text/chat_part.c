#include "text/chat_part.h"

#include <stdio.h>
#include <string.h>

struct content {
    enum chat_role role;
    const char *role_name;
    const struct chat_message_rules *rules;
    struct arena *arena;
    struct chat_block *first, *last;
    struct chat_issue *issue;
    qr_error *err;
};

static qr_status no_memory(struct content *c) { return qr_fail(c->err, QR_NO_MEMORY, "no memory for a message"); }

static qr_status add(struct content *c, struct chat_block block)
{
    struct chat_block *b = arena_alloc(c->arena, sizeof *b);
    if (!b)
        return no_memory(c);
    *b = block;
    if (c->last)
        c->last->next = b;
    else
        c->first = b;
    c->last = b;
    return QR_OK;
}

static qr_status add_text(struct content *c, const char *text, size_t length)
{
    return add(c, (struct chat_block){.kind = BLOCK_TEXT, .text = text, .length = length});
}

/* What a model reads in place of a part of a tool result that it cannot. */
static qr_status add_unsupported(struct content *c, const struct json *type)
{
    static const char before[] = "[Unsupported ";
    size_t length = strlen(before) + type->length + 1;
    char *text = arena_alloc(c->arena, length + 1);
    if (!text)
        return no_memory(c);
    memcpy(text, before, strlen(before));
    memcpy(text + strlen(before), type->text, type->length);
    text[length - 1] = ']';
    return add_text(c, text, length);
}

/* ---- pictures ---- */

static const struct json *string_or_member(const struct json *value, const char *member)
{
    return value && value->kind == JSON_OBJECT ? json_get(value, member) : value;
}

/* Where the address of a picture stands in a part of this type; false when this is no type of pictures. */
static bool find_image(const struct json *part, const struct json *type, const struct json **source,
                       const struct json **detail)
{
    const struct json *holder;
    if (json_equals(type, "image_url") || json_equals(type, "input_image")) {
        holder = json_get(part, "image_url");
        *source = string_or_member(holder, "url");
    } else if (json_equals(type, "image")) {
        holder = json_get(part, "image");
        *source = string_or_member(holder, "url");
    } else if (json_equals(type, "file")) {
        holder = json_get(part, "file");
        *source = json_get(holder, "file_data");
    } else {
        return false;
    }
    *detail = json_get(holder, "detail");
    if (!*detail)
        *detail = json_get(part, "detail");
    return true;
}

static bool is_detail(const struct json *detail)
{
    return json_equals(detail, "low") || json_equals(detail, "high") || json_equals(detail, "auto") ||
           json_equals(detail, "original");
}

static qr_status add_image(struct content *c, const struct json *type, const struct json *source,
                           const struct json *detail, const char *param)
{
    if (c->role != CHAT_USER && c->role != CHAT_TOOL)
        return chat_refuse(c->issue, c->err, "image_role", param, "a picture in a message of role %s, wanted user or tool",
                           c->role_name);
    if (!c->rules->images && c->role == CHAT_TOOL)
        return add_unsupported(c, type);
    if (!c->rules->images)
        return chat_refuse(c->issue, c->err, "unsupported_content", param, "a picture, and the model has no vision");
    if (!source || source->kind != JSON_STRING)
        return chat_refuse(c->issue, c->err, "image_bad_url", param, "the part of type %.80s holds no address or data",
                           type->text);
    if (detail && detail->kind == JSON_NULL)
        detail = NULL;
    if (detail && !is_detail(detail))
        return chat_refuse(c->issue, c->err, NULL, param, "detail %.40s, wanted low, high, auto or original",
                           detail->kind == JSON_STRING ? detail->text : "of another type");
    struct chat_image *image = arena_alloc(c->arena, sizeof *image);
    char *path = arena_strndup(c->arena, param, strlen(param));
    if (!image || !path)
        return no_memory(c);
    *image = (struct chat_image){source->text, source->length, detail ? detail->text : NULL, path};
    return add(c, (struct chat_block){.kind = BLOCK_IMAGE, .image = image});
}

/* ---- parts ---- */

static bool is_text_type(const struct json *type)
{
    return json_equals(type, "text") || json_equals(type, "input_text") || json_equals(type, "output_text");
}

static qr_status read_part(struct content *c, const struct json *part, const char *param)
{
    const struct json *type = json_get(part, "type"), *source, *detail;
    if (!type || type->kind != JSON_STRING)
        return chat_refuse(c->issue, c->err, NULL, param, "the part is no object with a string \"type\"");
    if (is_text_type(type)) {
        const struct json *text = json_get(part, "text");
        if (!text || text->kind != JSON_STRING)
            return chat_refuse(c->issue, c->err, NULL, param, "the part of type %s has no string \"text\"", type->text);
        return add_text(c, text->text, text->length);
    }
    if (find_image(part, type, &source, &detail))
        return add_image(c, type, source, detail, param);
    if (c->role == CHAT_TOOL)
        return add_unsupported(c, type);
    return chat_refuse(c->issue, c->err, NULL, param, "a part of unknown type %.80s", type->text);
}

static qr_status read_parts(struct content *c, const struct json *list, const char *path)
{
    char param[96];
    size_t i = 0;
    qr_status st = QR_OK;
    for (const struct json *part = list->child; part && st == QR_OK; part = part->next) {
        snprintf(param, sizeof param, "%s.content[%zu]", path, i++);
        st = read_part(c, part, param);
    }
    return st;
}

qr_status chat_content_read(const struct json *content, enum chat_role role, const char *role_name, const char *path,
                            const struct chat_message_rules *rules, struct arena *arena, struct chat_block **first,
                            struct chat_block **last, struct chat_issue *issue, qr_error *err)
{
    struct content c = {role, role_name, rules, arena, NULL, NULL, issue, err};
    char param[96];
    qr_status st = QR_OK;
    snprintf(param, sizeof param, "%s.content", path);
    if (content && content->kind == JSON_STRING)
        st = add_text(&c, content->text, content->length);
    else if (content && content->kind == JSON_ARRAY)
        st = read_parts(&c, content, path);
    else if (content && content->kind != JSON_NULL)
        st = chat_refuse(issue, err, NULL, param, "this is neither a string nor a list of parts");
    if (st == QR_OK && !c.first)
        st = add_text(&c, "", 0);
    *first = c.first;
    *last = c.last;
    return st;
}
