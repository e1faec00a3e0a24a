#include "support/support.h"

#include <string.h>

#include "support/tokenizers.h"
#include "text/bpe.h"

enum { LETTERS = 4, MERGES = 60, MAX_IDS = LETTERS + MERGES, LONGEST = 200 };

/* The merges once more, as a list: merge i joins left[i] and right[i] into LETTERS + i. */
struct merges {
    int32_t left[MERGES], right[MERGES];
    int count;
};

static void random_merges(uint64_t *seed, struct bpe *bpe, struct merges *list)
{
    *list = (struct merges){0};
    assert_true(bpe_reserve(bpe, MERGES));
    for (int i = 0; i < 256; i++)
        bpe->byte_id[i] = i % LETTERS;
    for (int i = 0; i < MERGES; i++) {
        int32_t left = (int32_t)random_below(seed, (uint32_t)(LETTERS + i));
        int32_t right = (int32_t)random_below(seed, (uint32_t)(LETTERS + i));
        if (bpe_add(bpe, left, right, (uint32_t)list->count, LETTERS + list->count) >= 0)
            continue;
        list->left[list->count] = left;
        list->right[list->count++] = right;
    }
}

/* The definition itself: the first merge that applies anywhere, at its leftmost place, again and again. */
static size_t merge_by_definition(const struct merges *list, int32_t *ids, size_t n)
{
    for (int rank = 0; rank < list->count; rank++)
        for (size_t i = 0; i + 1 < n; i++)
            if (ids[i] == list->left[rank] && ids[i + 1] == list->right[rank]) {
                ids[i] = LETTERS + rank;
                memmove(ids + i + 1, ids + i + 2, (n - i - 2) * sizeof *ids);
                n--;
                rank = -1; /* a lower rank may have become possible */
                break;
            }
    return n;
}

static void merging_equals_its_definition(void **state)
{
    uint64_t seed = 7;
    (void)state;
    for (int table = 0; table < 60; table++) {
        struct bpe bpe = {0};
        struct bpe_scratch scratch = {0};
        struct merges list;
        struct tok_ids ids = {0};
        random_merges(&seed, &bpe, &list);
        if (table % 2)
            bpe_scratch_cache(&scratch);
        for (int i = 0; i < 300; i++) {
            uint8_t piece[LONGEST];
            int32_t want[LONGEST];
            size_t n = 1 + random_below(&seed, i % 3 ? 40 : LONGEST);
            for (size_t k = 0; k < n; k++) {
                piece[k] = (uint8_t)random_below(&seed, i % 5 ? LETTERS : 2);
                want[k] = bpe.byte_id[piece[k]];
            }
            size_t count = merge_by_definition(&list, want, n);
            ids.count = 0;
            assert_true(tok_ids_push(&ids, -5)); /* what is there already stays */
            assert_true(bpe_encode(&bpe, piece, n, &scratch, &ids));
            assert_int_equal(ids.count, count + 1);
            assert_int_equal(ids.data[0], -5);
            assert_memory_equal(ids.data + 1, want, count * sizeof *want);
        }
        tok_ids_free(&ids);
        bpe_scratch_free(&scratch);
        bpe_free(&bpe);
    }
}

static void a_cached_piece_gives_the_same_ids_again(void **state)
{
    uint64_t seed = 3;
    struct bpe bpe = {0};
    struct bpe_scratch cached = {0}, plain = {0};
    struct merges list;
    struct tok_ids a = {0}, b = {0};
    (void)state;
    random_merges(&seed, &bpe, &list);
    bpe_scratch_cache(&cached);
    for (int i = 0; i < 50000; i++) {
        uint8_t piece[8];
        size_t n = 1 + random_below(&seed, 8);
        for (size_t k = 0; k < n; k++)
            piece[k] = (uint8_t)random_below(&seed, LETTERS);
        assert_true(bpe_encode(&bpe, piece, n, &cached, &a));
        assert_true(bpe_encode(&bpe, piece, n, &plain, &b));
    }
    assert_int_equal(a.count, b.count);
    assert_memory_equal(a.data, b.data, a.count * sizeof *a.data);
    tok_ids_free(&a);
    tok_ids_free(&b);
    bpe_scratch_free(&cached);
    bpe_scratch_free(&plain);
    bpe_free(&bpe);
}

static void a_pair_has_one_merge(void **state)
{
    struct bpe bpe = {0};
    (void)state;
    assert_true(bpe_reserve(&bpe, 2));
    assert_int_equal(bpe_add(&bpe, 1, 2, 0, 10), -1);
    assert_int_equal(bpe_add(&bpe, 2, 1, 1, 11), -1);
    assert_int_equal(bpe_add(&bpe, 1, 2, 2, 12), 0);
    bpe_free(&bpe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merging_equals_its_definition),
        cmocka_unit_test(a_cached_piece_gives_the_same_ids_again),
        cmocka_unit_test(a_pair_has_one_merge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
