#include "text/bpe.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static const uint64_t empty_pair = UINT64_MAX; /* ids are not negative: no pair has it */
static const uint32_t no_rank = UINT32_MAX;

/* Up to SHORT_PIECE bytes a scan for the lowest rank beats the heap, and the piece is worth remembering. */
enum { SHORT_PIECE = 32, CACHE_SLOTS = 4096, CACHED_IDS = 7 };

/* One cache line: a piece and its ids, when they are few. */
struct bpe_cached {
    uint8_t length, count;
    uint8_t bytes[SHORT_PIECE];
    int32_t ids[CACHED_IDS];
};

/* A symbol of a long piece, in a list; `id` is -1 once it has been joined to its left neighbour. */
struct bpe_symbol {
    int32_t id, previous, next;
};

/* A pair that was adjacent when it was pushed. It is stale when the symbols at its places are others by now, which the
 * pair itself tells. */
struct bpe_candidate {
    uint32_t rank;
    int32_t at;
    uint64_t pair;
};

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

static size_t slot_of(const struct bpe *bpe, uint64_t pair)
{
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    return (h ^ h >> 29) >> 8 & bpe->slot_mask;
}

/* The merge of a pair, or NULL. */
static const struct bpe_slot *find(const struct bpe *bpe, int32_t left, int32_t right)
{
    uint64_t pair = pair_of(left, right);
    for (size_t slot = slot_of(bpe, pair);; slot = (slot + 1) & bpe->slot_mask) {
        if (bpe->slots[slot].pair == pair)
            return &bpe->slots[slot];
        if (bpe->slots[slot].pair == empty_pair)
            return NULL;
    }
}

bool bpe_reserve(struct bpe *bpe, size_t merges)
{
    size_t slots = 16;
    while (slots < merges * 2)
        slots *= 2;
    bpe->slots = qr_malloc(slots * sizeof *bpe->slots);
    if (!bpe->slots)
        return false;
    memset(bpe->slots, 0xFF, slots * sizeof *bpe->slots);
    bpe->slot_mask = slots - 1;
    return true;
}

int64_t bpe_add(struct bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t pair = pair_of(left, right);
    size_t slot = slot_of(bpe, pair);
    while (bpe->slots[slot].pair != empty_pair) {
        if (bpe->slots[slot].pair == pair)
            return bpe->slots[slot].rank;
        slot = (slot + 1) & bpe->slot_mask;
    }
    bpe->slots[slot] = (struct bpe_slot){pair, rank, id};
    return -1;
}

void bpe_free(struct bpe *bpe)
{
    qr_free(bpe->slots);
    *bpe = (struct bpe){0};
}

void bpe_scratch_cache(struct bpe_scratch *scratch)
{
    if (!scratch->cache)
        scratch->cache = qr_calloc(CACHE_SLOTS, sizeof *scratch->cache);
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
    qr_free(scratch->symbols);
    qr_free(scratch->heap);
    qr_free(scratch->cache);
    *scratch = (struct bpe_scratch){0};
}

static bool append(struct tok_ids *ids, const int32_t *more, size_t n)
{
    while (ids->capacity - ids->count < n) {
        size_t capacity = ids->capacity;
        if (!array_grow(&ids->data, &ids->capacity, capacity, sizeof *ids->data))
            return false;
    }
    memcpy(ids->data + ids->count, more, n * sizeof *more);
    ids->count += n;
    return true;
}

/* Merges a short piece in place: ids[0..n) are its bytes' ids on entry. Returns how many ids are left. */
static size_t merge_short(const struct bpe *bpe, int32_t *ids, size_t n)
{
    uint32_t rank[SHORT_PIECE]; /* of the pair (i, i + 1) */
    int32_t joined[SHORT_PIECE];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct bpe_slot *m = find(bpe, ids[i], ids[i + 1]);
        rank[i] = m ? m->rank : no_rank;
        joined[i] = m ? m->id : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == no_rank)
            break;
        ids[best] = joined[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        if (best + 1 < n) {
            memmove(rank + best + 1, rank + best + 2, (n - best - 2) * sizeof *rank);
            memmove(joined + best + 1, joined + best + 2, (n - best - 2) * sizeof *joined);
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct bpe_slot *m = find(bpe, ids[i], ids[i + 1]);
            rank[i] = m ? m->rank : no_rank;
            joined[i] = m ? m->id : -1;
        }
    }
    return n;
}

static bool before(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
    return a->rank < b->rank || (a->rank == b->rank && a->at < b->at);
}

static void sift_down(struct bpe_candidate *heap, size_t n, size_t i)
{
    struct bpe_candidate moving = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && before(&heap[child + 1], &heap[child]))
            child++;
        if (!before(&heap[child], &moving))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moving;
}

