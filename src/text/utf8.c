#include "text/utf8.h"

#include "base/utf8.h"

/* Bytes of the character that `lead` starts; 0 when no character starts so. */
static size_t length_of(uint8_t lead)
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

/* Whether `byte` may be the second byte after `lead`: shuts out overlong forms, surrogates and values past 10FFFF. */
static bool second_fits(uint8_t lead, uint8_t byte)
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

enum utf8_state utf8_step(const uint8_t *held, size_t n, uint8_t byte)
{
    size_t length = length_of(n ? held[0] : byte);
    if (length == 0)
        return UTF8_BAD;
    if (n == 1 && !second_fits(held[0], byte))
        return UTF8_BAD;
    if (n > 1 && (byte & 0xC0) != 0x80)
        return UTF8_BAD;
    return n + 1 == length ? UTF8_WHOLE : UTF8_PARTIAL;
}

size_t utf8_decode(const uint8_t *p, size_t n, uint32_t *cp)
{
    static const uint8_t lead_bits[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    size_t length = length_of(p[0]);
    *cp = UTF8_REPLACEMENT;
    if (length == 0)
        return 1;
    uint32_t value = p[0] & lead_bits[length];
    for (size_t i = 1; i < length; i++) {
        if (i == n || (i == 1 ? !second_fits(p[0], p[1]) : (p[i] & 0xC0) != 0x80))
            return i;
        value = value << 6 | (p[i] & 0x3F);
    }
    *cp = value;
    return length;
}

size_t utf8_encode(uint32_t cp, uint8_t *out)
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xC0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xE0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (uint8_t)(0x80 | (cp & 0x3F));
    return 4;
}

bool utf8_sanitize(const uint8_t *p, size_t n, struct buffer *out)
{
    while (n) {
        uint32_t cp;
        size_t good = utf8_valid_prefix((const char *)p, n);
        if (!buffer_append(out, p, good))
            return false;
        p += good;
        n -= good;
        if (n == 0)
            break;
        size_t bad = utf8_decode(p, n, &cp);
        if (!buffer_append(out, "\xEF\xBF\xBD", 3))
            return false;
        p += bad;
        n -= bad;
    }
    return true;
}
