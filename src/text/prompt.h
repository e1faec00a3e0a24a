/* prompt.h: a prompt under construction: a list of segments, each markup (one added token) or literal text. What comes
 * from a client is always literal, so that it can never become a control token (protocol.md 1.5). */
#ifndef QR_TEXT_PROMPT_H
#define QR_TEXT_PROMPT_H

#include "base/buffer.h"
#include "base/json.h"
#include "text/tokenizer.h"

struct prompt_segment {
    size_t offset, length; /* in the prompt's text */
    bool markup;
};

/* Zero-initialise; free with prompt_free. `text` is the prompt as a string, the segments in a row. Two literal segments
 * never stand side by side. Functions that append may run out of memory: later ones then do nothing, and prompt_failed
 * says so once at the end. */
struct prompt {
    struct buffer text;
    struct prompt_segment *segments;
    size_t count, capacity;
};

void prompt_free(struct prompt *p);
bool prompt_failed(const struct prompt *p);

/* Appends the added token of this content, such as "<think>". */
void prompt_markup(struct prompt *p, const char *token);

/* Appends literal text; to the last segment when that is literal too, since the pieces of a tokenizer run across. */
void prompt_literal(struct prompt *p, const char *text, size_t length);
void prompt_puts(struct prompt *p, const char *text);

/* Appends a value as literal text, written as chat_json_write does. */
void prompt_json(struct prompt *p, const struct json *value);

/* The number of segments that are markup. */
size_t prompt_markup_count(const struct prompt *p);

/* Appends the ids of the whole prompt: a markup segment is one id, a literal one is tokenised as a whole.
 * QR_UNSUPPORTED names a token that this tokenizer does not have; QR_BAD_REQUEST for 2 GiB of literal text and more. */
qr_status prompt_ids(const struct prompt *p, const struct tokenizer *tok, struct tok_ids *ids, qr_error *err);

#endif
