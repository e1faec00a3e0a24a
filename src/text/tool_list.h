/* tool_list.h: the tools that a request declares, by the names under which the model sees and calls them (protocol.md
 * 2.7). The prompt prints their schemas; the output parser asks what they declare. */
#ifndef QR_TEXT_TOOL_LIST_H
#define QR_TEXT_TOOL_LIST_H

#include "base/arena.h"
#include "base/json.h"
#include "text/chat_issue.h"
#include "text/prompt.h"

struct tool {
    const char *name; /* qualified: "sea::tide" */
    size_t name_length;
    const struct json *function;     /* as sent */
    const char *namespace_about;     /* description of its namespace; NULL: none */
    size_t namespace_about_length;
    const struct json *properties; /* parameters.properties; NULL when there is no such object */
};

/* Zero-initialise. Points into the request; what it needs besides lies in the arena that it was read with. */
struct tool_list {
    struct tool *items;
    size_t count;
    uint32_t *slots; /* open addressing by name: place + 1, 0: empty; slot_mask + 1 of them */
    size_t slot_mask;
};

/* Reads the member `tools` of a request: NULL, null or a list of {"type": "function", "function": {...}}; with `bare` a
 * list of the function objects themselves. A tool that is no function, without a name, with more than one "::" in its
 * qualified name, with two different namespaces, or with the qualified name of another is refused. */
qr_status tool_list_read(const struct json *tools, bool bare, struct arena *arena, struct tool_list *out,
                         struct chat_issue *issue, qr_error *err);

/* The qualified name of the function object or call `function` whose wrapper is `outer` (they may be the same): its
 * name, and its namespace beside or inside, which may be in the name already. `*name` lives in the arena or the
 * request. */
qr_status tool_qualified_name(const struct json *outer, const struct json *function, const char *param,
                              struct arena *arena, const char **name, size_t *length, struct chat_issue *issue,
                              qr_error *err);

const struct tool *tool_list_find(const struct tool_list *tools, const char *name, size_t length);

/* Does the schema of `tool` (NULL: nothing is known) declare the parameter `key`? Is "string" the one type it gives? A
 * list of one type is that type. */
bool tool_declares(const struct tool *tool, const char *key, size_t length);
bool tool_wants_string(const struct tool *tool, const char *key, size_t length);

/* Appends the schemas, one a line. */
void tool_list_write(const struct tool_list *tools, struct prompt *p);

#endif
