/* label: release */
/* quire chat with its input from a file: every line is a message or a command. */
#include "support/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "support/scratch.h"
#include "support/support.h"

#define CHAT "chat", TINY, GREEDY, "-n", "12"

/* The messages of a file that /save wrote; json_close it. */
static struct json_document *saved(const char *name)
{
    char *text;
    size_t size;
    qr_error err = {0};
    if (file_read(scratch_path(scratch, name), 1 << 20, &text, &size, &err) != QR_OK)
        fail_msg("%s", err.message);
    struct json_document *doc = whole_json(text, size);
    qr_free(text);
    return doc;
}

/* Lines of input, the word FILE replaced by the name of a file of this test. */
static const char *lines(const char *text, const char *name)
{
    static char out[4096];
    size_t used = 0;
    for (const char *at; (at = strstr(text, "FILE")); text = at + 4)
        used += (size_t)snprintf(out + used, sizeof out - used, "%.*s%s", (int)(at - text), text, scratch_path(scratch, name));
    snprintf(out + used, sizeof out - used, "%s", text);
    return out;
}

static int occurrences(const char *text, const char *words)
{
    int n = 0;
    for (; (text = strstr(text, words)); text += strlen(words))
        n++;
    return n;
}

static void every_line_is_answered_and_nothing_of_an_editor_is_seen(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT("Hello\n\nWho are you?", CHAT); /* an empty line is none; the last needs no end */
    assert_status(&r, 0);
    assert_int_equal(occurrences(r.err, "ended by"), 2);
    assert_silent(r.out, "> ");
    assert_silent(r.out, "\033");
    assert_silent(r.out, "for help");
    assert_silent(r.out, "Who are you?");
    ran_free(&r);
}

static void the_conversation_goes_on_where_it_was(void **state)
{
    (void)state;
    struct ran once = QUIRE_INPUT("Hello\n", CHAT), again = QUIRE_INPUT("Hello\nHello\n/new\nHello\n", CHAT);
    int first, second, third;
    assert_status(&once, 0);
    assert_status(&again, 0);
    assert_int_equal(strncmp(again.out, once.out, once.out_length), 0);
    assert_int_equal(sscanf(again.err, "%d prompt tokens", &first), 1);
    const char *line = strchr(again.err, '\n') + 1;
    assert_int_equal(sscanf(line, "%d prompt tokens", &second), 1);
    assert_int_equal(sscanf(strchr(line, '\n') + 1, "%d prompt tokens", &third), 1);
    assert_true(second > first);
    assert_int_equal(third, first); /* forgotten */
    assert_string_equal(again.out + again.out_length - once.out_length, once.out);
    ran_free(&once);
    ran_free(&again);
}

static void commands_show_and_set(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT("/help\n/system\n/system Be kind.\n/system\n/think\n/think high\n/think\n/quit\nHello\n", CHAT);
    assert_status(&r, 0);
    static const char *const listed[] = {"/help", "/save FILE", "/load FILE", "/system TEXT", "/think LEVEL", "/new", "/quit"};
    for (size_t i = 0; i < sizeof listed / sizeof *listed; i++)
        assert_says(r.out, listed[i]);
    assert_says(r.out, "system: none\nsystem: Be kind.\nthink: the model's default\nthink: high\n");
    assert_silent(r.err, "ended by"); /* nothing after /quit */
    ran_free(&r);
    r = QUIRE_INPUT("/system\n", CHAT, "--system", "Be brief.");
    assert_says(r.out, "system: Be brief.\n");
    ran_free(&r);
}

static void what_a_line_cannot_do_is_said_and_the_rest_goes_on(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT("/hepl\n/think much\n/save\n/load\n/load /no/such/file\n\xff\nHello\n", CHAT);
    assert_status(&r, 1);
    assert_says(r.err, "quire chat: /hepl is no command; /help lists them\n");
    assert_says(r.err, "quire chat: /think much: wanted off, low, high or max\n");
    assert_says(r.err, "quire chat: /save: the file's name is missing\n");
    assert_says(r.err, "quire chat: /load: the file's name is missing\n");
    assert_says(r.err, "quire chat: /no/such/file: ");
    assert_says(r.err, "UTF-8");
    assert_int_equal(occurrences(r.err, "ended by"), 1);
    ran_free(&r);
}

