/* Tensors by name: no two names are ever taken for one. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "checkpoint/engram_hash.h"
#include "checkpoint/tensor_table.h"
#include "support/support.h"

/* Of so many names a few pairs have the same 32-bit hash. */
static void names_whose_hashes_collide_stay_apart(void **state)
{
    (void)state;
    enum { NAMES = 300000 };
    struct tensor_table t;
    char name[20];
    bool fresh;
    tensor_table_init(&t);
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "%06d", i);
        assert_int_equal(tensor_table_intern(&t, name, 6, &fresh), i);
        assert_true(fresh);
    }
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof name, "%06dx", i);
        assert_int_equal(tensor_table_find(&t, name, 6), i);
        assert_int_equal(tensor_table_find(&t, name, 7), -1);
        assert_int_equal(tensor_table_find(&t, name, 5), -1);
        assert_string_equal(t.views[i].name, (name[6] = 0, name));
    }
    assert_int_equal(tensor_table_intern(&t, "000005", 6, &fresh), 5);
    assert_false(fresh);
    tensor_table_free(&t);
    assert_int_equal(tensor_table_find(&t, "000005", 6), -1);
}

static void element_counts_that_overflow_are_seen(void **state)
{
    (void)state;
    assert_int_equal(tensor_elements(0, NULL), 1);
    assert_int_equal(tensor_elements(3, (int64_t[]){3, 0, 5}), 0);
    assert_int_equal(tensor_elements(2, (int64_t[]){3, 5}), 15);
    assert_int_equal(tensor_elements(2, (int64_t[]){INT64_MAX, 1}), INT64_MAX);
    assert_int_equal(tensor_elements(2, (int64_t[]){INT64_MAX, 2}), -1);
    assert_int_equal(tensor_elements(2, (int64_t[]){2, -1}), -1);
}

static void shapes_are_printed_and_cut(void **state)
{
    (void)state;
    char text[8];
    assert_string_equal(shape_text(0, NULL, text, sizeof text), "[]");
    assert_string_equal(shape_text(2, (int64_t[]){1, 20}, text, sizeof text), "[1, 20]");
    assert_string_equal(shape_text(2, (int64_t[]){1, 200}, text, sizeof text), "[1, 200");
    assert_string_equal(shape_text(3, (int64_t[]){123456789, 200, 3}, text, sizeof text), "[123456");
}

static void memory_may_run_out_at_any_point(void **state)
{
    (void)state;
    const struct qr_config config = {.n_engram = 1,
                                     .engram_layers = {1},
                                     .engram_max_ngram = 4,
                                     .engram_n_heads = 2,
                                     .engram_vocab_size = 64,
                                     .engram_compressed_vocab_size = 320};
    int64_t live = alloc_live();
    for (int64_t n = 1, done = 0; !done; n++) {
        struct tensor_table t;
        struct engram_hash h;
        char name[20];
        bool fresh, all = true;
        qr_error err = {0};
        tensor_table_init(&t);
        alloc_fault_at(n, 0);
        for (int i = 0; i < 3000 && all; i++) {
            snprintf(name, sizeof name, "%06d", i);
            all = tensor_table_intern(&t, name, 6, &fresh) == i;
        }
        qr_status st = engram_hash_make(&config, 2, &h, &err);
        done = all && st == QR_OK;
        alloc_fault_at(0, 0);
        for (size_t i = 0; i < t.count; i++) { /* what was taken in is whole */
            snprintf(name, sizeof name, "%06zu", i);
            assert_int_equal(tensor_table_find(&t, name, 6), i);
        }
        assert_true(st == QR_OK || (st == QR_NO_MEMORY && err.message[0]));
        engram_hash_free(&h);
        tensor_table_free(&t);
        assert_int_equal(alloc_live(), live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_whose_hashes_collide_stay_apart),
        cmocka_unit_test(element_counts_that_overflow_are_seen),
        cmocka_unit_test(shapes_are_printed_and_cut),
        fault_test(memory_may_run_out_at_any_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
