/* The chat requests and parsers of quire.h: what a server asks of the library. What the parser makes of every odd answer is
 * tested in tests/text; here that its options reach it, and what comes back. */
#include <string.h>

#include "base/buffer.h"
#include "quire.h"
#include "support/support.h"

static qr_model *model;

static int set_up(void **state)
{
    (void)state;
    return qr_model_open(source_path("models/tiny-v41"), NULL, &model, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    qr_model_close(model);
    return 0;
}

static qr_chat *chat_of(const char *json, const qr_chat_options *options)
{
    qr_chat *chat;
    qr_error err = {0};
    if (qr_chat_open(model, json, strlen(json), options, &chat, NULL, &err) != QR_OK)
        fail_msg("%s", err.message);
    return chat;
}

/* What an answer of that text comes to. Texts of a kind stand one behind another, calls as name(arguments). */
struct outcome {
    struct buffer reasoning, content, calls;
    qr_parser_state state;
};

static void take(struct outcome *o, const qr_delta *deltas, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const qr_delta *d = &deltas[i];
        struct buffer *to = d->kind == QR_DELTA_REASONING ? &o->reasoning : d->kind == QR_DELTA_CONTENT ? &o->content : &o->calls;
        assert_true(buffer_append(to, d->text, d->length));
        if (d->kind == QR_DELTA_CALL)
            assert_true(buffer_append(to, "(", 1));
        if (d->kind == QR_DELTA_CALL_END)
            assert_true(buffer_append(to, ")", 1));
    }
}

static struct outcome read_answer(const qr_chat *chat, const char *text, const qr_parser_options *options, qr_finish finish)
{
    struct outcome o = {.reasoning = {0}};
    qr_parser *p;
    qr_tokens tokens;
    const qr_delta *deltas;
    size_t count;
    assert_int_equal(qr_parser_open(chat, options, &p, NULL), QR_OK);
    assert_int_equal(qr_tokenize(model, text, strlen(text), true, &tokens, NULL), QR_OK);
    for (size_t i = 0; i < tokens.count; i++) {
        assert_int_equal(qr_parser_push(p, tokens.data[i], &deltas, &count, NULL), QR_OK);
        take(&o, deltas, count);
    }
    const qr_event last = {.token = -1, .finish = finish, .stop_token = -1, .stop_string = -1};
    assert_int_equal(qr_parser_finish(p, &last, &deltas, &count, NULL), QR_OK);
    take(&o, deltas, count);
    qr_parser_get_state(p, &o.state);
    assert_true(buffer_append(&o.reasoning, "", 1) && buffer_append(&o.content, "", 1) && buffer_append(&o.calls, "", 1));
    qr_tokens_free(&tokens);
    qr_parser_close(p);
    return o;
}

static void free_outcome(struct outcome *o)
{
    buffer_free(&o->reasoning);
    buffer_free(&o->content);
    buffer_free(&o->calls);
}

#define HELLO "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"

static void a_refused_request_says_where_and_which_status(void **state)
{
    (void)state;
    qr_chat *chat;
    qr_issue issue;
    qr_error err = {0};
    const char *wrong = "{\"messages\":[{\"role\":\"user\",\"content\":7}]}";
    assert_int_equal(qr_chat_open(model, wrong, strlen(wrong), NULL, &chat, &issue, &err), QR_BAD_REQUEST);
    assert_null(chat);
    assert_int_equal(issue.status, 400);
    assert_string_equal(issue.param, "messages[0].content");
    assert_int_equal(qr_chat_open(model, "{", 1, NULL, &chat, &issue, &err), QR_BAD_REQUEST);
    assert_int_equal(issue.status, 400);
}

static void thinking_is_the_servers_to_decide_where_the_request_does_not(void **state)
{
    (void)state;
    qr_chat_options off = QR_CHAT_OPTIONS;
    qr_chat_info info;
    off.thinking = "off";
    qr_chat *chat = chat_of(HELLO "}", NULL);
    qr_chat_get_info(chat, &info);
    assert_true(info.thinking && info.starts_in_reasoning && info.token_count > 0 && info.text_length > 0);
    qr_chat_close(chat);
    chat = chat_of(HELLO "}", &off);
    qr_chat_get_info(chat, &info);
    assert_false(info.thinking || info.starts_in_reasoning);
    qr_chat_close(chat);
    off.thinking = "perhaps";
    assert_int_equal(qr_chat_open(model, HELLO "}", strlen(HELLO "}"), &off, &chat, NULL, NULL), QR_BAD_ARGUMENT);
}

static void reasoning_and_content_are_told_apart(void **state)
{
    (void)state;
    qr_chat *chat = chat_of(HELLO "}", NULL);
    struct outcome o = read_answer(chat, "Who is it?</think>Hello you.", NULL, QR_FINISH_LENGTH);
    assert_string_equal(o.reasoning.data, "Who is it?");
    assert_string_equal(o.content.data, "Hello you.");
    assert_int_equal(o.state.end, QR_ANSWER_LENGTH);
    assert_true(o.state.reasoning_tokens > 0 && o.state.reasoning_tokens < o.state.tokens);
    assert_int_equal(o.state.place, QR_PLACE_CONTENT);
    free_outcome(&o);
    qr_chat_close(chat);
}

static void a_stop_string_ends_the_content_and_not_the_reasoning(void **state)
{
    (void)state;
    const char *const stop[] = {"is"};
    qr_parser_options options = QR_PARSER_OPTIONS;
    options.stop = stop;
    options.stop_count = 1;
    qr_chat *chat = chat_of(HELLO "}", NULL);
    struct outcome o = read_answer(chat, "Who is it?</think>It is me.", &options, QR_FINISH_LENGTH);
    assert_string_equal(o.reasoning.data, "Who is it?");
    assert_string_equal(o.content.data, "It ");
    assert_int_equal(o.state.end, QR_ANSWER_STOP);
    assert_int_equal(o.state.stop_string, 0);
    free_outcome(&o);
    qr_chat_close(chat);
}

static void calls_come_as_name_and_arguments(void **state)
{
    (void)state;
    const char *answer = "Wait.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"tide\">\n"
                         "<｜DSML｜parameter name=\"port\" string=\"true\">Brest</｜DSML｜parameter>\n"
                         "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    qr_chat *chat = chat_of(HELLO ",\"thinking\":{\"type\":\"disabled\"},\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
                                  "\"tide\",\"parameters\":{\"type\":\"object\",\"properties\":{\"port\":{\"type\":\"string\"}}}}}]}",
                            NULL);
    qr_chat_info info;
    qr_chat_get_info(chat, &info);
    assert_int_equal(info.tools, 1);
    struct outcome o = read_answer(chat, answer, NULL, QR_FINISH_STOP);
    assert_string_equal(o.content.data, "Wait.");
    assert_string_equal(o.calls.data, "tide({\"port\": \"Brest\"})");
    assert_int_equal(o.state.calls, 1);
    assert_int_equal(o.state.end, QR_ANSWER_TOOL_CALLS);
    assert_string_equal(qr_answer_end_name(o.state.end), "tool_calls");
    free_outcome(&o);
    qr_chat_close(chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_request_says_where_and_which_status),
        cmocka_unit_test(thinking_is_the_servers_to_decide_where_the_request_does_not),
        cmocka_unit_test(reasoning_and_content_are_told_apart),
        cmocka_unit_test(a_stop_string_ends_the_content_and_not_the_reasoning),
        cmocka_unit_test(calls_come_as_name_and_arguments),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
