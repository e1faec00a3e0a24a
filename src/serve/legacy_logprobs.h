/* legacy_logprobs.h: log probabilities as /v1/completions tells them (protocol.md 4.4): four lists of equal length. */
#ifndef QR_SERVE_LEGACY_LOGPROBS_H
#define QR_SERVE_LEGACY_LOGPROBS_H

#include "base/buffer.h"
#include "base/json.h"
#include "quire.h"

/* Zero-initialise; legacy_free. JSON, with a comma before each element but the first. */
struct legacy_logprobs {
    struct buffer tokens, values, top, offsets;
    size_t characters;      /* of the text so far, */
    unsigned char held[4];  /* and the beginning of one more, which tokens have in parts */
    size_t held_count;
    size_t said[4];         /* bytes of each list that a stream has said */
};
void legacy_free(struct legacy_logprobs *l);

/* A token with its likeliest ones; `value` NULL: nothing is known of it (the first of a prompt). */
void legacy_add(struct legacy_logprobs *l, const qr_model *model, int32_t token, const qr_token_logprob *value,
                const qr_token_logprob *top, size_t top_count);
/* What follows is another text: a character that has only begun is none (U+FFFD). */
void legacy_break(struct legacy_logprobs *l);
/* "logprobs": {...} with what has not been said yet. */
void legacy_write(struct legacy_logprobs *l, struct json_writer *w);

#endif
