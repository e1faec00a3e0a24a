/* chat.h: a chat request becomes a prompt (protocol.md 2). The one way: programs that hold a conversation build a request
 * too (text/conversation.h). */
#ifndef QR_TEXT_CHAT_H
#define QR_TEXT_CHAT_H

#include "text/chat_effort.h"
#include "text/chat_message.h"
#include "text/tool_list.h"

struct qr_call_blocks;

/* What the server decides. */
struct chat_options {
    enum chat_profile profile;
    bool images;            /* the model has eyes */
    bool thinking;          /* where a request does not say */
    const char *effort;     /* the same; NULL: "high" */
    bool vendor_extensions; /* 2.10 */
    struct qr_call_blocks *call_blocks; /* 2.13; NULL: none */
};

/* Thinking on, effort high, images where the profile's model sees them, no vendor extensions. */
struct chat_options chat_options_default(enum chat_profile profile);

enum chat_section { CHAT_REASONING, CHAT_CONTENT };
enum chat_tool_choice { TOOL_CHOICE_AUTO, TOOL_CHOICE_NONE, TOOL_CHOICE_REQUIRED, TOOL_CHOICE_NAMED };

/* A request that was understood. It points into the request's JSON, which must outlive it. Zero-initialise; free with
 * chat_free. */
struct chat {
    struct prompt prompt;
    const struct chat_image **images; /* in the order of their placeholders, TOKEN_IMAGE segments of the prompt */
    size_t image_count;
    struct chat_thinking thinking;
    enum chat_section start; /* what the model's first id belongs to */
    bool continued;          /* a non-empty prefix of that section is part of the prompt (2.9) */
    struct tool_list tools;  /* empty when the model may not call any: DSML is text then (3.3) */
    enum chat_tool_choice tool_choice;
    const struct tool *forced;  /* TOOL_CHOICE_NAMED */
    bool parallel_calls;        /* false: end at the first call (3.7) */
    const struct json *format;  /* the schema to reply by; {"type": "json_object"} for any object; NULL: none */
    bool any_object;            /* the latter */
    struct chat_messages messages; /* holds the memory of all of it */
};

/* Reads the members of a chat request that make the prompt and writes it. QR_BAD_REQUEST says in `issue` (may be NULL)
 * what an HTTP server answers; QR_BAD_ARGUMENT: `options` name an effort that the profile does not know. On failure
 * `out` needs no chat_free. */
qr_status chat_render(const struct json *request, const struct chat_options *options, struct chat *out,
                      struct chat_issue *issue, qr_error *err);
void chat_free(struct chat *chat);

/* Appends what forces a call after the reasoning: blank line, block and call opened up to the name's first quotation mark
 * (3.7). */
void chat_write_forced_call(struct prompt *p, enum chat_profile profile);

#endif
