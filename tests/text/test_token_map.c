#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "support/tokenizers.h"
#include "text/token_map.h"

/* The number that the map gives to a base token, by its string in the byte-level alphabet. */
static uint32_t number_of(const struct tokenizer *tok, const struct token_map *map, const char *string)
{
    for (int32_t id = 0; id < map->count; id++) {
        size_t length;
        const char *s = tok_string(tok, id, &length);
        if (length == strlen(string) && memcmp(s, string, length) == 0)
            return map->number[id];
    }
    fail_msg("no token %s", string);
    return 0;
}

static struct token_map build(const struct tokenizer *tok)
{
    struct token_map map;
    qr_error err = {0};
    if (token_map_build(tok, &map, &err) != QR_OK)
        fail_msg("%s", err.message);
    return map;
}

static void the_bundled_model_has_as_many_keys_as_its_config_says(void **state)
{
    struct tokenizer *tok = bundled_tokenizer();
    struct token_map map = build(tok);
    size_t size;
    (void)state;
    char *text = read_source("models/tiny-v41/config.json", &size), key[64];
    snprintf(key, sizeof key, "\"engram_compressed_vocab_size\": %d", map.keys);
    assert_non_null(strstr(text, key));
    qr_free(text);
    token_map_free(&map);
    tok_close(tok);
}

static void numbers_are_given_in_the_order_of_first_ids(void **state)
{
    struct tokenizer *tok = bundled_tokenizer();
    struct token_map map = build(tok);
    uint32_t next = 0;
    (void)state;
    for (int32_t id = 0; id < map.count; id++) {
        assert_true(map.number[id] <= next);
        next += map.number[id] == next;
    }
    assert_int_equal(next, map.keys);
    token_map_free(&map);
    tok_close(tok);
}

static void case_space_and_marks_do_not_count_but_half_characters_do(void **state)
{
    struct tokenizer *tok = bundled_tokenizer();
    struct token_map map = build(tok);
    (void)state;
    assert_int_equal(number_of(tok, &map, "\xC4\xA0the"), number_of(tok, &map, "the"));
    assert_int_equal(number_of(tok, &map, "A"), number_of(tok, &map, "a"));
    /* One space, a tab and a newline are one space each; the trimmed space itself keeps its key. */
    assert_int_equal(number_of(tok, &map, "\xC4\xA0"), number_of(tok, &map, "\xC4\x8A"));
    assert_int_equal(number_of(tok, &map, "\xC4\xA0"), number_of(tok, &map, "\xC4\x89"));
    assert_int_not_equal(number_of(tok, &map, "\xC4\xA0"), number_of(tok, &map, "a"));
    /* Bytes C3 and E3 are no characters: each keeps its own string. */
    assert_int_not_equal(number_of(tok, &map, "\xC3\x83"), number_of(tok, &map, "\xC3\xA3"));
    token_map_free(&map);
    tok_close(tok);
}

/* A vocabulary of the 256 bytes and `extra`, strings in the byte-level alphabet, from id 256 on. */
static struct tokenizer *with_tokens(const char *const *extra, size_t count)
{
    struct buffer out = {0};
    struct tokenizer *tok;
    qr_error err = {0};
    char *json = small_tokenizer_json(), *from = strstr(json, ",\"th\":256"), *to = strstr(json, "},\"merges\"");
    char *added = strstr(json, "[{\"id\":261"), *after = strstr(json, "],\"normalizer\"");
    buffer_append(&out, json, (size_t)(added - json));
    buffer_puts(&out, "[");
    buffer_append(&out, after, (size_t)(from - after));
    for (size_t i = 0; i < count; i++)
        buffer_printf(&out, ",\"%s\":%zu", extra[i], 256 + i);
    buffer_puts(&out, "},\"merges\":[]}}");
    assert_non_null(to);
    const struct tok_source source = {.json = out.data, .size = out.length, .name = "test"};
    if (tok_load(&source, NULL, &tok, &err) != QR_OK)
        fail_msg("%s", err.message);
    buffer_free(&out);
    qr_free(json);
    return tok;
}

static void each_rule_of_the_normal_form_is_kept(void **state)
{
    /* Pairs of equal keys, in bytes: é = e, Å (212B) = a, ﬁ = fi, two blanks = one, trimmed; and what differs. */
    static const char *const tokens[] = {
        "\xC3\x83\xC2\xA9",         /* 0: C3 A9, é */
        "\xC3\xA2\xC4\xA6\xC2\xAB", /* 1: E2 84 AB, the sign of the angstrom */
        "\xC3\xAF\xC2\xAC\xC4\xA3", /* 2: EF AC 81, the ligature fi */
        "FI",                       /* 3 */
        "x\xC4\xA0\xC4\xA0y",       /* 4 */
        "X\xC4\x89Y\xC4\xA0",       /* 5: x, tab, y, space */
        "xy",                       /* 6 */
        "\xC4\xA0\xC4\xA0",         /* 7: two spaces */
        "\xC3\x8C\xC4\xA3",         /* 8: CC 81, a mark alone: its own text */
        "\xC3\x8C\xC4\xA2",         /* 9: CC 80, another */
        "\xC3\xA3\xC4\xA2\xC4\xA2", /* 10: E3 80 80, the ideographic space: NFKC makes it one space */
        "\xC3\xAF\xC2\xBF\xC2\xBD", /* 11: EF BF BD as a token: its raw string is the key */
        "\xC3\xA2\xC4\xA2\xC2\xA8", /* 12: E2 80 A8, white space but no blank: trimmed to nothing */
    };
    struct tokenizer *tok = with_tokens(tokens, sizeof tokens / sizeof *tokens);
    struct token_map map = build(tok);
    const uint32_t *n = map.number + 256;
    (void)state;
    assert_int_equal(n[0], map.number['e']);
    assert_int_equal(n[1], map.number['a']);
    assert_int_equal(n[2], n[3]);
    assert_int_equal(n[4], n[5]);
    assert_int_not_equal(n[4], n[6]);
    assert_int_equal(n[7], map.number[' ']);
    assert_int_not_equal(n[8], n[9]);
    assert_int_equal(n[10], map.number[' ']);
    assert_int_not_equal(n[11], map.number[' ']);
    assert_int_not_equal(n[12], map.number[' ']);
    token_map_free(&map);
    tok_close(tok);
}

static void without_a_tokenizer_every_id_is_its_own_number(void **state)
{
    struct token_map map;
    (void)state;
    assert_int_equal(token_map_identity(320, &map, NULL), QR_OK);
    assert_int_equal(map.keys, 320);
    for (int32_t id = 0; id < 320; id++)
        assert_int_equal(map.number[id], id);
    token_map_free(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bundled_model_has_as_many_keys_as_its_config_says),
        cmocka_unit_test(numbers_are_given_in_the_order_of_first_ids),
        cmocka_unit_test(case_space_and_marks_do_not_count_but_half_characters_do),
        cmocka_unit_test(each_rule_of_the_normal_form_is_kept),
        cmocka_unit_test(without_a_tokenizer_every_id_is_its_own_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
