#include "base/sentence.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum { PIECE = 8 }; /* "\u202e" and its NUL */

/* The code point of a valid character of two or three bytes. */
static unsigned code_point(const uint8_t *p, size_t length)
{
    return length == 2 ? (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu) : (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
}

/* C1 controls; the line and paragraph separators with the embeddings and overrides of direction behind them; isolates. */
static bool commands(unsigned code)
{
    return (code >= 0x80 && code < 0xA0) || (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

static size_t name_byte(uint8_t byte, char piece[PIECE])
{
    static const char short_names[] = "\tt\nn\rr";
    for (const char *s = short_names; *s; s += 2)
        if ((uint8_t)s[0] == byte)
            return (size_t)snprintf(piece, PIECE, "\\%c", s[1]);
    return (size_t)snprintf(piece, PIECE, "\\x%02x", byte);
}

/* What stands for the character at `text`; `*taken` gets its bytes. Returns the bytes of `piece`. */
static size_t show(const char *text, size_t size, size_t *taken, char piece[PIECE])
{
    const uint8_t *p = (const uint8_t *)text;
    size_t length = utf8_char_length(text, size);
    *taken = length ? length : 1;
    if (length == 0 || p[0] < 0x20 || p[0] == 0x7F)
        return name_byte(p[0], piece);
    if (length == 2 || length == 3) {
        unsigned code = code_point(p, length);
        if (commands(code))
            return (size_t)snprintf(piece, PIECE, "\\u%04x", code);
    }
    memcpy(piece, text, length);
    return length;
}

size_t sentence_quote(char *out, size_t room, const char *text, size_t size)
{
    size_t used = 0;
    for (size_t at = 0, taken; at < size; at += taken) {
        char piece[PIECE];
        size_t n = show(text + at, size - at, &taken, piece);
        if (used + n >= room)
            break;
        memcpy(out + used, piece, n);
        used += n;
    }
    out[used] = '\0';
    return used;
}

size_t sentence_format(char *out, size_t room, const char *format, va_list ap)
{
    char raw[SENTENCE_ROOM + 4]; /* a character that is cut at its end does not fit in `out` either */
    vsnprintf(raw, sizeof raw, format, ap);
    return sentence_quote(out, room < SENTENCE_ROOM ? room : SENTENCE_ROOM, raw, strlen(raw));
}
