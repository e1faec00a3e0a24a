/* blocks.h: which PAGE holds which tokens (runtime.md 5.2). A block id is an index into every plane; block 0 is
 * reserved, so that a zeroed table never names a live one. Scheduler thread only; knows no bytes, no model.
 *
 *     unused --take--> live --release--> unused, or, when the index names it, cached
 *                        ^------match / hold-------------------------------' | take, when nothing is unused:
 *                        '-----------------------------(evicted)-------------'  the least recently used one
 *
 * A block enters the index when its rows are computed and its tokens are final, and is never written after that. */
#ifndef QR_CACHE_BLOCKS_H
#define QR_CACHE_BLOCKS_H

#include "base/status.h"
#include "cache/block_key.h"

typedef int32_t block_id;

struct blocks;

struct blocks_counters {
    int64_t published;  /* blocks that entered the index */
    int64_t duplicates; /* the same tokens computed twice: the second block stays out of the index */
    int64_t matched;    /* blocks found by blocks_match */
    int64_t collisions; /* keys that were equal where the tokens were not */
    int64_t evicted;    /* blocks that left the index, to be handed out or forgotten */
};

/* `count` blocks, block 0 included: count - 1 can be taken. Fails with QR_BAD_ARGUMENT below 2 blocks or 1 token. */
qr_status blocks_open(int64_t count, int32_t block_tokens, struct blocks **out, qr_error *err);
/* Bytes that it takes. */
int64_t blocks_bytes_for(int64_t count, int32_t block_tokens);
void blocks_close(struct blocks *b);

/* Called for each block that leaves the index, before it is handed out: an image filed under it is orphaned. */
void blocks_on_evict(struct blocks *b, void (*evicted)(void *user, block_id id), void *user);

/* Takes `n` blocks with one reference each, or none at all: false when fewer are free. Unused blocks come first (the
 * lowest ids first after opening), then the least recently used cached ones, which leave the index. */
bool blocks_take(struct blocks *b, int64_t n, block_id *out);
/* One reference more of a live or cached block. */
void blocks_hold(struct blocks *b, block_id id);
/* Gives one reference of each block back. The ids of a request stand in the order of its positions, and are released
 * backwards: of a chain that nobody holds its end is evicted before its start. */
void blocks_release(struct blocks *b, const block_id *ids, int64_t n);

/* Finds the longest cached prefix of `tokens` (n of them) that ends on a block boundary and leaves at least one token
 * to forward. keys[i] is the key of block i, (n - 1) / block_tokens of them at least. Claims every block found
 * (reference +1), so that none is evicted before use; undo with blocks_release. Writes the ids to `out` and returns how
 * many. A key that collides is compared by token ids and counts as a miss. Never fails. */
int32_t blocks_match(struct blocks *b, const struct block_key *keys, const int32_t *tokens, int32_t n, block_id *out);

/* Enters a live block whose rows are all computed, and whose tokens are final, into the index. False: another block
 * holds the same tokens already (the first one published stays canonical), or its key collides; `id` then becomes
 * unused when it is released. */
bool blocks_publish(struct blocks *b, block_id id, const struct block_key *key, const int32_t *tokens);
/* The block that the index has for a key and its tokens; 0: none. */
block_id blocks_find(const struct blocks *b, const struct block_key *key, const int32_t *tokens);
bool blocks_indexed(const struct blocks *b, block_id id);
/* Forgets every key: cached blocks become unused, live ones stay with their holders. Each is reported as evicted. */
void blocks_forget(struct blocks *b);

/* What can be taken: unused and cached ones. */
int64_t blocks_free(const struct blocks *b);
int64_t blocks_unused(const struct blocks *b);
int64_t blocks_cached(const struct blocks *b);
/* count - 1: what can be taken when nothing is. */
int64_t blocks_usable(const struct blocks *b);
int32_t blocks_references(const struct blocks *b, block_id id);
const struct blocks_counters *blocks_counters(const struct blocks *b);

/* Walks every list and the index: QR_INTERNAL naming the first block that stands where it does not belong. */
qr_status blocks_check(const struct blocks *b, qr_error *err);

#endif
