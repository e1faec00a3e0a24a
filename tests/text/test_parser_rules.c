/* Rules of the parser that the goldens leave to others. */
#include "support/support.h"

#include <string.h>

#include "base/alloc.h"
#include "support/tokenizers.h"
#include "text/detokenizer.h"
#include "text/parser.h"

static struct tokenizer *tok;
static struct json_document *declared;
static struct arena arena;
static struct tool_list tools;

static int open_all(void **state)
{
    static const char text[] = "[{\"name\":\"tide\",\"parameters\":{\"type\":\"object\",\"properties\":{"
                               "\"port\":{\"type\":\"string\"},\"hours\":{\"type\":[\"integer\"]},"
                               "\"one\":{\"type\":[\"string\"]}}}},{\"name\":\"ping\"}]";
    (void)state;
    tok = bundled_tokenizer();
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

static struct parser_options plain(void)
{
    return (struct parser_options){.tok = tok, .tools = &tools, .start = CHAT_CONTENT};
}

struct outcome {
    struct parsed_answer answer;
    enum parser_finish finish;
    struct parser_counts counts;
    int32_t stop;
    size_t taken; /* ids until the parser was finished */
};

static struct outcome run(const struct parser_options *options, const char *text, enum parser_end end)
{
    struct outcome o = {0};
    struct tok_ids ids = {0};
    struct deltas d = {0};
    struct parser *p;
    assert_int_equal(tok_encode_markup(tok, text, strlen(text), &ids, NULL), QR_OK);
    assert_int_equal(parser_open(options, &p, NULL), QR_OK);
    for (; o.taken < ids.count && parser_finish(p) == FINISH_NONE; o.taken++)
        assert_int_equal(parser_push(p, ids.data[o.taken], &d, NULL), QR_OK);
    assert_int_equal(parser_end(p, end, &d, NULL), QR_OK);
    assert_true(parsed_answer_add(&o.answer, &d));
    o.finish = parser_finish(p);
    o.counts = *parser_counts(p);
    o.stop = parser_matched_stop(p);
    deltas_free(&d);
    parser_close(p);
    tok_ids_free(&ids);
    return o;
}

static void assert_content(const struct outcome *o, const char *want)
{
    assert_string_equal(o->answer.content.data ? o->answer.content.data : "", want);
}

static void assert_call(const struct outcome *o, size_t index, const char *name, const char *arguments)
{
    assert_true(index < o->answer.call_count);
    assert_true(o->answer.calls[index].whole);
    assert_string_equal(o->answer.calls[index].name.data, name);
    assert_string_equal(o->answer.calls[index].arguments.data, arguments);
}

#define OPEN "<｜DSML｜ calls>\n"
#define CLOSE "</｜DSML｜ calls>"
#define PING "<｜DSML｜ invoke name=\"ping\">\n\n</｜DSML｜ invoke>\n"
#define TIDE "<｜DSML｜ invoke name=\"tide\">\n"
#define END "</｜DSML｜ invoke>\n"
#define PARAMETER(key, value) "<｜DSML｜ parameter name=\"" key "\">" value "</｜DSML｜ parameter>\n"
#define EOS "<｜end▁of▁sentence｜>"

static void after_a_block_four_ids_are_waited_for_and_no_more(void **state)
{
    struct parser_options options = plain();
    struct outcome o = run(&options, OPEN PING CLOSE "</think></think></think></think></think></think>" EOS, END_EOS);
    struct tok_ids ids = {0};
    (void)state;
    assert_int_equal(tok_encode_markup(tok, OPEN PING CLOSE, strlen(OPEN PING CLOSE), &ids, NULL), QR_OK);
    assert_int_equal(o.finish, FINISH_TOOL_CALLS);
    assert_int_equal(o.taken, ids.count + 4);
    assert_int_equal(o.counts.discarded_ids, 4);
    parsed_answer_free(&o.answer);

    options.ignore_eos = true; /* then the caller's limit is the end */
    o = run(&options, OPEN PING CLOSE "</think></think></think></think></think></think>", END_LENGTH);
    assert_int_equal(o.taken, ids.count + 6);
    assert_int_equal(o.finish, FINISH_TOOL_CALLS);
    parsed_answer_free(&o.answer);
    tok_ids_free(&ids);
}

static void a_single_call_ends_the_turn_at_its_closer(void **state)
{
    struct parser_options options = plain();
    (void)state;
    options.single_call = true;
    struct outcome o = run(&options, OPEN PING TIDE END CLOSE EOS, END_EOS);
    assert_int_equal(o.finish, FINISH_TOOL_CALLS);
    assert_int_equal(o.answer.call_count, 1);
    assert_call(&o, 0, "ping", "{}");
    parsed_answer_free(&o.answer);

    o = run(&options, OPEN "<｜DSML｜ invoke name=\"tide\">{\"port\": 1}" END PING CLOSE EOS, END_EOS);
    assert_int_equal(o.answer.call_count, 1);
    assert_call(&o, 0, "tide", "{\"port\": 1}");
    parsed_answer_free(&o.answer);
}

static void an_undeclared_tool_is_let_through_when_asked(void **state)
{
    struct parser_options options = plain();
    (void)state;
    options.lenient_tools = true;
    struct outcome o =
        run(&options, OPEN "<｜DSML｜ invoke name=\"other\">\n" PARAMETER("a", "1") END CLOSE EOS, END_EOS);
    assert_call(&o, 0, "other", "{\"a\": 1}");
    assert_int_equal(o.counts.refused_calls, 0);
    parsed_answer_free(&o.answer);
    o = run(&options, OPEN "<｜DSML｜ invoke name=\"\">\n" END CLOSE EOS, END_EOS);
    assert_int_equal(o.answer.call_count, 0); /* a name there must be */
    parsed_answer_free(&o.answer);
}

static void a_list_of_one_type_is_that_type(void **state)
{
    struct parser_options options = plain();
    struct outcome o = run(&options, OPEN TIDE PARAMETER("one", "1") PARAMETER("hours", "2") END CLOSE EOS, END_EOS);
    (void)state;
    assert_call(&o, 0, "tide", "{\"one\": \"1\", \"hours\": 2}");
    parsed_answer_free(&o.answer);
}

static void a_repeated_wrapper_still_unwraps_and_a_second_key_does_not(void **state)
{
    struct parser_options options = plain();
    struct outcome o = run(
        &options, OPEN TIDE PARAMETER("input", "{\"port\": \"B\"}") PARAMETER("input", "{}") END CLOSE EOS, END_EOS);
    (void)state;
    assert_call(&o, 0, "tide", "{\"port\": \"B\"}");
    assert_int_equal(o.counts.repeated_keys, 1);
    parsed_answer_free(&o.answer);
    o = run(&options, OPEN TIDE PARAMETER("hours", "1") PARAMETER("input", "{\"port\": \"B\"}") END CLOSE EOS, END_EOS);
    assert_call(&o, 0, "tide", "{\"hours\": 1, \"input\": {\"port\": \"B\"}}");
    parsed_answer_free(&o.answer);
    /* One level only. */
    o = run(&options, OPEN TIDE PARAMETER("input", "{\"arguments\": {\"port\": \"B\"}}") END CLOSE EOS, END_EOS);
    assert_call(&o, 0, "tide", "{\"input\": {\"arguments\": {\"port\": \"B\"}}}");
    parsed_answer_free(&o.answer);
}

static void a_body_is_unwrapped_with_its_text_kept(void **state)
{
    struct parser_options options = plain();
    struct outcome o =
        run(&options, OPEN TIDE "{ \"arg\\u0075ments\" : { \"hours\": 1.50e0 }\n}" END CLOSE EOS, END_EOS);
    (void)state;
    assert_call(&o, 0, "tide", "{ \"hours\": 1.50e0 }");
    parsed_answer_free(&o.answer);
    o = run(&options, OPEN TIDE "{\"input\": \" {\\\"hours\\\": 2}\"}" END CLOSE EOS, END_EOS);
    assert_call(&o, 0, "tide", "{\"hours\": 2}");
    parsed_answer_free(&o.answer);
}

static void stop_strings_count_from_the_wanted_number_of_ids(void **state)
{
    const char *const stops[] = {"never", "ab"};
    struct parser_options options = plain();
    (void)state;
    options.stops = stops;
    options.stop_count = 2;
    struct outcome o = run(&options, "xab yab" EOS, END_EOS);
    assert_content(&o, "x");
    assert_int_equal(o.finish, FINISH_STOP);
    assert_int_equal(o.stop, 1);
    parsed_answer_free(&o.answer);

    struct tok_ids ids = {0};
    assert_int_equal(tok_encode_literal(tok, "xab", 3, &ids, NULL), QR_OK);
    options.min_ids = (int64_t)ids.count + 1;
    o = run(&options, "xab yab" EOS, END_EOS);
    assert_content(&o, "xab y");
    parsed_answer_free(&o.answer);
    options.min_ids = 100;
    o = run(&options, "xab yab" EOS, END_EOS);
    assert_content(&o, "xab yab");
    assert_int_equal(o.stop, -1);
    parsed_answer_free(&o.answer);
    tok_ids_free(&ids);
}

static void an_empty_stop_string_is_refused(void **state)
{
    const char *const stops[] = {"a", ""};
    struct parser_options options = plain();
    struct parser *p;
    (void)state;
    options.stops = stops;
    options.stop_count = 2;
    assert_int_equal(parser_open(&options, &p, NULL), QR_BAD_REQUEST);
    assert_null(p);
}

static void a_stop_id_ends_as_stop_and_completes_no_call(void **state)
{
    struct parser_options options = plain();
    struct outcome o = run(&options, "a\n", END_STOP_ID);
    (void)state;
    assert_content(&o, "a\n");
    assert_int_equal(o.finish, FINISH_STOP);
    parsed_answer_free(&o.answer);
    o = run(&options, OPEN TIDE PARAMETER("port", "B"), END_STOP_ID);
    assert_int_equal(o.answer.call_count, 1);
    assert_false(o.answer.calls[0].whole);
    assert_int_equal(o.finish, FINISH_STOP);
    assert_int_equal(o.counts.cut_calls, 1);
    parsed_answer_free(&o.answer);
}

static void a_lone_bracket_after_a_parameter_completes_the_call_at_the_end(void **state)
{
    struct parser_options options = plain();
    struct outcome o = run(&options, OPEN TIDE PARAMETER("port", "B") "<" EOS, END_EOS);
    (void)state;
    assert_call(&o, 0, "tide", "{\"port\": \"B\"}");
    assert_int_equal(o.finish, FINISH_TOOL_CALLS);
    parsed_answer_free(&o.answer);
}

/* An id, and where it and those that were held before it belong once it has come, by the letters of place_names. */
struct place_step {
    const char *text, *places;
};
static const char place_names[] = {[PLACE_HIDDEN] = 'h', [PLACE_REASONING] = 'r', [PLACE_CONTENT] = 'c', [PLACE_HELD] = '?'};

static void check_places(const struct parser_options *options, const struct place_step *steps, enum parser_place at_end)
{
    struct parser *p;
    struct deltas d = {0};
    assert_int_equal(parser_open(options, &p, NULL), QR_OK);
    for (; steps->text; steps++) {
        struct tok_ids ids = {0};
        assert_int_equal(tok_encode_markup(tok, steps->text, strlen(steps->text), &ids, NULL), QR_OK);
        assert_int_equal(ids.count, 1);
        assert_int_equal(parser_push(p, ids.data[0], &d, NULL), QR_OK);
        const char places[] = {place_names[parser_place(p)], place_names[parser_place_of_held(p)], '\0'};
        if (strcmp(places, steps->places) != 0)
            fail_msg("\"%s\": %s, wanted %s", steps->text, places, steps->places);
        tok_ids_free(&ids);
    }
    assert_int_equal(parser_end(p, END_EOS, &d, NULL), QR_OK);
    assert_int_equal(parser_place_of_held(p), at_end);
    deltas_free(&d);
    parser_close(p);
}

/* Of each id it is known where it belongs as soon as it is known whether its text is let out. */
static void every_id_is_reasoning_content_or_hidden(void **state)
{
    static const struct place_step text[] = {
        {"a", "rh"}, {"\n", "?h"}, {"</think>", "hh"}, {"\n", "hh"}, {"b", "ch"}, {"\n", "?h"},
        {"</think>", "h?"}, {"<", "??"}, {"｜DSML｜", "??"}, {" ", "??"}, {"x", "cc"}, {"y", "ch"},
        {"<", "?h"}, {"<", "?c"}, {"</think>", "hc"}, {"｜DSML｜", "ch"}, {"\n", "?h"}, {NULL, NULL}};
    static const struct place_step without_tools[] = {{"｜DSML｜", "ch"}, {"<", "ch"}, {"｜DSML｜", "ch"}, {NULL, NULL}};
    static const struct place_step swallowed[] = {{"a", "ch"}, {"<", "?h"}, {"/", "??"}, {"｜DSML｜", "hh"}, {"x", "hh"},
                                                  {">", "hh"}, {"y", "ch"}, {NULL, NULL}};
    struct parser_options options = plain();
    (void)state;
    check_places(&options, swallowed, PLACE_HIDDEN);
    options.start = CHAT_REASONING;
    check_places(&options, text, PLACE_CONTENT);
    options.start = CHAT_CONTENT;
    options.tools = NULL;
    check_places(&options, without_tools, PLACE_HIDDEN);
}

/* Over all of an answer, whose ids are those of its letters and tokens: the ids of content spell the content. */
static void the_ids_of_content_spell_it(void **state)
{
    static const char *const answers[] = {
        "One\n\n" OPEN TIDE PARAMETER("port", "B") "</｜DSML｜invoke>\n</｜DSML｜calls>", "One\n\n" OPEN "<｜DSML｜invoke name=\"nobody\">\nx</｜DSML｜invoke>\n</｜DSML｜calls> two",
        "a <b> </c> ｜DSML｜ <｜DSML｜d <<｜DSML｜ calls", "é <é\n\n", OPEN TIDE "[1]</｜DSML｜invoke></｜DSML｜calls>x"};
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        const struct parser_options options = plain();
        struct parser *p;
        struct deltas d = {0};
        struct parsed_answer sum = {0};
        struct tok_ids ids = {0}, held = {0}, content = {0};
        struct buffer spelt = {0};
        assert_int_equal(parser_open(&options, &p, NULL), QR_OK);
        assert_int_equal(tok_encode_markup(tok, answers[i], strlen(answers[i]), &ids, NULL), QR_OK);
        content.data = qr_calloc(ids.count + 1, sizeof *content.data);
        held.data = qr_calloc(ids.count + 1, sizeof *held.data);
        for (size_t k = 0; k <= ids.count; k++) {
            if (k < ids.count)
                assert_int_equal(parser_push(p, ids.data[k], &d, NULL), QR_OK);
            else
                assert_int_equal(parser_end(p, END_EOS, &d, NULL), QR_OK);
            if (parser_place_of_held(p) == PLACE_CONTENT)
                for (size_t h = 0; h < held.count; h++)
                    content.data[content.count++] = held.data[h];
            if (parser_place_of_held(p) != PLACE_HELD)
                held.count = 0;
            if (k < ids.count && parser_place(p) == PLACE_HELD)
                held.data[held.count++] = ids.data[k];
            else if (k < ids.count && parser_place(p) == PLACE_CONTENT)
                content.data[content.count++] = ids.data[k];
        }
        assert_int_equal(held.count, 0);
        assert_true(parsed_answer_add(&sum, &d));
        assert_int_equal(detok_all(tok, content.data, content.count, &spelt, NULL), QR_OK);
        if (spelt.length != sum.content.length || memcmp(spelt.data ? spelt.data : "", sum.content.data ? sum.content.data : "", spelt.length) != 0)
            fail_msg("%s: \"%.*s\" is content, \"%.*s\" are its ids", answers[i], (int)sum.content.length, sum.content.data, (int)spelt.length, spelt.data);
        parsed_answer_free(&sum);
        buffer_free(&spelt);
        deltas_free(&d);
        parser_close(p);
        tok_ids_free(&ids);
        tok_ids_free(&held);
        tok_ids_free(&content);
    }
}