static void sift_up(struct bpe_candidate *heap, size_t i)
{
    struct bpe_candidate moving = heap[i];
    while (i && before(&moving, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = moving;
}

/* The pair that starts at symbol `at`, when there is one and it can be joined. */
static bool candidate_at(const struct bpe *bpe, const struct bpe_symbol *symbols, int32_t at, struct bpe_candidate *out)
{
    int32_t next = symbols[at].next;
    const struct bpe_slot *m = next < 0 ? NULL : find(bpe, symbols[at].id, symbols[next].id);
    if (!m)
        return false;
    *out = (struct bpe_candidate){m->rank, at, m->pair};
    return true;
}

/* Room for n symbols and for the candidates: n - 1 at first, and a join takes one and pushes two at most. */
static bool reserve(struct bpe_scratch *s, size_t n)
{
    if (s->symbol_capacity < n) {
        struct bpe_symbol *symbols = qr_realloc_array(s->symbols, n, sizeof *symbols);
        if (!symbols)
            return false;
        s->symbols = symbols;
        s->symbol_capacity = n;
    }
    if (s->heap_capacity < 2 * n) {
        struct bpe_candidate *heap = qr_realloc_array(s->heap, 2 * n, sizeof *heap);
        if (!heap)
            return false;
        s->heap = heap;
        s->heap_capacity = 2 * n;
    }
    return true;
}

/* Joins symbol `at` and its right neighbour into `id`. */
static void join(struct bpe_symbol *symbols, int32_t at, int32_t id)
{
    int32_t right = symbols[at].next;
    symbols[at].id = id;
    symbols[at].next = symbols[right].next;
    symbols[right].id = -1;
    if (symbols[at].next >= 0)
        symbols[symbols[at].next].previous = at;
}

static bool is_current(const struct bpe_symbol *symbols, const struct bpe_candidate *c)
{
    int32_t next = symbols[c->at].next;
    return symbols[c->at].id >= 0 && next >= 0 && pair_of(symbols[c->at].id, symbols[next].id) == c->pair;
}

static void merge_long(const struct bpe *bpe, struct bpe_scratch *s, size_t n)
{
    size_t candidates = 0;
    for (size_t i = 0; i + 1 < n; i++)
        candidates += candidate_at(bpe, s->symbols, (int32_t)i, &s->heap[candidates]);
    for (size_t i = candidates / 2; i-- > 0;)
        sift_down(s->heap, candidates, i);
    while (candidates) {
        struct bpe_candidate best = s->heap[0];
        s->heap[0] = s->heap[--candidates];
        sift_down(s->heap, candidates, 0);
        if (!is_current(s->symbols, &best))
            continue;
        int32_t next = s->symbols[best.at].next;
        join(s->symbols, best.at, find(bpe, s->symbols[best.at].id, s->symbols[next].id)->id);
        int32_t previous = s->symbols[best.at].previous;
        if (candidate_at(bpe, s->symbols, best.at, &s->heap[candidates]))
            sift_up(s->heap, candidates++);
        if (previous >= 0 && candidate_at(bpe, s->symbols, previous, &s->heap[candidates]))
            sift_up(s->heap, candidates++);
    }
}

static bool encode_long(const struct bpe *bpe, const uint8_t *piece, size_t n, struct bpe_scratch *s,
                        struct tok_ids *ids)
{
    size_t start = ids->count;
    if (!reserve(s, n))
        return false;
    for (size_t i = 0; i < n; i++)
        s->symbols[i] = (struct bpe_symbol){bpe->byte_id[piece[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    merge_long(bpe, s, n);
    for (int32_t at = 0; at >= 0; at = s->symbols[at].next)
        if (!tok_ids_push(ids, s->symbols[at].id)) {
            ids->count = start;
            return false;
        }
    return true;
}

/* The place of a piece in the cache, or NULL without one. */
static struct bpe_cached *cache_slot(const struct bpe_scratch *s, const uint8_t *piece, size_t n)
{
    return s->cache ? &s->cache[XXH3_64bits(piece, n) % CACHE_SLOTS] : NULL;
}

bool bpe_encode(const struct bpe *bpe, const uint8_t *piece, size_t n, struct bpe_scratch *scratch, struct tok_ids *ids)
{
    int32_t merged[SHORT_PIECE];
    if (n == 1)
        return tok_ids_push(ids, bpe->byte_id[piece[0]]);
    if (n > SHORT_PIECE)
        return encode_long(bpe, piece, n, scratch, ids);
    struct bpe_cached *cached = cache_slot(scratch, piece, n);
    if (cached && cached->length == n && memcmp(cached->bytes, piece, n) == 0)
        return append(ids, cached->ids, cached->count);
    for (size_t i = 0; i < n; i++)
        merged[i] = bpe->byte_id[piece[i]];
    size_t count = merge_short(bpe, merged, n);
    if (cached && count <= CACHED_IDS) {
        cached->length = (uint8_t)n;
        cached->count = (uint8_t)count;
        memcpy(cached->bytes, piece, n);
        memcpy(cached->ids, merged, count * sizeof *merged);
    }
    return append(ids, merged, count);
}
