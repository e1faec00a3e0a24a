/* State images (runtime.md 5.3 to 5.6): their bytes, their life, and what of the pool they may take. */
#include "support/models.h"
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cache/images.h"
#include "cache/pool.h"

enum { SLOTS = 3 };

/* A pool of a model's geometry, whose blocks hold nothing yet. */
struct house {
    struct geometry geometry;
    struct cache_pool pool;
    struct blocks *blocks;
    struct images *images;
};

static void open_house(struct house *h, const char *config, enum row_format main_format, int32_t draft_width,
                       int64_t blocks)
{
    struct model_plan plan = plan_of(config);
    struct geometry_options o = geometry_defaults(&plan);
    o.main_format = main_format;
    o.draft_width = draft_width;
    assert_int_equal(geometry_make(&plan, &o, &h->geometry, NULL), QR_OK);
    assert_int_equal(cache_pool_open(&h->geometry, blocks, SLOTS, &h->pool, NULL), QR_OK);
    assert_int_equal(blocks_open(blocks, o.block_tokens, &h->blocks, NULL), QR_OK);
    assert_int_equal(images_open(h->blocks, &h->geometry, &h->pool.layout, &h->images, NULL), QR_OK);
}

static void close_house(struct house *h)
{
    images_close(h->images);
    assert_int_equal(blocks_free(h->blocks) >= 0, 1);
    blocks_close(h->blocks);
    cache_pool_close(&h->pool);
}

static void sound(const struct house *h)
{
    qr_error err = {0};
    if (blocks_check(h->blocks, &err) != QR_OK || images_check(h->images, &err) != QR_OK)
        fail_msg("%s", err.message);
}

/* A block of its own contents, indexed and held. */
static block_id held_block(struct house *h, int32_t number)
{
    const int32_t n = h->geometry.options.block_tokens;
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    const struct block_key root = block_key_root("house", PROVENANCE_EXACT);
    block_id id;
    tokens[0] = number;
    const struct block_key key = block_key_next(&root, tokens, NULL, n);
    assert_true(blocks_take(h->blocks, 1, &id));
    assert_true(blocks_publish(h->blocks, id, &key, tokens));
    free(tokens);
    return id;
}

static image_id ready_image(struct house *h, block_id block)
{
    const struct image_facts facts = {.position = 128, .complete = 3};
    const image_id id = images_store(h->images, block, &facts);
    if (id != IMAGE_NONE)
        images_stored(h->images, id);
    return id;
}

/* ---- bytes ---- */

static void move(const struct house *h, const struct cache_copy *copies, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        assert_true(copies[i].bytes > 0);
        assert_true(copies[i].from >= 0 && copies[i].from + copies[i].bytes <= h->pool.layout.bytes);
        assert_true(copies[i].to >= 0 && copies[i].to + copies[i].bytes <= h->pool.layout.bytes);
        memmove(h->pool.base + copies[i].to, h->pool.base + copies[i].from, (size_t)copies[i].bytes);
    }
}

static uint8_t *slot_bytes(const struct house *h, int64_t slot)
{
    return h->pool.base + h->pool.layout.state_offset + slot * h->geometry.state_bytes;
}

static void random_bytes(uint8_t *bytes, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)rand();
}

