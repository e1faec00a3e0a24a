/* Chat requests become the prompts of golden/chat. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/sha256.h"
#include "support/tokenizers.h"
#include "text/chat.h"

static enum chat_profile profile_of(const struct json *line)
{
    enum chat_profile profile;
    assert_true(chat_profile_named(member(line, "profile", JSON_STRING)->text, &profile));
    return profile;
}

static void check_refusal(const struct json *line, const struct json *want, qr_status st,
                          const struct chat_issue *issue, const qr_error *err)
{
    const char *id = member(line, "id", JSON_STRING)->text;
    const struct json *code = json_get(want, "code");
    int64_t status;
    if (st != QR_BAD_REQUEST)
        fail_msg("%s: status %d, wanted a refusal", id, st);
    assert_true(json_int64(json_get(want, "status"), &status));
    assert_int_equal(issue->status, status);
    assert_true(issue->param[0] != 0 && err->message[0] != 0);
    if (code)
        assert_string_equal(issue->code, code->text);
    else
        assert_null(issue->code);
}

static void check_prompt(const struct json *line, const struct chat *chat)
{
    const char *id = member(line, "id", JSON_STRING)->text;
    const struct json *want = member(line, "prompt", JSON_STRING);
    int64_t markup, images;
    char hash[SHA256_HEX];
    if (chat->prompt.text.length != want->length || memcmp(chat->prompt.text.data, want->text, want->length) != 0)
        fail_msg("%s: the prompt is\n%s\nwanted\n%s", id, chat->prompt.text.data, want->text);
    sha256_hex(chat->prompt.text.data, chat->prompt.text.length, hash);
    assert_string_equal(hash, member(line, "sha256", JSON_STRING)->text);
    assert_true(json_int64(json_get(line, "markup_tokens"), &markup));
    assert_true(json_int64(json_get(line, "image_count"), &images));
    if ((int64_t)prompt_markup_count(&chat->prompt) != markup)
        fail_msg("%s: %zu markup segments, wanted %lld", id, prompt_markup_count(&chat->prompt), (long long)markup);
    assert_int_equal(chat->image_count, images);
    assert_string_equal(chat->start == CHAT_REASONING ? "reasoning" : "content",
                        member(line, "start_state", JSON_STRING)->text);
}

static void check_golden(void *user, const struct json *line)
{
    struct chat_options options = chat_options_default(profile_of(line));
    const struct json *extensions = json_get(line, "vendor_extensions"), *refused = json_get(line, "error");
    struct chat chat;
    struct chat_issue issue = {0};
    qr_error err = {0};
    (void)user;
    options.vendor_extensions = extensions && extensions->boolean;
    qr_status st = chat_render(member(line, "request", JSON_OBJECT), &options, &chat, &issue, &err);
    if (refused) {
        check_refusal(line, refused, st, &issue, &err);
        return;
    }
    if (st != QR_OK)
        fail_msg("%s: refused: %s", member(line, "id", JSON_STRING)->text, err.message);
    check_prompt(line, &chat);
    chat_free(&chat);
}

static void requests_give_the_golden_prompts_and_refusals(void **state)
{
    (void)state;
    assert_int_equal(each_line("tests/golden/chat/prompts.jsonl", check_golden, NULL), 320);
}

/* ---- constants (2.2) ---- */

static void assert_hash(struct prompt *p, size_t length, const char *want)
{
    char hash[SHA256_HEX];
    assert_false(prompt_failed(p));
    assert_int_equal(p->text.length, length);
    sha256_hex(p->text.data, p->text.length, hash);
    assert_string_equal(hash, want);
    prompt_free(p);
}

static void write_tools(struct prompt *p, enum chat_profile profile)
{
    chat_write_tools_before(p, profile);
    prompt_puts(p, "{}");
    chat_write_tools_after(p);
}

static void the_interface_texts_have_their_published_hashes(void **state)
{
    struct prompt p = {0};
    (void)state;
    chat_write_effort_number(&p, 75);
    assert_hash(&p, 91, "86fdea28dfcf6ee1cffe3c13c63f9472d1c250d444d06666b710530963194231");
    chat_write_effort_text(&p, EFFORT_TEXT_MAXIMUM);
    assert_hash(&p, 476, "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7");
    chat_write_effort_text(&p, EFFORT_TEXT_BEYOND);
    assert_hash(&p, 528, "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c");
    chat_write_response_format(&p);
    prompt_puts(&p, "{}");
    assert_hash(&p, 82, "301eb4fef4631f139419cf72ee27a58a59ea69325dd780c81afd8bc8c0a312bc");
    write_tools(&p, CHAT_V4A);
    assert_hash(&p, 991, "f59729735bca3234eb7466917a62b9871f90ce37a968e494de279df8e1595b69");
    write_tools(&p, CHAT_V4B);
    assert_hash(&p, 991, "f59729735bca3234eb7466917a62b9871f90ce37a968e494de279df8e1595b69");
    write_tools(&p, CHAT_V41);
    assert_hash(&p, 985, "d9320113db49f26cc183c668becb53a31d2410685a51e57fe7aef5de31f423b9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_give_the_golden_prompts_and_refusals),
        cmocka_unit_test(the_interface_texts_have_their_published_hashes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
