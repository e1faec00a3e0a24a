#define _GNU_SOURCE
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/jsonl.h"

static FILE *file_of(const char *text, size_t n)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    rewind(f);
    return f;
}

static void good_lines_are_read_and_bad_ones_named(void **state)
{
    static const char text[] = "{\"a\":1}\n\n[1]\r\n{\"a\":\n {\"a\":2} \r\n\xFF\n{\"a\":3}";
    static const int good[] = {1, 0, 0, 0, 2, 0, 3};
    struct jsonl_reader r;
    struct json_document *doc;
    FILE *f = file_of(text, sizeof text - 1);
    (void)state;
    jsonl_open(&r, f, "some file");
    for (int i = 0; i < 7; i++) {
        qr_error err = {0};
        int64_t a;
        char where[32];
        qr_status st = jsonl_next(&r, &doc, &err);
        assert_int_equal(r.number, i + 1);
        if (good[i]) {
            assert_int_equal(st, QR_OK);
            assert_true(json_int64(json_get(json_root(doc), "a"), &a));
            assert_int_equal(a, good[i]);
            json_close(doc);
            continue;
        }
        assert_int_equal(st, QR_BAD_REQUEST);
        assert_int_equal(err.status, QR_BAD_REQUEST);
        assert_null(doc);
        snprintf(where, sizeof where, "some file line %d: ", i + 1);
        assert_int_equal(strncmp(err.message, where, strlen(where)), 0);
    }
    assert_int_equal(jsonl_next(&r, &doc, NULL), QR_OK);
    assert_null(doc);
    jsonl_close(&r);
    fclose(f);
}

static void lines_may_have_any_length(void **state)
{
    (void)state;
    /* Around the size of the parts that a line is read in. */
    for (size_t n = 4080; n < 4110; n++) {
        struct buffer text = {0};
        struct jsonl_reader r;
        struct json_document *doc;
        buffer_puts(&text, "{\"t\":\"");
        while (text.length < n)
            buffer_puts(&text, "x");
        buffer_puts(&text, "\"}\n{\"t\":\"y\"}\n");
        FILE *f = file_of(text.data, text.length);
        jsonl_open(&r, f, "lines");
        assert_int_equal(jsonl_next(&r, &doc, NULL), QR_OK);
        assert_int_equal(json_get(json_root(doc), "t")->length, n - 6);
        json_close(doc);
        assert_int_equal(jsonl_next(&r, &doc, NULL), QR_OK);
        assert_true(json_equals(json_get(json_root(doc), "t"), "y"));
        json_close(doc);
        assert_int_equal(jsonl_next(&r, &doc, NULL), QR_OK);
        assert_null(doc);
        jsonl_close(&r);
        fclose(f);
        buffer_free(&text);
    }
}

static void an_unreadable_file_is_no_end(void **state)
{
    struct jsonl_reader r;
    struct json_document *doc;
    qr_error err = {0};
    FILE *f = fopen("/", "r"); /* a folder opens for reading and cannot be read */
    (void)state;
    assert_non_null(f);
    jsonl_open(&r, f, "/");
    assert_int_equal(jsonl_next(&r, &doc, &err), QR_IO);
    assert_non_null(strstr(err.message, "cannot read line 1"));
    jsonl_close(&r);
    fclose(f);
}

static void a_file_without_an_end_is_not_read_for_ever(void **state)
{
    struct jsonl_reader r;
    struct json_document *doc;
    qr_error err = {0};
    FILE *f = fopen("/dev/zero", "r");
    (void)state;
    assert_non_null(f);
    jsonl_open(&r, f, "zeros");
    assert_int_equal(jsonl_next(&r, &doc, &err), QR_BAD_FILE);
    assert_string_equal(err.message, "zeros line 1: over 268435456 bytes, at most that many are read");
    jsonl_close(&r);
    fclose(f);
}

static void a_line_without_memory_is_a_status(void **state)
{
    static const char text[] = "{\"a\":1}\n";
    (void)state;
    if (!alloc_fault_supported())
        return;
    for (int64_t n = 1;; n++) {
        struct jsonl_reader r;
        struct json_document *doc;
        qr_error err = {0};
        FILE *f = file_of(text, sizeof text - 1);
        int64_t live = alloc_live();
        jsonl_open(&r, f, "lines");
        alloc_fault_at(n, 0);
        qr_status st = jsonl_next(&r, &doc, &err);
        alloc_fault_at(0, 0);
        json_close(doc);
        jsonl_close(&r);
        fclose(f);
        assert_int_equal(alloc_live(), live);
        if (st == QR_OK)
            break;
        assert_int_equal(st, QR_NO_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_lines_are_read_and_bad_ones_named),
        cmocka_unit_test(lines_may_have_any_length),
        cmocka_unit_test(an_unreadable_file_is_no_end),
        cmocka_unit_test(a_file_without_an_end_is_not_read_for_ever),
        cmocka_unit_test(a_line_without_memory_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
