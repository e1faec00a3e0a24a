/* label: A21 */
#include "support/models.h"
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/geometry.h"
#include "cache/image_copy.h"

/* Planes are taken from an address that nobody owns; nothing is read. */
static uint8_t *const base = (uint8_t *)((intptr_t)1 << 40);

static int64_t byte_of(const uint8_t *address) { return address - base; }

static struct geometry made(const struct model_plan *plan, int32_t block, enum row_format main, enum row_format index,
                            int32_t draft)
{
    struct geometry_options o = {block, main, index, draft};
    struct geometry g;
    qr_error err = {0};
    if (geometry_make(plan, &o, &g, &err) != QR_OK)
        fail_msg("%s", err.message);
    return g;
}

/* ---- the tables of runtime.md ---- */

static void page_bytes_are_those_of_table_2_6(void **state)
{
    (void)state;
    static const struct {
        int32_t block;
        enum row_format main, index;
        int64_t page, half, whole, unit, per_token;
    } rows[] = {
        {32, ROW_BF16, ROW_INDEX_FP8, 81920, 2112, 4224, 92480, 2890},
        {128, ROW_BF16, ROW_INDEX_FP8, 327680, 8448, 16896, 369920, 2890},
        {128, ROW_BF16, ROW_INDEX_FP4, 327680, 4352, 8704, 349440, 2730},
        {128, ROW_FP4_E4M3, ROW_INDEX_FP8, 92160, 8448, 16896, 134400, 1050},
        {128, ROW_FP4_E4M3, ROW_INDEX_FP4, 92160, 4352, 8704, 113920, 890},
        {256, ROW_BF16, ROW_INDEX_FP8, 655360, 16896, 33792, 739840, 2890},
    };
    struct model_plan plan = plan_of(V41_FLASH);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct geometry g = made(&plan, rows[i].block, rows[i].main, rows[i].index, 0);
        assert_int_equal(g.main_page_bytes, rows[i].page);
        for (int32_t o = 0; o < 4; o++)
            assert_int_equal(g.owner[o].index_block_bytes + g.owner[o].index_scale_block_bytes,
                             o < 3 ? rows[i].half : rows[i].whole);
        assert_int_equal(g.unit_bytes, rows[i].unit);
        assert_int_equal(g.unit_bytes, rows[i].per_token * rows[i].block);
    }
}

static void state_bytes_are_those_of_table_2_7(void **state)
{
    (void)state;
    static const struct {
        int32_t draft;
        enum row_format main;
        int64_t bytes, image, unit, units;
    } rows[] = {
        {0, ROW_BF16, 5268480, 5242912, 369920, 15},
        {0, ROW_FP4_E4M3, 2728192, 2703392, 113920, 24},
        {5, ROW_BF16, 5943296, 5856288, 369920, 16},
        {5, ROW_FP4_E4M3, 3105792, 3019664, 113920, 27},
    };
    struct model_plan plan = plan_of(V41_FLASH);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum row_format index = rows[i].main == ROW_BF16 ? ROW_INDEX_FP8 : ROW_INDEX_FP4;
        struct geometry g = made(&plan, 128, rows[i].main, index, rows[i].draft);
        assert_int_equal(g.state_bytes, rows[i].bytes);
        assert_int_equal(g.image_bytes, rows[i].image);
        assert_int_equal(g.unit_bytes, rows[i].unit);
        assert_int_equal((g.image_bytes + g.unit_bytes - 1) / g.unit_bytes, rows[i].units);
        assert_int_equal(g.cursor_bytes, 32);
    }
}

/* The reference engine's designs, from their parameters: one pending row a ratio-2 owner, and the second version's two
 * rows for all four owners. */
