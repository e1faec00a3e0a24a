/* Model folders: which are opened, which are refused, and how they are compared with a list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_check.h"
#include "checkpoint/safetensors_write.h"
#include "support/scratch.h"
#include "support/support.h"

static void put_text(const char *name, const char *text) { scratch_write(scratch_path(scratch, name), text, strlen(text)); }

/* A shard of U8 tensors of two bytes each; names separated by spaces. */
static void put_shard(const char *file, const char *names)
{
    static const int64_t shape[2] = {1, 2};
    char copy[400];
    char stored[8][64];
    struct tensor_view views[8];
    int n = 0;
    qr_error err = {0};
    snprintf(copy, sizeof copy, "%s", names);
    for (char *name = strtok(copy, " "); name; name = strtok(NULL, " ")) {
        snprintf(stored[n], sizeof stored[n], "%s", name);
        views[n] = (struct tensor_view){stored[n], DTYPE_U8, 2, shape, "\1\2", 2, 0};
        n++;
    }
    if (safetensors_save(scratch_path(scratch, file), views, n, NULL, 0, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void refused(const char *words)
{
    struct checkpoint *ck = NULL;
    qr_error err = {0};
    qr_status st = checkpoint_open(scratch, &ck, &err);
    if (st != QR_BAD_FILE || ck || !strstr(err.message, words))
        fail_msg("status %d, message \"%s\", wanted \"%s\"", st, err.message, words);
}

static struct checkpoint *opened(const char *path)
{
    struct checkpoint *ck = NULL;
    qr_error err = {0};
    if (checkpoint_open(path, &ck, &err) != QR_OK)
        fail_msg("%s", err.message);
    return ck;
}

static void put_good_folder(void)
{
    put_text("model.safetensors.index.json",
             "{\"metadata\": {\"total_size\": 8, \"more\": [{\"weight_map\": 1}, null]},"
             "\"weight_map\": {\"a\": \"one.st\", \"b\": \"two.st\", \"c\": \"one.st\"}, \"x\": [1]}");
    put_shard("one.st", "a c");
    put_shard("two.st", "b");
}

static void a_folder_of_shards_is_one_table(void **state)
{
    (void)state;
    put_good_folder();
    struct checkpoint *ck = opened(scratch);
    assert_int_equal(checkpoint_shards(ck), 2);
    assert_int_equal(checkpoint_count(ck), 3);
    assert_int_equal(checkpoint_bytes(ck), 6);
    const struct tensor_view *b = checkpoint_find(ck, "b"), *view;
    assert_int_equal(b->shard, 1);
    assert_non_null(strstr(checkpoint_shard_path(ck, b->shard), "two.st"));
    assert_memory_equal(b->data, "\1\2", 2);
    qr_error err = {0};
    assert_int_equal(checkpoint_get(ck, "d", &view, &err), QR_BAD_FILE);
    assert_non_null(strstr(err.message, "tensor d is missing"));
    checkpoint_close(ck);
}

static void a_single_file_needs_no_index(void **state)
{
    (void)state;
    char *other = scratch, *fresh = scratch_make();
    scratch = fresh;
    refused("holds neither");
    put_shard("model.safetensors", "x y");
    struct checkpoint *ck = opened(scratch);
    assert_int_equal(checkpoint_shards(ck), 1);
    assert_non_null(checkpoint_find(ck, "y"));
    checkpoint_close(ck);
    scratch = other;
    scratch_remove(fresh);
}

static void a_malformed_index_is_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "not valid JSON"},
        {"[]", "is an array, wanted an object"},
        {"7", "is a number, wanted an object"},
        {"{}", "has no weight_map"},
        {"{\"weight_map\": 3}", "weight_map is a number, wanted an object"},
        {"{\"weight_map\": []}", "weight_map is an array, wanted an object"},
        {"{\"weight_map\": {}, \"weight_map\": {}}", "weight_map occurs twice"},
        {"{\"weight_map\": {\"a\": 1}}", "weight_map: a is a number, wanted a file name"},
        {"{\"weight_map\": {\"a\": {}}}", "weight_map: a is an object, wanted a file name"},
        {"{\"weight_map\": {\"a\": \"one.st\", \"a\": \"one.st\"}}", "tensor a occurs twice"},
        {"{\"weight_map\": {\"\": \"one.st\"}}", "name is empty"},
        {"{\"weight_map\": {\"a\": \"\"}}", "a is in \"\", which is no file of the folder"},
        {"{\"weight_map\": {\"a\": \"/one.st\"}}", "no file of the folder"},
        {"{\"weight_map\": {\"a\": \"../one.st\"}}", "a is in \"../one.st\", which is no file of the folder"},
        {"{\"weight_map\": {\"a\": \"x/../../one.st\"}}", "no file of the folder"},
        {"{\"weight_map\": {\"a\": \"x/..\"}}", "no file of the folder"},
        {"{\"weight_map\": {\"a\": \"one.st\\u0000\"}}", "no file of the folder"},
        {"{\"weight_map\": {\"a\": \"absent.st\"}}", "absent.st: cannot open"},
        {"{\"weight_map\": {\"a\": \".\"}}", "not a regular file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text("model.safetensors.index.json", cases[i][0]);
        refused(cases[i][1]);
    }
}

/* A list of names that is searched from its end is slow when it is long and every name is new. */
static void an_index_of_very_many_files_is_refused(void **state)
{
    struct buffer index = {0};
    (void)state;
    buffer_printf(&index, "{\"weight_map\": {\"a\": \"one.st\"");
    for (int i = 0; i < 5000; i++)
        buffer_printf(&index, ", \"t%d\": \"f%d\"", i, i);
    assert_true(buffer_printf(&index, "}}"));
    put_text("model.safetensors.index.json", index.data);
    refused("names more than 4096 files");
    buffer_free(&index);
}

static void a_tensor_elsewhere_than_mapped_is_refused(void **state)
{
    (void)state;
    put_good_folder();
    put_shard("two.st", "b c"); /* c is mapped to one.st, which holds it too */
    refused("two.st: holds tensor c, which the index places in one.st");
    put_good_folder();
    put_shard("two.st", "b d");
    refused("two.st: tensor d is not listed by the index");
}

static void file_names_that_contain_dots_are_fine(void **state)
{
    (void)state;
    mkdir(scratch_path(scratch, "..sub"), 0755);
    put_shard("..sub/..x..", "a");
    put_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"..sub/..x..\"}}");
    checkpoint_close(opened(scratch));
}

