/* chat_arguments.h: the arguments of a call in a request's history (protocol.md 2.4). */
#ifndef QR_TEXT_CHAT_ARGUMENTS_H
#define QR_TEXT_CHAT_ARGUMENTS_H

#include "text/chat_message.h"

/* Reads `arguments` into call->arguments (an object) or call->raw. A string is JSON, one that holds another string is
 * read once more; NULL and null are an empty object. A lone surrogate in JSON that is right otherwise is refused;
 * other broken JSON is no error but raw text. Documents and text live as long as `owner`. */
qr_status chat_arguments_read(const struct json *arguments, const char *path, struct chat_messages *owner,
                              struct chat_call *call, struct chat_issue *issue, qr_error *err);

#endif