static void published_anchors_follow_from_their_parameters(void **state)
{
    (void)state;
    struct model_plan plan = plan_of(V41_FLASH);
    struct geometry g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP8, 0);
    for (int32_t i = 0; i < 3; i++)
        g.tail_rows[i] = 1;
    assert_int_equal(geometry_place(&g, NULL), QR_OK);
    assert_int_equal(g.state_bytes, 5256192);

    g = made(&plan, 128, ROW_FP4_E4M3, ROW_INDEX_FP4, 0);
    for (int32_t i = 0; i < 3; i++)
        g.tail_rows[i] = 1;
    assert_int_equal(geometry_place(&g, NULL), QR_OK);
    assert_int_equal(g.state_bytes, 2715904);

    g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP8, 0);
    g.tail_rows[3] = 2;
    g.tail_width[3] = 512;
    assert_int_equal(geometry_place(&g, NULL), QR_OK);
    assert_int_equal(g.state_bytes, 5276672);
}

static void v4_page_bytes_are_those_of_table_2_9(void **state)
{
    (void)state;
    struct model_plan plan = plan_in(QR_PROFILE_W8A8, V4_FLASH);
    struct geometry g = made(&plan, 128, ROW_BF16, ROW_INDEX_INT8, 0);
    int32_t rows = 0;
    for (int32_t i = 0; i < g.owners; i++)
        rows += g.owner[i].rows;
    assert_int_equal(rows, 692);
    assert_int_equal(g.unit_bytes, 797312);
    assert_int_equal(made(&plan, 256, ROW_BF16, ROW_INDEX_INT8, 0).unit_bytes, 1594624);

    /* FP8 rows are the reference engine's: 640 bytes a row, packed without padding. */
    g.main_row_bytes = 640;
    g.alignment = 128;
    assert_int_equal(geometry_place(&g, NULL), QR_OK);
    assert_int_equal(g.unit_bytes, 531584);
    g.index_row_bytes = 64;
    g.index_scale_row_bytes = 4;
    assert_int_equal(geometry_place(&g, NULL), QR_OK);
    assert_int_equal(g.unit_bytes, 488576);
}

/* Bytes of the tails of one kind of owner, main and indexer, value and score. */
static int64_t tail_bytes(const struct geometry *g, int32_t ratio)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < g->owners; i++)
        if (g->owner[i].ratio == ratio)
            sum += (int64_t)g->tail_rows[i] * (g->tail_width[i] + g->index_tail_width[i]) * 4 * 2;
    return sum;
}

static void v4_state_bytes_are_those_of_table_2_9(void **state)
{
    (void)state;
    static const struct {
        int32_t draft;
        int64_t csa, hca, total, windows, slot, image;
    } rows[] = {
        {0, 1720320, 10485760, 12206080, 5636096, 17842176, 7356416},
        {1, 1935360, 10567680, 12503040, 5680128, 18183168, 7615488},
        {7, 3225600, 11059200, 14284800, 5944320, 20229120, 9169920},
    };
    struct model_plan plan = plan_of(V4_FLASH);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct geometry g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP4, rows[i].draft);
        assert_int_equal(tail_bytes(&g, 4), rows[i].csa);
        assert_int_equal(tail_bytes(&g, 128), rows[i].hca);
        assert_int_equal(43 * g.ring_bytes, rows[i].windows);
        /* The table counts 43 rings, no cursor and no drafter. */
        int64_t drafter = rows[i].draft ? g.ring_bytes + 4 * 4096 * 2 : 0;
        assert_int_equal(g.image_bytes, rows[i].image + drafter + g.cursor_bytes);
        int64_t entry = rows[i].slot + drafter + g.cursor_bytes;
        assert_in_range(g.state_bytes, entry, entry + 1024 + 16);
        assert_int_equal(g.state_bytes % 1024, 0);
    }
    struct geometry g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP4, 1);
    assert_int_equal(g.ring_bytes, 132096); /* what the MTP ring adds */
    g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP4, 3);
    assert_int_equal(tail_bytes(&g, 4) + tail_bytes(&g, 128), 13096960);
}

