#include "tools/text.h"

#include <string.h>

#include "base/alloc.h"
#include "text/parser.h"

struct parse {
    struct tokenizer *tok;
    bool deltas, recovery, lenient;
};

/* What a line asks for. */
struct question {
    struct arena arena;
    struct tool_list tools;
    const char **stops;
    struct tok_ids ids;
    struct parser_options options;
    enum parser_end end;
};

/* ---- the question ---- */

static qr_status read_flag(const struct json *line, const char *member, bool *out, qr_error *err)
{
    const struct json *value = json_get(line, member);
    if (!value || value->kind == JSON_NULL || json_bool(value, out))
        return QR_OK;
    return qr_fail(err, QR_BAD_REQUEST, "%s is no boolean", member);
}

static qr_status read_stops(const struct json *stop, struct question *q, qr_error *err)
{
    if (!stop || stop->kind == JSON_NULL)
        return QR_OK;
    if (stop->kind != JSON_STRING && stop->kind != JSON_ARRAY)
        return qr_fail(err, QR_BAD_REQUEST, "stop is neither a string nor a list of strings");
    const struct json *s = stop->kind == JSON_ARRAY ? stop->child : stop;
    size_t count = stop->kind == JSON_ARRAY ? stop->count : 1;
    q->stops = arena_alloc(&q->arena, count * sizeof *q->stops);
    if (!q->stops)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu stop strings", count);
    for (size_t i = 0; i < count; i++, s = s->next) {
        if (s->kind != JSON_STRING || s->length == 0 || strlen(s->text) != s->length)
            return qr_fail(err, QR_BAD_REQUEST, "stop[%zu] is no string of at least one byte, none of them NUL", i);
        q->stops[i] = s->text;
    }
    q->options.stops = q->stops;
    q->options.stop_count = (int32_t)count;
    return QR_OK;
}

/* Function objects, or the tools of a request around them. */
static qr_status read_tools(const struct json *line, struct question *q, qr_error *err)
{
    const struct json *tools = json_get(line, "tools");
    bool on = !json_equals(json_get(line, "tool_choice"), "none");
    bool bare = !json_get(json_at(tools, 0), "function");
    qr_status st = tool_list_read(tools, bare, &q->arena, &q->tools, NULL, err);
    if (st == QR_OK)
        st = read_flag(line, "tools_on", &on, err);
    q->options.tools = on ? &q->tools : NULL;
    return st;
}

static qr_status read_section(const struct json *start, struct question *q, qr_error *err)
{
    if (json_equals(start, "reasoning"))
        q->options.start = CHAT_REASONING;
    else if (!start || json_equals(start, "content"))
        q->options.start = CHAT_CONTENT;
    else
        return qr_fail(err, QR_BAD_REQUEST, "start is neither \"reasoning\" nor \"content\"");
    return QR_OK;
}

static qr_status read_end(const struct json *end, struct question *q, qr_error *err)
{
    q->end = END_EOS;
    if (json_equals(end, "length"))
        q->end = END_LENGTH;
    else if (end && end->kind != JSON_NULL && !json_equals(end, "eos"))
        return qr_fail(err, QR_BAD_REQUEST, "end is neither \"length\" nor \"eos\"");
    return QR_OK;
}

static qr_status read_question(const struct parse *t, const struct json *line, struct question *q, qr_error *err)
{
    qr_status st;
    q->options = (struct parser_options){.tok = t->tok, .recovery = t->recovery, .lenient_tools = t->lenient};
    if ((st = text_read_ids(json_get(line, "ids"), "ids", &q->ids, err)) != QR_OK ||
        (st = read_section(json_get(line, "start"), q, err)) != QR_OK || (st = read_tools(line, q, err)) != QR_OK ||
        (st = read_stops(json_get(line, "stop"), q, err)) != QR_OK ||
        (st = read_flag(line, "include_stop", &q->options.include_stop, err)) != QR_OK ||
        (st = read_flag(line, "ignore_eos", &q->options.ignore_eos, err)) != QR_OK ||
        (st = read_flag(line, "continued", &q->options.continued, err)) != QR_OK)
        return st;
    return read_end(json_get(line, "end"), q, err);
}

/* ---- the answer ---- */

