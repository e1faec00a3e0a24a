/* Which routed experts lie on a device, and which in host memory (plan/placement.h). */
#include "base/alloc.h"
#include "plan/placement.h"
#include "support/support.h"

static int32_t of_layer(const struct expert_placement *p, int32_t layer)
{
    int32_t on_device = 0;
    for (int32_t e = 0; e < p->experts; e++)
        on_device += !placement_is_on_host(p, layer, e);
    return on_device;
}

static void without_knowledge_each_layer_gets_as_many(void **state)
{
    (void)state;
    struct expert_placement p;
    must(placement_make(5, 16, 38, 3, NULL, &p, NULL), NULL);
    assert_int_equal(p.on_host, 5 * 16 - 38);
    assert_int_equal(p.seats, 3);
    for (int32_t layer = 0; layer < 5; layer++) {
        assert_int_equal(of_layer(&p, layer), layer < 3 ? 8 : 7);
        for (int32_t e = 0; e < 16; e++)
            assert_int_equal(placement_is_on_host(&p, layer, e), e >= (layer < 3 ? 8 : 7));
    }
    placement_free(&p);
}

static void those_used_most_lie_on_the_device(void **state)
{
    (void)state;
    uint64_t uses[3 * 4] = {0, 9, 0, 1, /* */ 8, 0, 7, 0, /* */ 0, 0, 0, 6};
    struct expert_placement p;
    must(placement_make(3, 4, 5, 1, uses, &p, NULL), NULL);
    for (int i = 0; i < 12; i++)
        assert_int_equal(placement_is_on_host(&p, i / 4, i % 4), uses[i] == 0);
    placement_free(&p);
    must(placement_make(3, 4, 6, 1, uses, &p, NULL), NULL); /* one more: by number, then by layer */
    assert_false(placement_is_on_host(&p, 0, 0));
    assert_int_equal(p.on_host, 6);
    placement_free(&p);
}

static void what_fits_wholly_has_nothing_in_host_memory(void **state)
{
    (void)state;
    struct expert_placement p;
    must(placement_make(3, 4, 12, 0, NULL, &p, NULL), NULL);
    assert_int_equal(p.on_host, 0);
    assert_false(placement_is_on_host(&p, 2, 3));
    assert_false(placement_is_on_host(NULL, 0, 0));
    placement_free(&p);
    must(placement_make(3, 4, 0, 2, NULL, &p, NULL), NULL);
    assert_int_equal(p.on_host, 12);
    assert_true(placement_is_on_host(&p, 0, 0));
    assert_false(placement_is_on_host(&p, 3, 0)); /* a drafter's layer */
    placement_free(&p);
}

static void want_of_memory_is_a_status(void **state)
{
    (void)state;
    const int64_t before = alloc_live();
    struct expert_placement p;
    qr_status st = QR_NO_MEMORY;
    if (!alloc_fault_supported())
        skip();
    for (int64_t n = 1; st != QR_OK; n++) {
        alloc_fault_at(n, 0);
        st = placement_make(3, 4, 5, 1, NULL, &p, NULL);
        alloc_fault_at(0, 0);
        assert_true(st == QR_OK || st == QR_NO_MEMORY);
        placement_free(&p);
        assert_int_equal(alloc_live(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_knowledge_each_layer_gets_as_many),
        cmocka_unit_test(those_used_most_lie_on_the_device),
        cmocka_unit_test(what_fits_wholly_has_nothing_in_host_memory),
        cmocka_unit_test(want_of_memory_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
