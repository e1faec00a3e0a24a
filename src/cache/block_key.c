#include "cache/block_key.h"

#include <stddef.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* What kind of thing was hashed stands before it, so that no two kinds can be the same bytes. */
enum key_kind { KEY_ROOT = 1, KEY_TEXT, KEY_WITH_CONTENT, KEY_SALTED, KEY_SALT };

static struct block_key as_key(XXH128_hash_t h) { return (struct block_key){.low = h.low64, .high = h.high64}; }

struct block_key block_key_root(const char *identity, enum provenance provenance)
{
    const uint64_t seed = (uint64_t)KEY_ROOT << 32 | (uint64_t)provenance;
    return as_key(XXH3_128bits_withSeed(identity, strlen(identity), seed));
}

struct block_key block_key_salt(const char *salt)
{
    if (!salt || !*salt)
        return (struct block_key){0};
    return as_key(XXH3_128bits_withSeed(salt, strlen(salt), (uint64_t)KEY_SALT << 32));
}

struct block_key block_key_salted(const struct block_key *root, const struct block_key *salt)
{
    const uint64_t both[4] = {root->low, root->high, salt->low, salt->high};
    return as_key(XXH3_128bits_withSeed(both, sizeof both, (uint64_t)KEY_SALTED << 32));
}

struct block_key block_key_next(const struct block_key *parent, const int32_t *tokens, const uint64_t *content,
                                int32_t n)
{
    const uint64_t head[3] = {content ? KEY_WITH_CONTENT : KEY_TEXT, parent->low, parent->high};
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, head, sizeof head);
    XXH3_128bits_update(&state, tokens, (size_t)n * sizeof *tokens);
    if (content)
        XXH3_128bits_update(&state, content, (size_t)n * sizeof *content);
    return as_key(XXH3_128bits_digest(&state));
}
