/* sha256.h: SHA-256, to name a file by what is in it. */
#ifndef QR_BASE_SHA256_H
#define QR_BASE_SHA256_H

#include <stddef.h>

enum { SHA256_HEX = 65 };

/* The hash of `size` bytes as 64 lower-case digits and a NUL. */
void sha256_hex(const void *data, size_t size, char out[SHA256_HEX]);

#endif
