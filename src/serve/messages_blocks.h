/* messages_blocks.h: the messages of an Anthropic request as those of a chat request: one becomes several where it brings
 * results of tools (protocol.md 4.5). */
#ifndef QR_SERVE_MESSAGES_BLOCKS_H
#define QR_SERVE_MESSAGES_BLOCKS_H

#include "serve/translation.h"

/* Writes the elements of "messages": the system text as the first one, when there is one. */
bool messages_write(const struct json *body, struct translation *t, struct refusal *refusal);

#endif
