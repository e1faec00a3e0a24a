#include "support/models.h"
#include "support/support.h"

#include <string.h>

static void count_modes(const struct model_plan *p, int32_t counts[6])
{
    memset(counts, 0, 6 * sizeof *counts);
    for (int32_t i = 0; i < p->layers; i++)
        counts[p->layer[i].attend]++;
}

static void released_v41_schedule_is_that_of_the_table(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V41_FLASH);
    int32_t n[6];
    count_modes(&p, n);
    assert_int_equal(n[ATTEND_FULL], 4);
    assert_int_equal(n[ATTEND_REINDEX], 4);
    assert_int_equal(n[ATTEND_REUSE], 30);
    assert_int_equal(n[ATTEND_WINDOW], 2);
    for (int32_t i = 0; i < 40; i++) {
        const struct layer_plan *l = &p.layer[i];
        int32_t kv = i < 2 ? -1 : i < 8 ? 2 : i < 14 ? 8 : i < 20 ? 14 : 20;
        int32_t index = i < 20 ? kv : i < 24 ? 20 : i / 4 * 4;
        assert_int_equal(l->kv_owner, kv);
        assert_int_equal(l->index_owner, index);
        assert_int_equal(l->owns_rows, kv == i);
        assert_int_equal(l->owns_index, index == i);
        assert_int_equal(l->candidate_source, i == 20);
        assert_int_equal(l->candidate_reader, i > 20 && i % 4 == 0);
        assert_int_equal(l->rope, i < 2 ? ROPE_MAIN : ROPE_COMPRESS);
        assert_int_equal(l->engram, i == 1 ? 0 : i == 14 ? 1 : -1);
        assert_int_equal(l->tap, i >= 37 ? i - 37 : -1);
        assert_int_equal(l->order, SELECTION_ASCENDING);
        assert_int_equal(l->router, ROUTER_SCORE);
        assert_int_equal(l->n_experts, 384);
    }
    assert_int_equal(p.owners, 4);
    assert_int_equal(p.owner[3].layer, 20);
    assert_int_equal(p.owner[3].compressor, COMPRESSOR_SINGLE);
    assert_int_equal(p.owner[3].tail_rows, 0);
    assert_int_equal(p.owner[0].compressor, COMPRESSOR_PAIR);
    assert_int_equal(p.owner[0].tail_width, 512);
    assert_int_equal(p.index_sources, 8);
    assert_int_equal(p.index_source_of_layer[39], 7);
    assert_int_equal(p.owner_of_layer[39], 3);
    assert_int_equal(p.owner_of_layer[0], -1);
    assert_int_equal(p.max_ratio, 2);
    assert_int_equal(p.draft_layers, 3);
    assert_int_equal(p.layer[42].n_experts, 128);
    assert_int_equal(p.layer[42].n_active, 3);
    assert_int_equal(p.layer[42].attend, ATTEND_WINDOW);
}

static void released_v4_schedules_are_those_of_the_table(void **state)
{
    (void)state;
    struct model_plan p = plan_of(V4_FLASH);
    int32_t n[6];
    count_modes(&p, n);
    assert_int_equal(n[ATTEND_WINDOW], 2);
    assert_int_equal(n[ATTEND_CSA], 21);
    assert_int_equal(n[ATTEND_HCA], 20);
    assert_int_equal(p.layer[2].router, ROUTER_HASH);
    assert_int_equal(p.layer[3].router, ROUTER_SCORE);
    assert_int_equal(p.layer[43].attend, ATTEND_WINDOW);
    assert_int_equal(p.layer[43].router, ROUTER_SCORE);
    assert_int_equal(p.layer[2].order, SELECTION_BY_SCORE);
    assert_int_equal(p.layer[3].index_owner, -1);
    assert_int_equal(p.owners, 41);
    assert_int_equal(p.owner[0].tail_rows, 8);
    assert_int_equal(p.owner[0].tail_width, 1024);
    assert_int_equal(p.owner[0].index_tail_width, 256);
    assert_int_equal(p.owner[1].tail_rows, 128);
    assert_int_equal(p.owner[1].tail_width, 512);
    assert_int_equal(p.index_sources, 21);
    assert_int_equal(p.max_ratio, 128);
    p = plan_of(V4_PRO);
    count_modes(&p, n);
    assert_int_equal(n[ATTEND_CSA], 30);
    assert_int_equal(n[ATTEND_HCA], 31);
    assert_int_equal(p.layer[0].router, ROUTER_HASH);
    p = plan_of(V4_FLASH_DSPARK);
    assert_int_equal(p.draft_layers, 3);
    assert_int_equal(p.layer[41].tap, 1);
    assert_int_equal(p.layer[45].n_experts, 256);
}

