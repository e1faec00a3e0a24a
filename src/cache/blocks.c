#include "cache/blocks.h"

#include <string.h>

#include "base/alloc.h"

/* Where a block stands. */
enum place { PLACE_UNUSED, PLACE_LIVE, PLACE_CACHED };

struct record {
    struct block_key key; /* of an indexed block */
    int32_t references;
    block_id older, newer; /* cached blocks by last use; 0: the end */
    block_id chain;        /* the next block of its bucket; 0: the end */
    bool indexed;
};

struct blocks {
    int64_t count, unused, cached;
    int32_t block_tokens;
    struct record *record; /* [count] */
    block_id *stack;       /* unused ids, the next to take on top */
    int32_t *tokens;       /* [count][block_tokens], of indexed blocks */
    block_id *bucket;      /* [buckets] first block of each */
    int64_t buckets;       /* a power of two */
    block_id oldest, newest;
    void (*evicted)(void *user, block_id id);
    void *user;
    struct blocks_counters counters;
};

/* ---- opening ---- */

static int64_t buckets_for(int64_t count)
{
    int64_t n = 16;
    while (n < count)
        n *= 2;
    return n;
}

int64_t blocks_bytes_for(int64_t count, int32_t block_tokens)
{
    const struct blocks *b = NULL;
    const int64_t each = (int64_t)(sizeof *b->record + sizeof *b->stack + (size_t)block_tokens * sizeof *b->tokens);
    return (int64_t)sizeof *b + count * each + buckets_for(count) * (int64_t)sizeof *b->bucket;
}

qr_status blocks_open(int64_t count, int32_t block_tokens, struct blocks **out, qr_error *err)
{
    if (count < 2 || count > INT32_MAX)
        return qr_fail(err, QR_BAD_ARGUMENT, "a pool of %lld blocks, wanted 2 to %d", (long long)count, INT32_MAX);
    if (block_tokens < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "blocks of %d tokens, wanted at least 1", block_tokens);
    struct blocks *b = qr_calloc(1, sizeof *b);
    if (!b)
        goto no_memory;
    b->count = count;
    b->block_tokens = block_tokens;
    b->buckets = buckets_for(count);
    b->record = qr_calloc((size_t)count, sizeof *b->record);
    b->stack = qr_realloc_array(NULL, (size_t)count, sizeof *b->stack);
    b->tokens = qr_calloc((size_t)count, (size_t)block_tokens * sizeof *b->tokens);
    b->bucket = qr_calloc((size_t)b->buckets, sizeof *b->bucket);
    if (!b->record || !b->stack || !b->tokens || !b->bucket)
        goto no_memory;
    b->record[0].references = 1;
    for (int64_t id = count - 1; id > 0; id--)
        b->stack[b->unused++] = (block_id)id;
    *out = b;
    return QR_OK;

no_memory:
    blocks_close(b);
    return qr_fail(err, QR_NO_MEMORY, "a table of %lld blocks", (long long)count);
}

void blocks_close(struct blocks *b)
{
    if (!b)
        return;
    qr_free(b->record);
    qr_free(b->stack);
    qr_free(b->tokens);
    qr_free(b->bucket);
    qr_free(b);
}

void blocks_on_evict(struct blocks *b, void (*evicted)(void *user, block_id id), void *user)
{
    b->evicted = evicted;
    b->user = user;
}

/* ---- the index ---- */

static int32_t *tokens_of(const struct blocks *b, block_id id) { return b->tokens + (int64_t)id * b->block_tokens; }

static block_id *bucket_of(const struct blocks *b, const struct block_key *key)
{
    return &b->bucket[key->low & (uint64_t)(b->buckets - 1)];
}

/* The indexed block with that key; 0: none. Keys are unique in the index. */
static block_id with_key(const struct blocks *b, const struct block_key *key)
{
    block_id id = *bucket_of(b, key);
    while (id && !block_key_equal(&b->record[id].key, key))
        id = b->record[id].chain;
    return id;
}

static bool same_tokens(const struct blocks *b, block_id id, const int32_t *tokens)
{
    return memcmp(tokens_of(b, id), tokens, (size_t)b->block_tokens * sizeof *tokens) == 0;
}

static void unindex(struct blocks *b, block_id id)
{
    struct record *r = &b->record[id];
    block_id *at = bucket_of(b, &r->key);
    while (*at != id)
        at = &b->record[*at].chain;
    *at = r->chain;
    r->chain = 0;
    r->indexed = false;
    b->counters.evicted++;
    if (b->evicted)
        b->evicted(b->user, id);
}

bool blocks_publish(struct blocks *b, block_id id, const struct block_key *key, const int32_t *tokens)
{
    struct record *r = &b->record[id];
    const block_id other = with_key(b, key);
    if (other) {
        *(same_tokens(b, other, tokens) ? &b->counters.duplicates : &b->counters.collisions) += 1;
        return false;
    }
    memcpy(tokens_of(b, id), tokens, (size_t)b->block_tokens * sizeof *tokens);
    r->key = *key;
    r->indexed = true;
    r->chain = *bucket_of(b, key);
    *bucket_of(b, key) = id;
    b->counters.published++;
    return true;
}

block_id blocks_find(const struct blocks *b, const struct block_key *key, const int32_t *tokens)
{
    const block_id id = with_key(b, key);
    return id && same_tokens(b, id, tokens) ? id : 0;
}

