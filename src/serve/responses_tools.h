/* responses_tools.h: the tools of a Responses request as those of a chat request, and how their calls are told again (protocol.md
 * 4.6, 2.7). */
#ifndef QR_SERVE_RESPONSES_TOOLS_H
#define QR_SERVE_RESPONSES_TOOLS_H

#include "base/log.h"
#include "serve/translation.h"

/* As what a call of a tool is told. */
enum tool_form { TOOL_FUNCTION, TOOL_CUSTOM, TOOL_SEARCH };

struct response_tool {
    char *name;          /* as the model says it: "space::name" */
    size_t length;
    size_t space;        /* bytes of it that are a namespace which the client named apart; 0: none */
    enum tool_form form;
};

/* Zero-initialise; response_tools_free. */
struct response_tools {
    struct response_tool *items;
    size_t count, room;
};
void response_tools_free(struct response_tools *tools);
/* NULL: no such tool. */
const struct response_tool *response_tools_find(const struct response_tools *tools, const char *name, size_t length);

/* The member "tools" of the chat request: those of the body, and those that items of its input bring. */
bool response_tools_write(const struct json *body, const struct qr_log *log, struct translation *t, struct response_tools *out,
                          struct refusal *refusal);
/* The member "tool_choice". */
bool response_choice_write(const struct json *choice, struct json_writer *w, struct refusal *refusal);

/* How a tool that looks for tools is called. */
#define TOOL_SEARCH_NAME "tool_search"

#endif