static const struct tensor_spec wanted[] = {
    {.name = "a", .dtype = DTYPE_U8, .rank = 2, .shape = {1, 2}},
    {.name = "b", .dtype = DTYPE_I8, .rank = 2, .shape = {1, 2}}, /* I8 takes U8 */
    {.name = "spare", .dtype = DTYPE_F32, .rank = 1, .shape = {7}, .optional = true},
    {.name = "c", .dtype = DTYPE_U8, .rank = 2, .shape = {1, 2}},
};

static void expect(const struct tensor_spec *specs, int64_t n, const char *words)
{
    struct checkpoint *ck = opened(scratch);
    qr_error err = {0};
    qr_status st = checkpoint_expect(ck, specs, n, &err);
    if (words ? st != QR_BAD_FILE || !strstr(err.message, words) : st != QR_OK)
        fail_msg("status %d, message \"%s\", wanted \"%s\"", st, err.message, words ? words : "success");
    checkpoint_close(ck);
}

static void a_folder_must_hold_exactly_the_list(void **state)
{
    (void)state;
    struct tensor_spec other[6];
    put_good_folder();
    expect(wanted, 4, NULL);
    expect(wanted, 3, "tensor c is not expected (first of 1)");
    memcpy(other, wanted, sizeof wanted);
    other[4] = (struct tensor_spec){.name = "d", .dtype = DTYPE_U8};
    other[5] = (struct tensor_spec){.name = "e", .dtype = DTYPE_U8};
    expect(other, 6, "tensor d is missing (first of 2)");
    other[0].name = "aa";
    expect(other, 4, "tensor aa is missing (first of 1) and tensor a is not expected (first of 1)");
    other[0] = wanted[0];
    other[0].shape[1] = 3;
    expect(other, 4, "one.st: tensor a: found U8 of shape [1, 2], wanted U8 of shape [1, 3]");
    other[0].rank = 1;
    expect(other, 4, "found U8 of shape [1, 2], wanted U8 of shape [1]");
    other[0] = wanted[0];
    other[0].dtype = DTYPE_F8_E8M0;
    expect(other, 4, "tensor a: found U8 of shape [1, 2], wanted F8_E8M0");
    other[0] = wanted[0];
    other[3].optional = true; /* optional, but of the wrong shape when there */
    other[3].shape[0] = 9;
    expect(other, 4, "tensor c: found");
}

