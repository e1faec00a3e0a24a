/* sha256.h: SHA-256, to name a file by what is in it. */
#ifndef QR_BASE_SHA256_H
#define QR_BASE_SHA256_H

#include <nettle/sha2.h>
#include <stddef.h>

enum { SHA256_HEX = 65 };

/* A hash in the making. */
struct sha256 {
    struct sha256_ctx state;
};
void sha256_start(struct sha256 *h);
void sha256_add(struct sha256 *h, const void *data, size_t size);
/* 64 lower-case digits and a NUL. */
void sha256_end(struct sha256 *h, char out[SHA256_HEX]);

/* The hash of `size` bytes as 64 lower-case digits and a NUL. */
void sha256_hex(const void *data, size_t size, char out[SHA256_HEX]);

#endif
