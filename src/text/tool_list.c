#include "text/tool_list.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "text/chat_json.h"

struct span {
    const char *data;
    size_t length;
};

static qr_status no_memory(qr_error *err) { return qr_fail(err, QR_NO_MEMORY, "no memory for the list of tools"); }

static bool is_absent(const struct json *value) { return !value || value->kind == JSON_NULL; }

/* ---- names ---- */

/* A namespace is a string or an object with a name. False when it is neither; `*name` stays empty when there is none. */
static bool read_namespace(const struct json *value, struct span *name, struct span *about)
{
    const struct json *text = value;
    if (is_absent(value))
        return true;
    if (value->kind == JSON_OBJECT) {
        const struct json *description = json_get(value, "description");
        if (description && description->kind == JSON_STRING)
            *about = (struct span){description->text, description->length};
        text = json_get(value, "name");
    }
    if (!text || text->kind != JSON_STRING || text->length == 0)
        return false;
    *name = (struct span){text->text, text->length};
    return true;
}

static size_t count_separators(struct span s)
{
    size_t count = 0;
    for (size_t i = 0; i + 1 < s.length; i++) {
        if (s.data[i] == ':' && s.data[i + 1] == ':') {
            count++;
            i++;
        }
    }
    return count;
}

/* What stands before "::", or nothing. */
static struct span namespace_in(struct span name)
{
    for (size_t i = 0; i + 1 < name.length; i++)
        if (name.data[i] == ':' && name.data[i + 1] == ':')
            return (struct span){name.data, i};
    return (struct span){NULL, 0};
}

static bool same(struct span a, struct span b) { return a.length == b.length && memcmp(a.data, b.data, a.length) == 0; }

static qr_status join(struct span left, struct span right, struct arena *arena, struct span *out, qr_error *err)
{
    char *joined = arena_alloc(arena, left.length + right.length + 3);
    if (!joined)
        return no_memory(err);
    memcpy(joined, left.data, left.length);
    memcpy(joined + left.length, "::", 2);
    memcpy(joined + left.length + 2, right.data, right.length);
    *out = (struct span){joined, left.length + 2 + right.length};
    return QR_OK;
}

struct naming {
    struct span name, space, about;
};

static bool holds_nul(struct span s) { return s.length && memchr(s.data, 0, s.length); }

static qr_status read_naming(const struct json *outer, const struct json *function, const char *param,
                             struct arena *arena, struct naming *out, struct chat_issue *issue, qr_error *err)
{
    const struct json *name = json_get(function, "name");
    struct span inside = {0}, beside = {0};
    *out = (struct naming){0};
    if (!name || name->kind != JSON_STRING || name->length == 0)
        return chat_refuse(issue, err, NULL, param, "the function has no name");
    out->name = (struct span){name->text, name->length};
    if (!read_namespace(json_get(function, "namespace"), &inside, &out->about) ||
        (outer != function && !read_namespace(json_get(outer, "namespace"), &beside, &out->about)))
        return chat_refuse(issue, err, NULL, param,
                           "the namespace of %.80s is neither a name nor an object with a name", name->text);
    if (inside.length && beside.length && !same(inside, beside))
        return chat_refuse(issue, err, NULL, param, "%.80s has two namespaces, %.80s and %.80s", name->text,
                           beside.data, inside.data);
    if (holds_nul(out->name) || holds_nul(inside) || holds_nul(beside))
        return chat_refuse(issue, err, NULL, param, "the name of %.80s holds a NUL character", name->text);
    out->space = beside.length ? beside : inside;
    struct span written = namespace_in(out->name);
    if (out->space.length && written.data && !same(written, out->space))
        return chat_refuse(issue, err, NULL, param, "the name %.80s says another namespace than %.80s", name->text,
                           out->space.data);
    qr_status st = QR_OK;
    if (out->space.length && !written.data)
        st = join(out->space, out->name, arena, &out->name, err);
    if (st == QR_OK && count_separators(out->name) > 1)
        return chat_refuse(issue, err, NULL, param, "the qualified name %.80s has more than one \"::\"",
                           out->name.data);
    return st;
}

