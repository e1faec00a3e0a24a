/* responses_items.h: the input of a Responses request as the messages of a chat request (protocol.md 4.6). */
#ifndef QR_SERVE_RESPONSES_ITEMS_H
#define QR_SERVE_RESPONSES_ITEMS_H

#include "serve/translation.h"

/* The member "messages": the instructions as the first one, when there are any, then what the input says. Reasoning, the
 * assistant's message behind it and the calls behind that are one message. */
bool response_items_write(const struct json *body, struct translation *t, struct refusal *refusal);

#endif