static void capacities_are_those_of_section_2_12(void **state)
{
    (void)state;
    struct model_plan plan = plan_of(V41_FLASH);
    struct geometry wide = made(&plan, 128, ROW_BF16, ROW_INDEX_FP8, 0);
    struct geometry narrow = made(&plan, 128, ROW_FP4_E4M3, ROW_INDEX_FP4, 0);
    static const struct {
        int64_t gib;
        double wide, narrow;
    } rows[] = {{1, 0.25, 1.01}, {45, 16.6, 54.1}, {256, 95.0, 308.7}};
    for (size_t i = 0; i < 3; i++) {
        double a = (double)geometry_blocks_in(&wide, rows[i].gib << 30, 64) * 128e-6;
        double b = (double)geometry_blocks_in(&narrow, rows[i].gib << 30, 64) * 128e-6;
        assert_true(a > rows[i].wide * 0.98 && a < rows[i].wide * 1.02);
        assert_true(b > rows[i].narrow * 0.99 && b < rows[i].narrow * 1.01);
    }
}

static void the_blocks_that_fit_are_the_most_that_fit(void **state)
{
    (void)state;
    struct model_plan plan = plan_of(V41_FLASH);
    struct geometry g = made(&plan, 128, ROW_FP4_E4M3, ROW_INDEX_FP4, 5);
    struct pool_layout pool;
    for (int64_t bytes = 3 * g.state_bytes; bytes < 4 * g.state_bytes; bytes += 100003) {
        int64_t n = geometry_blocks_in(&g, bytes, 2);
        assert_int_equal(geometry_pool(&g, n, 2, &pool, NULL), QR_OK);
        assert_true(n == 0 || pool.bytes <= bytes);
        assert_int_equal(geometry_pool(&g, n + 1, 2, &pool, NULL), QR_OK);
        assert_true(pool.bytes > bytes);
    }
    assert_int_equal(geometry_blocks_in(&g, 100, 2), 0);
}

/* ---- refusals ---- */

static void expect_refused(const struct model_plan *plan, struct geometry_options o, const char *says)
{
    struct geometry g;
    qr_error err = {0};
    assert_int_equal(geometry_make(plan, &o, &g, &err), QR_REFUSED);
    if (!strstr(err.message, says))
        fail_msg("\"%s\" does not say \"%s\"", err.message, says);
}

static void block_sizes_and_formats_out_of_rule_are_refused_by_id(void **state)
{
    (void)state;
    struct model_plan v41 = plan_of(V41_FLASH), v4 = plan_of(V4_FLASH);
    struct geometry_options o = geometry_defaults(&v41), p = geometry_defaults(&v4);
    assert_int_equal(o.draft_width, 5);
    assert_int_equal(p.draft_width, 1);
    o.block_tokens = 129;
    expect_refused(&v41, o, "E02 block size is 129");
    expect_refused(&v41, o, "E03 block size is 129");
    expect_refused(&v41, o, "E40 block size is 129");
    o.block_tokens = 16;
    expect_refused(&v41, o, "E03 block size is 16");
    o.block_tokens = 0;
    expect_refused(&v41, o, "E03 block size is 0");
    p.block_tokens = 64;
    expect_refused(&v4, p, "E40 block size is 64, wanted a multiple of ratio 128");
    p.block_tokens = 128;
    p.main_format = ROW_FP4_E4M3;
    expect_refused(&v4, p, "E06");
    p.main_format = ROW_BF16;
    p.index_format = ROW_INDEX_INT8;
    expect_refused(&v4, p, "E05 index cache format is int8, wanted fp4");
    o.block_tokens = 128;
    o.index_format = ROW_INDEX_INT8;
    expect_refused(&v41, o, "E05");
    struct model_plan csa = plan_in(QR_PROFILE_W8A8, "tests/golden/v4/wide/model/config.json");
    p = geometry_defaults(&csa);
    p.block_tokens = 32;
    expect_refused(&csa, p, "E03 block size 32 holds 8 index rows");
}

