#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "support/tokenizers.h"
#include "text/detokenizer.h"

static qr_status load(const char *json, size_t size, const char *config, struct tokenizer **tok, qr_error *err)
{
    const struct tok_source source = {.json = json,
                                      .size = size,
                                      .name = "dir/tokenizer.json",
                                      .config = config,
                                      .config_size = config ? strlen(config) : 0};
    return tok_load(&source, NULL, tok, err);
}

/* The small tokenizer with the first `old` replaced. */
static char *changed(const char *old, const char *new)
{
    struct buffer out = {0};
    char *json = small_tokenizer_json(), *at = strstr(json, old);
    if (!at)
        fail_msg("no %s to change", old);
    buffer_append(&out, json, (size_t)(at - json));
    buffer_puts(&out, new);
    buffer_puts(&out, at + strlen(old));
    qr_free(json);
    assert_false(out.failed);
    return out.data;
}

static void what_is_not_supported_is_refused_with_a_sentence(void **state)
{
    static const struct {
        const char *old, *new, *message;
    } cases[] = {
        {"\"truncation\":null", "\"truncation\":{}", "truncation is an object"},
        {"\"padding\":null", "\"padding\":{\"a\":1}", "padding is an object"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\"}", "normalizer is NFC"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}",
         "normalizer is Sequence"},
        {"\"post_processor\":null", "\"post_processor\":{\"type\":\"TemplateProcessing\"}",
         "post_processor.type is TemplateProcessing, only ByteLevel is supported"},
        {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null", "decoder.type is absent"},
        {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"Metaspace\"}", "decoder.type is Metaspace"},
        {"\"pre_tokenizer\":{\"type\":\"Sequence\"", "\"pre_tokenizer\":{\"type\":\"Whitespace\"",
         "pre_tokenizer.type is Whitespace"},
        {"{\"type\":\"Split\",", "{\"type\":\"Digits\",", "a pre_tokenizer is Digits"},
        {"{\"type\":\"Split\",", "{\"type\":\"Split\"},{\"type\":\"Split\",", "pre_tokenizer has 5 members"},
        {"\"pattern\":{\"Regex\":", "\"pattern\":{\"String\":", "a Split has no pattern.Regex"},
        {"\"Isolated\"", "\"Removed\"", "Split.behavior is Removed, only Isolated is supported"},
        {"\"invert\":false", "\"invert\":true", "Split.invert is true"},
        {"\"add_prefix_space\":false", "\"add_prefix_space\":true", "ByteLevel.add_prefix_space is true"},
        {"\"use_regex\":false", "\"use_regex\":true", "ByteLevel.use_regex is true"},
        {",\"use_regex\":false", "", "ByteLevel.use_regex is absent"},
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type is Unigram, only BPE is supported"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"dropout\":0.1", "dropout is 0.1"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"unk_token\":\"?\"", "unk_token is ?"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"fuse_unk\":true", "fuse_unk is true"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"byte_fallback\":true", "byte_fallback is true"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix is </w>"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\"",
         "continuing_subword_prefix is ##"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"ignore_merges\":1", "model.ignore_merges is 1"},
        {"\"vocab\":{", "\"vocab\":[],\"v\":{", "model.vocab is no object"},
        {"\"th\":256", "\"th\":-1", "\"th\" has id -1, wanted an integer of 0 to"},
        {"\"th\":256", "\"th\":1e9", "\"th\" has id 1e9"},
        {"\"th\":256", "\"th\":9999999999", "\"th\" has id 9999999999"},
        {"\"th\":256", "\"th\":\"x\"", "\"th\" has id x"},
        {"\"th\":256", "\"th\":255", "id 255 belongs to two tokens"},
        {"\"th\":256", "\"th\":256,\"th\":300", "token \"th\" has two ids, 256 and 300"},
        {"\"A\":65", "\"AA\":65", "model.vocab has no token for byte 41"},
        {"\"t h\"", "\"t  h\"", "merge 0: not two strings"},
        {"\"t h\"", "\"th\"", "merge 0: not two strings"},
        {"\"t h\"", "[\"t\"]", "merge 0: not two strings"},
        {"\"t h\"", "[\"t\",1]", "merge 0: not two strings"},
        {"\"t h\"", "7", "merge 0: not two strings"},
        {"\"t h\"", "\"t zz\"", "merge 0: \"zz\" is not in model.vocab"},
        {"\"t h\"", "\"h t\"", "merge 0: \"ht\" is not in model.vocab"},
        {"\"a a\"", "\"a a\",\"a a\"", "merge 4: the same as merge 3"},
        {"\"a a\"", "\"a a\",\"< a>\"", "merge 4: \"a>\" is not in model.vocab"},
        {"\"merges\":[", "\"merges\":{},\"m\":[", "model.merges is an object"},
        /* literal text would yield a control token */
        {"\"content\":\"<a>\"", "\"content\":\"the\"", "\"the\" has id 261, but model.vocab gives 257"},
        {"\"id\":261,\"content\":\"<a>\"", "\"id\":257,\"content\":\"the\"",
         "\"<a><b>\" has id 262, but its place in the list gives 261"},
        {"\"id\":262,\"content\":\"<a><b>\"", "\"id\":257,\"content\":\"the\"",
         "merge 1: it makes the added token \"the\""},
        {"\"id\":262,\"content\":\"<a><b>\"", "\"id\":65,\"content\":\"A\"", "token 65 of byte 41 is an added one"},
        /* ids that a Hugging Face reader would number otherwise */
        {"\"id\":261", "\"id\":263", "\"<a>\" has id 263, but its place in the list gives 261"},
        {"\"id\":262", "\"id\":264", "\"<a><b>\" has id 264, but its place in the list gives 262"},
        {"\"id\":262", "\"id\":\"262\"", "\"<a><b>\" has id 262, wanted an integer"},
        {"\"content\":\"<a><b>\"", "\"content\":\"<a>\"", "\"<a>\" is listed twice"},
        {"\"content\":\"<a>\"", "\"content\":\"\"", "a token's content is , wanted text"},
        {"\"content\":\"<a>\"", "\"content\":null", "a token's content is null, wanted text"},
        {"\"lstrip\":false", "\"lstrip\":true", "\"<a>\": lstrip is true, only false is supported"},
        {"\"rstrip\":false", "\"rstrip\":true", "\"<a>\": rstrip is true"},
        {"\"single_word\":false", "\"single_word\":true", "\"<a>\": single_word is true"},
        {"\"added_tokens\":[", "\"added_tokens\":7,\"x\":[", "added_tokens is 7, only a list is supported"},
        {"\"version\"", "}", "dir/tokenizer.json: not valid JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *tok;
        qr_error err = {0};
        char *json = changed(cases[i].old, cases[i].new);
        if (load(json, strlen(json), NULL, &tok, &err) != QR_BAD_FILE)
            fail_msg("%s for %s: status %d, wanted a refusal: %s", cases[i].new, cases[i].old, err.status, err.message);
        assert_null(tok);
        if (!strstr(err.message, cases[i].message) || strncmp(err.message, "dir/tokenizer.json: ", 20) != 0)
            fail_msg("%s for %s: \"%s\", wanted \"%s\"", cases[i].new, cases[i].old, err.message, cases[i].message);
        qr_free(json);
    }
}