static void an_id_outside_the_vocabulary_is_refused(void **state)
{
    struct parser_options options = plain();
    struct parser *p;
    struct deltas d = {0};
    qr_error err = {0};
    (void)state;
    assert_int_equal(parser_open(&options, &p, NULL), QR_OK);
    assert_int_equal(parser_push(p, tok_count(tok), &d, &err), QR_BAD_REQUEST);
    assert_int_equal(parser_push(p, -1, &d, &err), QR_OK); /* it is of no more use */
    assert_int_equal(d.count, 0);
    deltas_free(&d);
    parser_close(p);
}

/* ---- recovery (3.5 item 4) ---- */

static void misspelled_calls_are_text_unless_recovery_is_on(void **state)
{
    static const char *const outputs[] = {
        "a\n<|DSML|tool_calls>\n<|DSML|invoke name=\"tide\">\n<|DSML|parameter name=\"port\" "
        "string=\"true\">x|y</|DSML|"
        "parameter>\n</|DSML|invoke>\n</|DSML|tool_calls>" EOS,
        "a\n<invoke name=\"tide\">\n<parameter name=\"port\" string=\"true\">x|y</parameter>\n</invoke>" EOS,
        "a\n<｜DSML｜ invoke name=\"tide\">\n<｜DSML｜ parameter name=\"port\" string=\"true\">x|y</｜DSML｜ "
        "parameter>\n</｜DSML｜ invoke>" EOS,
    };
    struct parser_options options = plain();
    (void)state;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        options.recovery = true;
        options.tools = &tools;
        struct outcome o = run(&options, outputs[i], END_EOS);
        assert_content(&o, "a");
        assert_call(&o, 0, "tide", "{\"port\": \"x|y\"}");
        assert_int_equal(o.finish, FINISH_TOOL_CALLS);
        parsed_answer_free(&o.answer);
        options.recovery = false;
        o = run(&options, outputs[i], END_EOS);
        assert_int_equal(o.answer.call_count, 0);
        parsed_answer_free(&o.answer);
        options.recovery = true; /* nothing to recover without tools */
        options.tools = NULL;
        o = run(&options, outputs[i], END_EOS);
        assert_int_equal(o.answer.call_count, 0);
        parsed_answer_free(&o.answer);
    }
}