static void draft_width_needs_a_drafter(void **state)
{
    (void)state;
    struct model_plan plan = plan_of(V41_FLASH);
    struct geometry_options o = geometry_defaults(&plan);
    struct geometry g;
    plan.draft_layers = 0;
    assert_int_equal(geometry_make(&plan, &o, &g, NULL), QR_BAD_ARGUMENT);
    plan.draft_layers = 3;
    o.draft_width = -1;
    assert_int_equal(geometry_make(&plan, &o, &g, NULL), QR_BAD_ARGUMENT);
}

static void layouts_tell_apart_what_differs(void **state)
{
    (void)state;
    struct model_plan plan = plan_of(V41_FLASH);
    struct geometry a = made(&plan, 128, ROW_FP4_E4M3, ROW_INDEX_FP4, 5);
    struct geometry b = made(&plan, 128, ROW_FP4_E4M3, ROW_INDEX_FP4, 0);
    struct geometry c = made(&plan, 128, ROW_FP4_E4M3, ROW_INDEX_FP8, 0);
    assert_string_equal(a.page_layout, b.page_layout); /* blocks are shared between drafting on and off */
    assert_string_not_equal(a.state_layout, b.state_layout);
    assert_string_not_equal(b.page_layout, c.page_layout);
    assert_string_not_equal(b.state_layout, c.state_layout);
    assert_string_equal(b.page_layout, "quire-page 1 main=fp4 index=fp4/row owners=2:2,8:2,14:2,20:1 B=128 W=128 D=512 "
                                       "I=128 history=3 order=little profile=reference");
    struct model_plan pro = plan_of(V4_PRO);
    struct geometry d = made(&pro, 128, ROW_BF16, ROW_INDEX_FP4, 1);
    assert_non_null(strstr(d.state_layout, "60:4 B=128"));
    assert_non_null(strstr(d.state_layout, "profile=reference"));
}

/* ---- addresses ---- */

/* runtime.md 2.5, by another route: the byte of each row of the released geometry, far beyond 4 GiB. */
static void addresses_follow_the_formulas_beyond_4_gib(void **state)
{
    (void)state;
    struct model_plan plan = plan_of(V41_FLASH);
    struct geometry g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP8, 5);
    struct pool_layout pool;
    assert_int_equal(geometry_pool(&g, 1000000, 64, &pool, NULL), QR_OK);
    struct row_plane main, index;
    geometry_main_plane(&g, &pool, base, 1, &main);
    geometry_index_plane(&g, &pool, base, 3, &index);
    int64_t block = 999999;
    assert_int_equal(byte_of(main.values) + plane_value_offset(&main, (int32_t)block, 63),
                     block * 327680 + 65536 + 63 * 1024);
    assert_true(block * 327680 > (int64_t)4 << 30);
    int64_t plane = 1000000 * (int64_t)(327680 + 3 * 8448);
    assert_int_equal(pool.index_offset[3], plane);
    int64_t tile = block * 8 + 100 / 16;
    assert_int_equal(byte_of(index.values) + plane_value_offset(&index, (int32_t)block, 100),
                     plane + tile * 2112 + 100 % 16 * 128);
    assert_int_equal(byte_of(index.scales) + plane_scale_offset(&index, (int32_t)block, 100),
                     plane + tile * 2112 + 2048 + 100 % 16 * 4);

    struct ring_plane window, tail;
    int64_t entry = pool.state_offset + 63 * g.state_bytes;
    geometry_window(&g, &pool, base, 42, &window);
    assert_int_equal(byte_of(window.values) + 63 * window.slot_stride + 7 * window.value_row_stride,
                     entry + 42 * (int64_t)133 * 1024 + 7 * 1024);
    geometry_tail(&g, &pool, base, 2, false, &tail);
    assert_int_equal(tail.rows, 7);
    int64_t tails = 43 * (int64_t)133 * 1024;
    assert_int_equal(byte_of(tail.values) + 63 * tail.slot_stride + 6 * tail.value_row_stride,
                     entry + tails + 2 * 7 * 2048 + 6 * 2048);
    assert_int_equal(tail.scales - tail.values, 3 * 7 * 2048);
    assert_int_equal(geometry_cursor(&g, &pool, 63), entry + tails + 6 * 7 * 2048);
}

