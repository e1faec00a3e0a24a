/* sentence.h: a line of text for people that quotes what a file, a request or a command line holds. Whatever was quoted
 * stays one line of UTF-8 and commands no terminal: control characters, line separators, marks that turn the direction of
 * writing and bytes that are no UTF-8 are written as \n, \t, \r, \x1b, \u2028. A backslash stays itself, so that a sentence
 * inside of a sentence does not change. */
#ifndef QR_BASE_SENTENCE_H
#define QR_BASE_SENTENCE_H

#include <stdarg.h>
#include <stddef.h>

enum { SENTENCE_ROOM = 2000 }; /* the longest, its NUL included */

/* Writes `text` to `out`, NUL-terminated; what does not fit in `room` bytes (1 at least) is cut off between two
 * characters. Returns the length. */
size_t sentence_quote(char *out, size_t room, const char *text, size_t size);
/* The same of a formatted text, of which at most SENTENCE_ROOM bytes are looked at. Arguments may point into `out`. */
size_t sentence_format(char *out, size_t room, const char *format, va_list ap) __attribute__((format(printf, 3, 0)));

#endif
