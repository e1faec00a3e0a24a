/* utf8.h: UTF-8, total: any bytes are text once every maximal bad part is read as U+FFFD (protocol.md 1.3).
 * base/utf8.h only tells whether bytes are UTF-8. */
#ifndef QR_TEXT_UTF8_H
#define QR_TEXT_UTF8_H

#include "base/buffer.h"
#include "base/status.h"

#define UTF8_REPLACEMENT 0xFFFDu

/* Reads the character at `p` (n > 0 bytes are there) into *cp and returns its length, 1..4. When the bytes are no
 * character, *cp is U+FFFD and the length that of the maximal bad part (a surrogate's three bytes are three parts); a
 * well-formed U+FFFD is told apart by its length 3 and first byte EF. */
size_t utf8_decode(const uint8_t *p, size_t n, uint32_t *cp);

/* Writes `cp` (a scalar value) to `out` (room for 4) and returns its length. */
size_t utf8_encode(uint32_t cp, uint8_t *out);

/* Appends the text of `p`, bad parts replaced. false without memory. */
bool utf8_sanitize(const uint8_t *p, size_t n, struct buffer *out);

/* What `held` (n of them, 0..3) is once `byte` follows: still the start of a character (UTF8_PARTIAL), a whole one
 * (UTF8_WHOLE), or bytes that can never be one (UTF8_BAD; then `byte` is not part of the bad part unless n is 0). */
enum utf8_state { UTF8_PARTIAL, UTF8_WHOLE, UTF8_BAD };
enum utf8_state utf8_step(const uint8_t *held, size_t n, uint8_t byte);

#endif
