#include "base/base64.h"

#include <nettle/base64.h>

bool base64_encode(struct buffer *out, const void *data, size_t length)
{
    const size_t size = BASE64_ENCODE_RAW_LENGTH(length);
    if (!buffer_reserve(out, out->length + size + 1))
        return false;
    base64_encode_raw(out->data + out->length, length, data);
    out->length += size;
    out->data[out->length] = '\0';
    return true;
}

bool base64_decode(struct buffer *out, const char *text, size_t length)
{
    struct base64_decode_ctx ctx;
    size_t size = BASE64_DECODE_LENGTH(length);
    if (!buffer_reserve(out, out->length + size + 1))
        return false;
    base64_decode_init(&ctx);
    const bool good = base64_decode_update(&ctx, &size, (uint8_t *)out->data + out->length, length, text) &&
                      base64_decode_final(&ctx);
    out->length += good ? size : 0;
    out->data[out->length] = '\0';
    return good;
}
