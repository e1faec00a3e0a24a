/* added.h: the added tokens of a vocabulary, found by content: one of them by name, or all of them in a text (the
 * leftmost, the longest of those; protocol.md 1.5). */
#ifndef QR_TEXT_ADDED_H
#define QR_TEXT_ADDED_H

#include "text/vocab.h"

/* Zero-initialise; free with added_free. Points into the vocabulary, which must outlive it unchanged. */
struct added {
    const struct vocab *vocab;
    int32_t *by_content; /* `count` ids, ascending by their bytes */
    size_t count;
    int32_t first[257]; /* first[b] .. first[b + 1]: those whose content starts with byte b */
};

/* Collects the added tokens of `vocab`, none of which may be empty. */
qr_status added_open(const struct vocab *vocab, struct added *out, qr_error *err);
void added_free(struct added *added);

/* The id of the added token of exactly this content, or -1. */
int32_t added_find(const struct added *added, const char *content, size_t length);

/* The first added token in text[from .. n): its id, *at and *length; -1 when there is none. */
int32_t added_search(const struct added *added, const uint8_t *text, size_t n, size_t from, size_t *at, size_t *length);

#endif
