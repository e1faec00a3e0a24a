#include "support/parser_cases.h"

#include <string.h>

#include "base/utf8.h"
#include "support/support.h"
#include "support/tokenizers.h"

static bool flag(const struct json *line, const char *key, bool absent)
{
    bool value = absent;
    json_bool(json_get(line, key), &value);
    return value;
}

void parser_case_open(struct parser_case *c, const struct json *line, const struct tokenizer *tok)
{
    qr_error err = {0};
    memset(c, 0, sizeof *c);
    c->line = line;
    c->id = member(line, "id", JSON_STRING)->text;
    arena_init(&c->arena, 0);
    if (tool_list_read(json_get(line, "tools"), true, &c->arena, &c->tools, NULL, &err) != QR_OK)
        fail_msg("%s: %s", c->id, err.message);
    c->options = (struct parser_options){
        .tok = tok,
        .tools = flag(line, "tools_on", true) && !json_equals(json_get(line, "tool_choice"), "none") ? &c->tools : NULL,
        .start = json_equals(json_get(line, "start"), "reasoning") ? CHAT_REASONING : CHAT_CONTENT,
        .continued = flag(line, "continued", false),
        .ignore_eos = flag(line, "ignore_eos", false),
        .include_stop = flag(line, "include_stop", false),
        .stops = c->stops,
    };
    c->end = json_equals(json_get(line, "end"), "length") ? END_LENGTH : END_EOS;
    const struct json *stops = json_get(line, "stop");
    for (const struct json *s = stops ? stops->child : NULL; s; s = s->next)
        c->stops[c->options.stop_count++] = s->text;
}

void parser_case_close(struct parser_case *c) { arena_free(&c->arena); }

/* ---- running ---- */

static void take(struct parser *p, struct deltas *d, struct parsed_answer *answer)
{
    for (size_t i = 0; i < d->count; i++) {
        const char *text = deltas_text(d, &d->items[i]);
        if (utf8_valid_prefix(text, d->items[i].length) != d->items[i].length)
            fail_msg("a delta ends inside a character");
    }
    assert_true(parsed_answer_add(answer, d));
    deltas_clear(d);
    (void)p;
}

/* Takes the deltas whenever `times` says so of the number of ids that came. */
static void run(const struct parser_case *c, const struct tok_ids *ids, size_t step, size_t once,
                struct parsed_answer *answer, enum parser_finish *finish)
{
    struct parser *p;
    struct deltas d = {0};
    qr_error err = {0};
    assert_int_equal(parser_open(&c->options, &p, &err), QR_OK);
    for (size_t i = 0; i < ids->count; i++) {
        if (parser_push(p, ids->data[i], &d, &err) != QR_OK)
            fail_msg("%s: %s", c->id, err.message);
        if ((step && (i + 1) % step == 0) || i + 1 == once)
            take(p, &d, answer);
    }
    assert_int_equal(parser_end(p, c->end, &d, &err), QR_OK);
    take(p, &d, answer);
    *finish = parser_finish(p);
    deltas_free(&d);
    parser_close(p);
}

/* ---- comparing ---- */

static const char *data(const struct buffer *b) { return b->data ? b->data : ""; }

static void check_text(const struct parser_case *c, const char *cut, const char *what, const struct buffer *found,
                       const struct json *want)
{
    size_t length = want ? want->length : 0;
    if (found->length != length || memcmp(data(found), want ? want->text : "", length) != 0)
        fail_msg("%s (%s): %s is \"%s\", wanted \"%s\"", c->id, cut, what, data(found), want ? want->text : "");
}

static void check_content(const struct parser_case *c, const char *cut, const struct buffer *found,
                          const struct json *expected)
{
    const struct json *start = json_get(c->line, "content_starts_with"), *parts = json_get(c->line, "content_contains");
    if (!start && !parts) {
        check_text(c, cut, "content", found, json_get(expected, "content"));
        return;
    }
    if (start && (found->length < start->length || memcmp(data(found), start->text, start->length) != 0))
        fail_msg("%s (%s): content \"%s\" does not start with \"%s\"", c->id, cut, data(found), start->text);
    for (const struct json *part = parts ? parts->child : NULL; part; part = part->next)
        if (!strstr(data(found), part->text))
            fail_msg("%s (%s): content \"%s\" does not contain \"%s\"", c->id, cut, data(found), part->text);
}

static void normalise(const char *text, size_t length, struct buffer *out)
{
    struct json_document *doc;
    qr_error err = {0};
    struct json_writer *w = json_writer_open(false);
    const char *written;
    size_t written_length;
    if (json_parse(text, length, "arguments", true, &doc, &err) != QR_OK)
        fail_msg("%s", err.message);
    json_w_value(w, json_root(doc));
    assert_int_equal(json_finish(w, &written, &written_length, &err), QR_OK);
    buffer_append(out, written, written_length);
    json_writer_close(w);
    json_close(doc);
}

static void check_arguments(const struct parser_case *c, const char *cut, const struct buffer *found,
                            const struct json *want)
{
    struct buffer a = {0}, b = {0};
    normalise(found->data, found->length, &a); /* fails when it is not JSON */
    if (json_equals(json_get(c->line, "compare_arguments"), "json")) {
        normalise(want->text, want->length, &b);
        assert_string_equal(a.data, b.data);
    } else {
        check_text(c, cut, "arguments", found, want);
    }
    buffer_free(&a);
    buffer_free(&b);
}

static void check_calls(const struct parser_case *c, const char *cut, const struct parsed_answer *answer,
                        const struct json *want)
{
    const struct json *next = want ? want->child : NULL;
    for (size_t i = 0; i < answer->call_count; i++) {
        const struct answer_call *call = &answer->calls[i];
        if (!call->whole)
            continue;
        if (!next)
            fail_msg("%s (%s): a call of %s too many", c->id, cut, data(&call->name));
        check_text(c, cut, "name", &call->name, json_get(next, "name"));
        check_arguments(c, cut, &call->arguments, json_get(next, "arguments"));
        next = next->next;
    }
    if (next)
        fail_msg("%s (%s): no call of %s", c->id, cut, json_get(next, "name")->text);
}

static void check_once(const struct parser_case *c, const struct tok_ids *ids, const char *cut, size_t step,
                       size_t once)
{
    struct parsed_answer answer = {0};
    enum parser_finish finish;
    const struct json *expected = member(c->line, "expected", JSON_OBJECT);
    run(c, ids, step, once, &answer, &finish);
    check_text(c, cut, "reasoning", &answer.reasoning, json_get(expected, "reasoning"));
    check_content(c, cut, &answer.content, expected);
    check_calls(c, cut, &answer, json_get(expected, "tool_calls"));
    if (strcmp(parser_finish_name(finish), json_get(expected, "finish_reason")->text) != 0)
        fail_msg("%s (%s): finish %s, wanted %s", c->id, cut, parser_finish_name(finish),
                 json_get(expected, "finish_reason")->text);
    parsed_answer_free(&answer);
}

void parser_case_check(const struct parser_case *c, const struct tok_ids *ids, const char *cut)
{
    check_once(c, ids, cut, 1, 0);
    for (size_t once = 0; once < ids->count; once += 1 + ids->count / 256)
        check_once(c, ids, cut, 0, once);
}
