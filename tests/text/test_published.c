/* The goldens that need the published tokenizer, which is not ours to bundle. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/sha256.h"
#include "support/tokenizers.h"
#include "text/detokenizer.h"
#include "text/token_map.h"
#include "text/utf8.h"

static struct tokenizer *as_published, *as_v4, *as_v41;

static int open_tokenizers(void **state)
{
    (void)state;
    as_published = published_tokenizer(NULL);
    as_v4 = published_tokenizer("tests/golden/text/added_tokens_v4.json");
    as_v41 = published_tokenizer("tests/golden/text/added_tokens_v41.json");
    return 0;
}

static int close_tokenizers(void **state)
{
    (void)state;
    tok_close(as_published);
    tok_close(as_v4);
    tok_close(as_v41);
    return 0;
}

/* The text of a line: `text`, or `text_repeat` [unit, count]. */
static void text_of(const struct json *line, struct buffer *out)
{
    const struct json *repeat = json_get(line, "text_repeat");
    buffer_clear(out);
    if (!repeat) {
        const struct json *text = member(line, "text", JSON_STRING);
        assert_true(buffer_append(out, text->text, text->length));
        return;
    }
    int64_t count;
    assert_true(json_int64(json_at(repeat, 1), &count));
    while (count-- > 0)
        assert_true(buffer_append(out, json_at(repeat, 0)->text, json_at(repeat, 0)->length));
}

static void check_markup(const struct tokenizer *tok, const struct json *line, const struct buffer *text,
                         const char *key)
{
    struct tok_ids ids = {0};
    const struct json *want = json_get(line, key);
    assert_int_equal(tok_encode_markup(tok, text->data, text->length, &ids, NULL), QR_OK);
    assert_ids(line, &ids, want ? want : member(line, "ids_with_markup", JSON_ARRAY));
    tok_ids_free(&ids);
}

static void check_encode(void *user, const struct json *line)
{
    struct tokenizer *const all[] = {as_published, as_v4, as_v41};
    struct buffer text = {0};
    (void)user;
    text_of(line, &text);
    for (size_t i = 0; i < 3; i++) {
        struct tok_ids ids = {0};
        assert_int_equal(tok_encode_literal(all[i], text.data, text.length, &ids, NULL), QR_OK);
        assert_ids(line, &ids, member(line, "ids", JSON_ARRAY));
        for (size_t k = 0; k < ids.count; k++)
            assert_false(tok_is_added(all[i], ids.data[k]));
        tok_ids_free(&ids);
    }
    check_markup(as_v41, line, &text, "ids_with_markup");
    check_markup(as_v4, line, &text, "ids_with_markup_v4");
    check_markup(as_published, line, &text, "ids_with_markup_v3file");
    buffer_free(&text);
}

static void texts_have_the_golden_ids(void **state)
{
    (void)state;
    assert_int_equal(each_line("tests/golden/text/encode.jsonl", check_encode, NULL), 368);
}

static void check_bytes(void *user, const struct json *line)
{
    const struct json *as_text = member(line, "as_text", JSON_STRING);
    struct buffer bytes = {0}, text = {0};
    struct tok_ids ids = {0};
    (void)user;
    bytes_of_hex(member(line, "bytes_hex", JSON_STRING), &bytes);
    assert_int_equal(tok_encode_literal(as_v41, bytes.data, bytes.length, &ids, NULL), QR_OK);
    assert_ids(line, &ids, member(line, "ids", JSON_ARRAY));
    assert_true(utf8_sanitize((uint8_t *)bytes.data, bytes.length, &text));
    assert_int_equal(text.length, as_text->length);
    assert_memory_equal(text.data, as_text->text, text.length);
    tok_ids_free(&ids);
    buffer_free(&bytes);
    buffer_free(&text);
}

static void raw_bytes_have_the_golden_ids(void **state)
{
    (void)state;
    assert_int_equal(each_line("tests/golden/text/bytes.jsonl", check_bytes, NULL), 56);
}

static void assert_emits(const struct json *line, const struct buffer *found, const struct json *want)
{
    if (found->length != want->length || memcmp(found->data ? found->data : "", want->text, want->length) != 0)
        fail_msg("%s: \"%s\", wanted \"%s\"", json_get(line, "id")->text, found->data ? found->data : "", want->text);
}

static void check_decode(void *user, const struct json *line)
{
    struct detokenizer d;
    struct buffer out = {0};
    const struct json *emit = member(line, "emit", JSON_ARRAY)->child;
    (void)user;
    detok_start(&d, as_v41);
    for (const struct json *e = member(line, "ids", JSON_ARRAY)->child; e; e = e->next, emit = emit->next) {
        int64_t id;
        assert_true(json_int64(e, &id));
        buffer_clear(&out);
        assert_int_equal(detok_push(&d, (int32_t)id, &out, NULL), QR_OK);
        assert_emits(line, &out, emit);
    }
    buffer_clear(&out);
    assert_int_equal(detok_flush(&d, &out, NULL), QR_OK);
    assert_emits(line, &out, member(line, "flush", JSON_STRING));
    buffer_free(&out);
}

