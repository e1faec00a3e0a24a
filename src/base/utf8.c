#include "base/utf8.h"

#include <string.h>

size_t utf8_length(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xC2)
        return 0;
    if (lead < 0xE0)
        return 2;
    if (lead < 0xF0)
        return 3;
    return lead < 0xF5 ? 4 : 0;
}

bool utf8_second_fits(uint8_t lead, uint8_t byte)
{
    uint8_t low = 0x80, high = 0xBF;
    if (lead == 0xE0)
        low = 0xA0;
    else if (lead == 0xED)
        high = 0x9F;
    else if (lead == 0xF0)
        low = 0x90;
    else if (lead == 0xF4)
        high = 0x8F;
    return byte >= low && byte <= high;
}

size_t utf8_char_length(const char *text, size_t size)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t length = size ? utf8_length(p[0]) : 0;
    if (length > size || (length > 1 && !utf8_second_fits(p[0], p[1])))
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((p[i] & 0xC0) != 0x80)
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
