#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

size_t utf8_char_length(const char *text, size_t size)
{
    const unsigned char *p = (const unsigned char *)text;
    if (size == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    /* The second byte's range depends on the first: this is where overlong forms, surrogates and values beyond
     * U+10FFFF fall out. */
    unsigned low = 0x80, high = 0xbf;
    size_t length;
    if (p[0] >= 0xc2 && p[0] <= 0xdf) {
        length = 2;
    } else if (p[0] >= 0xe0 && p[0] <= 0xef) {
        length = 3;
        if (p[0] == 0xe0)
            low = 0xa0;
        if (p[0] == 0xed)
            high = 0x9f;
    } else if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        length = 4;
        if (p[0] == 0xf0)
            low = 0x90;
        if (p[0] == 0xf4)
            high = 0x8f;
    } else {
        return 0;
    }
    if (size < length || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

size_t utf8_valid_prefix(const char *text, size_t size)
{
    size_t i = 0;
    while (i < size) {
        uint64_t word;
        while (size - i >= sizeof word && (memcpy(&word, text + i, sizeof word), !(word & 0x8080808080808080u)))
            i += sizeof word;
        if (i == size)
            break;
        size_t length = utf8_char_length(text + i, size - i);
        if (length == 0)
            break;
        i += length;
    }
    return i;
}
