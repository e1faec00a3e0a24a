/* One law for all outputs: how a text is cut into ids, and when the deltas are taken, does not change what is parsed.
 */
#include "support/support.h"

#include <string.h>

#include "support/tokenizers.h"
#include "text/parser.h"

static struct tokenizer *tok;
static int32_t byte_ids[256];
static struct json_document *declared;
static struct arena arena;
static struct tool_list tools;

static int open_all(void **state)
{
    static const char text[] = "[{\"name\":\"tide\",\"parameters\":{\"properties\":{\"port\":{\"type\":\"string\"}}}}]";
    (void)state;
    tok = bundled_tokenizer();
    for (int32_t id = 0; id < tok_base_count(tok); id++) {
        size_t length;
        const uint8_t *bytes = tok_bytes(tok, id, &length);
        if (length == 1 && !tok_is_added(tok, id))
            byte_ids[bytes[0]] = id;
    }
    assert_int_equal(json_parse(text, strlen(text), "tools", false, &declared, NULL), QR_OK);
    arena_init(&arena, 0);
    assert_int_equal(tool_list_read(json_root(declared), true, &arena, &tools, NULL, NULL), QR_OK);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    tok_close(tok);
    json_close(declared);
    arena_free(&arena);
    return 0;
}

/* ---- an output: texts and tokens in turn ---- */

#define D "｜DSML｜"
static const char *const texts[] = {
    "a",
    "é",
    "👍",
    "\n",
    "\n\n",
    " ",
    "<",
    "</",
    ">",
    "word ",
    "STOP",
    "ST",
    "OP",
    "\"",
    "{",
    "}",
    "{\"port\": 1}",
    "<b>",
    "\"input\"",
    "x > y",
    "calls>",
    " calls>",
    "tool_calls>",
    " invoke name=\"tide\">",
    " invoke name=\"no\">",
    "invoke>",
    " parameter name=\"port\" string=\"true\">",
    " parameter name=\"input\">",
    " parameter>",
    "1.50",
    "[1]",
};
/* Whole tags, so that calls come about. A D in them is the token. */
static const char *const tags[] = {
    "\n\n<" D " calls>\n",
    "</" D " calls>",
    "<" D " invoke name=\"tide\">\n",
    "</" D " invoke>\n",
    "</" D " parameter>\n",
    "<" D " parameter name=\"port\" string=\"true\">",
    "<" D " parameter name=\"hours\" string=\"false\">",
    "<" D " parameter name=\"arguments\">",
    "<" D " invoke name=\"none\">",
};
static const char *const tokens[] = {TOKEN_THINK, TOKEN_END_THINK, D, "<｜fim▁hole｜>", TOKEN_EOS, TOKEN_USER};

struct piece {
    char text[64];
    bool token;
};

static void add_piece(struct piece *pieces, size_t *count, const char *text, size_t length, bool token)
{
    memcpy(pieces[*count].text, text, length);
    pieces[*count].text[length] = 0;
    pieces[(*count)++].token = token;
}

static void add_tag(struct piece *pieces, size_t *count, const char *tag)
{
    const char *token = strstr(tag, D);
    add_piece(pieces, count, tag, (size_t)(token - tag), false);
    add_piece(pieces, count, D, strlen(D), true);
    add_piece(pieces, count, token + strlen(D), strlen(token + strlen(D)), false);
}

static size_t make_output(struct piece *pieces, uint64_t *seed)
{
    size_t count = 0;
    uint32_t opens = random_below(seed, 3);
    if (opens == 0)
        add_tag(pieces, &count, tags[0]);
    if (opens == 0)
        add_tag(pieces, &count, tags[2]);
    for (uint32_t n = random_below(seed, 24); n > 0; n--) {
        uint32_t kind = random_below(seed, 8);
        if (kind < 4) {
            const char *text = texts[random_below(seed, sizeof texts / sizeof *texts)];
            add_piece(pieces, &count, text, strlen(text), false);
        } else if (kind < 7) {
            add_tag(pieces, &count, tags[random_below(seed, sizeof tags / sizeof *tags)]);
        } else {
            const char *token = tokens[random_below(seed, 12) ? random_below(seed, 4) : 4 + random_below(seed, 2)];
            add_piece(pieces, &count, token, strlen(token), true);
        }
    }
    return count;
}

/* ---- cutting it ---- */

enum cut { CUT_WHOLE, CUT_BYTES, CUT_ANYWHERE };

static void encode(const struct buffer *text, enum cut cut, uint64_t *seed, struct tok_ids *ids)
{
    size_t from = 0;
    while (from < text->length) {
        size_t length = text->length;
        if (cut == CUT_BYTES) {
            tok_ids_push(ids, byte_ids[(unsigned char)text->data[from++]]);
            continue;
        }
        if (cut == CUT_ANYWHERE) { /* between characters */
            length = from + 1 + random_below(seed, 5);
            while (length < text->length && ((unsigned char)text->data[length] & 0xc0) == 0x80)
                length++;
        }
        length = (length < text->length ? length : text->length) - from;
        assert_int_equal(tok_encode_literal(tok, text->data + from, length, ids, NULL), QR_OK);
        from += length;
    }
}

