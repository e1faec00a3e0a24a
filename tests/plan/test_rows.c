#include "support/models.h"
#include "support/support.h"

#include <string.h>

#include "plan/rows.h"

static struct row_plan exact(const struct model_plan *p, int32_t rings, int32_t cached, int32_t end, int32_t boundary)
{
    struct rows_request r = {rings, cached, end, boundary, end - 1, p->config.drafter != QR_DRAFTER_NONE};
    struct row_plan rows;
    rows_exact(p, &r, &rows);
    return rows;
}

/* ---- the printed numbers of runtime.md 7.5 and v41-model.md 12 ---- */

static void a_cold_v41_prompt_runs_the_decoder_on_its_tail(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    int32_t end = 32768;
    struct row_plan rows = exact(&p, 0, 0, end, -1);
    assert_int_equal(rows.first, 0);
    for (int32_t l = 0; l < 20; l++)
        assert_int_equal(rows.layer[l].query, 0);
    int64_t decoder = 0;
    for (int32_t l = 20; l < 40; l++) {
        assert_int_equal(rows.layer[l].query, end - 1 - 127 * (39 - l));
        assert_int_equal(rows.layer[l].key, rows.layer[l].query - 127);
        assert_int_equal(rows.layer[l].compress, l == 20 ? 0 : end);
        decoder += end - rows.layer[l].query;
    }
    assert_int_equal(rows.layer[20].query, end - 2414);
    assert_int_equal(rows.layer[20].key, end - 2541);
    assert_int_equal(decoder, 24150);
    double share = (double)rows_query_total(&p, &rows) / (40.0 * end);
    assert_true(share > 0.51835 && share < 0.51845);
    assert_int_equal(rows.layer[41].key, end - 128);
    assert_int_equal(rows.layer[41].query, end);
}

static void a_v41_hit_reruns_what_its_suffix_needs(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    struct row_plan rows = exact(&p, 0, 12800, 12800 + 5000, -1); /* a long suffix: e = H */
    assert_int_equal(rows.first, 12800 - 2540);
    for (int32_t l = 0; l < 20; l++) {
        assert_int_equal(rows.layer[l].query, 12800 - 127 * (19 - l));
        assert_int_equal(rows.layer[l].key, rows.layer[l].query - 127);
    }
    assert_int_equal(rows.layer[2].compress, 12800);
    assert_int_equal(rows.layer[20].compress, 12800);
    rows = exact(&p, 0, 12800, 12900, -1); /* a short one: decoder rows below H too */
    assert_int_equal(rows.layer[19].query, 12900 - 2541);
    assert_int_equal(rows.first, 12900 - 5081);
    assert_int_equal(rows.layer[20].query, 12900 - 2414);
    assert_int_equal(rows.layer[20].compress, 12800);
    rows = exact(&p, 0, 128, 200, -1); /* ranges stop at the start of the prompt */
    assert_int_equal(rows.first, 0);
    assert_int_equal(rows.layer[2].compress, 128);
}

static void an_image_bounds_every_range(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    struct row_plan rows = exact(&p, 12800, 12800, 12900, -1);
    assert_int_equal(rows.first, 12800);
    for (int32_t l = 0; l < 40; l++)
        assert_true(rows.layer[l].query >= 12800 && rows.layer[l].key >= 12800 && rows.layer[l].compress >= 12800);
    rows = exact(&p, 12672, 12800, 12900, -1);
    assert_int_equal(rows.first, 12672);
    assert_int_equal(rows.layer[20].compress, 12800);
}

static void boundary_rings_start_at_most_a_block_earlier(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    int32_t end = 20000, boundary = 19968;
    struct row_plan plain = exact(&p, 0, 0, end, -1), rows = exact(&p, 0, 0, end, boundary);
    assert_int_equal(rows.layer[39].query, end - 1);
    assert_int_equal(rows.layer[39].key, boundary - 127);
    assert_int_equal(rows.layer[38].query, rows.layer[39].key);
    for (int32_t l = 20; l < 40; l++)
        assert_in_range(plain.layer[l].key - rows.layer[l].key, 0, 127);
}

