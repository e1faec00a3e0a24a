/* asked.h: the members that chats and completions share (protocol.md 4.2, 4.4), read before anything is submitted. */
#ifndef QR_SERVE_ASKED_H
#define QR_SERVE_ASKED_H

#include "serve/exchange.h"
#include "serve/members.h"

struct asked {
    struct request_text text;  /* request_text_free */
    bool stream, include_usage, usage_always, logprobs_all, return_token_ids;
    int32_t answers;           /* n */
    bool limited;              /* max_tokens was given */
};

/* Fills it from a request's body, over the model's defaults; refuses a model that is not served, and members that would
 * restrict an answer and that nobody obeys. False: `refusal` says why, and nothing needs to be freed. */
bool asked_read(struct exchange *x, const struct json *body, bool may_say_nothing, struct asked *out, struct refusal *refusal);

/* Bounds max_tokens by what the context leaves behind a prompt; refuses a prompt that leaves nothing. `by_default`: where
 * the request does not say. */
bool asked_fit(struct exchange *x, size_t prompt_tokens, int32_t by_default, struct asked *a, struct refusal *refusal);

/* How a text becomes tokens (protocol.md 1.5, 4.4). */
struct prompt_how {
    bool special; /* a BOS before it where it has none: "add_special_tokens" */
    bool markup;  /* added tokens are recognised in it: "parse_special" */
};
/* Those members of a request; both are true where it does not say. */
bool prompt_how_read(const struct json *body, struct prompt_how *out, struct refusal *refusal);
/* Ids of a text; *added: a BOS was. qr_tokens_free, also on failure. */
bool prompt_tokens(const struct server *s, const struct json *text, const struct prompt_how *how, qr_tokens *out, bool *added,
                   struct refusal *refusal);

#endif
