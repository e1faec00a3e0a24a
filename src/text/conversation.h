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
    size_t calls; /* tool calls so far; the n-th has the id "call_n", from 0 */
};

void conversation_free(struct conversation *c);

/* Sets the system text; NULL: none. Texts are UTF-8 (QR_BAD_REQUEST otherwise). */
qr_status conversation_set_system(struct conversation *c, const char *text, qr_error *err);

/* Adds what the user says; what the model said; what the n-th call of the conversation gave. */
qr_status conversation_add_user(struct conversation *c, const char *text, size_t length, qr_error *err);
qr_status conversation_add_answer(struct conversation *c, const struct parsed_answer *answer, qr_error *err);
qr_status conversation_add_result(struct conversation *c, size_t call, const char *text, size_t length, qr_error *err);

/* Takes back the last message; drops the oldest turn, from its user message up to the next one. False when there is
 * nothing to take back, or only one turn. */
bool conversation_drop_last(struct conversation *c);
bool conversation_drop_oldest(struct conversation *c);

struct conversation_request {
    const char *think; /* "off", an effort, or NULL: what the profile's default is */
    const char *tools, *response_format; /* JSON of these members; NULL: none */
    bool go_on;        /* with the last message, which is the model's */
};

/* Writes the body of a chat request to `out`, cleared first. QR_BAD_REQUEST when `tools` or `response_format` are no
 * JSON. It can be kept in a file. */
qr_status conversation_write(const struct conversation *c, const struct conversation_request *request,
                             struct buffer *out, qr_error *err);

/* Replaces the conversation by the messages of such a body (any chat request). QR_BAD_REQUEST when it has no list of
 * messages with roles; what they hold is checked when they are rendered. */
qr_status conversation_read(struct conversation *c, const struct json *request, qr_error *err);

#endif
