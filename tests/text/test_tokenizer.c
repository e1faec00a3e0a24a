#include "support/support.h"

#include <string.h>

#include "support/tokenizers.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

static struct tokenizer *tok;

static int open_tokenizer(void **state)
{
    (void)state;
    tok = bundled_tokenizer();
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tok_close(tok);
    return 0;
}

static void encode(bool markup, const char *text, size_t n, struct tok_ids *ids)
{
    qr_error err = {0};
    qr_status st = markup ? tok_encode_markup(tok, text, n, ids, &err) : tok_encode_literal(tok, text, n, ids, &err);
    if (st != QR_OK)
        fail_msg("%s", err.message);
}

static void check_emitted(const struct detokenizer *d, const struct buffer *out, const struct json *want,
                          const struct json *line)
{
    (void)d;
    if (out->length != want->length || memcmp(out->data ? out->data : "", want->text, want->length) != 0)
        fail_msg("%s: emitted \"%s\", wanted \"%s\"", json_get(line, "id")->text, out->data ? out->data : "",
                 want->text);
}

static void check_decode(const struct json *line)
{
    struct detokenizer d;
    struct buffer out = {0};
    const struct json *emit = member(line, "emit", JSON_ARRAY)->child;
    detok_start(&d, tok);
    for (const struct json *e = member(line, "ids", JSON_ARRAY)->child; e; e = e->next, emit = emit->next) {
        int64_t id;
        assert_true(json_int64(e, &id));
        buffer_clear(&out);
        assert_int_equal(detok_push(&d, (int32_t)id, &out, NULL), QR_OK);
        check_emitted(&d, &out, emit, line);
    }
    buffer_clear(&out);
    assert_int_equal(detok_flush(&d, &out, NULL), QR_OK);
    check_emitted(&d, &out, member(line, "flush", JSON_STRING), line);
    buffer_free(&out);
}

static void check_golden(void *user, const struct json *line)
{
    const struct json *kind = member(line, "kind", JSON_STRING);
    (void)user;
    if (json_equals(kind, "encode")) {
        const struct json *text = member(line, "text", JSON_STRING);
        struct tok_ids ids = {0};
        encode(false, text->text, text->length, &ids);
        assert_ids(line, &ids, member(line, "ids", JSON_ARRAY));
        ids.count = 0;
        encode(true, text->text, text->length, &ids);
        assert_ids(line, &ids, member(line, "ids_with_markup", JSON_ARRAY));
        tok_ids_free(&ids);
    } else if (json_equals(kind, "decode")) {
        check_decode(line);
    } else {
        int64_t id;
        size_t length;
        struct buffer want = {0};
        assert_true(json_int64(member(line, "token", JSON_NUMBER), &id));
        bytes_of_hex(member(line, "hex", JSON_STRING), &want);
        const uint8_t *bytes = tok_bytes(tok, (int32_t)id, &length);
        assert_int_equal(length, want.length);
        assert_memory_equal(bytes, want.data, length);
        buffer_free(&want);
    }
}

static void the_bundled_tokenizer_gives_the_golden_ids_and_texts(void **state)
{
    (void)state;
    assert_int_equal(each_line("tests/golden/text/tiny_v41.jsonl", check_golden, NULL), 110);
}

static void ids_are_found_by_name(void **state)
{
    (void)state;
    assert_int_equal(tok_count(tok), 4096);
    assert_int_equal(tok_base_count(tok), 4000);
    assert_int_equal(tok_find(tok, "<think>"), 4040);
    assert_int_equal(tok_find(tok, "｜DSML｜"), 4044);
    assert_int_equal(tok_find(tok, "<think"), -1);
    assert_int_equal(tok_find(tok, "<think>>"), -1);
    assert_int_equal(tok_find(tok, "the"), -1);
    assert_int_equal(tok_find(tok, ""), -1);
    assert_int_equal(tok_bos(tok), 0);
    assert_int_equal(tok_eos(tok), 1);
    assert_int_equal(tok_pad(tok), 2);
    assert_true(tok_adds_bos(tok));
    assert_int_equal(tok_max_length(tok), 8192);
    assert_true(tok_is_added(tok, 4040));
    assert_false(tok_is_special(tok, 4040));
    assert_true(tok_is_special(tok, 1));
    assert_false(tok_is_added(tok, 5));
    assert_false(tok_is_added(tok, -1));
    assert_false(tok_is_added(tok, 4096));
}

static void the_ban_list_holds_pictures_and_place_holders(void **state)
{
    struct tok_ids ids = {0};
    (void)state;
    assert_int_equal(tok_ban_list(tok, &ids, NULL), QR_OK);
    /* 24 place holders, 19 of mm_span, and three image tokens; not "for copy" and "for pointer replace". */
    assert_int_equal(ids.count, 24 + 19 + 3);
    assert_int_equal(ids.data[0], 4000);
    assert_int_equal(ids.data[23], 4023);
    assert_int_equal(ids.data[24], 4066);
    assert_int_equal(ids.data[45], tok_find(tok, "<｜deepseek_image｜>"));
    tok_ids_free(&ids);
}