int32_t blocks_match(struct blocks *b, const struct block_key *keys, const int32_t *tokens, int32_t n, block_id *out)
{
    const int32_t most = (n - 1) / b->block_tokens;
    int32_t found = 0;
    for (; found < most; found++) {
        const int32_t *of_block = tokens + (int64_t)found * b->block_tokens;
        const block_id id = with_key(b, &keys[found]);
        if (!id)
            break;
        if (!same_tokens(b, id, of_block)) {
            b->counters.collisions++;
            break;
        }
        blocks_hold(b, id);
        out[found] = id;
    }
    b->counters.matched += found;
    return found;
}

bool blocks_indexed(const struct blocks *b, block_id id) { return b->record[id].indexed; }

/* ---- cached blocks by last use ---- */

static void cached_push(struct blocks *b, block_id id)
{
    struct record *r = &b->record[id];
    r->older = b->newest;
    r->newer = 0;
    *(b->newest ? &b->record[b->newest].newer : &b->oldest) = id;
    b->newest = id;
    b->cached++;
}

static void cached_remove(struct blocks *b, block_id id)
{
    struct record *r = &b->record[id];
    *(r->older ? &b->record[r->older].newer : &b->oldest) = r->newer;
    *(r->newer ? &b->record[r->newer].older : &b->newest) = r->older;
    r->older = r->newer = 0;
    b->cached--;
}

/* ---- taking and giving back ---- */

static block_id take_one(struct blocks *b)
{
    if (b->unused)
        return b->stack[--b->unused];
    const block_id id = b->oldest;
    cached_remove(b, id);
    unindex(b, id);
    return id;
}

bool blocks_take(struct blocks *b, int64_t n, block_id *out)
{
    if (n > blocks_free(b))
        return false;
    for (int64_t i = 0; i < n; i++) {
        out[i] = take_one(b);
        b->record[out[i]].references = 1;
    }
    return true;
}

void blocks_hold(struct blocks *b, block_id id)
{
    if (b->record[id].references++ == 0)
        cached_remove(b, id);
}

void blocks_release(struct blocks *b, const block_id *ids, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--) {
        struct record *r = &b->record[ids[i]];
        if (--r->references > 0)
            continue;
        if (r->indexed)
            cached_push(b, ids[i]);
        else
            b->stack[b->unused++] = ids[i];
    }
}

void blocks_forget(struct blocks *b)
{
    while (b->oldest) {
        const block_id id = b->oldest;
        cached_remove(b, id);
        unindex(b, id);
        b->stack[b->unused++] = id;
    }
    for (block_id id = 1; id < b->count; id++)
        if (b->record[id].indexed)
            unindex(b, id);
}

/* ---- what others look at ---- */

int64_t blocks_free(const struct blocks *b) { return b->unused + b->cached; }

int64_t blocks_unused(const struct blocks *b) { return b->unused; }

int64_t blocks_cached(const struct blocks *b) { return b->cached; }

int64_t blocks_usable(const struct blocks *b) { return b->count - 1; }

int32_t blocks_references(const struct blocks *b, block_id id) { return b->record[id].references; }

const struct blocks_counters *blocks_counters(const struct blocks *b) { return &b->counters; }

/* ---- checks ---- */

static qr_status check_lists(const struct blocks *b, qr_error *err)
{
    int64_t cached = 0, live = 0;
    for (block_id id = b->oldest, before = 0; id; before = id, id = b->record[id].newer) {
        const struct record *r = &b->record[id];
        if (r->references != 0 || !r->indexed || r->older != before || ++cached > b->cached)
            return qr_fail(err, QR_INTERNAL, "block %d stands among the cached ones with %d references, indexed %d", id,
                           r->references, r->indexed);
    }
    for (int64_t i = 0; i < b->unused; i++)
        if (b->record[b->stack[i]].references != 0 || b->record[b->stack[i]].indexed)
            return qr_fail(err, QR_INTERNAL, "block %d is unused with %d references, indexed %d", b->stack[i],
                           b->record[b->stack[i]].references, b->record[b->stack[i]].indexed);
    for (block_id id = 1; id < b->count; id++)
        live += b->record[id].references > 0;
    if (cached != b->cached || live + cached + b->unused != b->count - 1)
        return qr_fail(err, QR_INTERNAL, "I11: %lld live, %lld cached and %lld unused blocks, wanted %lld together",
                       (long long)live, (long long)cached, (long long)b->unused, (long long)b->count - 1);
    return QR_OK;
}

static qr_status check_index(const struct blocks *b, qr_error *err)
{
    int64_t indexed = 0, found = 0;
    for (block_id id = 1; id < b->count; id++)
        indexed += b->record[id].indexed;
    for (int64_t i = 0; i < b->buckets; i++)
        for (block_id id = b->bucket[i]; id; id = b->record[id].chain)
            if (!b->record[id].indexed || with_key(b, &b->record[id].key) != id || ++found > indexed)
                return qr_fail(err, QR_INTERNAL, "block %d stands in the index beside another of its key", id);
    if (found != indexed)
        return qr_fail(err, QR_INTERNAL, "the index holds %lld blocks, %lld say they are in it", (long long)found,
                       (long long)indexed);
    return QR_OK;
}

qr_status blocks_check(const struct blocks *b, qr_error *err)
{
    qr_status st = check_lists(b, err);
    return st == QR_OK ? check_index(b, err) : st;
}
