/* grammar_calls.h: blocks of tool calls as grammar (protocol.md 3.1, 3.7), in the spelling of a prompt profile. The DSML
 * token is a token there; everything else is text. */
#ifndef QR_TEXT_GRAMMAR_CALLS_H
#define QR_TEXT_GRAMMAR_CALLS_H

#include "base/log.h"
#include "text/chat.h"
#include "text/grammar_json.h"

enum { GRAMMAR_MOST_HINT = GRAMMAR_MOST_NODES / 8 };
/* Up to so many nodes in all schemas of tools that are not strict are obeyed, and up to so many the names that they declare are. */
enum { GRAMMAR_MOST_OBEYED = GRAMMAR_MOST_NODES / 4 * 3, GRAMMAR_MOST_DECLARED = GRAMMAR_MOST_NODES / 8 * 7 };

struct call_grammar {
    struct json_grammar *json;
    const struct tokenizer *tok;
    enum chat_profile profile;
    const struct tool_list *tools;
    const struct tool *only; /* NULL: any of them */
    bool many;               /* more than one call may be in a block */
    const struct qr_log *log; /* of schemas that are hints only; NULL: nowhere */
    char *path;              /* [96] of what is refused in a schema */
    qr_error *err;
    qr_status status;        /* QR_OK until something fails */
    grammar_node_id any;     /* any parameters, for all tools that have no more room; 0: not made yet */
};

/* Calls behind what opened the first one up to its name. Parameters stand in the order in which they are declared; a tool
 * that says strict is held to its whole schema, or refused where that is not supported; another one where that is
 * supported and takes no more than GRAMMAR_MOST_HINT nodes, or else, and the log says so, to the names that it declares, or
 * to nothing where many tools stand before it. */
grammar_node_id call_grammar_named(struct call_grammar *c, grammar_node_id next);
/* What forces a call, as the very ids that the prompt's text would have, then call_grammar_named. */
grammar_node_id call_grammar_forced(struct call_grammar *c, grammar_node_id next);
/* The same as text: blank line, block. */
grammar_node_id call_grammar_block(struct call_grammar *c, grammar_node_id next);
/* The rest of a block behind its DSML token. */
grammar_node_id call_grammar_opened(struct call_grammar *c, grammar_node_id next);

/* Whether a tool says strict: true. */
bool tool_is_strict(const struct tool *tool);

#endif