static void recovery_leaves_other_text_as_it_is(void **state)
{
    static const char *const texts[] = {"a </|DSM <|DSML <| </ <invoke nam <<invoke <parameter name=\"x\"> </invoke>",
                                        "<|",
                                        "</",
                                        "x<|DSML",
                                        "<inv",
                                        "|DSML| invoke name=\""};
    struct parser_options options = plain();
    (void)state;
    options.recovery = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct outcome o = run(&options, texts[i], END_EOS);
        assert_content(&o, texts[i]);
        parsed_answer_free(&o.answer);
    }
}

/* ---- no memory ---- */

static const char everything[] = "r\n</think>\nLook <b>\n\n" OPEN TIDE PARAMETER("input", "{\"port\": \"a\\u00e9\"}")
    PARAMETER("hours", "[1, 2") END TIDE "{\"arguments\": {\"port\": \"x\"}}" END CLOSE "x" EOS;

static qr_status parse_everything(const struct tok_ids *ids, const char *const *stop)
{
    struct parser_options options = plain();
    struct parser *p;
    struct deltas d = {0};
    qr_error err = {0};
    options.start = CHAT_REASONING;
    options.stops = stop;
    options.stop_count = 1;
    qr_status st = parser_open(&options, &p, &err);
    for (size_t i = 0; i < ids->count && st == QR_OK; i++)
        st = parser_push(p, ids->data[i], &d, &err);
    if (st == QR_OK)
        st = parser_end(p, END_EOS, &d, &err);
    if (st == QR_OK)
        assert_int_equal(parser_counts(p)->calls, 2);
    else
        assert_true(st == QR_NO_MEMORY && err.message[0]);
    parser_close(p);
    deltas_free(&d);
    return st;
}

