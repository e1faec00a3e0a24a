/* The ids of golden/chat, which need the published tokenizer. */
#include "support/support.h"

#include <stdio.h>

#include "support/tokenizers.h"
#include "text/chat.h"

static void check_golden(void *user, const struct json *line)
{
    enum chat_profile profile;
    struct chat chat;
    struct tok_ids ids = {0};
    qr_error err = {0};
    const struct json *extensions = json_get(line, "vendor_extensions");
    (void)user;
    if (json_get(line, "error"))
        return;
    assert_true(chat_profile_named(member(line, "profile", JSON_STRING)->text, &profile));
    struct chat_options options = chat_options_default(profile);
    options.vendor_extensions = extensions && extensions->boolean;
    assert_int_equal(chat_render(member(line, "request", JSON_OBJECT), &options, &chat, NULL, &err), QR_OK);
    if (prompt_ids(&chat.prompt, profile == CHAT_V41 ? tokenizer_as_v41 : tokenizer_as_v4, &ids, &err) != QR_OK)
        fail_msg("%s", err.message);
    assert_ids(line, &ids, member(line, "ids", JSON_ARRAY));
    tok_ids_free(&ids);
    chat_free(&chat);
}

static void prompts_have_the_golden_ids(void **state)
{
    (void)state;
    assert_int_equal(each_line("tests/golden/chat/prompts.jsonl", check_golden, NULL), 320);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompts_have_the_golden_ids)};
    if (!fixture_tokenizer()) {
        printf("skipped: the published tokenizer is not here\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, published_begin, published_end);
}
