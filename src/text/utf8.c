#include "text/utf8.h"

#include "base/utf8.h"

enum utf8_state utf8_step(const uint8_t *held, size_t n, uint8_t byte)
{
    size_t length = utf8_length(n ? held[0] : byte);
    if (length == 0)
        return UTF8_BAD;
    if (n == 1 && !utf8_second_fits(held[0], byte))
        return UTF8_BAD;
    if (n > 1 && (byte & 0xC0) != 0x80)
        return UTF8_BAD;
    return n + 1 == length ? UTF8_WHOLE : UTF8_PARTIAL;
}

size_t utf8_decode(const uint8_t *p, size_t n, uint32_t *cp)
{
    static const uint8_t lead_bits[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    size_t length = utf8_length(p[0]);
    *cp = UTF8_REPLACEMENT;
    if (length == 0)
        return 1;
    uint32_t value = p[0] & lead_bits[length];
    for (size_t i = 1; i < length; i++) {
        if (i == n || (i == 1 ? !utf8_second_fits(p[0], p[1]) : (p[i] & 0xC0) != 0x80))
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
