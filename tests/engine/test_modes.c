/* label: A22 */
/* Which ways to run steps may be asked for together (runtime.md 8; 11, E23). */
#include "engine/modes.h"
#include "support/support.h"

#include <string.h>

static struct run_mode choose(const char *graphs, const char *level, bool eager, bool records, struct rule_list *broken)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.cudagraph_mode = graphs;
    o.level = level;
    o.enforce_eager = eager;
    *broken = (struct rule_list){.used = 0};
    return modes_choose(&o, records, broken);
}

static void a_device_that_records_takes_the_allowed_pairs_alone(void **state)
{
    (void)state;
    static const struct {
        const char *graphs, *level;
        bool eager, allowed;
        struct run_mode is;
    } cases[] = {{NULL, NULL, false, true, {GRAPHS_FULL, true}},       {"FULL", "3", false, true, {GRAPHS_FULL, true}},
                 {"FULL", "0", false, true, {GRAPHS_FULL, false}},     {"TR_HYBRID", "0", false, true, {GRAPHS_HYBRID, false}},
                 {"TR_HYBRID", NULL, false, true, {GRAPHS_HYBRID, false}}, {"NONE", "0", false, true, {GRAPHS_NONE, false}},
                 {"NONE", "3", false, true, {GRAPHS_NONE, true}},      {NULL, NULL, true, true, {GRAPHS_NONE, true}},
                 {"TR_HYBRID", "3", true, true, {GRAPHS_NONE, true}},  {NULL, "0", true, true, {GRAPHS_NONE, false}},
                 {"TR_HYBRID", "3", false, false, {GRAPHS_HYBRID, true}}, {NULL, "1", false, false, {GRAPHS_FULL, true}},
                 {"PIECEWISE", NULL, false, false, {GRAPHS_FULL, true}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rule_list broken;
        const struct run_mode m = choose(cases[i].graphs, cases[i].level, cases[i].eager, true, &broken);
        assert_int_equal(broken.count, cases[i].allowed ? 0 : 1);
        assert_int_equal(m.graphs, cases[i].is.graphs);
        assert_int_equal(m.fused, cases[i].is.fused);
        if (!cases[i].allowed)
            assert_memory_equal(broken.text, "E23 ", 4);
    }
}

static void a_device_that_records_nothing_runs_eagerly_at_level_0(void **state)
{
    (void)state;
    struct rule_list broken;
    const struct run_mode m = choose(NULL, NULL, false, false, &broken);
    assert_int_equal(broken.count, 0);
    assert_true(m.graphs == GRAPHS_NONE && !m.fused);
    choose("NONE", "0", false, false, &broken);
    assert_int_equal(broken.count, 0);
    choose("FULL", "0", false, false, &broken);
    assert_int_equal(broken.count, 1);
    assert_non_null(strstr(broken.text, "E23 cudagraph-mode is FULL: this device records no graphs"));
    choose(NULL, "3", false, false, &broken);
    assert_int_equal(broken.count, 1);
    assert_non_null(strstr(broken.text, "E23 level is 3: this device has no fused segments"));
    choose("FULL", "7", true, false, &broken); /* eager: what would be recorded is of no matter */
    assert_int_equal(broken.count, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_records_takes_the_allowed_pairs_alone),
        cmocka_unit_test(a_device_that_records_nothing_runs_eagerly_at_level_0),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
