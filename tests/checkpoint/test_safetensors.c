/* The container: what is read, and what is refused with which sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_write.h"
#include "support/scratch.h"
#include "support/support.h"

/* A file of this header (unpadded) and `data_size` bytes 0, 1, 2 ... */
static const char *container(const char *header, size_t data_size)
{
    size_t n = strlen(header);
    uint8_t *file = malloc(8 + n + data_size + 1);
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(file + 8, header, n);
    for (size_t i = 0; i < data_size; i++)
        file[8 + n + i] = (uint8_t)i;
    const char *path = scratch_path(scratch, "a.safetensors");
    scratch_write(path, file, 8 + n + data_size);
    free(file);
    return path;
}

static void refused(const char *path, const char *words)
{
    struct safetensors *f = NULL;
    qr_error err = {0};
    qr_status st = safetensors_open(path, &f, &err);
    if (st != QR_BAD_FILE || f || !strstr(err.message, words) || !strstr(err.message, path))
        fail_msg("status %d, message \"%s\", wanted \"%s\"", st, err.message, words);
}

#define T(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static void tensors_are_read_where_they_lie(void **state)
{
    (void)state;
    const char *path =
        container("{\"__metadata__\":{\"format\":\"pt\",\"note\":\"a \\u00e9\"}," T("b", "F32", "[2,1]", 8, 16) "," T(
                      "a", "I64", "[]", 0, 8) "," T("none", "BF16", "[0,7]", 16, 16) "," T("c.d", "F8_E4M3", "[3]", 16,
                                                                                           19) "}  \n",
                  19);
    struct safetensors *f;
    qr_error err = {0};
    if (safetensors_open(path, &f, &err) != QR_OK)
        fail_msg("%s", err.message);
    assert_int_equal(safetensors_count(f), 4);
    assert_string_equal(safetensors_at(f, 0)->name, "b");
    const struct tensor_view *a = safetensors_find(f, "a"), *b = safetensors_find(f, "b"), *c;
    assert_int_equal(a->rank, 0);
    assert_int_equal(a->bytes, 8);
    assert_true(*(const int64_t *)a->data == 0x0706050403020100);
    assert_int_equal(b->dtype, DTYPE_F32);
    assert_int_equal(b->rank, 2);
    assert_int_equal(b->shape[0], 2);
    assert_int_equal(b->shape[1], 1);
    assert_int_equal(((const uint32_t *)b->data)[1], 0x0F0E0D0C);
    assert_int_equal(safetensors_get(f, "c.d", &c, &err), QR_OK);
    assert_int_equal(((const uint8_t *)c->data)[2], 18);
    assert_non_null(safetensors_find(f, "none")->data);
    assert_null(safetensors_find(f, "c"));
    assert_null(safetensors_find(f, "c.dd"));
    assert_int_equal(safetensors_get(f, "c", &c, &err), QR_BAD_FILE);
    assert_non_null(strstr(err.message, "tensor c is missing"));
    assert_string_equal(safetensors_metadata(f, "format"), "pt");
    assert_string_equal(safetensors_metadata(f, "note"), "a \xc3\xa9");
    assert_null(safetensors_metadata(f, "absent"));
    assert_int_equal(safetensors_metadata_count(f), 2);
    safetensors_close(f);
}

static void unaligned_tensors_can_be_read_by_element(void **state)
{
    (void)state;
    for (int pad = 0; pad < 8; pad++) {
        char header[300] =
            "{" T("a", "U8", "[1]", 0, 1) "," T("b", "F64", "[1]", 1, 9) "," T("c", "BF16", "[1]", 9, 11) "}";
        memset(header + strlen(header), ' ', (size_t)pad);
        struct safetensors *f;
        qr_error err = {0};
        assert_int_equal(safetensors_open(container(header, 11), &f, &err), QR_OK);
        const struct tensor_view *b = safetensors_find(f, "b"), *c = safetensors_find(f, "c");
        uint64_t bits;
        memcpy(&bits, b->data, 8);
        assert_true(bits == 0x0807060504030201);
        assert_int_equal((uintptr_t)b->data % 8, 0);
        assert_int_equal((uintptr_t)c->data % 2, 0);
        assert_int_equal(*(const uint16_t *)c->data, 0x0A09);
        safetensors_close(f);
    }
}

