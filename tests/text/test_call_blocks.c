/* Blocks of calls as they were spelt come back where their calls do, and nowhere else (protocol.md 2.13). */
#include "support/support.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/call_blocks.h"
#include "text/chat.h"

#define D "｜DSML｜"
/* Other spaces and another order of members than a prompt is written with. */
static const char block[] =
    "\n\n<" D " calls>\n<" D " invoke name=\"tide\">\n<" D " parameter name=\"hours\" string=\"false\">[ 6,\t7 ]</" D
    " parameter>\n<" D " parameter name=\"port\" string=\"true\">Brest</" D " parameter>\n</" D " invoke>\n</" D
    " calls>";
static const qr_kept_call tide = {"call_abc123", "tide", "{\"hours\": [6, 7], \"port\": \"Brest\"}"};

static void render(struct qr_call_blocks *blocks, const char *calls, struct chat *chat)
{
    char text[2000];
    struct json_document *document;
    struct chat_options options = chat_options_default(CHAT_V41);
    qr_error err = {0};
    options.call_blocks = blocks;
    snprintf(
        text, sizeof text,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Tides?\"},{\"role\":\"assistant\",\"content\":\"Let me see.\","
        "\"tool_calls\":[%s]},{\"role\":\"tool\",\"tool_call_id\":\"call_abc123\",\"content\":\"4 "
        "m\"}],\"tools\":[{\"type\":"
        "\"function\",\"function\":{\"name\":\"tide\",\"parameters\":{\"type\":\"object\"}}}]}",
        calls);
    must(json_parse(text, strlen(text), "request", false, &document, &err), &err);
    must(chat_render(json_root(document), &options, chat, NULL, &err), &err);
    json_close(document);
}

static bool holds_block(struct qr_call_blocks *blocks, const char *calls)
{
    struct chat chat;
    render(blocks, calls, &chat);
    const bool found = strstr(chat.prompt.text.data, block) != NULL;
    chat_free(&chat);
    return found;
}

#define CALL(id, name, arguments) \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":" arguments "}}"
#define SAME "\"{\\\"port\\\":\\\"Brest\\\",\\\"hours\\\":[6,7]}\""

static void calls_that_come_back_are_written_as_they_were_spelt(void **state)
{
    (void)state;
    struct qr_call_blocks *b;
    struct chat plain, spelt;
    qr_error err = {0};
    must(call_blocks_open(1 << 20, &b, &err), &err);
    assert_false(holds_block(b, CALL("call_abc123", "tide", SAME)));
    must(call_blocks_keep(b, &tide, 1, block, strlen(block), &err), &err);
    assert_true(holds_block(b, CALL("call_abc123", "tide", SAME)));
    assert_true(holds_block(b, CALL("toolu_abc123", "tide", "{\"port\":\"Brest\",\"hours\":[6,7]}")));
    assert_false(holds_block(NULL, CALL("call_abc123", "tide", SAME)));
    /* as many tokens of tags as in the model's own form, and the text around it is the same */
    render(NULL, CALL("call_abc123", "tide", SAME), &plain);
    render(b, CALL("call_abc123", "tide", SAME), &spelt);
    assert_int_equal(prompt_markup_count(&plain.prompt), prompt_markup_count(&spelt.prompt));
    const char *at = strstr(spelt.prompt.text.data, block);
    const size_t before = (size_t)(at - spelt.prompt.text.data);
    assert_memory_equal(plain.prompt.text.data, spelt.prompt.text.data, before);
    assert_string_equal(strstr(plain.prompt.text.data, "<｜end▁of▁sentence｜>"), at + strlen(block));
    chat_free(&plain);
    chat_free(&spelt);
    call_blocks_close(b);
}