qr_status tool_qualified_name(const struct json *outer, const struct json *function, const char *param,
                              struct arena *arena, const char **name, size_t *length, struct chat_issue *issue,
                              qr_error *err)
{
    struct naming naming;
    qr_status st = read_naming(outer, function, param, arena, &naming, issue, err);
    *name = naming.name.data;
    *length = naming.name.length;
    return st;
}

/* ---- the list ---- */

static size_t slot_of(const struct tool_list *tools, const char *name, size_t length)
{
    size_t i = XXH3_64bits(name, length) & tools->slot_mask;
    while (tools->slots[i]) {
        const struct tool *t = &tools->items[tools->slots[i] - 1];
        if (t->name_length == length && memcmp(t->name, name, length) == 0)
            break;
        i = (i + 1) & tools->slot_mask;
    }
    return i;
}

const struct tool *tool_list_find(const struct tool_list *tools, const char *name, size_t length)
{
    if (tools->count == 0)
        return NULL;
    uint32_t slot = tools->slots[slot_of(tools, name, length)];
    return slot ? &tools->items[slot - 1] : NULL;
}

static bool make_room(struct tool_list *tools, size_t count, struct arena *arena)
{
    size_t slots = 8;
    while (slots < count * 2)
        slots *= 2;
    tools->items = arena_alloc(arena, count * sizeof *tools->items);
    tools->slots = arena_alloc(arena, slots * sizeof *tools->slots);
    tools->slot_mask = slots - 1;
    return tools->items && tools->slots;
}

static qr_status find_function(const struct json *tool, bool bare, const char *param, const struct json **out,
                               struct chat_issue *issue, qr_error *err)
{
    const struct json *type = json_get(tool, "type");
    *out = bare ? tool : json_get(tool, "function");
    if (tool->kind != JSON_OBJECT)
        return chat_refuse(issue, err, NULL, param, "a tool is no object");
    if (!bare && !is_absent(type) && !json_equals(type, "function"))
        return chat_refuse(issue, err, NULL, param, "a tool of type %.80s, wanted function",
                           type->kind == JSON_STRING ? type->text : "no string");
    if (!*out || (*out)->kind != JSON_OBJECT)
        return chat_refuse(issue, err, NULL, param, "the tool has no object \"function\"");
    return QR_OK;
}

static qr_status add(struct tool_list *tools, const struct json *tool, bool bare, struct arena *arena,
                     struct chat_issue *issue, qr_error *err)
{
    char param[48];
    const struct json *function;
    struct naming naming;
    snprintf(param, sizeof param, "tools[%zu]", tools->count);
    qr_status st = find_function(tool, bare, param, &function, issue, err);
    if (st == QR_OK)
        st = read_naming(tool, function, param, arena, &naming, issue, err);
    if (st != QR_OK)
        return st;
    size_t slot = slot_of(tools, naming.name.data, naming.name.length);
    if (tools->slots[slot])
        return chat_refuse(issue, err, NULL, param, "the name %.80s is that of tools[%u] already", naming.name.data,
                           tools->slots[slot] - 1);
    const struct json *properties = json_get(json_get(function, "parameters"), "properties");
    tools->items[tools->count++] = (struct tool){
        .name = naming.name.data,
        .name_length = naming.name.length,
        .function = function,
        .namespace_about = naming.about.length ? naming.about.data : NULL,
        .namespace_about_length = naming.about.length,
        .properties = properties && properties->kind == JSON_OBJECT ? properties : NULL,
    };
    tools->slots[slot] = (uint32_t)tools->count;
    return QR_OK;
}