/* Store from slot 0, lose the slot, restore into slot 2: the parts of 5.4 are there, nothing else was written. */
static void round_trip(const char *config, enum row_format main_format, int32_t draft_width)
{
    struct house h;
    struct state_piece pieces[GEOMETRY_MAX_PIECES];
    open_house(&h, config, main_format, draft_width, 400);
    const struct geometry *g = &h.geometry;
    const int64_t bytes = g->state_bytes, region = h.pool.layout.bytes;
    uint8_t *before = malloc((size_t)bytes), *pool_before = malloc((size_t)region), *wanted = malloc((size_t)bytes);
    struct cache_copy *copies = calloc((size_t)image_copies_most(g), sizeof *copies);

    random_bytes(h.pool.base, region);
    memcpy(before, slot_bytes(&h, 0), (size_t)bytes);
    memcpy(pool_before, h.pool.base, (size_t)region);
    const image_id id = ready_image(&h, held_block(&h, 1));
    int32_t n = images_copies(h.images, id, 0, IMAGE_STORE, copies);
    assert_in_range(n, 1, image_copies_most(g));
    int64_t total = 0;
    for (int32_t i = 0; i < n; i++)
        total += copies[i].bytes;
    assert_int_equal(total, g->image_bytes);
    move(&h, copies, n);
    assert_memory_equal(slot_bytes(&h, 0), before, (size_t)bytes);
    random_bytes(slot_bytes(&h, 0), bytes);

    memcpy(wanted, slot_bytes(&h, 2), (size_t)bytes);
    const int32_t count = geometry_image(g, pieces);
    for (int32_t i = 0; i < count; i++)
        memcpy(wanted + pieces[i].offset, before + pieces[i].offset, (size_t)pieces[i].bytes);
    n = images_copies(h.images, id, 2, IMAGE_RESTORE, copies);
    move(&h, copies, n);
    assert_memory_equal(slot_bytes(&h, 2), wanted, (size_t)bytes);

    /* Outside slots 0 and 2 only the image's own units have changed: whole blocks, image_units of them. */
    int64_t changed = 0;
    for (int64_t block = 0; block < h.pool.layout.blocks; block++) {
        const int64_t at = h.pool.layout.main_offset + block * g->main_page_bytes;
        changed += memcmp(h.pool.base + at, pool_before + at, (size_t)g->main_page_bytes) != 0;
    }
    assert_int_equal(changed, image_units(g));
    assert_memory_equal(slot_bytes(&h, 1), pool_before + (slot_bytes(&h, 1) - h.pool.base), (size_t)bytes);

    const struct cache_copy whole = slot_copy(g, &h.pool.layout, 2, 1);
    move(&h, &whole, 1);
    assert_memory_equal(slot_bytes(&h, 1), slot_bytes(&h, 2), (size_t)bytes);
    free(copies);
    free(before);
    free(pool_before);
    free(wanted);
    close_house(&h);
}

static void an_image_brings_back_what_it_holds_and_touches_nothing_else(void **state)
{
    (void)state;
    srand(1);
    round_trip("models/tiny-v41/config.json", ROW_FP4_E4M3, 0);
    round_trip("models/tiny-v41/config.json", ROW_BF16, 0);
    round_trip("models/tiny-v4/config.json", ROW_BF16, 0);
    round_trip("models/tiny-v4/config.json", ROW_BF16, 1);
}

static void the_released_models_take_the_units_of_table_2_7(void **state)
{
    (void)state;
    struct model_plan plan = plan_of(V41_FLASH);
    static const struct {
        enum row_format main, index;
        int32_t width, units;
        int64_t bytes;
    } rows[] = {{ROW_BF16, ROW_INDEX_FP8, 0, 15, 5242912},
                {ROW_FP4_E4M3, ROW_INDEX_FP4, 0, 24, 2703392},
                {ROW_BF16, ROW_INDEX_FP8, 5, 16, 5856288},
                {ROW_FP4_E4M3, ROW_INDEX_FP4, 5, 27, 3019664}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct geometry_options o = {128, rows[i].main, rows[i].index, rows[i].width};
        struct geometry g;
        assert_int_equal(geometry_make(&plan, &o, &g, NULL), QR_OK);
        assert_int_equal(g.image_bytes, rows[i].bytes);
        assert_int_equal(image_units(&g), rows[i].units);
    }
}

/* ---- life ---- */

static int64_t units_of(const struct house *h) { return image_units(&h->geometry); }

static void open_small(struct house *h, int64_t images)
{
    struct model_plan plan = plan_of("models/tiny-v41/config.json");
    struct geometry_options o = geometry_defaults(&plan);
    struct geometry g;
    o.main_format = ROW_FP4_E4M3;
    assert_int_equal(geometry_make(&plan, &o, &g, NULL), QR_OK);
    open_house(h, "models/tiny-v41/config.json", ROW_FP4_E4M3, 0, 1 + 4 + images * image_units(&g));
}

static void an_image_is_found_when_its_copy_is_over(void **state)
{
    (void)state;
    struct house h;
    open_small(&h, 2);
    const block_id block = held_block(&h, 1);
    const struct image_facts facts = {.position = 256, .complete = 5};
    assert_int_equal(images_find(h.images, block), IMAGE_NONE);
    const image_id id = images_store(h.images, block, &facts);
    assert_int_equal(images_at(h.images, block), id);
    assert_int_equal(images_find(h.images, block), IMAGE_NONE);
    assert_int_equal(images_evictable(h.images), 0);
    images_stored(h.images, id);
    assert_int_equal(images_find(h.images, block), id);
    assert_int_equal(images_facts(h.images, id)->position, 256);
    assert_int_equal(images_facts(h.images, id)->complete, 5);
    assert_int_equal(images_evictable(h.images), units_of(&h));
    sound(&h);
    const int64_t before = blocks_free(h.blocks);
    const image_id lost = images_store(h.images, held_block(&h, 2), &facts);
    images_abandon(h.images, lost);
    assert_int_equal(blocks_free(h.blocks), before - 1);
    sound(&h);
    close_house(&h);
}

