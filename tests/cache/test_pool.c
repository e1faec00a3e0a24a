#include "support/models.h"
#include "support/support.h"

#include <string.h>

#include "base/alloc.h"
#include "cache/blocks.h"
#include "cache/pool.h"

static struct geometry small_geometry(void)
{
    struct model_plan plan = plan_of("models/tiny-v41/config.json");
    struct geometry_options o = geometry_defaults(&plan);
    struct geometry g;
    assert_int_equal(geometry_make(&plan, &o, &g, NULL), QR_OK);
    return g;
}

static void a_fresh_slot_is_zero_at_position_0_with_dead_history(void **state)
{
    (void)state;
    struct geometry g = small_geometry();
    struct cache_pool pool;
    struct cursor c;
    assert_int_equal(cache_pool_open(&g, 4, 2, &pool, NULL), QR_OK);
    memset(pool.base, 0xAA, (size_t)pool.layout.bytes);
    cache_pool_reset_slot(&pool, 1);
    cache_pool_read_cursor(&pool, 1, &c);
    assert_int_equal(c.position, 0);
    assert_int_equal(c.history_count, 3);
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(c.history[i], -1);
    const uint8_t *slot = pool.base + pool.layout.state_offset + g.state_bytes;
    assert_int_equal(slot[0], 0);
    assert_int_equal(slot[-1], 0xAA); /* the slot before is another request's */
    cache_pool_close(&pool);
}

static void a_cursor_written_is_the_cursor_read(void **state)
{
    (void)state;
    struct geometry g = small_geometry();
    struct cache_pool pool;
    assert_int_equal(cache_pool_open(&g, 2, 3, &pool, NULL), QR_OK);
    for (int64_t s = 0; s < 3; s++) {
        struct cursor c = {1000000 + s, 3, {5 + s, -1, 7}};
        cache_pool_write_cursor(&pool, s, &c);
    }
    for (int64_t s = 0; s < 3; s++) {
        struct cursor c;
        cache_pool_read_cursor(&pool, s, &c);
        assert_int_equal(c.position, 1000000 + s);
        assert_int_equal(c.history[0], 5 + s);
        assert_int_equal(c.history[1], -1);
        assert_int_equal(c.history[2], 7);
    }
    cache_pool_close(&pool);
}

static void a_pool_over_foreign_memory_frees_nothing(void **state)
{
    (void)state;
    struct geometry g = small_geometry();
    struct cache_pool pool;
    int64_t live = alloc_live();
    assert_int_equal(cache_pool_over(&g, 2, 1, (uint8_t *)(intptr_t)4096, &pool, NULL), QR_OK);
    assert_true(pool.layout.bytes > 0);
    cache_pool_close(&pool);
    assert_int_equal(alloc_live(), live);
}

static void block_0_is_never_given_out_and_counts_add_up(void **state)
{
    (void)state;
    struct blocks *b;
    block_id ids[8], more[8];
    assert_int_equal(blocks_open(1, 32, &b, NULL), QR_BAD_ARGUMENT);
    assert_int_equal(blocks_open(8, 32, &b, NULL), QR_OK);
    assert_int_equal(blocks_usable(b), 7);
    assert_false(blocks_take(b, 8, ids));
    assert_int_equal(blocks_free(b), 7);
    assert_true(blocks_take(b, 3, ids));
    assert_true(blocks_take(b, 4, more));
    assert_int_equal(ids[0], 1);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 3; j++)
            assert_true(more[i] != ids[j] && more[i] != 0);
    assert_false(blocks_take(b, 1, ids + 3));
    blocks_hold(b, ids[1]);
    blocks_release(b, ids, 3);
    assert_int_equal(blocks_free(b), 2); /* one is still held */
    assert_int_equal(blocks_references(b, ids[1]), 1);
    blocks_release(b, &ids[1], 1);
    assert_int_equal(blocks_free(b), 3);
    blocks_release(b, more, 4);
    assert_int_equal(blocks_free(b), 7);
    blocks_close(b);
    blocks_close(NULL);
}

static void failed_allocations_are_statuses_without_leaks(void **state)
{
    (void)state;
    struct geometry g = small_geometry();
    struct cache_pool pool;
    struct blocks *b;
    int64_t live = alloc_live();
    alloc_fault_at(1, 0);
    assert_int_equal(cache_pool_open(&g, 2, 1, &pool, NULL), QR_NO_MEMORY);
    for (int64_t n = 1; n <= 5; n++) {
        alloc_fault_at(n, 0);
        assert_int_equal(blocks_open(4, 32, &b, NULL), QR_NO_MEMORY);
        assert_int_equal(alloc_live(), live);
    }
    alloc_fault_at(0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fresh_slot_is_zero_at_position_0_with_dead_history),
        cmocka_unit_test(a_cursor_written_is_the_cursor_read),
        cmocka_unit_test(a_pool_over_foreign_memory_frees_nothing),
        cmocka_unit_test(block_0_is_never_given_out_and_counts_add_up),
        fault_test(failed_allocations_are_statuses_without_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
