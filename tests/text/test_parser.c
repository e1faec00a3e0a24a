/* The goldens of the parser with the bundled tokenizer: their text, cut into its ids in two ways. */
#include "support/support.h"

#include <string.h>

#include "support/parser_cases.h"
#include "support/tokenizers.h"

static struct tokenizer *tok;
static int32_t byte_ids[256];

/* The base tokens of one byte each. */
static void find_byte_ids(void)
{
    for (int32_t id = 0; id < tok_base_count(tok); id++) {
        size_t length;
        const uint8_t *bytes = tok_bytes(tok, id, &length);
        if (length == 1 && !tok_is_added(tok, id))
            byte_ids[bytes[0]] = id;
    }
}

static int open_tokenizer(void **state)
{
    (void)state;
    tok = bundled_tokenizer();
    find_byte_ids();
    return 0;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tok_close(tok);
    return 0;
}

static void push(struct tok_ids *ids, int32_t id) { assert_true(tok_ids_push(ids, id)); }

/* Every id that is text, as one id for each byte. */
static void cut_into_bytes(const struct tok_ids *ids, struct tok_ids *out)
{
    for (size_t i = 0; i < ids->count; i++) {
        size_t length;
        const uint8_t *bytes = tok_bytes(tok, ids->data[i], &length);
        if (tok_is_added(tok, ids->data[i])) {
            push(out, ids->data[i]);
            continue;
        }
        for (size_t k = 0; k < length; k++)
            push(out, byte_ids[bytes[k]]);
    }
}

static size_t count_added(const struct tok_ids *ids)
{
    size_t count = 0;
    for (size_t i = 0; i < ids->count; i++)
        count += tok_is_added(tok, ids->data[i]);
    return count;
}

/* Ids of the published vocabulary that are added tokens. */
static size_t count_published_added(const struct json *list)
{
    size_t count = 0;
    for (const struct json *e = list->child; e; e = e->next) {
        int64_t id;
        assert_true(json_int64(e, &id));
        count += id >= 128000 || id <= 2;
    }
    return count;
}

/* Text that spells a token with ordinary ids cannot be told from the token here: such lines are left out. */
static void check_golden(void *user, const struct json *line)
{
    size_t *done = user;
    struct parser_case c;
    struct tok_ids ids = {0}, bytes = {0};
    const struct json *raw = member(line, "raw", JSON_STRING);
    assert_int_equal(tok_encode_markup(tok, raw->text, raw->length, &ids, NULL), QR_OK);
    if (count_added(&ids) == count_published_added(member(line, "ids", JSON_ARRAY))) {
        parser_case_open(&c, line, tok);
        parser_case_check(&c, &ids, "ids");
        cut_into_bytes(&ids, &bytes);
        parser_case_check(&c, &bytes, "bytes");
        parser_case_close(&c);
        (*done)++;
    }
    tok_ids_free(&ids);
    tok_ids_free(&bytes);
}

static void outputs_are_parsed_as_the_goldens_say(void **state)
{
    size_t done = 0;
    (void)state;
    assert_int_equal(each_line("tests/golden/parser/outputs.jsonl", check_golden, &done), 275);
    assert_int_equal(done, 272);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(outputs_are_parsed_as_the_goldens_say)};
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
