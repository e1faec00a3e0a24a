/* chat_message.h: the normal form of a conversation, and how the messages of a request become it (protocol.md 2.4, input
 * mapping). */
#ifndef QR_TEXT_CHAT_MESSAGE_H
#define QR_TEXT_CHAT_MESSAGE_H

#include "base/arena.h"
#include "base/json.h"
#include "text/chat_issue.h"
#include "text/chat_profile.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_REMINDER };

/* A picture in a message. Everything points into the request or the arena. */
struct chat_image {
    const char *source; /* the URL as sent, "data:..." or other; NUL-terminated */
    size_t source_length;
    const char *detail; /* NULL when none was sent */
    const char *param;  /* JSON path of the part, for messages */
};

enum chat_block_kind { BLOCK_TEXT, BLOCK_IMAGE, BLOCK_RESULT };

/* Text, a picture, or the result of a tool call with parts of its own. The blocks of a message are joined by blank lines,
 * and so are the parts of a result. */
struct chat_block {
    enum chat_block_kind kind;
    const char *text; /* BLOCK_TEXT */
    size_t length;
    const struct chat_image *image; /* BLOCK_IMAGE */
    const struct json *call_id;     /* BLOCK_RESULT: a string, or NULL */
    struct chat_block *parts;       /* BLOCK_RESULT */
    struct chat_block *next;
};

/* A call in an assistant message. `arguments` is an object; NULL: `raw` is what was sent instead of one. */
struct chat_call {
    const struct json *id; /* a string, or NULL */
    const char *name;
    size_t name_length;
    const struct json *arguments;
    const char *raw;
    size_t raw_length;
    struct chat_call *next;
};

struct chat_message {
    enum chat_role role;
    struct chat_block *blocks; /* at least one */
    struct chat_block *last_block;
    const char *reasoning; /* "" when there is none */
    size_t reasoning_length;
    struct chat_call *calls;
    size_t call_count;
    const char *task; /* the task's added token; NULL: none */
    bool prefix;      /* its member `prefix` is true */
};

/* Zero-initialise; free with chat_messages_free. Points into the request. */
struct chat_messages {
    struct arena arena;
    struct chat_message *items; /* one more than `count` fit */
    size_t count;
    struct json_document **documents; /* of arguments that were sent as strings */
    size_t document_count, document_capacity;
};

struct chat_message_rules {
    bool images;            /* the model sees: a picture in a user message is no error, in a result no placeholder text */
    bool vendor_extensions; /* the role latest_reminder and the member task are allowed */
};

/* Reads `messages` into `out`, whose arena was initialised. */
qr_status chat_messages_read(const struct json *messages, const struct chat_message_rules *rules,
                             struct chat_messages *out, struct chat_issue *issue, qr_error *err);
void chat_messages_free(struct chat_messages *messages);

#endif