static void a_v4_hit_reruns_all_layers_below_it(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V4_FLASH);
    int32_t end = 30000, hit = 29952;
    struct row_plan rows = exact(&p, 0, hit, end, -1);
    /* T_end - W < H: the MTP layer's streams, hence the last layer, start there (addendum 2). */
    assert_int_equal(rows.layer[42].query, end - 128);
    assert_int_equal(rows.layer[42].key, end - 128 - 127);
    assert_int_equal(rows.layer[42].compress, hit - 4);
    for (int32_t l = 41; l >= 0; l--)
        assert_int_equal(rows.layer[l].query, rows.layer[l + 1].key);
    assert_int_equal(rows.layer[41].compress, hit); /* HCA groups start at the boundary */
    rows = exact(&p, 0, 1280, end, -1);             /* far from the end: from H on, nothing of the tail */
    assert_int_equal(rows.layer[42].query, end - 128);
    assert_int_equal(rows.layer[41].query, 1276);
    assert_int_equal(rows.layer[40].query, 1276 - 127);
}

static void all_wanted_logits_keep_all_rows(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    struct rows_request r = {0, 0, 5000, -1, 0, false};
    struct row_plan rows, every;
    rows_exact(&p, &r, &rows);
    rows_all(&p, 0, 5000, &every);
    assert_int_equal(rows_query_total(&p, &rows), 40 * 5000);
    for (int32_t l = 0; l < 40; l++) {
        assert_int_equal(rows.layer[l].query, every.layer[l].query);
        assert_int_equal(rows.layer[l].key, every.layer[l].key);
        assert_int_equal(rows.layer[l].compress, every.layer[l].compress);
    }
}

/* ---- a walk along every dependency, for small plans ---- */

enum { LONGEST = 320 };

struct sets {
    bool out[LONGEST], key[LONGEST], projection[LONGEST];
};

static int32_t first_of(const bool *set, int32_t end)
{
    for (int32_t p = 0; p < end; p++)
        if (set[p])
            return p;
    return end;
}

static void mark(bool *set, int32_t from, int32_t to, int32_t low)
{
    for (int32_t p = from > low ? from : low; p < to; p++)
        set[p] = true;
}

/* Tokens whose projections the compressed row of group g pools. */
static void mark_group(const struct layer_plan *l, int32_t g, int32_t end, int32_t low, bool *set)
{
    int32_t from = l->compressor == COMPRESSOR_OVERLAP ? (g - 1) * l->ratio : g * l->ratio;
    int32_t to = (g + 1) * l->ratio;
    mark(set, from, to < end ? to : end, low);
}

static void walk(const struct model_plan *p, const struct rows_request *r, struct sets *layers, bool *input)
{
    int32_t w = p->config.sliding_window, end = r->end, low = r->rings_from;
    bool taps[LONGEST] = {0}, wanted[LONGEST] = {0};
    if (r->drafting)
        mark(taps, end - w, end, low);
    if (r->drafting && r->boundary >= 0)
        mark(taps, r->boundary - w + 1, r->boundary, low);
    mark(wanted, r->first_logits, end, low);
    for (int32_t layer = p->layers - 1; layer >= 0; layer--) {
        const struct layer_plan *l = &p->layer[layer];
        struct sets *s = &layers[layer];
        memset(s, 0, sizeof *s);
        bool v4 = p->config.family == QR_FAMILY_V4, mtp = p->config.drafter == QR_DRAFTER_MTP;
        bool tapped = mtp ? layer == p->layers - 1 : v4 ? l->tap >= 0 : false;
        for (int32_t q = 0; q < end; q++) {
            s->out[q] = wanted[q] || (tapped && taps[q]);
            if (s->out[q])
                mark(s->key, q - w + 1, q + 1, low);
        }
        mark(s->key, end - w + 1, end, low);
        if (r->boundary >= 0)
            mark(s->key, r->boundary - w + 1, r->boundary, low);
        /* Every group that is not cached, the unfinished ones at the end included. */
        for (int32_t g = 0; l->owns_rows && (g - 1) * l->ratio < end; g++)
            if ((g + 1) * l->ratio > r->cached)
                mark_group(l, g, end, low, s->projection);
        for (int32_t q = 0; q < end; q++)
            wanted[q] = s->out[q] || s->key[q] || s->projection[q] || (!v4 && !mtp && l->tap >= 0 && taps[q]);
    }
    memcpy(input, wanted, sizeof wanted);
}

