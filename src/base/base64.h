/* base64.h: bytes as text and back (RFC 4648 with padding). */
#ifndef QR_BASE_BASE64_H
#define QR_BASE_BASE64_H

#include "base/buffer.h"

/* Appends the text of `length` bytes. False without memory. */
bool base64_encode(struct buffer *out, const void *data, size_t length);

/* Appends the bytes of a text, in which white space means nothing. False: this is no whole base64 text, or there is no memory
 * (out->failed). */
bool base64_decode(struct buffer *out, const char *text, size_t length);

#endif