/* The law behind "user text can never become a control token". */
static void literal_text_never_yields_an_added_token(void **state)
{
    struct buffer all = {0};
    struct tok_ids ids = {0};
    (void)state;
    for (int32_t id = 0; id < tok_count(tok); id++) {
        size_t length;
        const char *content = tok_string(tok, id, &length);
        if (!tok_is_added(tok, id))
            continue;
        ids.count = 0;
        encode(true, content, length, &ids);
        assert_int_equal(ids.count, 1);
        assert_int_equal(ids.data[0], id);
        ids.count = 0;
        encode(false, content, length, &ids);
        for (size_t i = 0; i < ids.count; i++)
            assert_false(tok_is_added(tok, ids.data[i]));
        buffer_append(&all, content, length);
    }
    ids.count = 0;
    encode(false, all.data, all.length, &ids);
    for (size_t i = 0; i < ids.count; i++)
        assert_false(tok_is_added(tok, ids.data[i]));
    buffer_free(&all);
    tok_ids_free(&ids);
}

static void markup_between_texts_is_text_token_text(void **state)
{
    static const char text[] = "a<think>b</think></think> <thinking>";
    struct tok_ids whole = {0}, parts = {0};
    (void)state;
    encode(true, text, strlen(text), &whole);
    encode(false, "a", 1, &parts);
    tok_ids_push(&parts, tok_find(tok, "<think>"));
    encode(false, "b", 1, &parts);
    tok_ids_push(&parts, tok_find(tok, "</think>"));
    tok_ids_push(&parts, tok_find(tok, "</think>"));
    encode(false, " <thinking>", 11, &parts);
    assert_int_equal(whole.count, parts.count);
    assert_memory_equal(whole.data, parts.data, whole.count * sizeof *whole.data);
    tok_ids_free(&whole);
    tok_ids_free(&parts);
}

/* Encodes and decodes; the text must come back with bad parts replaced. */
static void check_round_trip(bool markup, const uint8_t *bytes, size_t n)
{
    struct tok_ids ids = {0};
    struct buffer text = {0}, want = {0};
    encode(markup, (const char *)bytes, n, &ids);
    assert_int_equal(detok_all(tok, ids.data, ids.count, &text, NULL), QR_OK);
    assert_true(utf8_sanitize(bytes, n, &want));
    assert_int_equal(text.length, want.length);
    if (text.length)
        assert_memory_equal(text.data, want.data, text.length);
    tok_ids_free(&ids);
    buffer_free(&text);
    buffer_free(&want);
}

static void any_bytes_are_encoded_and_come_back_as_text(void **state)
{
    uint64_t seed = 11;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[200];
        size_t n = random_below(&seed, sizeof bytes);
        uint32_t range = i % 4 == 0 ? 256 : i % 4 == 1 ? 128 : 16;
        for (size_t k = 0; k < n; k++)
            bytes[k] = (uint8_t)(random_below(&seed, range) + (i % 4 == 2 ? 0x20 : i % 4 == 3 ? 0xE0 : 0));
        check_round_trip(false, bytes, n);
        check_round_trip(true, bytes, n);
    }
}

static void any_text_comes_back(void **state)
{
    uint64_t seed = 12;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[4 * 60];
        size_t n = 0;
        for (uint32_t k = random_below(&seed, 60); k > 0; k--) {
            uint32_t cp = random_below(&seed, i % 2 ? 0x110000 : 0x3200);
            if (cp < 0xD800 || cp >= 0xE000)
                n += utf8_encode(cp, bytes + n);
        }
        check_round_trip(false, bytes, n);
    }
}

static void a_megabyte_of_one_letter_is_encoded(void **state)
{
    static const char *const units[] = {"a", " ", "\n", "中", "1", "<", "\xC3", "<think>"};
    (void)state;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        struct buffer text = {0};
        while (text.length < 1000000)
            buffer_puts(&text, units[i]);
        check_round_trip(i % 2, (uint8_t *)text.data, text.length);
        buffer_free(&text);
    }
}

static void two_gigabytes_are_refused_unread(void **state)
{
    struct tok_ids ids = {0};
    qr_error err = {0};
    (void)state;
    assert_int_equal(tok_encode_literal(tok, "", (size_t)1 << 31, &ids, &err), QR_BAD_REQUEST);
    assert_string_equal(err.message, "a text of 2147483648 bytes, at most 2147483647 can be encoded");
    assert_int_equal(ids.count, 0);
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    struct detokenizer d;
    struct buffer out = {0};
    qr_error err = {0};
    (void)state;
    detok_start(&d, tok);
    assert_int_equal(detok_push(&d, 4096, &out, &err), QR_BAD_REQUEST);
    assert_string_equal(err.message, "id 4096 is outside the vocabulary, 0 to 4095");
    assert_int_equal(detok_push(&d, -1, &out, &err), QR_BAD_REQUEST);
    assert_int_equal(out.length, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bundled_tokenizer_gives_the_golden_ids_and_texts),
        cmocka_unit_test(ids_are_found_by_name),
        cmocka_unit_test(the_ban_list_holds_pictures_and_place_holders),
        cmocka_unit_test(literal_text_never_yields_an_added_token),
        cmocka_unit_test(markup_between_texts_is_text_token_text),
        cmocka_unit_test(any_bytes_are_encoded_and_come_back_as_text),
        cmocka_unit_test(any_text_comes_back),
        cmocka_unit_test(a_megabyte_of_one_letter_is_encoded),
        cmocka_unit_test(two_gigabytes_are_refused_unread),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
