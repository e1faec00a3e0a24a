/* conversation.h: a conversation that a program holds, and the chat request that it is: text/chat.h renders it as any
 * other. */
#ifndef QR_TEXT_CONVERSATION_H
#define QR_TEXT_CONVERSATION_H

#include "base/buffer.h"
#include "base/json.h"
#include "text/deltas.h"

struct conversation_message {
    bool user;          /* begins a turn */
    struct buffer json; /* the message as it stands in a request */
};

/* Zero-initialise; free with conversation_free. Functions that fail leave it as it was. */
struct conversation {
    struct buffer system; /* JSON of the system message; empty: none */
    struct conversation_message *messages;
    size_t count, capacity;
    struct buffer members; /* ,"key":value for each beside the messages */
    size_t calls; /* tool calls so far; the n-th has the id "call_n", from 0 */
};

void conversation_free(struct conversation *c);

/* Adds a message of a chat request as it is; a system message that begins a conversation is its system text. */
qr_status conversation_add(struct conversation *c, const struct json *message, qr_error *err);
/* Sets the system text; NULL: none. Texts are UTF-8 (QR_BAD_REQUEST otherwise). */
qr_status conversation_set_system(struct conversation *c, const char *text, qr_error *err);

/* Adds what the user says; what the model said; what the n-th call of the conversation gave. */
qr_status conversation_add_user(struct conversation *c, const char *text, size_t length, qr_error *err);
qr_status conversation_add_answer(struct conversation *c, const struct parsed_answer *answer, qr_error *err);
qr_status conversation_add_result(struct conversation *c, size_t call, const char *text, size_t length, qr_error *err);

size_t conversation_turns(const struct conversation *c);
/* Takes back the last message; drops the oldest turn, from its user message up to the next one. False when there is
 * nothing to take back, or only one turn. */
bool conversation_drop_last(struct conversation *c);
bool conversation_drop_oldest(struct conversation *c);

/* Sets the members that a chat request has beside its messages (tools, thinking, reasoning_effort, response_format ...),
 * in place of those before. `object` NULL: none. QR_BAD_REQUEST when it is no object or has messages of its own. */
qr_status conversation_set_members(struct conversation *c, const struct json *object, qr_error *err);

/* Writes the body of a chat request to `out`, cleared first: the messages, and with `members` what stands beside them. It
 * can be kept in a file. */
qr_status conversation_write(const struct conversation *c, bool members, struct buffer *out, qr_error *err);

/* Replaces the messages by those of such a body (any chat request); the members stay. QR_BAD_REQUEST when it has no list
 * of messages with roles; what they hold is checked when they are rendered. */
qr_status conversation_read(struct conversation *c, const struct json *request, qr_error *err);

/* Makes `out` (zeroed) a conversation of its own that has said the same. */
qr_status conversation_copy(const struct conversation *c, struct conversation *out, qr_error *err);

#endif