/* Known failures 3 and 32 (runtime.md 15). 3: scales of one owner written over another's, because a view dropped its base. */
static void scales_of_every_owner_start_at_its_own_base(void **state)
{
    (void)state;
    struct model_plan plan = plan_of(V41_FLASH);
    static const enum row_format index[] = {ROW_INDEX_FP8, ROW_INDEX_FP4};
    for (int f = 0; f < 2; f++) {
        struct geometry g = made(&plan, 128, ROW_FP4_E4M3, index[f], 0);
        struct pool_layout pool;
        struct row_plane main, keys;
        assert_int_equal(geometry_pool(&g, 1000, 2, &pool, NULL), QR_OK);
        int64_t field = 0;
        for (int32_t o = 0; o < g.owners; o++) {
            const int64_t rows = g.owner[o].rows, own = pool.index_offset[o], apart = pool.index_scale_offset[o];
            geometry_main_plane(&g, &pool, base, o, &main); /* a row: values, then scales */
            assert_int_equal(byte_of(main.values), field);
            assert_int_equal(byte_of(main.scales), field + 256);
            field += rows * (256 + 32);
            geometry_index_plane(&g, &pool, base, o, &keys);
            assert_int_equal(byte_of(keys.values), own);
            assert_int_equal(byte_of(keys.scales), f ? apart : own + 16 * 128);
            assert_true(!f || (apart >= own + 1000 * rows * 64 && apart < pool.state_offset));
        }
        assert_int_equal(field, g.main_page_bytes);
    }
}

/* 32: an arena beyond 4 GiB whose high slots alone were wrong: every address of the last slot, and of what is copied there. */
static void high_slots_lie_beyond_4_gib(void **state)
{
    (void)state;
    enum { SLOTS = 2000 };
    struct model_plan plan = plan_of(V41_FLASH);
    struct geometry g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP8, 5);
    struct pool_layout pool;
    struct ring_plane ring;
    assert_int_equal(geometry_pool(&g, 100, SLOTS, &pool, NULL), QR_OK);
    const int64_t entry = pool.state_offset + (SLOTS - 1) * (int64_t)g.state_bytes;
    assert_true(SLOTS * g.state_bytes > (int64_t)8 << 30);
    assert_int_equal(pool.bytes, pool.state_offset + SLOTS * g.state_bytes);
    for (int32_t layer = 0; layer < g.ring_layers; layer++) {
        geometry_window(&g, &pool, base, layer, &ring);
        assert_int_equal(byte_of(ring.values) + (SLOTS - 1) * ring.slot_stride, entry + g.window_offset + layer * g.ring_bytes);
    }
    assert_int_equal(geometry_cursor(&g, &pool, SLOTS - 1), entry + g.cursor_offset);
    const struct cache_copy moved = slot_copy(&g, &pool, 0, SLOTS - 1);
    assert_int_equal(moved.from, pool.state_offset);
    assert_int_equal(moved.to, entry);

    struct cache_copy copies[512];
    block_id units[64];
    assert_true(image_copies_most(&g) <= 512 && image_units(&g) <= 64);
    for (int32_t i = 0; i < image_units(&g); i++)
        units[i] = 1 + i;
    const int32_t count = image_copies(&g, &pool, SLOTS - 1, units, IMAGE_STORE, copies);
    for (int32_t i = 0; i < count; i++)
        assert_true(copies[i].from >= entry && copies[i].from + copies[i].bytes <= pool.bytes);
}

