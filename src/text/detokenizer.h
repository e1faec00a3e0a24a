/* detokenizer.h: ids to text as they come, never half a character (protocol.md 1.7). */
#ifndef QR_TEXT_DETOKENIZER_H
#define QR_TEXT_DETOKENIZER_H

#include "text/tokenizer.h"

/* Holds back at most 3 bytes, and only while they can still become a character. */
struct detokenizer {
    const struct tokenizer *tok;
    uint8_t held[3];
    uint8_t held_count;
};

void detok_start(struct detokenizer *d, const struct tokenizer *tok);

/* Appends to `out` what may be shown once `id` has come: whole characters, and U+FFFD for every maximal run of bytes
 * that can no longer become one. An added token ends a held character. A hole has no text. QR_BAD_REQUEST for an id
 * outside the vocabulary, QR_NO_MEMORY; both leave `d` as it was and `out` with nothing added. */
qr_status detok_push(struct detokenizer *d, int32_t id, struct buffer *out, qr_error *err);

/* The end of the stream: what is held becomes U+FFFD. */
qr_status detok_flush(struct detokenizer *d, struct buffer *out, qr_error *err);

/* All of it at once: appends the text of `n` ids. */
qr_status detok_all(const struct tokenizer *tok, const int32_t *ids, size_t n, struct buffer *out, qr_error *err);

#endif