static void f4_counts_bytes_whichever_way_the_file_counts(void **state)
{
    (void)state;
    const char *headers[] = {"{" T("w", "F4", "[2,6]", 0, 6) "}", "{" T("w", "F4", "[2,3]", 0, 6) "}"};
    for (int i = 0; i < 2; i++) {
        struct safetensors *f;
        qr_error err = {0};
        assert_int_equal(safetensors_open(container(headers[i], 6), &f, &err), QR_OK);
        assert_int_equal(safetensors_find(f, "w")->shape[1], 3);
        assert_int_equal(safetensors_find(f, "w")->bytes, 6);
        safetensors_close(f);
    }
}

static void files_cut_short_are_refused(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch, "short.safetensors");
    refused(scratch_path(scratch, "absent.safetensors"), "cannot open");
    scratch_write(path, "", 0);
    refused(path, "0 bytes");
    scratch_write(path, "\x08\0\0\0\0\0\0", 7);
    refused(path, "7 bytes");
    scratch_write(path, "\x09\0\0\0\0\0\0\0{}      ", 16);
    refused(path, "header of 9 bytes, the file holds 8");
    scratch_write(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    refused(path, "at most 100000000");
    scratch_write(path, "\0\0\0\0\0\0\0\0", 8);
    refused(path, "does not begin with {");
    refused(container("{" T("a", "U8", "[4]", 0, 4) "}", 3),
            "tensor a ends at data byte 4, the file holds 3 (truncated?)");
}

static void every_defect_has_its_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *words;
    } cases[] = {
        {"[]", 0, "does not begin with {"},
        {"{", 0, "not valid JSON"},
        {"{}}", 0, "not valid JSON"},
        {"{\"a\":1}", 0, "tensor a is a number, wanted an object"},
        {"{\"a\":null}", 0, "tensor a is null, wanted an object"},
        {"{\"a\":[]}", 0, "tensor a is an array, wanted an object"},
        {"{\"a\":{}}", 0, "tensor a has no dtype"},
        {"{\"\":{}}", 0, "name is empty"},
        {"{\"a\\u0000b\":{}}", 0, "holds a NUL"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, "tensor a has no data_offsets"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "tensor a has no shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\"}}", 1, "dtype occurs twice"},
        {"{\"a\":{\"type\":\"U8\"}}", 1, "field \"type\" is not known"},
        {"{\"a\":{\"dtype\":5}}", 1, "dtype holds a number, wanted a string"},
        {"{\"a\":{\"dtype\":{}}}", 1, "dtype holds an object, wanted a string"},
        {"{\"a\":{\"dtype\":[]}}", 1, "dtype holds an array, wanted a string"},
        {"{\"a\":{\"shape\":3}}", 1, "shape holds a number, wanted an array"},
        {"{\"a\":{\"shape\":[\"3\"]}}", 1, "shape holds a string, wanted a whole number"},
        {"{\"a\":{\"shape\":[[3]]}}", 1, "shape holds an array, wanted a whole number"},
        {"{\"a\":{\"shape\":[true]}}", 1, "shape holds true, wanted a whole number"},
        {"{" T("a", "U8", "[-1]", 0, 1) "}", 1, "shape holds -1, wanted a whole number"},
        {"{" T("a", "U8", "[1.0]", 0, 1) "}", 1, "shape holds 1.0, wanted a whole number"},
        {"{" T("a", "U8", "[1e0]", 0, 1) "}", 1, "shape holds 1e0, wanted a whole number"},
        {"{" T("a", "U8", "[9223372036854775808]", 0, 1) "}", 1, "wanted a whole number below 2^63"},
        {"{" T("a", "U8", "[99999999999999999999999]", 0, 1) "}", 1, "wanted a whole number below 2^63"},
        {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, "more than 8 dimensions"},
        {"{" T("a", "U8", "[4294967296,4294967296]", 0, 1) "}", 1, "overflows"},
        {"{" T("a", "F64", "[2305843009213693952]", 0, 1) "}", 1, "overflows"},
        {"{" T("a", "X9", "[1]", 0, 1) "}", 1, "dtype \"X9\" is not known"},
        {"{" T("a", "U8", "[1]", 1, 0) "}", 1, "run backwards"},
        {"{" T("a", "U8", "[2]", 0, 1) "}", 1, "data_offsets hold 1 bytes, U8 of shape [2] wants 2"},
        {"{" T("a", "BF16", "[1]", 0, 1) "}", 1, "data_offsets hold 1 bytes, BF16 of shape [1] wants 2"},
        {"{" T("a", "F4", "[3]", 0, 1) "}", 1, "data_offsets hold 1 bytes, F4 of shape [3] wants 3"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "data_offsets holds 1 numbers, wanted 2"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "data_offsets holds more than 2"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,18446744073709551615]}}", 1, "below 2^63"},
        {"{" T("a", "U8", "[1]", 0, 1) "," T("a", "U8", "[1]", 1, 2) "}", 2, "tensor a occurs twice"},
        {"{" T("a", "U8", "[2]", 0, 2) "," T("b", "U8", "[2]", 1, 3) "}", 3,
         "tensor b begins at data byte 1, a ends at 2: they overlap"},
        {"{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 0, 4) "}", 4, "they overlap"},
        {"{" T("a", "U8", "[4]", 0, 4) "," T("z", "U8", "[0]", 2, 2) "}", 4, "they overlap"},
        {"{" T("b", "U8", "[1]", 2, 3) "," T("a", "U8", "[1]", 0, 1) "}", 3,
         "tensor b begins at data byte 2, a ends at 1: a gap"},
        {"{" T("a", "U8", "[1]", 1, 2) "}", 2, "tensor a begins at data byte 1, nothing ends at 0: a gap"},
        {"{" T("a", "U8", "[1]", 0, 1) "}", 2, "the tensors end at data byte 1, the file holds 2"},
        {"{}", 1, "the tensors end at data byte 0, the file holds 1"},
        {"{\"__metadata__\":3}", 0, "__metadata__ is a number, wanted an object"},
        {"{\"__metadata__\":{\"k\":3}}", 0, "__metadata__: k is a number, wanted a string"},
        {"{\"__metadata__\":{\"k\":[]}}", 0, "__metadata__: k is an array, wanted a string"},
        {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "__metadata__: k occurs twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ occurs twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(container(cases[i].header, cases[i].data), cases[i].words);
}

