#include "text/byte_map.h"

#include "text/utf8.h"

/* The 68 bytes that are not themselves are 00..20, 7F..A0 and AD: 33 + 34 + 1. */
uint32_t byte_map_character(uint8_t byte)
{
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte >= 0x7F && byte <= 0xA0)
        return 0x100u + 33 + (byte - 0x7Fu);
    if (byte == 0xAD)
        return 0x100u + 67;
    return byte;
}

int byte_map_byte(uint32_t cp)
{
    if (cp < 0x100)
        return byte_map_character((uint8_t)cp) == cp ? (int)cp : -1;
    if (cp < 0x100 + 33)
        return (int)(cp - 0x100);
    if (cp < 0x100 + 67)
        return (int)(cp - 0x100 - 33 + 0x7F);
    return cp == 0x100 + 67 ? 0xAD : -1;
}

bool byte_map_to_bytes(const char *s, size_t n, uint8_t *out, size_t *length)
{
    *length = 0;
    while (n) {
        uint32_t cp;
        size_t step = utf8_decode((const uint8_t *)s, n, &cp);
        int byte = byte_map_byte(cp);
        if (byte < 0)
            return false;
        out[(*length)++] = (uint8_t)byte;
        s += step;
        n -= step;
    }
    return true;
}

size_t byte_map_to_text(const uint8_t *bytes, size_t n, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < n; i++)
        length += utf8_encode(byte_map_character(bytes[i]), (uint8_t *)out + length);
    return length;
}