static void ids_become_text_as_they_come(void **state)
{
    (void)state;
    assert_int_equal(each_line("tests/golden/text/decode.jsonl", check_decode, NULL), 206);
}

static void check_id_bytes(void *user, const struct json *line)
{
    int64_t id;
    size_t length;
    struct buffer want = {0};
    (void)user;
    assert_true(json_int64(member(line, "id", JSON_NUMBER), &id));
    bytes_of_hex(member(line, "hex", JSON_STRING), &want);
    const uint8_t *bytes = tok_bytes(as_v41, (int32_t)id, &length);
    assert_int_equal(length, want.length);
    assert_memory_equal(bytes, want.data, length);
    buffer_free(&want);
}

static void ids_have_the_golden_bytes(void **state)
{
    (void)state;
    assert_int_equal(each_line("tests/golden/text/id_bytes.jsonl", check_id_bytes, NULL), 557);
}

static void known_names_have_the_published_ids(void **state)
{
    (void)state;
    assert_int_equal(tok_count(as_v41), 129280);
    assert_int_equal(tok_count(as_v4), 129280);
    assert_int_equal(tok_count(as_published), 128815);
    assert_int_equal(tok_find(as_v41, "<｜System｜>"), 128799);
    assert_int_equal(tok_find(as_v4, "<｜System｜>"), -1);
    assert_int_equal(tok_find(as_v41, "<｜deepseek_image｜>"), 129264);
    assert_int_equal(tok_find(as_v4, "｜DSML｜"), 128825);
    assert_int_equal(tok_eos(as_published), 1);
}

/* In the published vocabulary <｜User｜> is 128803 and <｜System｜> 128799: here they have changed places. */
static void a_known_name_at_another_id_is_refused(void **state)
{
    static const char user[] = "\"<｜User｜>\"", system[] = "\"<｜System｜>\"";
    struct tokenizer *tok;
    qr_error err = {0};
    size_t size, length;
    struct buffer swapped = {0};
    char *list = read_source("tests/golden/text/added_tokens_v41.json", &length);
    char *at_system = strstr(list, system), *at_user = strstr(list, user);
    (void)state;
    assert_true(at_system && at_user && at_system < at_user);
    buffer_append(&swapped, list, (size_t)(at_system - list));
    buffer_puts(&swapped, user);
    at_system += strlen(system);
    buffer_append(&swapped, at_system, (size_t)(at_user - at_system));
    buffer_puts(&swapped, system);
    buffer_puts(&swapped, at_user + strlen(user));
    char *json = published_json(swapped.data, swapped.length, &size);
    const struct tok_source source = {.json = json, .size = size, .name = "dir/tokenizer.json"};
    assert_int_equal(tok_load(&source, NULL, &tok, &err), QR_BAD_FILE);
    assert_string_equal(err.message,
                        "dir/tokenizer.json: \"<｜System｜>\" is token 128803, in the published vocabulary "
                        "it is 128799");
    qr_free(json);
    qr_free(list);
    buffer_free(&swapped);
}

static void check_map(const struct tokenizer *tok, int32_t count, int32_t keys, const char *hash)
{
    struct token_map map;
    char found[SHA256_HEX];
    qr_error err = {0};
    if (token_map_build(tok, &map, &err) != QR_OK)
        fail_msg("%s", err.message);
    assert_int_equal(map.count, count);
    assert_int_equal(map.keys, keys);
    if (hash) {
        struct buffer bytes = {0};
        for (int32_t id = 0; id < count; id++) {
            uint32_t n = map.number[id];
            const uint8_t little[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
            assert_true(buffer_append(&bytes, little, 4));
        }
        sha256_hex(bytes.data, bytes.length, found);
        assert_string_equal(found, hash);
        buffer_free(&bytes);
    }
    assert_int_equal(map.number[2], 2);
    token_map_free(&map);
}

static void the_compressed_token_map_is_the_published_one(void **state)
{
    static const char hash[] = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481";
    (void)state;
    check_map(as_v41, 129280, 99092, hash);
    check_map(as_v4, 129280, 99092, hash);
    check_map(as_published, 128815, 98627, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_have_the_golden_ids),
        cmocka_unit_test(raw_bytes_have_the_golden_ids),
        cmocka_unit_test(ids_become_text_as_they_come),
        cmocka_unit_test(ids_have_the_golden_bytes),
        cmocka_unit_test(known_names_have_the_published_ids),
        cmocka_unit_test(a_known_name_at_another_id_is_refused),
        cmocka_unit_test(the_compressed_token_map_is_the_published_one),
    };
    if (!fixture_tokenizer()) {
        fprintf(stderr, "skipped: the published tokenizer is not here (QUIRE_TOKENIZER may point to it)\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