static void sizes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct model_plan plan = plan_of(V41_FLASH);
    struct geometry g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP8, 0);
    struct pool_layout pool;
    assert_int_equal(geometry_pool(&g, INT64_MAX / 1000, 1, &pool, NULL), QR_BAD_ARGUMENT);
    assert_int_equal(geometry_pool(&g, 1, INT64_MAX / 1000, &pool, NULL), QR_BAD_ARGUMENT);
    assert_int_equal(geometry_pool(&g, -1, 1, &pool, NULL), QR_BAD_ARGUMENT);
    g.ring_layers = INT32_MAX;
    g.ring_rows = INT32_MAX;
    assert_int_equal(geometry_place(&g, NULL), QR_BAD_ARGUMENT);
}

/* ---- disjoint planes, for any model ---- */

struct interval {
    int64_t from, to;
};

struct intervals {
    struct interval *at;
    size_t count, room;
};

static void add(struct intervals *set, int64_t from, int64_t bytes)
{
    if (set->count == set->room) {
        set->room = set->room ? 2 * set->room : 1024;
        set->at = realloc(set->at, set->room * sizeof *set->at);
        assert_non_null(set->at);
    }
    set->at[set->count++] = (struct interval){from, from + bytes};
}

static void add_plane(struct intervals *set, const struct row_plane *p, int64_t blocks, int64_t value_bytes,
                      int64_t scale_bytes, int64_t low, int64_t high)
{
    for (int32_t b = 0; b < blocks; b++)
        for (int32_t r = 0; r < p->rows_per_block; r++) {
            int64_t v = byte_of(p->values) + plane_value_offset(p, b, r);
            assert_true(v >= low && v + value_bytes <= high);
            add(set, v, value_bytes);
            if (!p->scales)
                continue;
            int64_t s = byte_of(p->scales) + plane_scale_offset(p, b, r);
            assert_true(s + scale_bytes <= high || p->format == ROW_INDEX_FP4);
            add(set, s, scale_bytes);
        }
}

static void add_ring(struct intervals *set, const struct ring_plane *p, int64_t slots, int64_t value_bytes,
                     int64_t scale_bytes)
{
    for (int64_t s = 0; s < slots; s++)
        for (int32_t r = 0; r < p->rows; r++) {
            add(set, byte_of(p->values) + s * p->slot_stride + r * p->value_row_stride, value_bytes);
            if (p->scales)
                add(set, byte_of(p->scales) + s * p->slot_stride + r * p->scale_row_stride, scale_bytes);
        }
}

static int by_start(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return (x->from > y->from) - (x->from < y->from);
}

static void expect_disjoint(struct intervals *set, int64_t bytes)
{
    qsort(set->at, set->count, sizeof *set->at, by_start);
    assert_true(set->count > 0 && set->at[0].from >= 0 && set->at[set->count - 1].to <= bytes);
    for (size_t i = 1; i < set->count; i++)
        if (set->at[i].from < set->at[i - 1].to)
            fail_msg("[%lld, %lld) overlaps [%lld, %lld)", (long long)set->at[i - 1].from,
                     (long long)set->at[i - 1].to, (long long)set->at[i].from, (long long)set->at[i].to);
}

static int32_t pick(uint32_t *seed, int32_t low, int32_t high)
{
    *seed = *seed * 1664525u + 1013904223u;
    return low + (int32_t)((*seed >> 8) % (uint32_t)(high - low + 1));
}