static int32_t pick(uint32_t *seed, int32_t low, int32_t high)
{
    *seed = *seed * 1664525u + 1013904223u;
    return low + (int32_t)((*seed >> 8) % (uint32_t)(high - low + 1));
}

static struct model_plan random_plan(uint32_t *seed)
{
    struct model_plan p = {0};
    bool v4 = pick(seed, 0, 1);
    p.config.family = v4 ? QR_FAMILY_V4 : QR_FAMILY_V41;
    p.config.sliding_window = pick(seed, 2, 12); /* of one, a boundary needs no row below it */
    p.config.drafter = pick(seed, 0, 2) == 0 ? QR_DRAFTER_NONE : v4 && pick(seed, 0, 1) ? QR_DRAFTER_MTP : QR_DRAFTER_DSPARK;
    p.layers = pick(seed, 1, 7);
    p.draft_layers = p.config.drafter == QR_DRAFTER_NONE ? 0 : 1;
    for (int32_t i = 0; i < p.layers; i++) {
        struct layer_plan *l = &p.layer[i];
        l->tap = p.config.drafter == QR_DRAFTER_DSPARK && pick(seed, 0, 2) == 0 ? 0 : -1;
        l->owns_rows = pick(seed, 0, 2) == 0;
        l->ratio = v4 ? (pick(seed, 0, 1) ? 4 : 32) : pick(seed, 1, 2);
        if (l->owns_rows)
            l->compressor = l->ratio == 4 ? COMPRESSOR_OVERLAP : l->ratio == 2 ? COMPRESSOR_PAIR : COMPRESSOR_PLAIN;
    }
    return p;
}

static void expect_walk_agrees(uint32_t *seed)
{
    static struct sets layers[QR_MAX_LAYERS];
    enum { BLOCK = 32 };
    bool input[LONGEST] = {0};
    struct model_plan p = random_plan(seed);
    struct rows_request r = {.end = pick(seed, 1, LONGEST)};
    struct row_plan rows;
    r.cached = BLOCK * pick(seed, 0, (r.end - 1) / BLOCK);
    r.rings_from = BLOCK * (pick(seed, 0, 1) ? 0 : pick(seed, 0, r.cached / BLOCK));
    r.boundary = pick(seed, 0, 1) || r.end / BLOCK * BLOCK <= r.rings_from ? -1 : r.end / BLOCK * BLOCK;
    r.first_logits = pick(seed, 0, 1) ? r.end - 1 : pick(seed, r.cached, r.end - 1);
    r.drafting = p.config.drafter != QR_DRAFTER_NONE && pick(seed, 0, 3) > 0;
    rows_exact(&p, &r, &rows);
    walk(&p, &r, layers, input);
    for (int32_t l = 0; l < p.layers; l++) {
        assert_int_equal(rows.layer[l].query, first_of(layers[l].out, r.end));
        assert_int_equal(rows.layer[l].key, first_of(layers[l].key, r.end));
        assert_int_equal(rows.layer[l].compress, first_of(layers[l].projection, r.end));
    }
    assert_int_equal(rows.first, first_of(input, r.end));
}

static void ranges_start_at_the_first_row_that_anything_needs(void **state)
{
    (void)state;
    uint32_t seed = 7;
    for (int i = 0; i < 20000; i++)
        expect_walk_agrees(&seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cold_v41_prompt_runs_the_decoder_on_its_tail),
        cmocka_unit_test(a_v41_hit_reruns_what_its_suffix_needs),
        cmocka_unit_test(an_image_bounds_every_range),
        cmocka_unit_test(boundary_rings_start_at_most_a_block_earlier),
        cmocka_unit_test(a_v4_hit_reruns_all_layers_below_it),
        cmocka_unit_test(all_wanted_logits_keep_all_rows),
        cmocka_unit_test(ranges_start_at_the_first_row_that_anything_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
