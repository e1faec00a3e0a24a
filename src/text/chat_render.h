/* chat_render.h: turns become segments (protocol.md 2.4 step 4, 2.5, 2.9). */
#ifndef QR_TEXT_CHAT_RENDER_H
#define QR_TEXT_CHAT_RENDER_H

#include "text/call_blocks.h"
#include "text/chat_effort.h"
#include "text/chat_message.h"
#include "text/tool_list.h"

struct chat_rendering {
    enum chat_profile profile;
    struct chat_thinking thinking;
    const struct chat_messages *messages; /* arranged; a system message is first when there are tools or a format */
    const struct tool_list *tools;
    const struct json *format; /* the schema to reply by; NULL: none */
    bool keep_reasoning;       /* of turns before the last user's */
    bool open;                 /* the last message is an assistant's, to be gone on with */
    struct qr_call_blocks *call_blocks; /* NULL: none is kept */
    bool header;               /* a turn of the assistant is begun (never when `open`) */
};

/* Appends the prompt to `p`. */
void chat_render_messages(const struct chat_rendering *r, struct prompt *p);

#endif