static void every_allocation_may_fail(void **state)
{
    const char *const stop = "Loop";
    struct tok_ids ids = {0};
    (void)state;
    assert_int_equal(tok_encode_markup(tok, everything, strlen(everything), &ids, NULL), QR_OK);
    if (!alloc_fault_supported()) {
        assert_int_equal(parse_everything(&ids, &stop), QR_OK);
        tok_ids_free(&ids);
        return;
    }
    int64_t live = alloc_live();
    qr_status st = QR_NO_MEMORY;
    for (int64_t n = 1; st != QR_OK; n++) {
        alloc_fault_at(n, n % 2 == 0);
        st = parse_everything(&ids, &stop);
        alloc_fault_at(0, 0);
        assert_int_equal(alloc_live(), live);
        assert_true(n < 100000);
    }
    tok_ids_free(&ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_a_block_four_ids_are_waited_for_and_no_more),
        cmocka_unit_test(a_single_call_ends_the_turn_at_its_closer),
        cmocka_unit_test(an_undeclared_tool_is_let_through_when_asked),
        cmocka_unit_test(a_list_of_one_type_is_that_type),
        cmocka_unit_test(a_repeated_wrapper_still_unwraps_and_a_second_key_does_not),
        cmocka_unit_test(a_body_is_unwrapped_with_its_text_kept),
        cmocka_unit_test(stop_strings_count_from_the_wanted_number_of_ids),
        cmocka_unit_test(an_empty_stop_string_is_refused),
        cmocka_unit_test(a_stop_id_ends_as_stop_and_completes_no_call),
        cmocka_unit_test(a_lone_bracket_after_a_parameter_completes_the_call_at_the_end),
        cmocka_unit_test(every_id_is_reasoning_content_or_hidden),
        cmocka_unit_test(the_ids_of_content_spell_it),
        cmocka_unit_test(an_id_outside_the_vocabulary_is_refused),
        cmocka_unit_test(misspelled_calls_are_text_unless_recovery_is_on),
        cmocka_unit_test(recovery_leaves_other_text_as_it_is),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
