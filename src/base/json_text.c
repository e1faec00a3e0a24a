#include "base/json_text.h"

#include <stdint.h>
#include <string.h>

#include "base/utf8.h"

#define ONES 0x0101010101010101u
#define HIGHS 0x8080808080808080u

/* How many of the eight bytes of text at `p`, from the first on, are printable ASCII other than a backslash: nothing to
 * look at. */
static size_t plain_bytes(const char *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    uint64_t slash = word ^ (ONES * '\\');
    uint64_t is_slash = (slash - ONES) & ~slash & HIGHS;
    uint64_t below_space = (word - ONES * 0x20) & ~word & HIGHS; /* a borrow marks bytes behind the first one only */
    uint64_t marks = (word & HIGHS) | is_slash | below_space;
    return marks ? (size_t)__builtin_ctzll(marks) / 8 : sizeof word;
}

/* The code unit of the escape \uXXXX at `p`, or -1 when there is none. */
static int32_t unit_escape(const char *p, size_t size)
{
    if (size < 6 || p[0] != '\\' || p[1] != 'u')
        return -1;
    int32_t unit = 0;
    for (int i = 2; i < 6; i++) {
        int c = p[i], digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if (c >= 'a' && c <= 'f')
            digit = c - 'a' + 10;
        else if (c >= 'A' && c <= 'F')
            digit = c - 'A' + 10;
        else
            return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

/* Bytes of the escape at `p`; 0 when it is a surrogate without its other half. Malformed escapes pass: yajl names
 * them. */
static size_t escape_length(const char *p, size_t size)
{
    int32_t unit = unit_escape(p, size);
    if (unit < 0xd800 || unit > 0xdfff)
        return size < 2 ? 1 : 2;
    if (unit >= 0xdc00)
        return 0;
    int32_t second = unit_escape(p + 6, size - 6);
    return second >= 0xdc00 && second <= 0xdfff ? 12 : 0;
}

const char *json_text_defect(const char *text, size_t size, size_t *offset)
{
    size_t i = 0;
    while (i < size) {
        size_t plain = size - i >= 8 ? plain_bytes(text + i) : 0;
        i += plain;
        if (plain == 8)
            continue;
        unsigned char c = (unsigned char)text[i];
        *offset = i;
        if (c == '\\') {
            size_t length = escape_length(text + i, size - i);
            if (length == 0)
                return "lone surrogate in a \\u escape";
            i += length;
        } else if (c >= 0x80) {
            size_t length = utf8_char_length(text + i, size - i);
            if (length == 0)
                return "invalid UTF-8";
            i += length;
        } else if (c < 0x20 && c != '\t' && c != '\n' && c != '\r') {
            return "control character";
        } else {
            i++;
        }
    }
    return NULL;
}
