/* bpe.h: byte-pair merging of one piece (protocol.md 1.4): join the adjacent pair with the lowest rank, the leftmost of
 * equals, until no adjacent pair is in the table. */
#ifndef QR_TEXT_BPE_H
#define QR_TEXT_BPE_H

#include "text/ids.h"

struct bpe_slot {
    uint64_t pair; /* left id << 32 | right id; BPE_EMPTY in a free slot */
    uint32_t rank;
    int32_t id; /* of the joined token */
};

/* Zero-initialise; free with bpe_free. Read-only once filled. */
struct bpe {
    int32_t byte_id[256];
    struct bpe_slot *slots; /* open addressing, slot_mask + 1 of them */
    size_t slot_mask;
};

/* Makes an empty table with room for `merges` merges. false without memory. */
bool bpe_reserve(struct bpe *bpe, size_t merges);
/* Adds the merge of rank `rank`. Returns -1, or the rank that this pair has already. At most as many as reserved. */
int64_t bpe_add(struct bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id);
void bpe_free(struct bpe *bpe);

/* What merging needs besides the piece: kept from piece to piece of one call, owned by one thread. Zero-initialise;
 * free with bpe_scratch_free. */
struct bpe_scratch {
    struct bpe_symbol *symbols;
    struct bpe_candidate *heap;
    size_t symbol_capacity, heap_capacity;
    struct bpe_cached *cache; /* short pieces met in this call; NULL: none kept */
};

/* Gives the scratch a cache of pieces; worth its page faults from a few kilobytes of text on. Goes without one when
 * there is no memory. */
void bpe_scratch_cache(struct bpe_scratch *scratch);
void bpe_scratch_free(struct bpe_scratch *scratch);

/* Appends the ids of `piece` (n > 0 bytes, n < 2^31). O(n log n). false without memory, `ids` as it was. */
bool bpe_encode(const struct bpe *bpe, const uint8_t *piece, size_t n, struct bpe_scratch *scratch,
                struct tok_ids *ids);

#endif