static void other_calls_are_not(void **state)
{
    (void)state;
    static const char *const others[] = {
        CALL("call_abc124", "tide", SAME),
        CALL("call_abc123", "tides", SAME),
        CALL("call_abc123", "tide", "\"{\\\"port\\\":\\\"Brest\\\",\\\"hours\\\":[7,6]}\""),
        CALL("call_abc123", "tide", "\"{\\\"port\\\":\\\"Brest\\\"}\""),
        CALL("call_abc123", "tide", "\"{\\\"port\\\":\\\"Brest\\\",\\\"hours\\\":[6,7.5]}\""),
        CALL("call_abc123", "tide", "\"no json\""),
        CALL("call_abc123", "tide", SAME) "," CALL("call_abc125", "tide", SAME),
        "{\"type\":\"function\",\"function\":{\"name\":\"tide\",\"arguments\":" SAME "}}"};
    struct qr_call_blocks *b;
    qr_error err = {0};
    must(call_blocks_open(1 << 20, &b, &err), &err);
    must(call_blocks_keep(b, &tide, 1, block, strlen(block), &err), &err);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (holds_block(b, others[i]))
            fail_msg("the block stands for %s", others[i]);
    assert_true(holds_block(b, CALL("call_abc123", "tide", SAME)));
    call_blocks_close(b);
}

static void what_is_kept_is_bounded(void **state)
{
    (void)state;
    enum { BLOCKS = 300 };
    struct qr_call_blocks *b;
    qr_error err = {0};
    const int64_t live = alloc_live_bytes();
    must(call_blocks_open(64 << 10, &b, &err), &err);
    const int64_t empty = alloc_live_bytes();
    for (int i = 0; i < BLOCKS; i++) {
        char id[32];
        snprintf(id, sizeof id, "call_%d", i);
        const qr_kept_call call = {id, tide.name, tide.arguments};
        must(call_blocks_keep(b, &call, 1, block, strlen(block), &err), &err);
        assert_in_range(alloc_live_bytes() - empty, 0, 72 << 10);
    }
    assert_true(holds_block(b, CALL("call_299", "tide", SAME)));
    char *large = qr_calloc(1, 300 << 10);
    memset(large, 'x', (300 << 10) - 1);
    must(call_blocks_keep(b, &tide, 1, large, (300 << 10) - 1, &err), &err);
    qr_free(large);
    assert_false(holds_block(b, CALL("call_abc123", "tide", SAME)));
    call_blocks_close(b);
    assert_int_equal(alloc_live_bytes(), live);
}

/* Many more than there are places, and few bytes: nobody is in another's way, and what goes first is what came first.
 */
static void the_oldest_go_first(void **state)
{
    (void)state;
    enum { BLOCKS = 3000, LATER = 20000 };
    struct qr_call_blocks *b;
    qr_error err = {0};
    char id[32], call[400];
    size_t first = BLOCKS;
    must(call_blocks_open(4 << 20, &b, &err), &err);
    for (int i = 0; i < BLOCKS + LATER; i++) {
        snprintf(id, sizeof id, "call_%d", i);
        const qr_kept_call kept = {id, tide.name, tide.arguments};
        must(call_blocks_keep(b, &kept, 1, block, strlen(block), &err), &err);
        for (int j = 0; i == BLOCKS - 1 && j < BLOCKS; j++) {
            snprintf(call, sizeof call, CALL("call_%d", "tide", SAME), j);
            if (!holds_block(b, call))
                fail_msg("block %d is gone, with %d kept", j, BLOCKS);
        }
    }
    for (size_t i = 0; i < BLOCKS + LATER; i += 97) {
        snprintf(call, sizeof call, CALL("call_%zu", "tide", SAME), i);
        const bool found = holds_block(b, call);
        if (found && first == BLOCKS)
            first = i;
        assert_int_equal(found, first != BLOCKS && i >= first);
    }
    assert_in_range(first, 1, LATER);
    call_blocks_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_come_back_are_written_as_they_were_spelt),
        cmocka_unit_test(other_calls_are_not),
        cmocka_unit_test(what_is_kept_is_bounded),
        cmocka_unit_test(the_oldest_go_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