static void a_long_name_is_refused_without_harm(void **state)
{
    (void)state;
    char header[5000] = "{\"";
    memset(header + 2, 'x', 4000);
    strcpy(header + 4002, "\":7}");
    refused(container(header, 0), "tensor xxx");
}

static void what_is_written_is_read_back(void **state)
{
    (void)state;
    static const uint8_t bytes[3] = {1, 2, 3};
    static const double wide[2] = {0.5, -3};
    static const uint16_t half[2] = {0x3F80, 0x4000};
    static const int64_t shapes[][2] = {{3}, {2, 1}, {1, 2}, {0, 5}, {1, 3}};
    const struct tensor_view tensors[] = {
        {"first", DTYPE_U8, 1, shapes[0], bytes, 3, 0},  {"second \"q\"", DTYPE_F64, 2, shapes[1], wide, 16, 0},
        {"third", DTYPE_BF16, 2, shapes[2], half, 4, 0}, {"empty", DTYPE_I32, 2, shapes[3], NULL, 0, 0},
        {"fourth", DTYPE_F4, 2, shapes[4], bytes, 3, 0}, {"scalar", DTYPE_BOOL, 0, shapes[0], bytes, 1, 0},
    };
    static const char *const metadata[][2] = {{"op", "norm"}, {"params", "{\"a\": \"\\n\"}"}};
    const char *path = scratch_path(scratch, "w.safetensors");
    struct safetensors *f;
    qr_error err = {0};
    assert_int_equal(safetensors_save(path, tensors, 6, metadata, 2, &err), QR_OK);
    if (safetensors_open(path, &f, &err) != QR_OK)
        fail_msg("%s", err.message);
    assert_int_equal(safetensors_count(f), 6);
    assert_string_equal(safetensors_metadata(f, "params"), metadata[1][1]);
    for (int i = 0; i < 6; i++) {
        const struct tensor_view *v = safetensors_find(f, tensors[i].name);
        assert_non_null(v);
        assert_int_equal(v->dtype, tensors[i].dtype);
        assert_int_equal(v->rank, tensors[i].rank);
        assert_int_equal(v->bytes, tensors[i].bytes);
        for (int d = 0; d < v->rank; d++)
            assert_int_equal(v->shape[d], tensors[i].shape[d]);
        if (v->bytes)
            assert_memory_equal(v->data, tensors[i].data, v->bytes);
    }
    safetensors_close(f);
}

