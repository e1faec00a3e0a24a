/* A conversation that a program holds renders as the request that a client would send. */
#include "support/support.h"

#include <string.h>

#include "base/alloc.h"
#include "text/chat.h"
#include "text/conversation.h"

static void add_answer(struct conversation *c, const char *reasoning, const char *content, const char *call)
{
    struct deltas d = {0};
    struct parsed_answer answer = {0};
    deltas_add(&d, DELTA_REASONING, 0, reasoning, strlen(reasoning));
    deltas_add(&d, DELTA_CONTENT, 0, content, strlen(content));
    if (call) {
        deltas_add(&d, DELTA_CALL, 0, "lost", 4);
        deltas_add(&d, DELTA_CALL_LOST, 0, "", 0);
        deltas_add(&d, DELTA_CALL, 1, "tide", 4);
        deltas_add(&d, DELTA_ARGUMENTS, 1, call, strlen(call));
        deltas_add(&d, DELTA_CALL_END, 1, "", 0);
    }
    assert_true(parsed_answer_add(&answer, &d));
    assert_int_equal(conversation_add_answer(c, &answer, NULL), QR_OK);
    parsed_answer_free(&answer);
    deltas_free(&d);
}

static void set_members(struct conversation *c, const char *members)
{
    struct json_document *doc;
    qr_error err = {0};
    assert_int_equal(json_parse(members, strlen(members), "members", true, &doc, &err), QR_OK);
    if (conversation_set_members(c, json_root(doc), &err) != QR_OK)
        fail_msg("%s", err.message);
    json_close(doc);
}

/* The prompt of the conversation with these members beside its messages. */
static void assert_prompt(const struct conversation *c, const char *members, const char *want)
{
    struct conversation same = {0};
    struct buffer body = {0};
    struct json_document *doc;
    struct chat chat;
    struct chat_options options = chat_options_default(CHAT_V41);
    qr_error err = {0};
    assert_int_equal(conversation_copy(c, &same, &err), QR_OK);
    set_members(&same, members);
    assert_int_equal(conversation_write(&same, true, &body, &err), QR_OK);
    assert_int_equal(json_parse(body.data, body.length, "request", true, &doc, &err), QR_OK);
    if (chat_render(json_root(doc), &options, &chat, NULL, &err) != QR_OK)
        fail_msg("%s", err.message);
    assert_string_equal(chat.prompt.text.data, want);
    chat_free(&chat);
    json_close(doc);
    buffer_free(&body);
    conversation_free(&same);
}

#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"
static const char off[] = "{\"thinking\":false}";

static void a_conversation_renders_as_its_request(void **state)
{
    struct conversation c = {0};
    (void)state;
    assert_int_equal(conversation_set_system(&c, "Be \"brief\".", NULL), QR_OK);
    assert_int_equal(conversation_add_user(&c, "Tides?", 6, NULL), QR_OK);
    add_answer(&c, "r", "", "{\"port\": \"Brest\"}");
    assert_int_equal(c.calls, 1);
    assert_int_equal(conversation_add_result(&c, 0, "4 m", 3, NULL), QR_OK);
    assert_prompt(&c, off,
                  BOS "<｜System｜>Be \"brief\".<｜User｜>Tides?<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ "
                      "invoke name=\"tide\">\n<｜DSML｜ parameter name=\"port\" string=\"true\">Brest</｜DSML｜ "
                      "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" EOS
                      "<｜User｜><tool_result>4 m</tool_result><｜Assistant｜></think>");
    assert_int_equal(conversation_set_system(&c, NULL, NULL), QR_OK);
    assert_true(conversation_drop_last(&c));
    assert_true(conversation_drop_last(&c));
    assert_prompt(&c, "{\"thinking\":true,\"reasoning_effort\":\"low\"}",
                  BOS "<｜System｜>Reasoning Effort: 50 (range 1-100, the higher the value, the more thorough the "
                      "reasoning)\n\n<｜User｜>Tides?<｜Assistant｜><think>");
    conversation_free(&c);
}

static void the_oldest_turn_goes_with_all_its_messages(void **state)
{
    struct conversation c = {0};
    (void)state;
    assert_false(conversation_drop_oldest(&c));
    conversation_set_system(&c, "S", NULL);
    conversation_add_user(&c, "1", 1, NULL);
    assert_false(conversation_drop_oldest(&c));
    add_answer(&c, "", "", "{}");
    conversation_add_result(&c, 0, "x", 1, NULL);
    add_answer(&c, "", "one", NULL);
    conversation_add_user(&c, "2", 1, NULL);
    assert_true(conversation_drop_oldest(&c));
    assert_prompt(&c, off, BOS "<｜System｜>S<｜User｜>2<｜Assistant｜></think>");
    assert_false(conversation_drop_oldest(&c));
    conversation_free(&c);
}

static void an_answer_can_be_gone_on_with(void **state)
{
    struct conversation c = {0};
    (void)state;
    conversation_add_user(&c, "Q", 1, NULL);
    add_answer(&c, "", "The ", NULL);
    assert_prompt(&c, "{\"thinking\":false,\"continue_final_message\":true}",
                  BOS "<｜User｜>Q<｜Assistant｜></think>The ");
    conversation_free(&c);
}

