#include "support/models.h"
#include "support/support.h"

#include <string.h>

#include "plan/rows.h"

static struct row_plan exact(const struct model_plan *p, int32_t rings, int32_t cached, int32_t end, int32_t boundary)
{
    const struct rows_request r = {.rings_from = rings,
                                   .cached = cached,
                                   .end = end,
                                   .boundary = boundary,
                                   .first_logits = end - 1,
                                   .drafting = p->config.drafter != QR_DRAFTER_NONE};
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
    struct rows_request r = {.end = 5000, .boundary = -1};
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

/* ---- bounded replay: the tables of runtime.md 7.1 and 7.3 ---- */

static void bounded(const struct model_plan *p, int32_t cached, int32_t end, bool tail, bool rebuild, struct row_plan *out)
{
    const struct rows_request r = {.rings_from = rebuild && cached > 128 ? cached - 128 : 0,
                                   .cached = cached,
                                   .end = end,
                                   .boundary = -1,
                                   .first_logits = end - 1,
                                   .tail = tail,
                                   .rebuild = rebuild};
    rows_exact(p, &r, out);
}

static void expect_start(const struct layer_start *s, int32_t query, int32_t key, int32_t compress, int32_t low)
{
    assert_int_equal(s->query, query);
    assert_int_equal(s->key, key);
    assert_int_equal(s->compress, compress);
    assert_int_equal(s->low, low);
    assert_int_equal(s->again, 0);
}

static bool writes(int32_t layer) { return layer == 2 || layer == 8 || layer == 14 || layer == 20; }

static void a_bounded_decoder_runs_one_window(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    struct row_plan rows;
    assert_int_equal(rows_decoder(&p), 20);
    for (int32_t end = 1; end < 3000; end += 199) {
        const int32_t tail = end > 128 ? end - 128 : 0;
        bounded(&p, 0, end, true, false, &rows);
        assert_int_equal(rows.first, 0);
        for (int32_t l = 0; l < 20; l++)
            expect_start(&rows.layer[l], 0, 0, writes(l) ? 0 : end, 0);
        for (int32_t l = 20; l < 39; l++)
            expect_start(&rows.layer[l], tail, tail, l == 20 ? 0 : end, tail);
        expect_start(&rows.layer[39], end - 1, tail, end, tail);
    }
}

static void a_bounded_hit_rebuilds_one_block(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    struct row_plan rows;
    for (int32_t suffix = 1; suffix < 700; suffix += 33) {
        const int32_t hit = 1280, end = hit + suffix, first = hit - 128;
        bounded(&p, hit, end, true, true, &rows);
        assert_int_equal(rows.first, first);
        for (int32_t l = 0; l < 20; l++)
            expect_start(&rows.layer[l], first, first, writes(l) ? hit : end, first);
        for (int32_t l = 20; l < 39; l++)
            expect_start(&rows.layer[l], end - 128, end - 128, l == 20 ? hit : end, end - 128);
    }
    bounded(&p, 128, 200, true, true, &rows); /* from the start of the prompt on, nothing is missing */
    assert_int_equal(rows.first, 0);
    expect_start(&rows.layer[2], 0, 0, 128, 0);
}

/* Each half by itself: what the other half is exact in. */
static void the_halves_are_bounded_one_by_one(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    struct row_plan rows, all;
    bounded(&p, 12800, 12900, true, false, &rows); /* layer 19 completes the tail, and no row before it */
    assert_int_equal(rows.layer[20].query, 12900 - 128);
    assert_int_equal(rows.layer[19].query, 12900 - 128);
    assert_int_equal(rows.layer[19].low, 0);
    assert_int_equal(rows.first, 12900 - 128 - 20 * 127);
    bounded(&p, 12800, 12900, false, true, &rows); /* decoder rows as far as there is something below them */
    bounded(&p, 12800, 12900, false, false, &all);
    assert_int_equal(rows.first, 12672);
    for (int32_t l = 20; l < 40; l++) {
        assert_int_equal(rows.layer[l].query, all.layer[l].query > 12672 ? all.layer[l].query : 12672);
        assert_int_equal(rows.layer[l].low, 12672);
    }
}

static void a_back_off_runs_the_encoder_again_and_keeps_nothing(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    struct row_plan rows, back;
    bounded(&p, 0, 1010, true, false, &rows);
    rows_back_off(&p, &rows, 768, 1001, &back);
    assert_int_equal(back.first, 768);
    for (int32_t l = 0; l < 20; l++) {
        assert_int_equal(back.layer[l].query, 768);
        assert_int_equal(back.layer[l].key, 768);
        assert_int_equal(back.layer[l].again, 1001);
        assert_int_equal(back.layer[l].low, 0); /* of the rows from 1001 on */
        assert_int_equal(back.layer[l].compress, writes(l) ? 1001 : 1010);
    }
    assert_int_equal(back.layer[20].compress, 1001);
    for (int32_t l = 20; l < 40; l++) {
        assert_int_equal(back.layer[l].again, 0);
        assert_int_equal(back.layer[l].key, 1010 - 128);
    }
}

static void an_unfinished_prompt_runs_no_decoder_row(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    struct row_plan rows;
    bounded(&p, 0, 1010, true, false, &rows);
    rows_unfinished(&p, &rows);
    assert_int_equal(rows.layer[19].query, 0);
    assert_int_equal(rows.layer[20].compress, 0);
    for (int32_t l = 20; l < p.layers + p.draft_layers; l++) {
        assert_int_equal(rows.layer[l].query, 1010);
        assert_int_equal(rows.layer[l].key, 1010);
    }
}

static void what_bounded_replay_cannot_cut_is_known(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V4_FLASH);
    assert_int_equal(rows_decoder(&p), -1);
    p = plan_of(V41_FLASH);
    p.layer[25].engram = 1;
    assert_int_equal(rows_decoder(&p), -1);
    p = plan_of(V41_FLASH);
    p.layers = 21; /* the last source is the last layer */
    assert_int_equal(rows_decoder(&p), -1);
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
        cmocka_unit_test(a_bounded_decoder_runs_one_window),
        cmocka_unit_test(a_bounded_hit_rebuilds_one_block),
        cmocka_unit_test(the_halves_are_bounded_one_by_one),
        cmocka_unit_test(a_back_off_runs_the_encoder_again_and_keeps_nothing),
        cmocka_unit_test(an_unfinished_prompt_runs_no_decoder_row),
        cmocka_unit_test(what_bounded_replay_cannot_cut_is_known),
        cmocka_unit_test(ranges_start_at_the_first_row_that_anything_needs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