static void a_listed_tensor_that_no_shard_holds_is_missing(void **state)
{
    (void)state;
    put_good_folder();
    put_shard("one.st", "a");
    expect(wanted, 4, "tensor c is missing (first of 1)");
    struct checkpoint *ck = opened(scratch);
    assert_null(checkpoint_find(ck, "c"));
    checkpoint_close(ck);
}

/* v4-model.md 2.1 (a): wo_a as BF16, its scale still in the index. */
static void a_dequantized_weight_needs_no_scale(void **state)
{
    (void)state;
    static const int64_t shape[2] = {2, 2};
    const struct tensor_view weight = {"wo_a.weight", DTYPE_BF16, 2, shape, "\0\0\0\0\0\0\0", 8, 0};
    struct tensor_spec specs[2] = {
        {.name = "wo_a.weight", .dtype = DTYPE_F8_E4M3, .rank = 2, .shape = {2, 2}, .or_bf16 = true},
        {.name = "wo_a.scale", .dtype = DTYPE_F8_E8M0, .rank = 2, .shape = {1, 1}},
    };
    qr_error err = {0};
    put_text("model.safetensors.index.json", "{\"weight_map\": {\"wo_a.weight\": \"s\", \"wo_a.scale\": \"s\"}}");
    assert_int_equal(safetensors_save(scratch_path(scratch, "s"), &weight, 1, NULL, 0, &err), QR_OK);
    expect(specs, 2, NULL);
    put_text("model.safetensors.index.json", "{\"weight_map\": {\"wo_a.weight\": \"s\"}}");
    expect(specs, 2, NULL);
    specs[0].or_bf16 = false;
    expect(specs, 2, "found BF16");
}

static void count_kind(void *user, enum mismatch kind, const struct tensor_spec *spec, const struct tensor_view *view)
{
    int *counts = user;
    counts[kind]++;
    assert_true((kind == MISMATCH_UNEXPECTED) == !spec);
    assert_true((kind == MISMATCH_MISSING) == !view);
}

static void all_differences_can_be_listed(void **state)
{
    (void)state;
    struct tensor_spec other[4];
    int counts[MISMATCH_KINDS] = {0};
    struct checkpoint_diff diff;
    qr_error err = {0};
    put_good_folder();
    memcpy(other, wanted, sizeof wanted);
    other[0].dtype = DTYPE_F32;
    other[1].shape[0] = 4;
    other[3].name = "d";
    struct checkpoint *ck = opened(scratch);
    assert_int_equal(checkpoint_compare(ck, other, 4, count_kind, counts, &diff, &err), QR_OK);
    for (int kind = 0; kind < MISMATCH_KINDS; kind++) {
        assert_int_equal(counts[kind], 1);
        assert_int_equal(diff.count[kind], 1);
    }
    assert_int_equal(diff.first[MISMATCH_DTYPE], 0);
    assert_int_equal(diff.first[MISMATCH_SHAPE], 1);
    assert_int_equal(diff.first[MISMATCH_MISSING], 3);
    assert_string_equal(checkpoint_at(ck, diff.first[MISMATCH_UNEXPECTED])->name, "c");
    checkpoint_close(ck);
}

