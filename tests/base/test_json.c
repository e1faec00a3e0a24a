#include "support/support.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "base/json.h"

static struct json_document *parse(const char *text)
{
    struct json_document *doc;
    qr_error err = {0};
    if (json_parse(text, strlen(text), "test", true, &doc, &err) != QR_OK)
        fail_msg("%s: %s", text, err.message);
    return doc;
}

static void refused(const char *text, size_t size, const char *why)
{
    struct json_document *doc;
    qr_error err = {0};
    if (json_parse(text, size, "test", true, &doc, &err) != QR_BAD_FILE)
        fail_msg("accepted: %s", text);
    assert_null(doc);
    assert_int_equal(err.status, QR_BAD_FILE);
    if (strncmp(err.message, "test: ", 6) != 0 || !strstr(err.message, why) || strchr(err.message, '\n'))
        fail_msg("%s: message is \"%s\", wanted \"%s\"", text, err.message, why);
}

static void a_tree_keeps_order_number_text_and_kinds(void **state)
{
    (void)state;
    struct json_document *doc = parse(" {\"b\": 1.50e+2, \"a\": [true, false, null, \"x\"], \"\": -0} ");
    const struct json *root = json_root(doc), *v = root->child;
    assert_int_equal(root->kind, JSON_OBJECT);
    assert_int_equal(root->count, 3);
    assert_string_equal(v->key, "b");
    assert_int_equal(v->kind, JSON_NUMBER);
    assert_string_equal(v->text, "1.50e+2");
    v = v->next;
    assert_string_equal(v->key, "a");
    assert_int_equal(v->count, 4);
    assert_true(json_at(v, 0)->boolean);
    assert_false(json_at(v, 1)->boolean);
    assert_int_equal(json_at(v, 2)->kind, JSON_NULL);
    assert_true(json_equals(json_at(v, 3), "x"));
    assert_null(json_at(v, 4));
    assert_null(json_at(v, 0)->key);
    assert_int_equal(v->next->key_length, 0);
    assert_string_equal(v->next->text, "-0");
    assert_null(v->next->next);
    assert_ptr_equal(json_get(root, "a"), v);
    assert_null(json_get(root, "c"));
    assert_null(json_get(v, "a"));
    assert_null(json_get(NULL, "a"));
    json_close(doc);
}