static void what_was_written_can_be_read_again(void **state)
{
    struct conversation c = {0}, again = {0};
    struct buffer body = {0}, second = {0};
    struct json_document *doc;
    (void)state;
    conversation_set_system(&c, "S", NULL);
    conversation_add_user(&c, "a\0b", 3, NULL);
    add_answer(&c, "r", "c", "{\"n\": 1.50}");
    assert_int_equal(conversation_write(&c, false, &body, NULL), QR_OK);
    assert_int_equal(json_parse(body.data, body.length, "file", true, &doc, NULL), QR_OK);
    conversation_add_user(&again, "gone", 4, NULL);
    assert_int_equal(conversation_read(&again, json_root(doc), NULL), QR_OK);
    assert_int_equal(conversation_write(&again, false, &second, NULL), QR_OK);
    assert_string_equal(body.data, second.data);
    assert_int_equal(again.calls, 1);
    assert_true(again.messages[0].user && !again.messages[1].user);
    assert_int_equal(conversation_read(&again, NULL, NULL), QR_BAD_REQUEST);
    assert_int_equal(again.count, 2); /* as it was */
    json_close(doc);
    buffer_free(&body);
    buffer_free(&second);
    conversation_free(&c);
    conversation_free(&again);
}

static void bad_text_is_refused(void **state)
{
    struct conversation c = {0};
    qr_error err = {0};
    (void)state;
    assert_int_equal(conversation_add_user(&c, "\xff", 1, &err), QR_BAD_REQUEST);
    assert_int_equal(err.status, QR_BAD_REQUEST);
    assert_int_equal(c.count, 0);
    conversation_free(&c);
}

static void members_stand_beside_the_messages_and_are_no_messages(void **state)
{
    struct conversation c = {0};
    struct buffer body = {0};
    struct json_document *doc;
    qr_error err = {0};
    (void)state;
    conversation_add_user(&c, "Q", 1, NULL);
    set_members(&c, "{\"tools\":[],\"a \\\"b\\\"\":{\"c\":1.50}}");
    for (int i = 0; i < 2; i++) {
        static const char *const bad[] = {"[1]", "{\"x\":1,\"messages\":[]}"};
        assert_int_equal(json_parse(bad[i], strlen(bad[i]), "members", true, &doc, NULL), QR_OK);
        assert_int_equal(conversation_set_members(&c, json_root(doc), &err), QR_BAD_REQUEST);
        json_close(doc);
    }
    assert_int_equal(conversation_write(&c, true, &body, NULL), QR_OK); /* as it was */
    assert_string_equal(body.data, "{\"messages\":[{\"role\":\"user\",\"content\":\"Q\"}],\"tools\":[],"
                                   "\"a \\\"b\\\"\":{\"c\":1.50}}");
    assert_int_equal(json_parse(body.data, body.length, "file", true, &doc, NULL), QR_OK);
    assert_int_equal(conversation_read(&c, json_root(doc), NULL), QR_OK); /* members of a file are not taken, ours stay */
    json_close(doc);
    assert_int_equal(conversation_set_members(&c, NULL, NULL), QR_OK);
    assert_int_equal(conversation_write(&c, true, &body, NULL), QR_OK);
    assert_string_equal(body.data, "{\"messages\":[{\"role\":\"user\",\"content\":\"Q\"}]}");
    buffer_free(&body);
    conversation_free(&c);
}

static void a_copy_goes_its_own_way(void **state)
{
    struct conversation c = {0}, copy = {0};
    (void)state;
    conversation_set_system(&c, "S", NULL);
    conversation_add_user(&c, "1", 1, NULL);
    assert_int_equal(conversation_copy(&c, &copy, NULL), QR_OK);
    add_answer(&copy, "", "one", NULL);
    conversation_add_user(&copy, "2", 1, NULL);
    assert_prompt(&c, off, BOS "<｜System｜>S<｜User｜>1<｜Assistant｜></think>");
    assert_prompt(&copy, off, BOS "<｜System｜>S<｜User｜>1<｜Assistant｜></think>one" EOS "<｜User｜>2<｜Assistant｜></think>");
    conversation_free(&c);
    conversation_free(&copy);
}

static qr_status hold_everything(void)
{
    struct conversation c = {0}, copy = {0};
    struct json member = {.kind = JSON_ARRAY, .key = "tools", .key_length = 5};
    const struct json members = {.kind = JSON_OBJECT, .child = &member, .count = 1};
    struct buffer body = {0};
    struct parsed_answer answer = {0};
    qr_error err = {0};
    qr_status st = conversation_set_system(&c, "S", &err);
    if (st == QR_OK)
        st = conversation_add_user(&c, "Q", 1, &err);
    if (st == QR_OK)
        st = conversation_add_answer(&c, &answer, &err);
    if (st == QR_OK)
        st = conversation_add_result(&c, 0, "x", 1, &err);
    if (st == QR_OK)
        st = conversation_set_members(&c, &members, &err);
    if (st == QR_OK)
        st = conversation_copy(&c, &copy, &err);
    if (st == QR_OK)
        st = conversation_write(&copy, true, &body, &err);
    assert_true(st == QR_OK || (st == QR_NO_MEMORY && err.message[0]));
    buffer_free(&body);
    conversation_free(&copy);
    conversation_free(&c);
    return st;
}

static void every_allocation_may_fail(void **state)
{
    qr_status st = QR_NO_MEMORY;
    int64_t live = alloc_live();
    (void)state;
    for (int64_t n = 1; st != QR_OK; n++) {
        alloc_fault_at(alloc_fault_supported() ? n : 0, n % 2 == 0);
        st = hold_everything();
        alloc_fault_at(0, 0);
        assert_int_equal(alloc_live(), live);
        assert_true(n < 100000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_conversation_renders_as_its_request),
        cmocka_unit_test(the_oldest_turn_goes_with_all_its_messages),
        cmocka_unit_test(an_answer_can_be_gone_on_with),
        cmocka_unit_test(what_was_written_can_be_read_again),
        cmocka_unit_test(bad_text_is_refused),
        cmocka_unit_test(members_stand_beside_the_messages_and_are_no_messages),
        cmocka_unit_test(a_copy_goes_its_own_way),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