static void write_answer(const struct parsed_answer *a, enum parser_finish finish, struct json_writer *w)
{
    json_w_member_string_n(w, "reasoning", a->reasoning.data, a->reasoning.length);
    json_w_member_string_n(w, "content", a->content.data, a->content.length);
    json_w_key(w, "tool_calls");
    json_w_array(w);
    for (size_t i = 0; i < a->call_count; i++) {
        if (!a->calls[i].whole)
            continue;
        json_w_object(w);
        json_w_member_string_n(w, "name", a->calls[i].name.data, a->calls[i].name.length);
        json_w_member_string_n(w, "arguments", a->calls[i].arguments.data, a->calls[i].arguments.length);
        json_w_end_object(w);
    }
    json_w_end_array(w);
    json_w_member_string(w, "finish_reason", parser_finish_name(finish));
}

static void write_deltas(const struct deltas *d, struct json_writer *w)
{
    static const char *const kinds[] = {"reasoning", "content", "call", "arguments", "call_end", "call_lost"};
    for (size_t i = 0; i < d->count; i++) {
        const struct delta *delta = &d->items[i];
        json_w_object(w);
        json_w_member_string(w, "kind", kinds[delta->kind]);
        if (delta->kind > DELTA_CONTENT)
            json_w_member_uint(w, "call", delta->call);
        if (delta->length > 0 || delta->kind < DELTA_CALL_END) {
            json_w_member_string_n(w, delta->kind == DELTA_CALL ? "name" : "text", deltas_text(d, delta), delta->length);
        }
        json_w_end_object(w);
    }
}

/* What came out since the last time joins the sum, and the list when one is wanted. */
static qr_status take(const struct parse *t, struct deltas *d, struct parsed_answer *a, struct json_writer *w,
                      qr_error *err)
{
    if (!parsed_answer_add(a, d))
        return qr_fail(err, QR_NO_MEMORY, "no memory for the answer");
    if (t->deltas)
        write_deltas(d, w);
    deltas_clear(d);
    return QR_OK;
}

static qr_status feed(const struct parse *t, struct parser *p, const struct question *q, struct parsed_answer *a,
                      struct json_writer *w, qr_error *err)
{
    struct deltas d = {0};
    qr_status st = QR_OK;
    for (size_t i = 0; i < q->ids.count && st == QR_OK; i++) {
        st = parser_push(p, q->ids.data[i], &d, err);
        if (st == QR_OK)
            st = take(t, &d, a, w, err);
    }
    if (st == QR_OK)
        st = parser_end(p, q->end, &d, err);
    if (st == QR_OK)
        st = take(t, &d, a, w, err);
    deltas_free(&d);
    return st;
}

static qr_status answer(void *user, const struct json *line, struct json_writer *w, qr_error *err)
{
    const struct parse *t = user;
    struct question q = {0};
    struct parsed_answer a = {0};
    struct parser *p = NULL;
    arena_init(&q.arena, 4096);
    qr_status st = read_question(t, line, &q, err);
    if (st == QR_OK)
        st = parser_open(&q.options, &p, err);
    if (st == QR_OK && t->deltas) {
        json_w_key(w, "deltas");
        json_w_array(w);
    }
    if (st == QR_OK)
        st = feed(t, p, &q, &a, w, err);
    if (st == QR_OK && t->deltas)
        json_w_end_array(w);
    if (st == QR_OK)
        write_answer(&a, parser_finish(p), w);
    parser_close(p);
    parsed_answer_free(&a);
    tok_ids_free(&q.ids);
    arena_free(&q.arena);
    return st;
}

int text_parse(int argc, char **argv)
{
    struct text_options options = TEXT_OPTIONS_DEFAULT;
    struct parse t = {0};
    const struct option table[] = {
        TEXT_OPTIONS(options),
        {.name = "deltas",
         .kind = OPTION_FLAG,
         .target = &t.deltas,
         .help = "also list what a stream would have sent, id by id"},
        {.name = "tool-recovery",
         .kind = OPTION_FLAG,
         .target = &t.recovery,
         .help = "read misspelled tags of calls as tags"},
        {.name = "lenient-tools",
         .kind = OPTION_FLAG,
         .target = &t.lenient,
         .help = "let calls of undeclared tools through"},
        {0},
    };
    struct command_line line = {.command = "text parse",
                                .synopsis = "--tokenizer DIR [--deltas] [--in FILE]",
                                .about =
                                    "Answers {id, ids, start, tools, stop, include_stop, end, ignore_eos, tool_choice} "
                                    "with {id, reasoning, content, tool_calls, finish_reason}.",
                                .options = table};
    return text_part(&options, &line, argc, argv, &t.tok, answer, &t);
}
