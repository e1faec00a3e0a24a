/* chat_ask.h: a chat request that is read before anything is submitted (protocol.md 4.2): the prompt, how tokens are drawn,
 * the room for them. Also of the requests of other APIs, once they have become one. */
#ifndef QR_SERVE_CHAT_ASK_H
#define QR_SERVE_CHAT_ASK_H

#include "serve/asked.h"
#include "serve/translation.h"

/* `body` is the parsed `text`. False: `refusal` says why, and nothing needs to be freed. */
bool chat_ask(struct exchange *x, const struct json *body, const char *text, size_t length, struct asked *a, qr_chat **chat,
              struct refusal *refusal);

/* A translation that was finished and read as a chat request; for job_start, which takes over document, text and chat. */
struct chat_asked {
    struct json_document *document;
    struct asked asked;
    qr_chat **chat; /* one */
};
/* False: `refusal` says why, in the client's terms, and nothing needs to be freed. */
bool translation_ask(struct exchange *x, const struct translation *t, struct chat_asked *out, struct refusal *refusal);

#endif