static void a_saved_conversation_is_read_as_it_was(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT(lines("/system Be kind.\nHello\n\xc3\xa9\"\\\n/save FILE\n", "a.json"), CHAT);
    assert_status(&r, 0);
    ran_free(&r);
    struct json_document *doc = saved("a.json");
    const struct json *messages = json_get(json_root(doc), "messages");
    static const char *const roles[] = {"system", "user", "assistant", "user", "assistant"};
    assert_int_equal(messages->count, 5);
    for (size_t i = 0; i < 5; i++)
        assert_true(json_equals(json_get(json_at(messages, i), "role"), roles[i]));
    assert_true(json_equals(json_get(json_at(messages, 0), "content"), "Be kind."));
    assert_true(json_equals(json_get(json_at(messages, 3), "content"), "\xc3\xa9\"\\"));
    json_close(doc);

    /* Going on from the file is going on from the conversation. */
    r = QUIRE_INPUT(lines("/load FILE\n/system\nAnd now?\n", "a.json"), CHAT);
    assert_status(&r, 0);
    assert_says(r.out, "system: Be kind.\n");
    struct ran whole = QUIRE_INPUT("/system Be kind.\nHello\n\xc3\xa9\"\\\nAnd now?\n", CHAT);
    const char *answer = strstr(r.out, "kind.\n") + 6;
    assert_true(strlen(answer) > 1);
    assert_string_equal(whole.out + whole.out_length - strlen(answer), answer);
    ran_free(&whole);
    ran_free(&r);
}

static void a_load_that_fails_leaves_the_conversation(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "[]", "{\"messages\":7}", "{\"messages\":[{\"content\":\"x\"}]}",
                                      "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":7}]}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        scratch_write(scratch_path(scratch, "bad.json"), bad[i], strlen(bad[i]));
        struct ran r = QUIRE_INPUT(lines("/system Be kind.\n/load FILE\n/system\n", "bad.json"), CHAT);
        assert_status(&r, 1);
        assert_says(r.err, "bad.json");
        assert_says(r.out, "system: Be kind.\n");
        ran_free(&r);
    }
}

static void a_full_context_is_said_and_the_oldest_turns_may_go(void **state)
{
    (void)state;
    static const char question[] = "Drop the oldest turns? [Y/n] \n";
    static const char three[] = "Hello there\nTell me about a dog\nTell me about a cat\n";
    char input[200];
    snprintf(input, sizeof input, "%sy\n", three);
    struct ran yes = QUIRE_INPUT(input, CHAT, "--max-model-len", "64");
    snprintf(input, sizeof input, "%sn\n", three);
    struct ran no = QUIRE_INPUT(input, CHAT, "--max-model-len", "64");
    snprintf(input, sizeof input, "%s/system\n", three); /* no answer: a command */
    struct ran other = QUIRE_INPUT(input, CHAT, "--max-model-len", "64"), end = QUIRE_INPUT(three, CHAT, "--max-model-len", "64");
    assert_status(&yes, 0);
    assert_says(yes.err, "The context of 64 tokens is full.\nDrop the oldest turns? [Y/n] \n");
    assert_int_equal(occurrences(yes.err, "ended by"), 3);
    struct ran *refused[] = {&no, &other, &end};
    for (int i = 0; i < 3; i++) {
        assert_status(refused[i], 1);
        assert_int_equal(occurrences(refused[i]->err, question), 1);
        assert_int_equal(occurrences(refused[i]->err, "ended by"), 2);
        assert_says(refused[i]->err, "quire chat: the context is full: /save the conversation, or start anew with /new\n");
        ran_free(refused[i] == &other ? &yes : refused[i]);
    }
    assert_says(other.out, "system: none\n");
    ran_free(&other);
}

static void a_message_beyond_the_context_is_refused(void **state)
{
    (void)state;
    char input[2000] = "";
    for (int i = 0; i < 100; i++)
        strcat(input, "a long question ");
    strcat(input, "\n");
    struct ran r = QUIRE_INPUT(input, CHAT, "--max-model-len", "64");
    assert_status(&r, 1);
    assert_says(r.err, "the context holds 64 with the answer");
    ran_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_is_answered_and_nothing_of_an_editor_is_seen),
        cmocka_unit_test(the_conversation_goes_on_where_it_was),
        cmocka_unit_test(commands_show_and_set),
        cmocka_unit_test(what_a_line_cannot_do_is_said_and_the_rest_goes_on),
        cmocka_unit_test(a_saved_conversation_is_read_as_it_was),
        cmocka_unit_test(a_load_that_fails_leaves_the_conversation),
        cmocka_unit_test(a_full_context_is_said_and_the_oldest_turns_may_go),
        cmocka_unit_test(a_message_beyond_the_context_is_refused),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
