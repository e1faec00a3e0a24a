/* char_class.h: which of the pre-tokenizer's classes (protocol.md 1.3) a code point is in. */
#ifndef QR_TEXT_CHAR_CLASS_H
#define QR_TEXT_CHAR_CLASS_H

#include "base/status.h"

/* Bits of a class. NUMBER excludes every other (the scanner tests it first); CJK is the range of pass 2 and comes with
 * the general category's bit. A code point without any bit is a control, format, private or unassigned one. */
enum {
    CHAR_LETTER = 1,   /* \p{L} */
    CHAR_MARK = 2,     /* \p{M} */
    CHAR_NUMBER = 4,   /* \p{N} */
    CHAR_PUNCT = 8,    /* \p{P} or \p{S} */
    CHAR_SPACE = 16,   /* White_Space */
    CHAR_NEWLINE = 32, /* CR, LF; also CHAR_SPACE */
    CHAR_CJK = 64      /* 4E00..9FA5, 3040..30FF */
};

/* Two stages: code points in blocks of 256, equal blocks stored once. Read-only once made. */
struct char_classes {
    uint16_t block[0x110000 / 256]; /* which block of `classes` */
    uint8_t *classes;
};

/* Filled from utf8proc's tables. Free with char_classes_free (NULL is fine). */
qr_status char_classes_open(struct char_classes **out, qr_error *err);
void char_classes_free(struct char_classes *classes);

/* White_Space, the list of protocol.md 1.3 (no library table is asked). */
bool char_is_space(uint32_t cp);

static inline uint8_t char_class(const struct char_classes *c, uint32_t cp)
{
    return c->classes[(size_t)c->block[cp >> 8] * 256 + (cp & 255)];
}

#endif