static void tensors_never_put_read_as_zeros_and_parts_arrive_in_any_order(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch, "sparse.safetensors");
    const int64_t huge[2] = {3, (int64_t)1 << 30}, small[1] = {4};
    struct safetensors_writer *w;
    struct safetensors *f;
    qr_error err = {0};
    int64_t a, b;
    assert_int_equal(safetensors_create(path, &w, &err), QR_OK);
    assert_int_equal(safetensors_declare(w, "huge", DTYPE_U8, 2, huge, &a, &err), QR_OK);
    assert_int_equal(safetensors_declare(w, "small", DTYPE_I16, 1, small, &b, &err), QR_OK);
    assert_int_equal(safetensors_declare(w, "small", DTYPE_I16, 1, small, NULL, &err), QR_BAD_ARGUMENT);
    const int64_t too_much[2] = {INT64_MAX, 2};
    assert_int_equal(safetensors_declare(w, "x", DTYPE_U8, 2, too_much, NULL, &err), QR_BAD_ARGUMENT);
    assert_int_equal(safetensors_begin(w, &err), QR_OK);
    assert_int_equal(safetensors_put(w, b, 4, "\x05\x06\x07\x08", 4, &err), QR_OK);
    assert_int_equal(safetensors_put(w, b, 0, "\x01\x02\x03\x04", 4, &err), QR_OK);
    assert_int_equal(safetensors_put(w, a, huge[0] * huge[1] - 1, "\x09", 1, &err), QR_OK);
    assert_int_equal(safetensors_put(w, b, 7, "ab", 2, &err), QR_BAD_ARGUMENT);
    assert_int_equal(safetensors_put(w, b, UINT64_MAX, "ab", 2, &err), QR_BAD_ARGUMENT);
    assert_int_equal(safetensors_end(w, &err), QR_OK);
    safetensors_discard(w);
    assert_int_equal(safetensors_open(path, &f, &err), QR_OK);
    const struct tensor_view *v = safetensors_find(f, "huge");
    const uint8_t *data = v->data;
    assert_int_equal(data[0], 0);
    assert_int_equal(data[v->bytes - 1], 9);
    assert_memory_equal(safetensors_find(f, "small")->data, "\1\2\3\4\5\6\7\10", 8);
    safetensors_close(f);
}

static void an_abandoned_file_leaves_nothing_behind(void **state)
{
    (void)state;
    const char *path = scratch_path(scratch, "none/w.safetensors");
    struct safetensors_writer *w;
    qr_error err = {0};
    assert_int_equal(safetensors_create(path, &w, &err), QR_IO);
    assert_null(w);
    assert_int_equal(safetensors_create(scratch_path(scratch, "gone.safetensors"), &w, &err), QR_OK);
    safetensors_discard(w);
    refused(scratch_path(scratch, "gone.safetensors"), "cannot open");
}

/* Reads and writes with each allocation failing in turn: a status, no leak. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    char header[6000] = "{\"__metadata__\":{\"k\":\"v\"}";
    for (int i = 0; i < 70; i++)
        sprintf(header + strlen(header), ",\"t%d\":{\"dtype\":\"I16\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i,
                138 - 2 * i, 140 - 2 * i);
    strcat(header, "}");
    const char *path = container(header, 140), *out = scratch_path(scratch, "out.safetensors");
    int64_t live = alloc_live();
    bool done = false;
    for (int64_t n = 1; !done; n++) {
        struct safetensors *f = NULL;
        qr_error err = {0};
        alloc_fault_at(n, 0);
        qr_status st = safetensors_open(path, &f, &err);
        if (st == QR_OK)
            st = safetensors_save(out, safetensors_at(f, 0), 70, NULL, 0, &err);
        done = st == QR_OK;
        alloc_fault_at(0, 0);
        assert_true(done || st == QR_NO_MEMORY);
        assert_true(done || err.message[0]);
        safetensors_close(f);
        assert_int_equal(alloc_live(), live);
        assert_true(n < 10000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_read_where_they_lie),
        cmocka_unit_test(unaligned_tensors_can_be_read_by_element),
        cmocka_unit_test(f4_counts_bytes_whichever_way_the_file_counts),
        cmocka_unit_test(files_cut_short_are_refused),
        cmocka_unit_test(every_defect_has_its_sentence),
        cmocka_unit_test(a_long_name_is_refused_without_harm),
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(tensors_never_put_read_as_zeros_and_parts_arrive_in_any_order),
        cmocka_unit_test(an_abandoned_file_leaves_nothing_behind),
        fault_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
