/* messages_read.h: the body of an Anthropic request as that of a chat request (protocol.md 4.5). */
#ifndef QR_SERVE_MESSAGES_READ_H
#define QR_SERVE_MESSAGES_READ_H

#include "base/log.h"
#include "serve/translation.h"

struct messages_asked {
    bool hides_thinking; /* thinking.display: omitted */
};

/* `t` holds the chat request then, also what is to be freed of it when it fails. `log` may be NULL: of tools that are passed
 * over because `ignore_server_tools` says so. */
bool messages_read(const struct json *body, bool ignore_server_tools, const struct qr_log *log, struct translation *t,
                   struct messages_asked *out, struct refusal *refusal);

/* The start of a signature of this server's: what follows is the reasoning as base64, or nothing where it was shown. It is
 * the base64 of six bytes, so that the whole is one base64 text. */
#define SIGNATURE_START "cXVpcmU6"

#endif
