/* block_key.h: names for the contents of blocks (runtime.md 5.1). A block's key hashes its parent's key and its tokens,
 * so it names everything from the first token to its last. A chain starts at a root, which hashes what makes the same
 * tokens a different computation. Pure. */
#ifndef QR_CACHE_BLOCK_KEY_H
#define QR_CACHE_BLOCK_KEY_H

#include <stdbool.h>
#include <stdint.h>

struct block_key {
    uint64_t low, high;
};

/* How cached rows came about. Rows computed behind a bounded encoder replay differ slightly from a cold run's. */
enum provenance { PROVENANCE_EXACT, PROVENANCE_REPLAYED };

/* `identity`: the PAGE layout (geometry.page_layout), the model's fingerprint and the arithmetic identity
 * (runtime.md 2.11), in one string. */
struct block_key block_key_root(const char *identity, enum provenance provenance);

/* What stands for the root in the chains of requests with this salt, not empty: none of their blocks is one of others. */
struct block_key block_key_salted(const struct block_key *root, const struct block_key *salt);
/* A salt's name; of an empty one or NULL zero, which is no salt. */
struct block_key block_key_salt(const char *salt);

/* Key of the block of `n` tokens behind `parent`. `content`: [n], for a token of an image span a hash of the image, for
 * any other 0; NULL: no image. */
struct block_key block_key_next(const struct block_key *parent, const int32_t *tokens, const uint64_t *content,
                                int32_t n);

static inline bool block_key_equal(const struct block_key *a, const struct block_key *b)
{
    return a->low == b->low && a->high == b->high;
}

#endif