static void values_that_no_weight_may_hold_are_found(void **state)
{
    (void)state;
    static const int64_t shape[1] = {3};
    const uint8_t scales[3] = {0, 254, 255}, codes[3] = {0x7E, 0xFE, 0xFF};
    const uint16_t half[3] = {0x7F7F, 0xFF7F, 0xFF80};
    const uint32_t words[3] = {0x7F7FFFFF, 0xFF7FFFFF, 0x7FC00000};
    const struct tensor_view views[4] = {{"s", DTYPE_F8_E8M0, 1, shape, scales, 3, 0},
                                         {"c", DTYPE_F8_E4M3, 1, shape, codes, 3, 0},
                                         {"h", DTYPE_BF16, 1, shape, half, 6, 0},
                                         {"w", DTYPE_F32, 1, shape, words, 12, 0}};
    for (int i = 0; i < 4; i++) {
        qr_error err = {0};
        assert_int_equal(tensor_check_values("f", &views[i], 0, 2, &err), QR_OK);
        assert_int_equal(tensor_check_values("f", &views[i], 1, 2, &err), QR_NUMERIC);
        assert_non_null(strstr(err.message, "at index 2"));
        assert_non_null(strstr(err.message, views[i].name));
    }
}

static void the_golden_models_open(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        const char *tensor;
        int64_t rows, columns;
    } models[] = {{"tests/golden/v41/spec-13.1/model", "layers.0.attn.wq_b.weight", 256, 32},
                  {"tests/golden/v41/wide/model", NULL, 0, 0},
                  {"tests/golden/v41/pad/model", NULL, 0, 0},
                  {"tests/golden/v4/tiny/model", NULL, 0, 0},
                  {"tests/golden/v4/fp8exp/model", NULL, 0, 0},
                  {"tests/golden/v4/wide/model", NULL, 0, 0}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct checkpoint *ck = opened(source_path(models[i].path));
        for (int64_t t = 0; t < checkpoint_count(ck); t++) {
            const struct tensor_view *view = checkpoint_at(ck, t);
            qr_error err = {0};
            assert_int_not_equal(view->dtype, DTYPE_COUNT);
            assert_ptr_equal(checkpoint_find(ck, view->name), view);
            assert_int_equal((uintptr_t)view->data % dtype_size(view->dtype), 0);
            if (tensor_check_values(models[i].path, view, 0, tensor_elements(view->rank, view->shape), &err) != QR_OK)
                fail_msg("%s", err.message);
        }
        if (models[i].tensor) {
            const struct tensor_view *view = checkpoint_find(ck, models[i].tensor);
            assert_int_equal(view->shape[0], models[i].rows);
            assert_int_equal(view->shape[1], models[i].columns);
        }
        checkpoint_close(ck);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    put_good_folder();
    int64_t live = alloc_live();
    bool done = false;
    for (int64_t n = 1; !done; n++) {
        struct checkpoint *ck = NULL;
        qr_error err = {0};
        alloc_fault_at(n, n % 2);
        qr_status st = checkpoint_open(scratch, &ck, &err);
        if (st == QR_OK)
            st = checkpoint_expect(ck, wanted, 4, &err);
        done = st == QR_OK;
        alloc_fault_at(0, 0);
        assert_true(done || (st == QR_NO_MEMORY && err.message[0]));
        checkpoint_close(ck);
        assert_int_equal(alloc_live(), live);
        assert_true(n < 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_of_shards_is_one_table),
        cmocka_unit_test(a_single_file_needs_no_index),
        cmocka_unit_test(a_malformed_index_is_refused),
        cmocka_unit_test(an_index_of_very_many_files_is_refused),
        cmocka_unit_test(a_tensor_elsewhere_than_mapped_is_refused),
        cmocka_unit_test(file_names_that_contain_dots_are_fine),
        cmocka_unit_test(a_folder_must_hold_exactly_the_list),
        cmocka_unit_test(a_listed_tensor_that_no_shard_holds_is_missing),
        cmocka_unit_test(a_dequantized_weight_needs_no_scale),
        cmocka_unit_test(all_differences_can_be_listed),
        cmocka_unit_test(values_that_no_weight_may_hold_are_found),
        cmocka_unit_test(the_golden_models_open),
        fault_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
