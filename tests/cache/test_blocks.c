/* The life of a block (runtime.md 5.1, 5.2): used, shared, cached, found again, evicted. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cache/blocks.h"

enum { B = 4 };

static struct block_key root(void) { return block_key_root("layout model path", PROVENANCE_EXACT); }

/* Keys of the full blocks of n tokens. */
static void keys_of(const int32_t *tokens, int32_t n, struct block_key *keys)
{
    struct block_key parent = root();
    for (int32_t i = 0; i < n / B; i++)
        parent = keys[i] = block_key_next(&parent, tokens + (int64_t)i * B, NULL, B);
}

static void count_up(int32_t *tokens, int32_t n, int32_t from)
{
    for (int32_t i = 0; i < n; i++)
        tokens[i] = from + i;
}

static struct blocks *open_blocks(int64_t count)
{
    struct blocks *b;
    assert_int_equal(blocks_open(count, B, &b, NULL), QR_OK);
    return b;
}

/* Takes and publishes the full blocks of n tokens. */
static void compute(struct blocks *b, const int32_t *tokens, int32_t n, block_id *out)
{
    struct block_key keys[64];
    keys_of(tokens, n, keys);
    assert_true(blocks_take(b, n / B, out));
    for (int32_t i = 0; i < n / B; i++)
        blocks_publish(b, out[i], &keys[i], tokens + (int64_t)i * B);
}

static int32_t match(struct blocks *b, const int32_t *tokens, int32_t n, block_id *out)
{
    struct block_key keys[64];
    keys_of(tokens, n, keys);
    return blocks_match(b, keys, tokens, n, out);
}