static void assert_encodes(const struct tokenizer *tok, bool markup, const char *text, size_t n, const int32_t *want,
                           size_t count)
{
    struct tok_ids ids = {0};
    qr_error err = {0};
    qr_status st = markup ? tok_encode_markup(tok, text, n, &ids, &err) : tok_encode_literal(tok, text, n, &ids, &err);
    if (st != QR_OK)
        fail_msg("%s", err.message);
    if (ids.count != count || memcmp(ids.data, want, count * sizeof *want) != 0)
        fail_msg("\"%s\" has %zu ids, the first is %d", text, ids.count, ids.count ? ids.data[0] : -1);
    tok_ids_free(&ids);
}

#define ENCODES(tok, markup, text, ...)                                                 \
    assert_encodes(tok, markup, text, sizeof(text) - 1, (const int32_t[]){__VA_ARGS__}, \
                   sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static struct tokenizer *load_changed(const char *old, const char *new, const char *config)
{
    struct tokenizer *tok;
    qr_error err = {0};
    char *json = changed(old, new);
    if (load(json, strlen(json), config, &tok, &err) != QR_OK)
        fail_msg("%s for %s: %s", new, old, err.message);
    qr_free(json);
    return tok;
}

static void every_way_to_write_the_same_thing_is_read(void **state)
{
    static const char *const ways[][2] = {
        {"\"version\"", "\"version\""},
        {"\"t h\"", "[\"t\",\"h\"]"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]}"},
        {"\"post_processor\":null", "\"post_processor\":{\"type\":\"ByteLevel\",\"trim_offsets\":true}"},
        {"\"type\":\"BPE\"", "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","
                             "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
                             "\"ignore_merges\":false"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct tokenizer *tok = load_changed(ways[i][0], ways[i][1], NULL);
        ENCODES(tok, false, "the the", 257, 258);
        ENCODES(tok, false, "aaaaaaa", 260, 259, 'a');
        ENCODES(tok, false, "<a><b>", '<', 'a', '>', '<', 'b', '>');
        ENCODES(tok, true, "x<a><b><a>", 'x', 262, 261);
        ENCODES(tok, true, "<a><a><b", 261, 261, '<', 'b');
        assert_int_equal(tok_bos(tok), -1);
        assert_int_equal(tok_max_length(tok), 0);
        tok_close(tok);
    }
}

static void with_ignore_merges_a_piece_that_is_a_token_is_taken_whole(void **state)
{
    /* Without its merge "aaaa" is a token that merging never makes; added tokens stay out of plain text. */
    char *json = changed(",\"aa aa\"", "");
    struct tokenizer *tok;
    struct buffer ignoring = {0};
    (void)state;
    assert_int_equal(load(json, strlen(json), NULL, &tok, NULL), QR_OK);
    ENCODES(tok, false, "aaaa", 259, 259);
    tok_close(tok);
    char *model = strstr(json, "\"type\":\"BPE\"");
    buffer_append(&ignoring, json, (size_t)(model - json));
    buffer_puts(&ignoring, "\"ignore_merges\":true,");
    buffer_puts(&ignoring, model);
    assert_int_equal(load(ignoring.data, ignoring.length, NULL, &tok, NULL), QR_OK);
    ENCODES(tok, false, "aaaa", 260);
    ENCODES(tok, false, "aaaaa", 259, 259, 'a');
    ENCODES(tok, false, "the <a>", 257, ' ', '<', 'a', '>');
    tok_close(tok);
    buffer_free(&ignoring);
    qr_free(json);
}

static void the_config_names_tokens_in_both_forms(void **state)
{
    struct tokenizer *tok =
        load_changed("\"version\"", "\"version\"",
                     "{\"bos_token\":\"<a>\",\"eos_token\":{\"content\":\"<a><b>\"},\"pad_token\":null,"
                     "\"add_bos_token\":true,\"model_max_length\":1000000000000000019884624838656}");
    (void)state;
    assert_int_equal(tok_bos(tok), 261);
    assert_int_equal(tok_eos(tok), 262);
    assert_int_equal(tok_pad(tok), -1);
    assert_true(tok_adds_bos(tok));
    assert_int_equal(tok_max_length(tok), 0);
    tok_close(tok);
    qr_error err = {0};
    char *json = small_tokenizer_json();
    assert_int_equal(load(json, strlen(json), "{", &tok, &err), QR_BAD_FILE);
    assert_memory_equal(err.message, "tokenizer_config.json: ", 23);
    qr_free(json);
}

static void a_hole_decodes_to_nothing(void **state)
{
    /* The added tokens follow the vocabulary's size, not its largest id. */
    struct tokenizer *tok = load_changed("\"aaaa\":260", "\"aaaa\":300", NULL);
    struct buffer text = {0};
    size_t length;
    (void)state;
    assert_int_equal(tok_count(tok), 301);
    tok_bytes(tok, 280, &length);
    assert_int_equal(length, 0);
    assert_int_equal(detok_all(tok, (const int32_t[]){'x', 280, 300}, 3, &text, NULL), QR_OK);
    assert_string_equal(text.data, "xaaaa");
    buffer_free(&text);
    tok_close(tok);
}

static void a_truncated_file_is_refused_at_every_length(void **state)
{
    char *json = small_tokenizer_json();
    (void)state;
    for (size_t n = 0; n < strlen(json); n += 7) {
        struct tokenizer *tok;
        qr_error err = {0};
        assert_int_equal(load(json, n, NULL, &tok, &err), QR_BAD_FILE);
        assert_null(tok);
    }
    qr_free(json);
}

static void a_missing_file_is_named(void **state)
{
    struct tokenizer *tok;
    qr_error err = {0};
    (void)state;
    assert_int_equal(tok_open("no/such/folder", NULL, &tok, &err), QR_BAD_FILE);
    assert_non_null(strstr(err.message, "no/such/folder/tokenizer.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_supported_is_refused_with_a_sentence),
        cmocka_unit_test(every_way_to_write_the_same_thing_is_read),
        cmocka_unit_test(with_ignore_merges_a_piece_that_is_a_token_is_taken_whole),
        cmocka_unit_test(the_config_names_tokens_in_both_forms),
        cmocka_unit_test(a_hole_decodes_to_nothing),
        cmocka_unit_test(a_truncated_file_is_refused_at_every_length),
        cmocka_unit_test(a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
