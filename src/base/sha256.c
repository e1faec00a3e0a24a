#include "base/sha256.h"

#include <stdint.h>
#include <stdio.h>

void sha256_start(struct sha256 *h) { sha256_init(&h->state); }

void sha256_add(struct sha256 *h, const void *data, size_t size) { sha256_update(&h->state, size, data); }

void sha256_end(struct sha256 *h, char out[SHA256_HEX])
{
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(&h->state, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

void sha256_hex(const void *data, size_t size, char out[SHA256_HEX])
{
    struct sha256 h;
    sha256_start(&h);
    sha256_add(&h, data, size);
    sha256_end(&h, out);
}
