/* responses_read.h: the body of a Responses request as that of a chat request (protocol.md 4.6). */
#ifndef QR_SERVE_RESPONSES_READ_H
#define QR_SERVE_RESPONSES_READ_H

#include "serve/responses_tools.h"

/* What of the request only its answer needs. Zero-initialise; response_tools_free. */
struct responses_asked {
    struct response_tools tools;
    bool summary;   /* reasoning is told as a summary */
    bool encrypted; /* and carried along for clients that hand it back */
    bool logprobs;  /* of the tokens of messages */
};

/* `t` holds the chat request then; it and `out` are to be freed also when it fails. `log` may be NULL: of hosted tools, which
 * are passed over. */
bool responses_read(const struct json *body, const struct qr_log *log, struct translation *t, struct responses_asked *out,
                    struct refusal *refusal);

#endif