static void cut_output(const struct piece *pieces, size_t count, enum cut cut, uint64_t *seed, struct tok_ids *ids)
{
    struct buffer text = {0};
    for (size_t i = 0; i <= count; i++) {
        if (i < count && !pieces[i].token) {
            buffer_puts(&text, pieces[i].text);
            continue;
        }
        encode(&text, cut, seed, ids);
        buffer_clear(&text);
        if (i < count)
            tok_ids_push(ids, tok_find(tok, pieces[i].text));
    }
    buffer_free(&text);
}

/* ---- parsing it ---- */

struct outcome {
    struct parsed_answer answer;
    enum parser_finish finish;
    struct parser_counts counts;
};

static struct outcome parse(const struct parser_options *options, const struct tok_ids *ids, enum parser_end end,
                            bool take_each)
{
    struct outcome o = {0};
    struct deltas d = {0};
    struct parser *p;
    assert_int_equal(parser_open(options, &p, NULL), QR_OK);
    for (size_t i = 0; i < ids->count; i++) {
        assert_int_equal(parser_push(p, ids->data[i], &d, NULL), QR_OK);
        if (take_each) {
            assert_true(parsed_answer_add(&o.answer, &d));
            deltas_clear(&d);
        }
    }
    assert_int_equal(parser_end(p, end, &d, NULL), QR_OK);
    assert_true(parsed_answer_add(&o.answer, &d));
    o.finish = parser_finish(p);
    o.counts = *parser_counts(p);
    deltas_free(&d);
    parser_close(p);
    return o;
}

static void assert_same_text(const struct buffer *a, const struct buffer *b)
{
    assert_int_equal(a->length, b->length);
    if (a->length)
        assert_memory_equal(a->data, b->data, a->length);
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->finish, b->finish);
    assert_same_text(&a->answer.reasoning, &b->answer.reasoning);
    assert_same_text(&a->answer.content, &b->answer.content);
    assert_int_equal(a->answer.call_count, b->answer.call_count);
    for (size_t i = 0; i < a->answer.call_count; i++) {
        assert_int_equal(a->answer.calls[i].whole, b->answer.calls[i].whole);
        assert_same_text(&a->answer.calls[i].name, &b->answer.calls[i].name);
        assert_same_text(&a->answer.calls[i].arguments, &b->answer.calls[i].arguments);
    }
}

/* Nothing of a control token is shown, and what is said to be whole is. */
static void check_outcome(const struct outcome *o)
{
    static const struct json_events none = {0};
    size_t whole = 0;
    const char *shown[] = {o->answer.reasoning.data, o->answer.content.data};
    for (size_t i = 0; i < 2; i++)
        if (shown[i] && o->counts.refused_calls == 0)
            assert_true(!strstr(shown[i], TOKEN_THINK) && !strstr(shown[i], TOKEN_END_THINK));
    for (size_t i = 0; i < o->answer.call_count; i++) {
        const struct answer_call *call = &o->answer.calls[i];
        whole += call->whole;
        assert_string_equal(call->name.data, "tide");
        if (call->whole)
            assert_int_equal(json_scan(call->arguments.data, call->arguments.length, "arguments", &none, NULL, NULL),
                             QR_OK);
    }
    assert_int_equal(whole, o->counts.calls);
    if (o->finish == FINISH_TOOL_CALLS)
        assert_true(whole > 0);
}

static void free_outcome(struct outcome *o) { parsed_answer_free(&o->answer); }

static void any_cut_of_any_output_gives_the_same(void **state)
{
    static struct piece pieces[128];
    static const char *const stop = "STOP";
    uint64_t seed = 41;
    size_t calls = 0, contents = 0;
    (void)state;
    for (int round = 0; round < 4000; round++) {
        struct tok_ids ids[3] = {0};
        enum parser_end end = (enum parser_end)random_below(&seed, 3);
        struct parser_options options = {
            .tok = tok,
            .tools = random_below(&seed, 8) ? &tools : NULL,
            .start = random_below(&seed, 2) ? CHAT_REASONING : CHAT_CONTENT,
            .continued = random_below(&seed, 4) == 0,
            .ignore_eos = random_below(&seed, 2),
            .recovery = random_below(&seed, 2),
            .stops = &stop,
            .stop_count = (int32_t)random_below(&seed, 2),
        };
        size_t count = make_output(pieces, &seed);
        for (int cut = 0; cut < 3; cut++)
            cut_output(pieces, count, (enum cut)cut, &seed, &ids[cut]);
        struct outcome first = parse(&options, &ids[0], end, false);
        if (options.tools)
            check_outcome(&first);
        for (int cut = 0; cut < 3; cut++) {
            struct outcome other = parse(&options, &ids[cut], end, true);
            assert_same(&first, &other);
            free_outcome(&other);
        }
        calls += (size_t)first.counts.calls;
        contents += first.answer.content.length > 0;
        free_outcome(&first);
        for (int cut = 0; cut < 3; cut++)
            tok_ids_free(&ids[cut]);
    }
    /* The law was put to work. */
    assert_true(calls > 500 && contents > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_cut_of_any_output_gives_the_same)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