static void any_value_may_be_the_document(void **state)
{
    (void)state;
    const char *const texts[] = {"1", "-1.5", "\"\"", "null", "true", "[]", "{}", " \t\r\n0\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        json_close(parse(texts[i]));
}

static void escapes_become_the_characters_they_name(void **state)
{
    (void)state;
    struct json_document *doc =
        parse("[\"a\\u0000b\", \"\\ud83d\\ude00\", \"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u00e9\\uFFFF\", \"\\\\ud800\"]");
    const struct json *root = json_root(doc);
    assert_int_equal(json_at(root, 0)->length, 3);
    assert_memory_equal(json_at(root, 0)->text, "a\0b", 4);
    assert_string_equal(json_at(root, 1)->text, "\xf0\x9f\x98\x80");
    assert_string_equal(json_at(root, 2)->text, "\"\\/\b\f\n\r\t");
    assert_string_equal(json_at(root, 3)->text, "\xc3\xa9\xef\xbf\xbf");
    assert_string_equal(json_at(root, 4)->text, "\\ud800");
    json_close(doc);
}

static void keys_are_unescaped_and_compared_whole(void **state)
{
    (void)state;
    struct json_document *doc = parse("{\"a\\u0000\": 1, \"\\u0061\": 2}");
    assert_string_equal(json_get(json_root(doc), "a")->text, "2");
    json_close(doc);
    refused("{\"a\": 1, \"\\u0061\": 2}", 21, "\"a\"");
}

static void a_lone_surrogate_is_refused(void **state)
{
    (void)state;
    const char *const texts[] = {"\"\\ud800\"",        "\"\\udfff\"",        "\"\\ud800x\"",
                                 "\"\\ud800\\n\"",     "\"\\ud800\\u0041\"", "\"\\ud800\\ud800\\udc00\"",
                                 "\"\\uDC00\\uD800\"", "{\"\\uDBFF\": 1}",   "\"\\\\\\ud83d\""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        refused(texts[i], strlen(texts[i]), "lone surrogate");
    refused("[\"0123456789\", \"\\udc00\"]", 24, "byte 16: lone surrogate");
}

static void invalid_utf8_is_refused(void **state)
{
    (void)state;
    const char *const texts[] = {"\"\x80\"",         "\"\xc0\xaf\"",         "\"\xc3\"",
                                 "\"\xe0\x80\x80\"", "\"\xed\xa0\x80\"",     "\"\xf0\x80\x80\x80\"",
                                 "\"\xe2\x82\"",     "\"\xf4\x90\x80\x80\"", "\"\xf5\x80\x80\x80\"",
                                 "\"\xff\"",         "\xef\xbb\xbf{",        "\"\xe2\x82"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        refused(texts[i], strlen(texts[i]), i == 10 ? "byte 0" : "byte 1: invalid UTF-8");
}

static void what_is_not_json_is_refused(void **state)
{
    (void)state;
    const char *const texts[] = {
        "",          " ",     "{",     "[",       "[1",         "{\"a\"",      "{\"a\":", "{\"a\":1",  "{} x",
        "1 2",       "[1,]",  "[,1]",  "{,}",     "{\"a\":1,}", "{a:1}",       "{1:1}",   "[1 2]",     "01",
        "-",         "1.",    ".5",    "+1",      "1e",         "0x10",        "NaN",     "Infinity",  "tru",
        "nul",       "\"a",   "'a'",   "\"\\x\"", "\"\\u12\"",  "\"\\u12G4\"", "\"\t\"",  "\"\n\"",    "[\v1]",
        "[1\f]",     "[1]\v", "/**/1", "\x01",    "]",          "[}",          "{]",      "[\"a\":1]", "{} {}",
        "truefalse", "\"\\",  "\"\\u"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        refused(texts[i], strlen(texts[i]), "byte ");
    refused("[1]\0", 4, "byte 3");
    refused("\"a\0b\"", 5, "byte 2");
}

static void errors_name_the_byte(void **state)
{
    (void)state;
    refused("[1, 2, x]", 9, "byte 7");
    refused("{\"a\": 1} }", 10, "byte 9");
    refused("{} \"a", 5, "trailing");
    refused("1\"", 2, "trailing");
    refused("\"a\"\"\\", 5, "byte 5");
    refused("[1, 2", 5, "byte 5");
}

static char *nested(int depth)
{
    char *text = malloc((size_t)depth * 2 + 1);
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    text[depth * 2] = 0;
    return text;
}

static void nesting_ends_at_512(void **state)
{
    (void)state;
    char *fits = nested(512), *too_deep = nested(513), *far_too_deep = nested(1000000);
    json_close(parse(fits));
    refused(too_deep, strlen(too_deep), "deeper than 512");
    refused(far_too_deep, strlen(far_too_deep), "deeper than 512");
    free(fits);
    free(too_deep);
    free(far_too_deep);
}

static void duplicate_keys_are_found_among_few_and_many(void **state)
{
    (void)state;
    refused("{\"x\": {\"k\": 1, \"j\": 2, \"k\": 3}}", 31, "\"k\"");
    struct json_document *doc;
    assert_int_equal(json_parse("{\"k\":1,\"k\":2}", 13, "test", false, &doc, NULL), QR_OK);
    assert_string_equal(json_get(json_root(doc), "k")->text, "2");
    json_close(doc);

    struct buffer b = {0};
    buffer_puts(&b, "{\"k0\": 0");
    for (int i = 1; i < 20000; i++)
        buffer_printf(&b, ", \"k%d\": %d", i, i);
    size_t unique = b.length;
    buffer_puts(&b, "}");
    json_close(parse(b.data));
    b.length = unique;
    buffer_puts(&b, ", \"k777\": 1}");
    refused(b.data, b.length, "\"k777\"");
    buffer_free(&b);
}

static void integers_are_exact_or_refused(void **state)
{
    (void)state;
    struct json_document *doc =
        parse("[0, -0, 9223372036854775807, -9223372036854775808, 9223372036854775808,"
              "-9223372036854775809, 18446744073709551615, 18446744073709551616, 1.0, 1e3, \"1\", -1]");
    const struct json *root = json_root(doc);
    static const bool fits_int64[] = {1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1};
    static const bool fits_uint64[] = {1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0};
    int64_t i = 0;
    uint64_t u = 0;
    for (size_t k = 0; k < root->count; k++) {
        assert_int_equal(json_int64(json_at(root, k), &i), fits_int64[k]);
        assert_int_equal(json_uint64(json_at(root, k), &u), fits_uint64[k]);
    }
    json_int64(json_at(root, 2), &i);
    assert_true(i == INT64_MAX);
    json_int64(json_at(root, 3), &i);
    assert_true(i == INT64_MIN);
    json_uint64(json_at(root, 6), &u);
    assert_true(u == UINT64_MAX);
    assert_false(json_int64(NULL, &i));
    json_close(doc);
}

static void doubles_are_finite_and_correctly_rounded(void **state)
{
    (void)state;
    struct json_document *doc = parse("[0.1, 1e3, -2.5E-3, 7, 1e400, -1e400, 1e-400, true]");
    const struct json *root = json_root(doc);
    static const double want[] = {0.1, 1e3, -2.5e-3, 7};
    double d;
    for (size_t k = 0; k < 4; k++) {
        assert_true(json_double(json_at(root, k), &d));
        assert_true(d == want[k]);
    }
    assert_false(json_double(json_at(root, 4), &d));
    assert_false(json_double(json_at(root, 5), &d));
    assert_true(json_double(json_at(root, 6), &d));
    assert_true(d == 0);
    assert_false(json_double(json_at(root, 7), &d));
    json_close(doc);
}

struct trace {
    struct buffer text;
    int left; /* events until one returns false */
};

static bool say(struct trace *t, const char *what, const char *text, size_t length)
{
    buffer_puts(&t->text, what);
    buffer_append(&t->text, text, length);
    return t->left-- > 0;
}
static bool say_null(void *u) { return say(u, "n", "", 0); }
static bool say_boolean(void *u, bool value) { return say(u, value ? "t" : "f", "", 0); }
static bool say_number(void *u, const char *text, size_t length) { return say(u, "#", text, length); }
static bool say_string(void *u, const char *text, size_t length) { return say(u, "'", text, length); }
static bool say_key(void *u, const char *text, size_t length) { return say(u, ".", text, length); }
static bool say_start_object(void *u) { return say(u, "{", "", 0); }
static bool say_end_object(void *u) { return say(u, "}", "", 0); }
static bool say_start_array(void *u) { return say(u, "[", "", 0); }
static bool say_end_array(void *u) { return say(u, "]", "", 0); }

static const struct json_events say_all = {say_null,         say_boolean,    say_number,      say_string,   say_key,
                                           say_start_object, say_end_object, say_start_array, say_end_array};

static void events_come_in_order_and_may_stop_the_scan(void **state)
{
    (void)state;
    const char *text = "{\"a\": [1, \"x\", null], \"b\": true}";
    for (int stop = 0; stop <= 10; stop++) {
        struct trace t = {.left = stop};
        qr_error err = {0};
        qr_status st = json_scan(text, strlen(text), "test", &say_all, &t, &err);
        assert_int_equal(st, stop == 10 ? QR_OK : QR_CANCELLED);
        assert_int_equal(err.message[0], 0);
        if (stop == 10)
            assert_string_equal(t.text.data, "{.a[#1'xn].bt}");
        buffer_free(&t.text);
    }
    struct json_events none = {0};
    assert_int_equal(json_scan(text, strlen(text), "test", &none, NULL, NULL), QR_OK);
}

static void what_is_written_reads_back(void **state)
{
    (void)state;
    for (int pretty = 0; pretty < 2; pretty++) {
        struct json_writer *w = json_writer_open(pretty);
        const char *text;
        size_t length;
        json_w_object(w);
        json_w_key(w, "s");
        json_w_string_n(w, "\"\\\n\x01\0\x7f\xc3\xa9", 8);
        json_w_key(w, "i");
        json_w_int(w, INT64_MIN);
        json_w_key(w, "u");
        json_w_uint(w, UINT64_MAX);
        json_w_key(w, "list");
        json_w_array(w);
        json_w_bool(w, true);
        json_w_null(w);
        json_w_raw(w, "{\"raw\":1}", 9);
        json_w_end_array(w);
        json_w_end_object(w);
        assert_int_equal(json_finish(w, &text, &length, NULL), QR_OK);
        assert_int_equal(length, strlen(text));
        struct json_document *doc = parse(text);
        const struct json *root = json_root(doc);
        assert_memory_equal(json_get(root, "s")->text, "\"\\\n\x01\0\x7f\xc3\xa9", 9);
        assert_string_equal(json_get(root, "i")->text, "-9223372036854775808");
        assert_string_equal(json_get(root, "u")->text, "18446744073709551615");
        assert_string_equal(json_get(json_at(json_get(root, "list"), 2), "raw")->text, "1");
        json_close(doc);
        assert_int_equal(strchr(text, '\n') != NULL, pretty);
        json_writer_close(w);
    }
}

static void a_member_is_a_key_and_a_value_and_null_where_json_has_none(void **state)
{
    (void)state;
    struct json_writer *w = json_writer_open(false);
    const char *text;
    size_t length;
    json_w_object(w);
    json_w_member_string(w, "s", "a\"b");
    json_w_member_string(w, "no_s", NULL);
    json_w_member_string_n(w, "n", "abc", 2);
    json_w_member_string_n(w, "empty", NULL, 0);
    json_w_member_int(w, "i", -7);
    json_w_member_uint(w, "u", UINT64_MAX);
    json_w_member_number(w, "d", 0.5);
    json_w_member_number(w, "nan", NAN);
    json_w_member_number(w, "inf", -INFINITY);
    json_w_member_bool(w, "b", true);
    json_w_member_null(w, "z");
    json_w_end_object(w);
    assert_int_equal(json_finish(w, &text, &length, NULL), QR_OK);
    assert_string_equal(text, "{\"s\":\"a\\\"b\",\"no_s\":null,\"n\":\"ab\",\"empty\":\"\",\"i\":-7,"
                              "\"u\":18446744073709551615,\"d\":0.5,\"nan\":null,\"inf\":null,\"b\":true,\"z\":null}");
    json_writer_close(w);
}

static void one_writer_writes_line_after_line(void **state)
{
    (void)state;
    struct json_writer *w = json_writer_open(false);
    for (int i = 0; i < 3; i++) {
        const char *text;
        size_t length;
        json_w_array(w);
        json_w_int(w, i);
        json_w_end_array(w);
        assert_int_equal(json_finish(w, &text, &length, NULL), QR_OK);
        assert_int_equal(length, 3);
        assert_int_equal(text[1], '0' + i);
        json_writer_reset(w);
    }
    json_writer_close(w);
}

static void what_cannot_be_written_is_reported(void **state)
{
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct json_writer *w = json_writer_open(false);
        qr_error err = {0};
        const char *text;
        size_t length;
        json_w_array(w);
        if (i == 0)
            json_w_double(w, NAN);
        if (i == 1)
            json_w_string(w, "\xff");
        if (i == 2)
            json_w_end_object(w);
        if (i == 4)
            for (int k = 0; k < 200; k++)
                json_w_array(w);
        if (i == 5)
            json_w_object(w), json_w_int(w, 1), json_w_end_object(w);
        if (i != 3)
            json_w_end_array(w);
        assert_int_equal(json_finish(w, &text, &length, &err), QR_BAD_ARGUMENT);
        assert_string_not_equal(err.message, "");
        json_writer_reset(w);
        json_w_null(w);
        assert_int_equal(json_finish(w, &text, &length, &err), QR_OK);
        assert_string_equal(text, "null");
        json_writer_close(w);
    }
}

static void doubles_are_written_shortest(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {1, "1"},
                 {-0.0, "-0"},
                 {1e300, "1e+300"},
                 {5e-324, "5e-324"},
                 {1.0 / 3, "0.3333333333333333"},
                 {123456.75, "123456.75"},
                 {(double)0.1f, "0.10000000149011612"},
                 {1.7976931348623157e308, "1.7976931348623157e+308"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct json_writer *w = json_writer_open(false);
        const char *text;
        size_t length;
        json_w_double(w, cases[i].value);
        assert_int_equal(json_finish(w, &text, &length, NULL), QR_OK);
        assert_string_equal(text, cases[i].text);
        json_writer_close(w);
    }
}

static qr_status read_and_write(void)
{
    static const char text[] = "{\"a\": [1, 2, {\"b\": \"caf\\u00e9\"}], \"c\": \"x\", \"d\": [[[[]]]]}";
    struct json_document *doc = NULL;
    struct json_writer *w = NULL;
    const char *written;
    size_t length;
    qr_status st = json_parse(text, sizeof text - 1, "test", true, &doc, NULL);
    if (st != QR_OK)
        goto cleanup;
    w = json_writer_open(true);
    if (!w) {
        st = QR_NO_MEMORY;
        goto cleanup;
    }
    json_w_array(w);
    for (int i = 0; i < 100; i++)
        json_w_double(w, i + 0.25);
    json_w_end_array(w);
    st = json_finish(w, &written, &length, NULL);

cleanup:
    json_close(doc);
    json_writer_close(w);
    return st;
}

static void every_failed_allocation_is_a_status(void **state)
{
    (void)state;
    int64_t live = alloc_live();
    for (int64_t n = 1;; n++) {
        int64_t before = alloc_count();
        alloc_fault_at(n, 0);
        qr_status st = read_and_write();
        bool failed = alloc_count() - before >= n;
        alloc_fault_at(0, 0);
        assert_int_equal(alloc_live(), live);
        assert_int_equal(st, failed ? QR_NO_MEMORY : QR_OK);
        if (!failed)
            break;
    }
    /* A syntax error too: yajl allocates its message. */
    for (int64_t n = 1; n < 12; n++) {
        struct json_document *doc;
        alloc_fault_at(n, 0);
        assert_int_not_equal(json_parse("[1, [2, \"a\\n\", ?]]", 18, "test", true, &doc, NULL), QR_OK);
        alloc_fault_at(0, 0);
        assert_null(doc);
        assert_int_equal(alloc_live(), live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tree_keeps_order_number_text_and_kinds),
        cmocka_unit_test(any_value_may_be_the_document),
        cmocka_unit_test(escapes_become_the_characters_they_name),
        cmocka_unit_test(keys_are_unescaped_and_compared_whole),
        cmocka_unit_test(a_lone_surrogate_is_refused),
        cmocka_unit_test(invalid_utf8_is_refused),
        cmocka_unit_test(what_is_not_json_is_refused),
        cmocka_unit_test(errors_name_the_byte),
        cmocka_unit_test(nesting_ends_at_512),
        cmocka_unit_test(duplicate_keys_are_found_among_few_and_many),
        cmocka_unit_test(integers_are_exact_or_refused),
        cmocka_unit_test(doubles_are_finite_and_correctly_rounded),
        cmocka_unit_test(events_come_in_order_and_may_stop_the_scan),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(a_member_is_a_key_and_a_value_and_null_where_json_has_none),
        cmocka_unit_test(one_writer_writes_line_after_line),
        cmocka_unit_test(what_cannot_be_written_is_reported),
        cmocka_unit_test(doubles_are_written_shortest),
        fault_test(every_failed_allocation_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