qr_status tool_list_read(const struct json *tools, bool bare, struct arena *arena, struct tool_list *out,
                         struct chat_issue *issue, qr_error *err)
{
    qr_status st = QR_OK;
    *out = (struct tool_list){0};
    if (is_absent(tools))
        return QR_OK;
    if (tools->kind != JSON_ARRAY)
        return chat_refuse(issue, err, NULL, "tools", "this is no list");
    if (tools->count > UINT32_MAX / 2)
        return chat_refuse(issue, err, NULL, "tools", "%zu are too many", tools->count);
    if (tools->count == 0)
        return QR_OK;
    if (!make_room(out, tools->count, arena))
        return no_memory(err);
    for (const struct json *t = tools->child; t && st == QR_OK; t = t->next)
        st = add(out, t, bare, arena, issue, err);
    return st;
}

/* ---- what a schema declares ---- */

static const struct json *property(const struct tool *tool, const char *key, size_t length)
{
    const struct json *found = NULL;
    if (!tool || !tool->properties)
        return NULL;
    for (const struct json *m = tool->properties->child; m; m = m->next)
        if (m->key_length == length && memcmp(m->key, key, length) == 0)
            found = m;
    return found;
}

bool tool_declares(const struct tool *tool, const char *key, size_t length) { return property(tool, key, length); }

bool tool_wants_string(const struct tool *tool, const char *key, size_t length)
{
    const struct json *type = json_get(property(tool, key, length), "type");
    if (type && type->kind == JSON_ARRAY && type->count == 1)
        type = type->child;
    return json_equals(type, "string");
}

/* ---- in the prompt ---- */

static void write_description(struct buffer *out, const struct tool *tool, const struct json *description)
{
    if (!tool->namespace_about) {
        chat_json_write(out, description);
        return;
    }
    buffer_append(out, "\"", 1);
    chat_json_escape(out, tool->namespace_about, tool->namespace_about_length);
    if (description && description->kind == JSON_STRING) {
        buffer_puts(out, "\\n");
        chat_json_escape(out, description->text, description->length);
    }
    buffer_append(out, "\"", 1);
}

static bool is_key(const struct json *member, const char *key)
{
    return member->key_length == strlen(key) && memcmp(member->key, key, member->key_length) == 0;
}

static void write_key(struct buffer *out, bool first, const char *key, size_t length)
{
    if (!first)
        buffer_append(out, ", ", 2);
    chat_json_string(out, key, length);
    buffer_append(out, ": ", 2);
}

static void write_members(struct buffer *out, const struct tool *tool, const struct json **members, size_t count)
{
    bool first = true, described = false;
    for (size_t i = 0; i < count; i++) {
        const struct json *m = members[i];
        if (is_key(m, "namespace"))
            continue;
        write_key(out, first, m->key, m->key_length);
        first = false;
        if (is_key(m, "name")) {
            chat_json_string(out, tool->name, tool->name_length);
        } else if (is_key(m, "description")) {
            write_description(out, tool, m);
            described = true;
        } else {
            chat_json_write(out, m);
        }
    }
    if (!described && tool->namespace_about) {
        write_key(out, first, "description", strlen("description"));
        write_description(out, tool, NULL);
    }
}

static void write_tool(struct buffer *out, const struct tool *tool)
{
    const struct json **members;
    size_t count;
    if (!chat_json_members(tool->function, &members, &count)) {
        out->failed = true;
        return;
    }
    buffer_append(out, "{", 1);
    write_members(out, tool, members, count);
    buffer_append(out, "}", 1);
    qr_free(members);
}

void tool_list_write(const struct tool_list *tools, struct prompt *p)
{
    struct buffer line = {0};
    for (size_t i = 0; i < tools->count; i++) {
        buffer_clear(&line);
        if (i > 0)
            buffer_append(&line, "\n", 1);
        write_tool(&line, &tools->items[i]);
        if (line.data)
            prompt_literal(p, line.data, line.length);
    }
    p->text.failed |= line.failed;
    buffer_free(&line);
}
