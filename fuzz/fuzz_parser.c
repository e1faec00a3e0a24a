/* Output of any bytes: the first chooses the options, the last eight byte values stand for tokens and the others are
 * text. It is parsed as one id a byte and as a tokenizer would cut it; both give the same, calls are JSON objects, and
 * what is shown is text. Reads models/tiny-v41: run it in the project's folder. */
#include "fuzz.h"

#include <string.h>

#include "base/utf8.h"
#include "models.h"
#include "text/parser.h"

static struct tokenizer *tok;
static struct tool_list tools;
static int32_t byte_ids[256];

static void load(void)
{
    static const char declared[] =
        "[{\"name\":\"t\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{}}}}]";
    static const char *const tokens[] = {TOKEN_DSML, TOKEN_THINK, TOKEN_END_THINK, TOKEN_EOS,
                                         TOKEN_USER, "<|EOT|>",   TOKEN_DSML,      TOKEN_DSML};
    static struct arena arena;
    static struct json_document *doc; /* stays, as the list of tools does */
    tok = fuzz_tokenizer(SPLIT_AUTO);
    for (int32_t id = 0; id < tok_base_count(tok); id++) {
        size_t length;
        const uint8_t *bytes = tok_bytes(tok, id, &length);
        if (length == 1 && !tok_is_added(tok, id))
            byte_ids[bytes[0]] = id;
    }
    for (size_t i = 0; i < 8; i++)
        byte_ids[0xf8 + i] = tok_find(tok, tokens[i]);
    must(json_parse(declared, strlen(declared), "tools", true, &doc, NULL) == QR_OK);
    arena_init(&arena, 0);
    must(tool_list_read(json_root(doc), true, &arena, &tools, NULL, NULL) == QR_OK);
}

/* As a tokenizer cuts it; false where the text between tokens is not UTF-8, which has no such cut. */
static bool cut(const uint8_t *data, size_t size, struct tok_ids *ids)
{
    size_t from = 0;
    for (size_t i = 0; i <= size; i++) {
        if (i < size && data[i] < 0xf8)
            continue;
        const char *text = (const char *)data + from;
        if (utf8_valid_prefix(text, i - from) != i - from)
            return false;
        must(tok_encode_literal(tok, text, i - from, ids, NULL) == QR_OK);
        if (i < size)
            must(tok_ids_push(ids, byte_ids[data[i]]));
        from = i + 1;
    }
    return true;
}

struct outcome {
    struct parsed_answer answer;
    enum parser_finish finish;
    int64_t calls;
};

static void take(struct deltas *d, struct parsed_answer *answer)
{
    for (size_t i = 0; i < d->count; i++)
        must(utf8_valid_prefix(deltas_text(d, &d->items[i]), d->items[i].length) == d->items[i].length);
    must(parsed_answer_add(answer, d));
    deltas_clear(d);
}

static struct outcome parse(const struct parser_options *options, const struct tok_ids *ids, enum parser_end end)
{
    struct outcome o = {0};
    struct deltas d = {0};
    struct parser *p;
    must(parser_open(options, &p, NULL) == QR_OK);
    for (size_t i = 0; i < ids->count; i++) {
        must(parser_push(p, ids->data[i], &d, NULL) == QR_OK);
        take(&d, &o.answer);
    }
    must(parser_end(p, end, &d, NULL) == QR_OK);
    take(&d, &o.answer);
    o.finish = parser_finish(p);
    o.calls = parser_counts(p)->calls;
    must(o.finish != FINISH_NONE);
    deltas_free(&d);
    parser_close(p);
    return o;
}

static void check(const struct outcome *o)
{
    int64_t whole = 0;
    for (size_t i = 0; i < o->answer.call_count; i++) {
        const struct answer_call *call = &o->answer.calls[i];
        struct json_document *doc;
        if (!call->whole)
            continue;
        whole++;
        must(call->name.length > 0);
        must(json_parse(call->arguments.data, call->arguments.length, "arguments", false, &doc, NULL) == QR_OK);
        must(json_root(doc)->kind == JSON_OBJECT);
        json_close(doc);
    }
    must(whole == o->calls);
    must(o->finish != FINISH_TOOL_CALLS || whole > 0);
}

static void same_text(const struct buffer *a, const struct buffer *b)
{
    must(a->length == b->length && (a->length == 0 || memcmp(a->data, b->data, a->length) == 0));
}

static void same(const struct outcome *a, const struct outcome *b)
{
    must(a->finish == b->finish && a->answer.call_count == b->answer.call_count);
    same_text(&a->answer.reasoning, &b->answer.reasoning);
    same_text(&a->answer.content, &b->answer.content);
    for (size_t i = 0; i < a->answer.call_count; i++) {
        same_text(&a->answer.calls[i].name, &b->answer.calls[i].name);
        same_text(&a->answer.calls[i].arguments, &b->answer.calls[i].arguments);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const stops[] = {"ab", "\n\nb"};
    struct tok_ids bytes = {0}, whole = {0};
    if (!tok)
        load();
    if (size == 0)
        return 0;
    struct parser_options options = {
        .tok = tok,
        .tools = data[0] & 1 ? NULL : &tools,
        .start = data[0] & 2 ? CHAT_CONTENT : CHAT_REASONING,
        .continued = data[0] & 4,
        .ignore_eos = data[0] & 8,
        .lenient_tools = data[0] & 16,
        .recovery = data[0] & 32,
        .stops = stops,
        .stop_count = data[0] & 64 ? 2 : 0,
        .include_stop = data[0] & 128,
    };
    enum parser_end end = size % 2 ? END_EOS : END_LENGTH;
    for (size_t i = 1; i < size; i++)
        must(tok_ids_push(&bytes, byte_ids[data[i]]));
    struct outcome a = parse(&options, &bytes, end);
    check(&a);
    if (cut(data + 1, size - 1, &whole)) {
        struct outcome b = parse(&options, &whole, end);
        same(&a, &b);
        parsed_answer_free(&b.answer);
    }
    parsed_answer_free(&a.answer);
    tok_ids_free(&bytes);
    tok_ids_free(&whole);
    return 0;
}
