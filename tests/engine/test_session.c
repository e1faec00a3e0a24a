/* label: release */
/* The sessions of quire.h: a conversation is the request that a client would send, and its answers become part of it. */
#include "support/engines.h"

#include <stdio.h>
#include <string.h>

#include "support/support.h"

static struct opened o;

static int set_up(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.block_size = 32;
    options.max_num_seqs = 2;
    o = engine_open("models/tiny-v41", "cpu", 2, &options);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_close(&o);
    return 0;
}

static qr_session *open_session(void)
{
    qr_session *s;
    assert_int_equal(qr_session_open(o.engine, &s, NULL), QR_OK);
    assert_int_equal(qr_session_set_system(s, "Be kind.", NULL), QR_OK);
    return s;
}

static void append(qr_session *s, const char *message)
{
    qr_error err = {0};
    if (qr_session_append(s, message, strlen(message), &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void ask(qr_session *s, const char *question)
{
    char message[200];
    snprintf(message, sizeof message, "{\"role\":\"user\",\"content\":\"%s\"}", question);
    append(s, message);
}

static const qr_sampling greedy = {.size = sizeof greedy, .top_p = 1, .repetition_penalty = 1};

static qr_request how(int32_t tokens)
{
    qr_request q = QR_REQUEST;
    q.sampling = &greedy;
    q.max_tokens = tokens;
    return q;
}

/* The session's next answer to its end. */
static struct reply answer_of(qr_session *s, int32_t tokens)
{
    const qr_request q = how(tokens);
    struct reply r = {.finish = QR_FINISH_NONE};
    qr_handle handle;
    qr_event event;
    qr_error err = {0};
    if (qr_session_start(s, &q, &handle, &err) != QR_OK)
        fail_msg("%s", err.message);
    while (r.finish == QR_FINISH_NONE) {
        if (qr_session_poll(s, -1, &event, &err) != QR_OK)
            fail_msg("%s", err.message);
        reply_take(&r, &event);
    }
    assert_int_equal(qr_get_usage(o.engine, handle, &r.usage, NULL), QR_OK);
    qr_release(o.engine, handle);
    return r;
}

static qr_text written(const qr_session *s)
{
    qr_text text;
    assert_int_equal(qr_session_write(s, &text, NULL), QR_OK);
    return text;
}

/* The answer that the same messages get as a request of their own. */
static struct reply answer_to_request(const qr_text *body, int32_t tokens)
{
    qr_prompt prompt;
    qr_request q = how(tokens);
    qr_error err = {0};
    if (qr_render_chat(o.model, body->data, body->length, &prompt, &err) != QR_OK)
        fail_msg("%s", err.message);
    q.tokens = prompt.tokens.data;
    q.token_count = prompt.tokens.count;
    struct reply r = reply_of(&o, &q);
    qr_prompt_free(&prompt);
    return r;
}

static void an_answer_is_that_of_the_request_and_becomes_a_message(void **state)
{
    (void)state;
    qr_session *s = open_session();
    for (int turn = 0; turn < 3; turn++) {
        ask(s, turn ? "And now?" : "Tell me a story.");
        qr_text before = written(s);
        struct reply mine = answer_of(s, 24), theirs = answer_to_request(&before, 24);
        assert_same_reply(&mine, &theirs, "session and request");
        qr_text after = written(s);
        assert_true(after.length > before.length);
        assert_non_null(strstr(after.data + before.length - 2, "\"role\":\"assistant\""));
        assert_int_equal(qr_session_turns(s), turn + 1);
        if (turn > 0)
            assert_true(mine.usage.cached_tokens > 0); /* it goes on from the prompt before */
        qr_text_free(&before);
        qr_text_free(&after);
        reply_free(&mine);
        reply_free(&theirs);
    }
    qr_session_close(s);
}

/* The model's words stand in the message as the parser divides them, without the tags. */
static void a_message_holds_reasoning_and_content_apart(void **state)
{
    (void)state;
    qr_session *s = open_session();
    ask(s, "Hello");
    struct reply r = answer_of(s, 200);
    qr_text text = written(s);
    assert_int_equal(r.finish, QR_FINISH_STOP);
    assert_non_null(strstr(r.text.data, "</think>"));
    assert_null(strstr(text.data, "</think>"));
    assert_non_null(strstr(text.data, "\"reasoning_content\":\""));
    qr_text_free(&text);
    reply_free(&r);
    qr_session_close(s);
}

static void a_fork_goes_its_own_way(void **state)
{
    (void)state;
    qr_session *s = open_session(), *fork;
    qr_error err = {0};
    ask(s, "Hello");
    struct reply r = answer_of(s, 12);
    reply_free(&r);
    assert_int_equal(qr_session_fork(s, &fork, &err), QR_OK);
    qr_text a = written(s), b = written(fork);
    assert_string_equal(a.data, b.data);
    ask(s, "One?");
    ask(fork, "One?");
    struct reply x = answer_of(s, 12), y = answer_of(fork, 12);
    assert_same_reply(&x, &y, "session and fork");
    ask(fork, "Two?");
    assert_int_equal(qr_session_turns(s), 2);
    assert_int_equal(qr_session_turns(fork), 3);
    qr_session_close(s); /* the fork lives on */
    reply_free(&x);
    x = answer_of(fork, 4);
    assert_int_equal(x.count, 4);
    reply_free(&x);
    reply_free(&y);
    qr_text_free(&a);
    qr_text_free(&b);
    qr_session_close(fork);
}

static void nothing_is_changed_while_an_answer_is_in_progress(void **state)
{
    (void)state;
    static const char message[] = "{\"role\":\"user\",\"content\":\"x\"}";
    qr_session *s = open_session(), *fork;
    const qr_request q = how(0);
    qr_handle handle;
    qr_event event;
    qr_text text;
    qr_prompt prompt;
    qr_error err = {0};
    ask(s, "Tell me a story.");
    assert_int_equal(qr_session_start(s, &q, &handle, &err), QR_OK);
    assert_int_equal(qr_session_start(s, &q, &handle, &err), QR_BUSY);
    assert_int_equal(qr_session_append(s, message, sizeof message - 1, &err), QR_BUSY);
    assert_int_equal(qr_session_set(s, "{}", 2, &err), QR_BUSY);
    assert_int_equal(qr_session_set_system(s, NULL, &err), QR_BUSY);
    assert_int_equal(qr_session_write(s, &text, &err), QR_BUSY);
    assert_int_equal(qr_session_read(s, "{}", 2, &err), QR_BUSY);
    assert_int_equal(qr_session_prompt(s, &prompt, &err), QR_BUSY);
    assert_int_equal(qr_session_fork(s, &fork, &err), QR_BUSY);
    assert_null(fork);
    assert_false(qr_session_drop_newest(s));
    assert_false(qr_session_drop_oldest(s));
    qr_cancel(o.engine, handle);
    do
        assert_int_equal(qr_session_poll(s, -1, &event, &err), QR_OK);
    while (event.finish == QR_FINISH_NONE);
    assert_int_equal(event.finish, QR_FINISH_CANCELLED);
    assert_int_equal(qr_session_poll(s, 0, &event, &err), QR_BAD_ARGUMENT);
    text = written(s); /* what there is of the answer is a message */
    assert_non_null(strstr(text.data, "\"role\":\"assistant\""));
    qr_text_free(&text);
    ask(s, "Go on.");
    assert_int_equal(qr_session_start(s, &q, &handle, &err), QR_OK);
    qr_session_close(s); /* in the middle of it */
}

static void an_answer_that_was_released_is_over(void **state)
{
    (void)state;
    qr_session *s = open_session();
    const qr_request q = how(0);
    qr_handle handle;
    qr_event event;
    qr_error err = {0};
    ask(s, "Tell me a story.");
    assert_int_equal(qr_session_start(s, &q, &handle, &err), QR_OK);
    qr_release(o.engine, handle);
    assert_int_equal(qr_session_poll(s, -1, &event, &err), QR_BAD_ARGUMENT);
    ask(s, "Again.");
    struct reply r = answer_of(s, 3);
    assert_int_equal(r.count, 3);
    reply_free(&r);
    qr_session_close(s);
}

static void what_is_refused_leaves_the_conversation(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "[]", "{\"messages\":7}", "{\"messages\":[{\"content\":\"x\"}]}",
                                      "{\"messages\":[{\"role\":\"user\",\"content\":7}]}",
                                      "{\"messages\":[{\"role\":\"juggler\",\"content\":\"x\"}]}"};
    qr_session *s = open_session();
    qr_error err = {0};
    ask(s, "Hello");
    qr_text before = written(s);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (qr_error){0};
        assert_int_not_equal(qr_session_read(s, bad[i], strlen(bad[i]), &err), QR_OK);
        assert_true(err.message[0]);
        qr_text after = written(s);
        assert_string_equal(after.data, before.data);
        qr_text_free(&after);
    }
    assert_int_equal(qr_session_append(s, NULL, 0, &err), QR_BAD_REQUEST);
    assert_int_equal(qr_session_set(s, "[", 1, &err), QR_BAD_REQUEST);
    assert_int_not_equal(qr_session_append(s, "[]", 2, &err), QR_OK);
    assert_int_not_equal(qr_session_set(s, "{\"messages\":[]}", 15, &err), QR_OK);
    assert_int_equal(qr_session_set_system(s, "\xff", &err), QR_BAD_REQUEST);
    qr_text after = written(s);
    assert_string_equal(after.data, before.data);
    assert_int_equal(qr_session_read(s, before.data, before.length, &err), QR_OK);
    qr_text_free(&after);
    after = written(s);
    assert_string_equal(after.data, before.data);
    qr_text_free(&after);
    qr_text_free(&before);
    qr_session_close(s);
}

static void members_are_part_of_every_prompt(void **state)
{
    (void)state;
    qr_session *s = open_session();
    qr_prompt thinking, plain;
    ask(s, "Hello");
    assert_int_equal(qr_session_prompt(s, &thinking, NULL), QR_OK);
    assert_int_equal(qr_session_set(s, "{\"thinking\":false}", 18, NULL), QR_OK);
    assert_int_equal(qr_session_prompt(s, &plain, NULL), QR_OK);
    assert_true(thinking.starts_in_reasoning && !plain.starts_in_reasoning);
    qr_prompt_free(&thinking);
    qr_prompt_free(&plain);
    qr_session_close(s);
}

static void turns_are_dropped_from_either_end(void **state)
{
    (void)state;
    qr_session *s = open_session();
    assert_false(qr_session_drop_newest(s));
    ask(s, "1");
    assert_false(qr_session_drop_oldest(s)); /* the only one stays */
    append(s, "{\"role\":\"assistant\",\"content\":\"one\"}");
    ask(s, "2");
    assert_true(qr_session_drop_oldest(s));
    qr_text text = written(s);
    assert_string_equal(text.data, "{\"messages\":[{\"role\":\"system\",\"content\":\"Be kind.\"},"
                                   "{\"role\":\"user\",\"content\":\"2\"}]}");
    qr_text_free(&text);
    assert_true(qr_session_drop_newest(s));
    assert_int_equal(qr_session_turns(s), 0);
    qr_session_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_that_of_the_request_and_becomes_a_message),
        cmocka_unit_test(a_message_holds_reasoning_and_content_apart),
        cmocka_unit_test(a_fork_goes_its_own_way),
        cmocka_unit_test(nothing_is_changed_while_an_answer_is_in_progress),
        cmocka_unit_test(an_answer_that_was_released_is_over),
        cmocka_unit_test(what_is_refused_leaves_the_conversation),
        cmocka_unit_test(members_are_part_of_every_prompt),
        cmocka_unit_test(turns_are_dropped_from_either_end),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
