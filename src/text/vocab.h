/* vocab.h: ids and their strings. A token's string is what tokenizer.json writes; its bytes are what it decodes to. */
#ifndef QR_TEXT_VOCAB_H
#define QR_TEXT_VOCAB_H

#include "base/buffer.h"
#include "base/status.h"

enum { VOCAB_MAX_ID = (1 << 22) - 1 }; /* 32 times the published one; a larger id is a mistake in the file */

enum vocab_kind {
    VOCAB_HOLE,   /* no token has this id */
    VOCAB_BASE,   /* of model.vocab */
    VOCAB_ADDED,  /* of added_tokens, in model.vocab or not */
    VOCAB_SPECIAL /* added, and marked special */
};

struct vocab_entry {
    uint32_t string, string_length; /* in `text` */
    uint32_t bytes, bytes_length;   /* in `text`; the same place where string and bytes are equal */
    uint8_t kind;
};

/* The first bytes of a string stand in its slot, so that most look-ups touch nothing else: loading a tokenizer is half
 * a million of them. */
struct vocab_slot {
    uint64_t head; /* up to 8 bytes, zeros after them */
    uint32_t length;
    int32_t id; /* -1: empty */
};

/* Zero-initialise; free with vocab_free. */
struct vocab {
    struct vocab_entry *entries; /* `count` of them: ids 0 .. count-1 */
    size_t count, capacity;
    struct buffer text;
    struct vocab_slot *slots; /* open addressing from string to id; slot_mask + 1 of them */
    size_t slot_mask, used;
};

/* Makes room for `count` tokens in one go. false without memory. */
bool vocab_reserve(struct vocab *v, size_t count);

/* Gives `id` (0 .. VOCAB_MAX_ID) the string `s` (UTF-8, at most 64 KiB). The bytes of a VOCAB_BASE token are those that
 * its characters stand for in the byte-level alphabet, or the string itself when one is outside of it; those of an
 * added token are the string itself. QR_BAD_FILE when the id or the string is taken: the message names both. */
qr_status vocab_add(struct vocab *v, int32_t id, const char *s, size_t length, enum vocab_kind kind, qr_error *err);

/* Makes the base token `id` an added one of the same string. */
void vocab_promote(struct vocab *v, int32_t id, enum vocab_kind kind);

/* The id of a string, or -1. */
int32_t vocab_find(const struct vocab *v, const char *s, size_t length);
/* The same, for a string that is likely to be token `guess` (any number). */
int32_t vocab_find_likely(const struct vocab *v, const char *s, size_t length, int32_t guess);
/* Says that a string will be added or looked up soon: fetches its slot meanwhile. */
void vocab_expect(const struct vocab *v, const char *s, size_t length);

/* The string (NUL-terminated besides) and bytes of an id below `count`; those of a hole are empty. */
const char *vocab_string(const struct vocab *v, int32_t id, size_t *length);
const uint8_t *vocab_bytes(const struct vocab *v, int32_t id, size_t *length);
void vocab_free(struct vocab *v);

#endif