/* A plan with random owners. Only what the geometry reads is set. */
static struct model_plan random_plan(uint32_t *seed)
{
    struct model_plan p = {0};
    bool v4 = pick(seed, 0, 1);
    p.rows_pack = !v4;
    p.index_keys = !v4 ? INDEX_KEYS_FP8_OR_FP4 : pick(seed, 0, 1) ? INDEX_KEYS_INT8 : INDEX_KEYS_FP4;
    p.profile = p.index_keys == INDEX_KEYS_INT8 ? QR_PROFILE_W8A8 : QR_PROFILE_REFERENCE;
    p.config.head_dim = 32 * pick(seed, 1, 5);
    p.config.index_head_dim = 32 * pick(seed, 1, 4);
    p.config.sliding_window = pick(seed, 1, 40);
    p.config.hc_mult = pick(seed, 1, 4);
    p.config.hidden_size = 32 * pick(seed, 1, 4);
    p.config.n_engram = pick(seed, 0, 1);
    p.config.engram_max_ngram = pick(seed, 2, 5);
    p.layers = pick(seed, 1, 6);
    p.draft_layers = pick(seed, 0, 3);
    p.config.drafter = p.draft_layers == 0 ? QR_DRAFTER_NONE : v4 ? QR_DRAFTER_MTP : QR_DRAFTER_DSPARK;
    for (int32_t i = 0; i < p.layers; i++) {
        if (pick(seed, 0, 1))
            continue;
        struct owner_plan *o = &p.owner[p.owners++];
        o->layer = i;
        o->has_index = pick(seed, 0, 2) > 0;
        o->ratio = 1 << pick(seed, 0, 2);
        o->compressor = o->ratio == 4   ? COMPRESSOR_OVERLAP
                        : o->ratio == 2 ? COMPRESSOR_PAIR
                                        : COMPRESSOR_SINGLE;
        o->tail_rows = o->ratio == 4 ? 8 : o->ratio == 2 ? 2 : 0;
        o->tail_width = p.config.head_dim * (o->ratio == 4 ? 2 : 1);
        o->index_tail_width = o->ratio == 4 && o->has_index ? 2 * p.config.index_head_dim : 0;
    }
    return p;
}

static struct geometry_options random_options(const struct model_plan *p, uint32_t *seed)
{
    return (struct geometry_options){
        .block_tokens = 64 * pick(seed, 1, 3),
        .main_format = p->rows_pack && pick(seed, 0, 1) ? ROW_FP4_E4M3 : ROW_BF16,
        .index_format = p->index_keys == INDEX_KEYS_INT8 ? ROW_INDEX_INT8
                        : p->index_keys == INDEX_KEYS_FP8_OR_FP4 && pick(seed, 0, 1) ? ROW_INDEX_FP8
                                                                                     : ROW_INDEX_FP4,
        .draft_width = p->draft_layers ? pick(seed, 0, 7) : 0,
    };
}

static void expect_planes_apart(uint32_t *seed)
{
    struct model_plan plan = random_plan(seed);
    struct geometry_options o = random_options(&plan, seed);
    struct geometry g;
    struct pool_layout pool;
    qr_error err = {0};
    int64_t blocks = pick(seed, 1, 4), slots = pick(seed, 1, 3);
    if (geometry_make(&plan, &o, &g, &err) != QR_OK)
        fail_msg("%s", err.message);
    assert_int_equal(geometry_pool(&g, blocks, slots, &pool, &err), QR_OK);

    struct intervals set = {0};
    int32_t d = g.head_dim, n = g.index_head_dim;
    for (int32_t i = 0; i < g.owners; i++) {
        struct row_plane plane;
        geometry_main_plane(&g, &pool, base, i, &plane);
        add_plane(&set, &plane, blocks, o.main_format == ROW_BF16 ? 2 * d : d / 2, d / 16, 0,
                  blocks * g.main_page_bytes);
        if (!g.owner[i].has_index)
            continue;
        assert_int_equal(pool.index_offset[i] % 256, 0);
        geometry_index_plane(&g, &pool, base, i, &plane);
        add_plane(&set, &plane, blocks, o.index_format == ROW_INDEX_FP4 ? n / 2 : n,
                  o.index_format == ROW_INDEX_FP4 ? n / 32 : 4, pool.index_offset[i],
                  pool.index_offset[i] + blocks * g.owner[i].index_block_bytes);
    }
    assert_int_equal(pool.state_offset % g.alignment, 0);
    size_t pages = set.count;
    for (int32_t l = 0; l < g.ring_layers; l++) {
        struct ring_plane ring;
        geometry_window(&g, &pool, base, l, &ring);
        add_ring(&set, &ring, slots, o.main_format == ROW_BF16 ? 2 * d : d, d / 32);
    }
    for (int32_t i = 0; i < 2 * g.owners; i++) {
        struct ring_plane ring;
        geometry_tail(&g, &pool, base, i / 2, i % 2, &ring);
        if (ring.rows == 0)
            continue;
        assert_int_equal(byte_of(ring.values) % 4, 0);
        add_ring(&set, &ring, slots, ring.value_row_stride, ring.scale_row_stride);
    }
    for (int64_t s = 0; s < slots; s++) {
        assert_int_equal(geometry_cursor(&g, &pool, s) % 8, 0);
        add(&set, geometry_cursor(&g, &pool, s), g.cursor_bytes);
        if (g.draft_stream_offset >= 0)
            add(&set, geometry_draft_stream(&g, &pool, s), g.draft_stream_bytes);
    }
    for (size_t i = 0; i < set.count; i++)
        assert_true(i < pages ? set.at[i].to <= pool.state_offset : set.at[i].from >= pool.state_offset);
    expect_disjoint(&set, pool.bytes);
    free(set.at);
}

