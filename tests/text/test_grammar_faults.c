/* label: faults */
/* Every allocation on the way to a grammar and its run fails once: a status, no crash, nothing leaked. */
#include "support/support.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/grammars.h"

static void fail_in_turn(qr_status (*work)(void *user, qr_error *err), void *user)
{
    for (int sticky = 0; sticky < 2; sticky++) {
        int harmless = 0; /* room that was not needed could not be given back, a place not be written down: nobody minds */
        for (int64_t n = 1;; n++) {
            qr_error err = {0};
            const int64_t live = alloc_live(), made = alloc_count();
            alloc_fault_at(n, sticky);
            const qr_status st = work(user, &err);
            alloc_fault_at(0, 0);
            if (alloc_live() != live)
                fail_msg("allocation %d failing: %d pieces of memory are left", (int)n, (int)(alloc_live() - live));
            if (st == QR_OK && alloc_count() - made < n) { /* the fault was not met */
                assert_true(n > 3);
                break;
            }
            if (st == QR_OK) {
                assert_true(++harmless <= 4);
                continue;
            }
            if (st != QR_NO_MEMORY || err.status != QR_NO_MEMORY || !err.message[0])
                fail_msg("allocation %d failing: status %d, \"%s\"", (int)n, st, err.message);
        }
    }
}

struct source {
    enum grammar_kind kind;
    const char *text;
};

static qr_status make(void *user, qr_error *err)
{
    const struct source *s = user;
    struct grammar *g;
    const qr_status st = grammar_make(s->kind, s->text, s->text ? strlen(s->text) : 0, "test", &g, NULL, err);
    grammar_release(g);
    return st;
}

static void making_survives(void **state)
{
    static const struct source sources[] = {
        {GRAMMAR_JSON_OBJECT, NULL},
        {GRAMMAR_REGEX, "(ab|[^c-f]{2,3})*x?\\d+"},
        {GRAMMAR_CHOICE, "[\"yes\",\"yes please\",\"no\"]"},
        {GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":3},\"b\":{\"$ref\":\"#/$defs/x\"},"
                              "\"c\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":3},\"maxItems\":2},"
                              "\"d\":{\"type\":\"string\",\"format\":\"uuid\"},\"e\":{\"type\":\"string\",\"pattern\":\"^a+\"}},\"required\":[\"a\",\"z\"],"
                              "\"$defs\":{\"x\":{\"anyOf\":[{\"enum\":[1,\"a\",{\"b\":[2]}]},{\"type\":\"null\"}],\"allOf\":[{\"title\":\"t\"}]}}}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        fail_in_turn(make, (void *)(uintptr_t)&sources[i]);
}

struct asked {
    struct json_document *doc;
    struct chat chat;
};

static void understand(struct asked *a, const char *json)
{
    const struct chat_options options = chat_options_default(CHAT_V41);
    assert_int_equal(json_parse(json, strlen(json), "request", false, &a->doc, NULL), QR_OK);
    assert_int_equal(chat_render(json_root(a->doc), &options, &a->chat, NULL, NULL), QR_OK);
}

static qr_status answer(void *user, qr_error *err)
{
    const struct asked *a = user;
    struct grammar *g;
    const char *param;
    char path[96];
    const qr_status st = grammar_make_answer(&a->chat, CHAT_V41, rig.tok, NULL, &g, path, &param, err);
    grammar_release(g);
    return st;
}

#define TOOLS                                                                                                           \
    "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"," \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"}},"      \
    "\"additionalProperties\":{}}}},{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{\"not\":{},"       \
    "\"properties\":{\"k\":{\"type\":\"string\"},\"l\":{}}}}}]"

static void grammars_of_answers_survive(void **state)
{
    static const char *const requests[] = {
        "{" TOOLS ",\"tool_choice\":\"required\"}",
        "{" TOOLS ",\"response_format\":{\"type\":\"json_object\"}}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        struct asked a;
        understand(&a, requests[i]);
        fail_in_turn(answer, &a);
        chat_free(&a.chat);
        json_close(a.doc);
    }
}

static qr_status follow(void *user, qr_error *err)
{
    struct token_trie *trie;
    struct grammar_run *run = NULL;
    qr_status st = token_trie_open(rig.tok, tok_count(rig.tok), &trie, err);
    const struct grammar_run_options options = {.grammar = user, .trie = trie, .tok = rig.tok, .ends = rig.ends, .end_count = 1};
    if (st == QR_OK)
        st = grammar_run_open(&options, &run, err);
    grammar_run_close(run);
    token_trie_close(trie);
    return st;
}

static void following_survives(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_JSON_OBJECT, NULL);
    (void)state;
    fail_in_turn(follow, g);
    grammar_release(g);
}

static void a_run_takes_what_it_says(void **state)
{
    struct grammar *g = grammar_of(GRAMMAR_JSON_OBJECT, NULL);
    (void)state;
    const int64_t before = alloc_live_bytes();
    struct grammar_run *run = run_of(&rig, g);
    const int64_t held = alloc_live_bytes() - before, said = (int64_t)grammar_run_bytes(rig.trie->vocab);
    assert_true(llabs(held - said) < 4096);
    grammar_run_close(run);
    grammar_release(g);
}

int main(void)
{
    if (!alloc_fault_supported()) {
        print_message("this build cannot make allocations fail\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(making_survives),
        cmocka_unit_test(grammars_of_answers_survive),
        cmocka_unit_test(following_survives),
        cmocka_unit_test(a_run_takes_what_it_says),
    };
    return cmocka_run_group_tests(tests, grammar_set_up, grammar_tear_down);
}