static void a_block_that_leaves_the_index_takes_its_image_along(void **state)
{
    (void)state;
    struct house h;
    open_small(&h, 3);
    block_id blocks[3] = {held_block(&h, 1), held_block(&h, 2), held_block(&h, 3)};
    const struct image_facts facts = {.position = 128};
    ready_image(&h, blocks[0]);
    const image_id pinned = ready_image(&h, blocks[1]), copying = images_store(h.images, blocks[2], &facts);
    images_pin(h.images, pinned);
    blocks_forget(h.blocks);
    sound(&h);
    assert_int_equal(images_counters(h.images)->orphaned, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(images_at(h.images, blocks[i]), IMAGE_NONE);
    assert_int_equal(images_held(h.images), 2 * units_of(&h)); /* a copy and a restore are still going on */
    images_stored(h.images, copying);
    images_unpin(h.images, pinned);
    assert_int_equal(images_held(h.images), 0);
    assert_int_equal(images_counters(h.images)->kept, 2);
    sound(&h);
    close_house(&h);
}

static void a_pinned_image_stays_and_others_go_by_last_use(void **state)
{
    (void)state;
    struct house h;
    open_small(&h, 3);
    block_id blocks[3] = {held_block(&h, 1), held_block(&h, 2), held_block(&h, 3)};
    image_id ids[3];
    for (int i = 0; i < 3; i++)
        ids[i] = ready_image(&h, blocks[i]);
    images_pin(h.images, ids[0]); /* restored by two requests of one batch */
    images_pin(h.images, ids[0]);
    images_pin(h.images, ids[1]);
    images_unpin(h.images, ids[1]); /* used after the third */
    assert_true(images_evict(h.images));
    assert_int_equal(images_find(h.images, blocks[2]), IMAGE_NONE);
    assert_true(images_evict(h.images));
    assert_int_equal(images_find(h.images, blocks[1]), IMAGE_NONE);
    assert_false(images_evict(h.images));
    images_unpin(h.images, ids[0]);
    assert_false(images_evict(h.images));
    images_unpin(h.images, ids[0]);
    assert_true(images_evict(h.images));
    assert_int_equal(images_held(h.images), 0);
    sound(&h);
    close_house(&h);
}

/* Addendum, 5.5: other images first, then cached pages, never what is held; nothing when it cannot succeed. */
static void room_is_made_of_images_then_of_cached_blocks(void **state)
{
    (void)state;
    struct house h;
    open_small(&h, 2);
    block_id filler[512], cached[2], blocks[3];
    for (int i = 0; i < 3; i++)
        blocks[i] = held_block(&h, i);
    ready_image(&h, blocks[0]);
    cached[0] = held_block(&h, 10);
    const int64_t spare = blocks_unused(h.blocks) - (units_of(&h) - 1);
    assert_true(blocks_take(h.blocks, spare, filler)); /* one unit too few is unused */
    blocks_release(h.blocks, cached, 1);
    const image_id second = ready_image(&h, blocks[1]);
    assert_int_not_equal(second, IMAGE_NONE);
    assert_int_equal(images_find(h.images, blocks[0]), IMAGE_NONE); /* the image went, not the cached block */
    assert_true(blocks_indexed(h.blocks, cached[0]));
    images_pin(h.images, second);
    const image_id third = ready_image(&h, blocks[2]);
    assert_int_not_equal(third, IMAGE_NONE); /* now the cached block went */
    assert_false(blocks_indexed(h.blocks, cached[0]));
    images_pin(h.images, third);
    const struct image_facts facts = {.position = 128};
    assert_int_equal(images_store(h.images, blocks[0], &facts), IMAGE_NONE);
    assert_int_equal(images_counters(h.images)->dropped, 1);
    sound(&h);
    close_house(&h);
}

static void a_second_image_of_a_block_replaces_the_first(void **state)
{
    (void)state;
    struct house h;
    open_small(&h, 2);
    const block_id block = held_block(&h, 1);
    const image_id first = ready_image(&h, block);
    images_pin(h.images, first);
    const image_id second = ready_image(&h, block);
    assert_int_equal(images_find(h.images, block), second);
    assert_int_equal(images_held(h.images), 2 * units_of(&h));
    images_unpin(h.images, first);
    assert_int_equal(images_held(h.images), units_of(&h));
    sound(&h);
    close_house(&h);
}

/* Everything at once, at random; the books must stay sound and the pool come back. */
static void random_lives_keep_the_books_sound(void **state)
{
    (void)state;
    struct house h;
    enum { BLOCKS = 12, STEPS = 20000 };
    block_id blocks[BLOCKS] = {0};
    image_id copying[BLOCKS], pinned[BLOCKS];
    open_small(&h, 4);
    const int64_t all = blocks_free(h.blocks);
    srand(7);
    for (int i = 0; i < BLOCKS; i++)
        copying[i] = pinned[i] = IMAGE_NONE;
    for (int step = 0; step < STEPS; step++) {
        const int i = rand() % BLOCKS;
        switch (rand() % 7) {
        case 0:
            if (!blocks[i] && blocks_free(h.blocks) > 0)
                blocks[i] = held_block(&h, step + 100);
            break;
        case 1:
            if (blocks[i])
                blocks_release(h.blocks, &blocks[i], 1);
            blocks[i] = 0;
            break;
        case 2:
            if (blocks[i] && copying[i] == IMAGE_NONE && blocks_indexed(h.blocks, blocks[i]))
                copying[i] = images_store(h.images, blocks[i], &(struct image_facts){.position = step});
            break;
        case 3:
            if (copying[i] != IMAGE_NONE)
                (rand() % 4 ? images_stored : images_abandon)(h.images, copying[i]);
            copying[i] = IMAGE_NONE;
            break;
        case 4:
            if (blocks[i] && pinned[i] == IMAGE_NONE && images_find(h.images, blocks[i]) != IMAGE_NONE)
                images_pin(h.images, pinned[i] = images_find(h.images, blocks[i]));
            break;
        case 5:
            if (pinned[i] != IMAGE_NONE)
                images_unpin(h.images, pinned[i]);
            pinned[i] = IMAGE_NONE;
            break;
        default:
            if (rand() % 50 == 0)
                blocks_forget(h.blocks);
            else if (rand() % 8 == 0)
                images_evict(h.images);
        }
        sound(&h);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (copying[i] != IMAGE_NONE)
            images_stored(h.images, copying[i]);
        if (pinned[i] != IMAGE_NONE)
            images_unpin(h.images, pinned[i]);
        if (blocks[i])
            blocks_release(h.blocks, &blocks[i], 1);
    }
    images_forget_all(h.images);
    assert_int_equal(blocks_free(h.blocks), all);
    assert_true(images_counters(h.images)->kept > 100 && images_counters(h.images)->orphaned > 10);
    close_house(&h);
}

static void failed_allocations_are_statuses_without_leaks(void **state)
{
    (void)state;
    if (!alloc_fault_supported())
        return;
    struct house h;
    struct images *im;
    open_small(&h, 2);
    const int64_t live = alloc_live();
    for (int64_t n = 1; n <= 5; n++) {
        alloc_fault_at(n, 0);
        assert_int_equal(images_open(h.blocks, &h.geometry, &h.pool.layout, &im, NULL), QR_NO_MEMORY);
        assert_int_equal(alloc_live(), live);
    }
    alloc_fault_at(0, 0);
    close_house(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_image_brings_back_what_it_holds_and_touches_nothing_else),
        cmocka_unit_test(the_released_models_take_the_units_of_table_2_7),
        cmocka_unit_test(an_image_is_found_when_its_copy_is_over),
        cmocka_unit_test(a_block_that_leaves_the_index_takes_its_image_along),
        cmocka_unit_test(a_pinned_image_stays_and_others_go_by_last_use),
        cmocka_unit_test(room_is_made_of_images_then_of_cached_blocks),
        cmocka_unit_test(a_second_image_of_a_block_replaces_the_first),
        cmocka_unit_test(random_lives_keep_the_books_sound),
        cmocka_unit_test(failed_allocations_are_statuses_without_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