static void small_v41_schedule_is_that_of_the_text(void **state)
{
    (void)state;
    struct model_plan p = plan_of("tests/golden/v41/spec-13.1/model/config.json");
    static const enum attend modes[8] = {ATTEND_WINDOW, ATTEND_WINDOW, ATTEND_FULL, ATTEND_REUSE,
                                         ATTEND_FULL,   ATTEND_FULL,   ATTEND_REINDEX, ATTEND_REUSE};
    for (int32_t i = 0; i < 8; i++)
        assert_int_equal(p.layer[i].attend, modes[i]);
    assert_int_equal(p.layer[7].index_owner, 6);
    assert_int_equal(p.layer[7].kv_owner, 5);
    assert_true(p.layer[5].candidate_source && p.layer[6].candidate_reader && !p.layer[7].candidate_reader);
}

static void without_a_candidate_source_nothing_reads_candidates(void **state)
{
    (void)state;
    struct model_plan p = plan_of("tests/golden/v41/wide/model/config.json");
    for (int32_t i = 0; i < p.layers; i++)
        assert_false(p.layer[i].candidate_reader || p.layer[i].candidate_source);
}

static void impossible_topologies_and_profiles_are_refused(void **state)
{
    (void)state;
    struct model_plan p;
    qr_error err = {0};
    struct qr_config c = config_of(V41_FLASH);
    assert_int_equal(plan_make(&c, QR_PROFILE_W8A8, &p, &err), QR_BAD_ARGUMENT);
    c.compress_ratios[1] = 2;
    assert_int_equal(plan_make(&c, QR_PROFILE_REFERENCE, &p, &err), QR_BAD_CONFIG);
    assert_non_null(strstr(err.message, "layer 1"));
    c = config_of(V4_FLASH);
    assert_int_equal(plan_make(&c, QR_PROFILE_W8A8, &p, &err), QR_OK);
    c.compress_ratios[5] = 96;
    assert_int_equal(plan_make(&c, QR_PROFILE_W8A8, &p, &err), QR_BAD_CONFIG);
    assert_int_equal(plan_make(&c, QR_PROFILE_REFERENCE, &p, &err), QR_OK);
    c.stored_w8a8 = true;
    assert_int_equal(plan_make(&c, QR_PROFILE_REFERENCE, &p, &err), QR_BAD_ARGUMENT);
}

static void visible_rows_depend_on_the_position_alone(void **state)
{
    (void)state;
    assert_int_equal(plan_visible(0, 100), 0);
    assert_int_equal(plan_visible(1, 0), 1);
    assert_int_equal(plan_visible(2, 0), 0);
    assert_int_equal(plan_visible(2, 1), 1);
    assert_int_equal(plan_visible(128, 126), 0);
    assert_int_equal(plan_visible(128, 127), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_v41_schedule_is_that_of_the_table),
        cmocka_unit_test(released_v4_schedules_are_those_of_the_table),
        cmocka_unit_test(small_v41_schedule_is_that_of_the_text),
        cmocka_unit_test(without_a_candidate_source_nothing_reads_candidates),
        cmocka_unit_test(impossible_topologies_and_profiles_are_refused),
        cmocka_unit_test(visible_rows_depend_on_the_position_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
