/* What a step may write is what it names (runtime.md 4.11, I10): rows of its spans from write_from on, and targets of
 * its copies. */
#include <string.h>

#include "cache/pool.h"
#include "run/page_watch.h"
#include "support/models.h"
#include "support/support.h"

enum { BLOCKS = 9, BLOCK = 32 };

struct watched {
    struct model_plan plan;
    struct geometry geometry;
    struct cache_pool pool;
    struct page_watch *watch;
};

static void open(struct watched *w)
{
    w->plan = plan_of("tests/golden/v41/spec-13.1/model/config.json");
    struct geometry_options o = geometry_defaults(&w->plan);
    o.block_tokens = BLOCK;
    o.draft_width = 0;
    assert_int_equal(geometry_make(&w->plan, &o, &w->geometry, NULL), QR_OK);
    assert_int_equal(cache_pool_open(&w->geometry, BLOCKS, 2, &w->pool, NULL), QR_OK);
    memset(w->pool.base, 7, (size_t)w->pool.layout.bytes);
    assert_int_equal(page_watch_open(&w->geometry, &w->pool.layout, &w->watch, NULL), QR_OK);
}

static void close(struct watched *w)
{
    page_watch_close(w->watch);
    cache_pool_close(&w->pool);
}

/* A step of rows [first, end) of a request with pages 1, 2, 3 ..., and maybe a copy. */
static qr_status step(struct watched *w, int32_t first, int32_t end, int32_t write_from, const struct cache_copy *copy,
                      qr_error *err)
{
    static const int32_t blocks[] = {1, 2, 3, 4};
    const struct batch_span span = {
        .blocks = blocks, .block_count = 4, .first_position = first, .count = end - first, .write_from = write_from};
    const struct batch batch = {.step = 1, .count = 1, .spans = &span, .copy_count = copy != NULL, .copies = copy};
    return page_watch_step(w->watch, &batch, w->pool.base, BLOCKS, err);
}

/* Some byte of a plane of the page. */
static uint8_t *byte_of_page(const struct watched *w, block_id id, int32_t owner)
{
    const struct pool_layout *p = &w->pool.layout;
    return owner < 0 ? w->pool.base + p->main_offset + id * w->geometry.main_page_bytes + 5
                     : w->pool.base + p->index_offset[owner] + id * w->geometry.owner[owner].index_block_bytes + 5;
}

static void a_change_of_a_page_that_no_row_names_is_found(void **state)
{
    (void)state;
    struct watched w;
    qr_error err = {0};
    for (int32_t owner = -1; owner < 1; owner++) {
        open(&w);
        assert_int_equal(step(&w, 0, 40, 0, NULL, &err), QR_OK);
        *byte_of_page(&w, 2, owner) ^= 1; /* rows 32 to 39 lie there */
        assert_int_equal(step(&w, 0, 40, 0, NULL, &err), QR_OK);
        *byte_of_page(&w, 3, owner) ^= 1; /* the next page is nobody's yet */
        assert_int_equal(step(&w, 0, 40, 0, NULL, &err), QR_INTERNAL);
        assert_non_null(strstr(err.message, "I10: page 3 "));
        page_watch_forget(w.watch);
        assert_int_equal(step(&w, 0, 40, 0, NULL, &err), QR_OK);
        close(&w);
    }
}

static void rows_below_write_from_are_read_alone(void **state)
{
    (void)state;
    struct watched w;
    qr_error err = {0};
    open(&w);
    assert_int_equal(step(&w, 50, 100, 64, NULL, &err), QR_OK);
    *byte_of_page(&w, 3, -1) ^= 1;
    assert_int_equal(step(&w, 50, 100, 64, NULL, &err), QR_OK);
    *byte_of_page(&w, 2, -1) ^= 1;
    assert_int_equal(step(&w, 50, 100, 64, NULL, &err), QR_INTERNAL);
    close(&w);
}

static void targets_of_copies_are_named(void **state)
{
    (void)state;
    struct watched w;
    qr_error err = {0};
    open(&w);
    const struct cache_copy copy = {.to = byte_of_page(&w, 7, 0) - w.pool.base, .from = 0, .bytes = 3};
    assert_int_equal(step(&w, 0, 1, 0, &copy, &err), QR_OK);
    *byte_of_page(&w, 7, 0) ^= 1;
    assert_int_equal(step(&w, 0, 1, 0, &copy, &err), QR_OK);
    *byte_of_page(&w, 7, 0) ^= 1;
    assert_int_equal(step(&w, 0, 1, 0, NULL, &err), QR_INTERNAL);
    close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_change_of_a_page_that_no_row_names_is_found),
        cmocka_unit_test(rows_below_write_from_are_read_alone),
        cmocka_unit_test(targets_of_copies_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