static void sound(const struct blocks *b)
{
    qr_error err = {0};
    if (blocks_check(b, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void a_key_names_everything_before_it(void **state)
{
    (void)state;
    int32_t a[3 * B], b[3 * B];
    struct block_key of_a[3], of_b[3];
    count_up(a, 3 * B, 100);
    memcpy(b, a, sizeof a);
    b[0]++;
    keys_of(a, 3 * B, of_a);
    keys_of(b, 3 * B, of_b);
    for (int i = 0; i < 3; i++) /* the last two blocks have the same tokens */
        assert_false(block_key_equal(&of_a[i], &of_b[i]));
    const struct block_key start = root(), other = block_key_root("layout model path2", PROVENANCE_EXACT),
                           replayed = block_key_root("layout model path", PROVENANCE_REPLAYED);
    assert_false(block_key_equal(&start, &other));
    assert_false(block_key_equal(&start, &replayed));
    const uint64_t nothing[B] = {0}, image[B] = {0, 7, 7, 0}, another[B] = {0, 8, 8, 0};
    const struct block_key with[] = {block_key_next(&start, a, NULL, B), block_key_next(&start, a, nothing, B),
                                     block_key_next(&start, a, image, B), block_key_next(&start, a, another, B)};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_false(block_key_equal(&with[i], &with[j]));
}

static void a_match_is_found_live_and_after_release(void **state)
{
    (void)state;
    struct blocks *b = open_blocks(9);
    int32_t tokens[3 * B + 1];
    block_id mine[4], found[4];
    count_up(tokens, 3 * B + 1, 1);
    compute(b, tokens, 3 * B, mine);
    assert_int_equal(match(b, tokens, 3 * B + 1, found), 3);
    assert_memory_equal(mine, found, 3 * sizeof *mine);
    for (int i = 0; i < 3; i++)
        assert_int_equal(blocks_references(b, mine[i]), 2);
    blocks_release(b, found, 3);
    blocks_release(b, mine, 3);
    assert_int_equal(blocks_cached(b), 3);
    assert_int_equal(blocks_free(b), 8);
    sound(b);
    assert_int_equal(match(b, tokens, 3 * B + 1, found), 3);
    assert_int_equal(blocks_cached(b), 0);
    blocks_release(b, found, 3);
    blocks_close(b);
}

static void one_token_is_always_left_to_forward(void **state)
{
    (void)state;
    struct blocks *b = open_blocks(9);
    int32_t tokens[3 * B];
    block_id mine[4], found[4];
    count_up(tokens, 3 * B, 1);
    compute(b, tokens, 3 * B, mine);
    const int32_t wanted[][2] = {{1, 0}, {B, 0}, {B + 1, 1}, {2 * B - 1, 1}, {2 * B, 1}, {2 * B + 1, 2}, {3 * B, 2}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        assert_int_equal(match(b, tokens, wanted[i][0], found), wanted[i][1]);
        blocks_release(b, found, wanted[i][1]);
    }
    blocks_close(b);
}

static void a_match_stops_at_the_first_miss(void **state)
{
    (void)state;
    struct blocks *b = open_blocks(9);
    int32_t tokens[3 * B + 1];
    block_id mine[3], found[4];
    struct block_key keys[3];
    count_up(tokens, 3 * B + 1, 1);
    keys_of(tokens, 3 * B, keys);
    assert_true(blocks_take(b, 3, mine));
    blocks_publish(b, mine[0], &keys[0], tokens);
    blocks_publish(b, mine[2], &keys[2], tokens + (int64_t)2 * B); /* the one between is not there */
    assert_int_equal(match(b, tokens, 3 * B + 1, found), 1);
    assert_int_equal(blocks_references(b, mine[2]), 1);
    blocks_close(b);
}

static void a_colliding_key_is_a_miss(void **state)
{
    (void)state;
    struct blocks *b = open_blocks(9);
    int32_t tokens[B + 1], other[B + 1];
    block_id mine[1], found[1], second[1];
    struct block_key key[1];
    count_up(tokens, B + 1, 1);
    count_up(other, B + 1, 50);
    compute(b, tokens, B, mine);
    keys_of(tokens, B, key); /* as if the hash of `other` were that of `tokens` */
    assert_int_equal(blocks_match(b, key, other, B + 1, found), 0);
    assert_int_equal(blocks_find(b, key, other), 0);
    assert_int_equal(blocks_references(b, mine[0]), 1);
    assert_true(blocks_take(b, 1, second));
    assert_false(blocks_publish(b, second[0], key, other));
    assert_int_equal(blocks_counters(b)->collisions, 2);
    assert_int_equal(blocks_find(b, key, tokens), mine[0]);
    blocks_release(b, second, 1);
    sound(b);
    blocks_close(b);
}

static void the_first_published_block_stays_canonical(void **state)
{
    (void)state;
    struct blocks *b = open_blocks(9);
    int32_t tokens[B + 1];
    block_id first[1], second[1], found[1];
    count_up(tokens, B + 1, 1);
    compute(b, tokens, B, first);
    compute(b, tokens, B, second);
    assert_int_equal(blocks_counters(b)->duplicates, 1);
    assert_false(blocks_indexed(b, second[0]));
    assert_int_equal(match(b, tokens, B + 1, found), 1);
    assert_int_equal(found[0], first[0]);
    blocks_release(b, second, 1);
    assert_int_equal(blocks_unused(b), 7); /* the copy is of no use to anybody */
    sound(b);
    blocks_close(b);
}

static void unused_blocks_go_first_then_the_longest_unused_and_ends_of_chains_before_starts(void **state)
{
    (void)state;
    struct blocks *b = open_blocks(8);
    int32_t one[2 * B + 1], two[2 * B + 1];
    block_id of_one[2], of_two[2], taken[7], found[2];
    count_up(one, 2 * B + 1, 1);
    count_up(two, 2 * B + 1, 900);
    compute(b, one, 2 * B, of_one);
    compute(b, two, 2 * B, of_two);
    blocks_release(b, of_one, 2);
    blocks_release(b, of_two, 2);
    assert_true(blocks_take(b, 3, taken)); /* what was never used */
    assert_int_equal(blocks_cached(b), 4);
    assert_true(blocks_take(b, 1, taken + 3));
    assert_int_equal(taken[3], of_one[1]); /* the end of the older chain */
    assert_int_equal(match(b, one, 2 * B + 1, found), 1);
    blocks_release(b, found, 1); /* used again: now the younger one */
    assert_true(blocks_take(b, 2, taken + 4));
    assert_int_equal(taken[4], of_two[1]);
    assert_int_equal(taken[5], of_two[0]);
    assert_int_equal(blocks_cached(b), 1);
    assert_false(blocks_take(b, 2, taken + 6));
    assert_int_equal(blocks_cached(b), 1); /* a refusal evicts nothing */
    sound(b);
    blocks_close(b);
}

static void count_evicted(void *user, block_id id) { ((int32_t *)user)[id]++; }

static void forgetting_keeps_what_is_held(void **state)
{
    (void)state;
    struct blocks *b = open_blocks(9);
    int32_t tokens[3 * B + 1], evicted[9] = {0};
    block_id mine[3], found[3];
    count_up(tokens, 3 * B + 1, 1);
    blocks_on_evict(b, count_evicted, evicted);
    compute(b, tokens, 3 * B, mine);
    blocks_release(b, mine + 2, 1);
    blocks_forget(b);
    assert_int_equal(match(b, tokens, 3 * B + 1, found), 0);
    assert_int_equal(blocks_unused(b), 6);
    for (int i = 0; i < 3; i++)
        assert_int_equal(evicted[mine[i]], 1);
    blocks_release(b, mine, 2);
    assert_int_equal(blocks_unused(b), 8);
    sound(b);
    blocks_close(b);
}

/* ---- against a twin that does everything by search ---- */

enum { COUNT = 24, CHAINS = 5, LONGEST = 6, STEPS = 40000 };

struct twin_block {
    int references, chain, depth; /* chain -1: not indexed */
    long used;
};

struct holding {
    block_id ids[LONGEST];
    int count;
};

static int longest_cached(const struct twin_block *t, int chain, block_id *ids)
{
    for (int depth = 0; depth < LONGEST; depth++) {
        ids[depth] = 0;
        for (block_id id = 1; id < COUNT; id++)
            if (t[id].chain == chain && t[id].depth == depth)
                ids[depth] = id;
        if (!ids[depth])
            return depth;
    }
    return LONGEST;
}

static block_id oldest_cached(const struct twin_block *t)
{
    block_id oldest = 0;
    for (block_id id = 1; id < COUNT; id++)
        if (t[id].chain >= 0 && !t[id].references && (!oldest || t[id].used < t[oldest].used))
            oldest = id;
    return oldest;
}

static int free_of(const struct twin_block *t)
{
    int n = 0;
    for (block_id id = 1; id < COUNT; id++)
        n += !t[id].references;
    return n;
}

static void release_in_both(struct blocks *b, struct twin_block *t, struct holding *h, long *clock)
{
    blocks_release(b, h->ids, h->count);
    for (int i = h->count - 1; i >= 0; i--)
        if (--t[h->ids[i]].references == 0)
            t[h->ids[i]].used = ++*clock;
    h->count = 0;
}

/* Takes up to the whole chain: what is cached, then new blocks, published as they are. */
static void run_chain(struct blocks *b, struct twin_block *t, struct holding *h, int chain, int length)
{
    int32_t tokens[LONGEST * B + 1];
    struct block_key keys[LONGEST];
    block_id wanted[LONGEST];
    count_up(tokens, LONGEST * B + 1, 1000 * chain);
    keys_of(tokens, LONGEST * B, keys);
    int found = longest_cached(t, chain, wanted);
    found = found < length ? found : length;
    assert_int_equal(blocks_match(b, keys, tokens, length * B + 1, h->ids), found);
    assert_memory_equal(h->ids, wanted, (size_t)found * sizeof *wanted);
    for (int i = 0; i < found; i++)
        t[h->ids[i]].references++;
    h->count = found;
    const int fresh = length - found;
    const bool fits = free_of(t) >= fresh;
    int unused = 0;
    for (block_id id = 1; id < COUNT; id++)
        unused += !t[id].references && t[id].chain < 0;
    assert_int_equal(blocks_take(b, fresh, h->ids + found), fits);
    if (!fits)
        return;
    for (int i = found; i < length; i++) {
        if (unused-- > 0)
            assert_true(t[h->ids[i]].chain < 0);
        else
            assert_int_equal(h->ids[i], oldest_cached(t));
        t[h->ids[i]] = (struct twin_block){.references = 1, .chain = -1};
    }
    for (int i = found; i < length; i++) {
        block_id other[LONGEST];
        const bool canonical = longest_cached(t, chain, other) == i; /* blocks are published in order */
        const bool exists = blocks_find(b, &keys[i], tokens + (int64_t)i * B) != 0;
        assert_int_equal(blocks_publish(b, h->ids[i], &keys[i], tokens + (int64_t)i * B), !exists);
        if (!exists)
            t[h->ids[i]] = (struct twin_block){.references = 1, .chain = chain, .depth = i};
        assert_true(exists || canonical);
    }
    h->count = length;
}

static void random_lives_agree_with_a_search(void **state)
{
    (void)state;
    struct blocks *b = open_blocks(COUNT);
    struct twin_block t[COUNT];
    struct holding held[6] = {0};
    long clock = 0;
    srand(3);
    for (int i = 0; i < COUNT; i++)
        t[i] = (struct twin_block){.chain = -1};
    for (int step = 0; step < STEPS; step++) {
        struct holding *h = &held[rand() % 6];
        if (h->count)
            release_in_both(b, t, h, &clock);
        else
            run_chain(b, t, h, rand() % CHAINS, 1 + rand() % LONGEST);
        assert_int_equal(blocks_free(b), free_of(t));
        if (step % 64 == 0)
            sound(b);
    }
    assert_true(blocks_counters(b)->evicted > 1000);
    assert_true(blocks_counters(b)->matched > 1000);
    blocks_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_names_everything_before_it),
        cmocka_unit_test(a_match_is_found_live_and_after_release),
        cmocka_unit_test(one_token_is_always_left_to_forward),
        cmocka_unit_test(a_match_stops_at_the_first_miss),
        cmocka_unit_test(a_colliding_key_is_a_miss),
        cmocka_unit_test(the_first_published_block_stays_canonical),
        cmocka_unit_test(unused_blocks_go_first_then_the_longest_unused_and_ends_of_chains_before_starts),
        cmocka_unit_test(forgetting_keeps_what_is_held),
        cmocka_unit_test(random_lives_agree_with_a_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
