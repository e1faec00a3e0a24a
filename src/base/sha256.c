#include "base/sha256.h"

#include <nettle/sha2.h>
#include <stdint.h>
#include <stdio.h>

void sha256_hex(const void *data, size_t size, char out[SHA256_HEX])
{
    struct sha256_ctx state;
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_init(&state);
    sha256_update(&state, size, data);
    sha256_digest(&state, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}