static void no_two_rows_of_any_geometry_share_a_byte(void **state)
{
    (void)state;
    uint32_t seed = 20240611;
    for (int i = 0; i < 400; i++)
        expect_planes_apart(&seed);
}

/* An image restores everything of a slot but the tails that a boundary makes empty. */
static void an_image_holds_rings_overlapping_tails_and_cursor(void **state)
{
    (void)state;
    struct state_piece pieces[GEOMETRY_MAX_PIECES];
    struct model_plan plan = plan_of(V41_FLASH);
    struct geometry g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP8, 5);
    assert_int_equal(geometry_image(&g, pieces), 2);
    assert_int_equal(pieces[0].bytes, 43 * g.ring_bytes);
    assert_int_equal(pieces[1].offset, g.cursor_offset);
    plan = plan_of(V4_FLASH);
    g = made(&plan, 128, ROW_BF16, ROW_INDEX_FP4, 1);
    int32_t n = geometry_image(&g, pieces);
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += pieces[i].bytes;
        assert_true(i == 0 || pieces[i].offset > pieces[i - 1].offset + pieces[i - 1].bytes);
    }
    assert_int_equal(sum, g.image_bytes);
    assert_true(pieces[n - 1].offset + pieces[n - 1].bytes <= g.state_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_bytes_are_those_of_table_2_6),
        cmocka_unit_test(state_bytes_are_those_of_table_2_7),
        cmocka_unit_test(published_anchors_follow_from_their_parameters),
        cmocka_unit_test(v4_page_bytes_are_those_of_table_2_9),
        cmocka_unit_test(v4_state_bytes_are_those_of_table_2_9),
        cmocka_unit_test(capacities_are_those_of_section_2_12),
        cmocka_unit_test(the_blocks_that_fit_are_the_most_that_fit),
        cmocka_unit_test(block_sizes_and_formats_out_of_rule_are_refused_by_id),
        cmocka_unit_test(draft_width_needs_a_drafter),
        cmocka_unit_test(layouts_tell_apart_what_differs),
        cmocka_unit_test(addresses_follow_the_formulas_beyond_4_gib),
        cmocka_unit_test(scales_of_every_owner_start_at_its_own_base),
        cmocka_unit_test(high_slots_lie_beyond_4_gib),
        cmocka_unit_test(sizes_that_do_not_fit_are_refused),
        cmocka_unit_test(no_two_rows_of_any_geometry_share_a_byte),
        cmocka_unit_test(an_image_holds_rings_overlapping_tails_and_cursor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
