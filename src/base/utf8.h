/* utf8.h: is it UTF-8? */
#ifndef QR_BASE_UTF8_H
#define QR_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that `lead` starts; 0 when no character starts so. */
size_t utf8_length(uint8_t lead);
/* Whether `byte` may be the second byte after `lead`: shuts out overlong forms, surrogates and values past U+10FFFF. */
bool utf8_second_fits(uint8_t lead, uint8_t byte);

/* How many bytes at the start of `text` are whole, valid UTF-8 characters: `size` when all are. Overlong forms,
 * surrogates and values beyond U+10FFFF are not valid. */
size_t utf8_valid_prefix(const char *text, size_t size);

/* Bytes of the valid character at `text` (1..4), or 0 when there is none within `size` bytes. */
size_t utf8_char_length(const char *text, size_t size);

#endif
