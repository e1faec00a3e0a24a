/* label: release */
/* quire generate: the answers of a file of requests. */
#define _GNU_SOURCE
#include "support/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/scratch.h"
#include "support/support.h"

#define GENERATE "generate", TINY, GREEDY, "--quiet", "--requests", "-", "--max-tokens", "2"

/* The n-th line, NUL-terminated. */
static const char *line_at(const char *text, int n)
{
    static char line[4096];
    while (n-- > 0 && (text = strchr(text, '\n')))
        text++;
    assert_non_null(text);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
    return line;
}

static int count_lines(const char *text)
{
    int n = 0;
    for (; (text = strchr(text, '\n')); text++)
        n++;
    return n;
}

static void answers_stand_in_order_of_id(void **state)
{
    (void)state;
    static const char input[] = "{\"id\":\"a!\",\"tokens\":[5]}\n"
                                "{\"id\":\"a\",\"tokens\":[5]}\n"
                                "{\"id\":\"B\",\"tokens\":[5]}\n"
                                "{\"id\":\"a\\u0000\",\"tokens\":[5]}\n"
                                "{\"id\":\"\\u00e9\",\"tokens\":[5]}\n"
                                "{\"id\":\"z\",\"tokens\":[5]}\n"
                                "{\"id\":\"10\",\"tokens\":[5]}\n"
                                "{\"id\":10,\"tokens\":[5]}\n"
                                "{\"id\":9,\"tokens\":[5]}\n"
                                "{\"id\":-1.5,\"tokens\":[5]}\n"
                                "{\"id\":9007199254740993,\"tokens\":[5]}\n"
                                "{\"id\":9007199254740992,\"tokens\":[5]}\n";
    static const char *const order[] = {"-1.5", "9", "10", "9007199254740992", "9007199254740993", "\"10\"",
                                        "\"B\"", "\"a\"", "\"a\\u0000\"", "\"a!\"", "\"z\"", "\"\303\251\""};
    struct ran r = QUIRE_INPUT(input, GENERATE);
    assert_status(&r, 0);
    for (int i = 0; i < 12; i++) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "{\"id\":%s,", order[i]);
        assert_says(line_at(r.out, i), wanted);
    }
    assert_int_equal(count_lines(r.out), 12);
    ran_free(&r);
}

static void a_line_has_every_member(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT("{\"id\":\"x\",\"prompt\":\"Once upon a\",\"max_tokens\":3}\n", GENERATE);
    assert_status(&r, 0);
    struct json_document *doc = whole_json(r.out, r.out_length);
    const struct json *root = json_root(doc), *draft = json_get(root, "draft");
    int64_t n;
    assert_true(json_equals(json_get(root, "id"), "x"));
    assert_int_equal(json_get(root, "tokens")->count, 3); /* the line's own limit */
    assert_int_equal(json_get(root, "text")->kind, JSON_STRING);
    assert_true(json_equals(json_get(root, "finish_reason"), "length"));
    assert_true(json_int64(json_get(root, "cached_tokens"), &n) && n >= 0);
    assert_true(json_int64(json_get(draft, "steps"), &n) && json_int64(json_get(draft, "proposed"), &n) &&
                json_int64(json_get(draft, "accepted"), &n));
    json_close(doc);
    ran_free(&r);
}

static void the_three_forms_of_a_prompt_are_taken(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT("{\"id\":1,\"tokens\":[5,6]}\n"
                               "{\"id\":2,\"prompt\":\"Once\"}\n"
                               "{\"id\":3,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n",
                               GENERATE);
    assert_status(&r, 0);
    assert_int_equal(count_lines(r.out), 3);
    assert_silent(r.out, "error");
    ran_free(&r);
}

static void what_cannot_be_done_has_an_error_and_the_rest_goes_on(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT("{\"id\":1,\"tokens\":[]}\n"
                               "{\"id\":2,\"tokens\":[5]}\n"
                               "no JSON\n"
                               "{\"id\":4,\"tokens\":[5],\"prompt\":\"x\"}\n"
                               "{\"id\":5,\"tokens\":[5],\"top_p\":\"high\"}\n"
                               "{\"id\":6,\"tokens\":[1000000]}\n",
                               GENERATE);
    assert_status(&r, 1);
    assert_int_equal(count_lines(r.out), 6);
    assert_says(line_at(r.out, 0), "{\"id\":1,\"error\":");
    assert_says(line_at(r.out, 1), "{\"id\":2,\"tokens\":[");
    assert_says(line_at(r.out, 2), "exactly one of tokens, prompt and messages");
    assert_says(line_at(r.out, 3), "top_p: high, wanted a number");
    assert_says(line_at(r.out, 4), "{\"id\":6,\"error\":");
    assert_says(line_at(r.out, 5), "{\"id\":null,\"error\":\"- line 3"); /* behind those that have one */
    assert_says(r.err, "quire generate: 5 requests failed");
    ran_free(&r);
}

static void a_member_that_nobody_reads_is_warned_about(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"{\"id\":7,\"tokens\":[5],\"max_tokens\":2,\"temprature\":1}\n{\"tokens\":[5],\"max_tokens\":2,\"kind\":1}",
         "request 7: \"temprature\" is no member of a request and is ignored; the nearest is temperature"},
        {"{\"tokens\":[5],\"max_tokens\":2,\"tools\":[]}", "request 0: tools says nothing without messages and is ignored"},
        {"{\"tokens\":[5],\"max_tokens\":2,\"user\":\"me\",\"think\":null}", ""},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct ran r = QUIRE_INPUT(lines[i][0], "generate", "--model", source_path("models/tiny-v41"), "--requests", "-",
                                   "--kv-ram-bytes", "16000000");
        assert_status(&r, 0);
        assert_says(r.err, lines[i][1]);
        assert_true((strstr(r.err, "warn") != NULL) == (*lines[i][1] != 0));
        assert_null(strstr(r.err, "kind")); /* once is enough */
        ran_free(&r);
    }
}

static void a_member_that_cannot_be_obeyed_fails_its_line(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"\"tokens\":[5],\"n\":2", "n: 2, wanted 1"},
        {"\"tokens\":[5],\"best_of\":3", "best_of: 3, wanted 1"},
        {"\"tokens\":[5],\"allowed_token_ids\":[1]", "allowed_token_ids: is not built"},
        {"\"tokens\":[5],\"guided_grammar\":\"a\"", "guided_grammar: is not built"},
        {"\"tokens\":[5],\"guided_regex\":\"(?=a)\"", "guided_regex: "},
        {"\"tokens\":[5],\"guided_regex\":\"a\",\"guided_choice\":[\"b\"]", "guided_choice: not with guided_regex"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"guided_regex\":\"a\",\"response_format\":{\"type\":\"json_object\"}", "not with response_format"},
        {"\"tokens\":[5],\"cache_salt\":1", "cache_salt: 1, wanted a string"},
        {"\"tokens\":[5],\"cache_salt\":\"mine\",\"guided_choice\":[\"a\"],\"max_tokens\":9", "\"text\":\"a\",\"finish_reason\":\"stop\""},
        {"\"prompt\":\"Once\",\"response_format\":{\"type\":\"json_object\"},\"max_tokens\":1", "\"text\":\"{"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"thinking\":{\"type\":\"disabled\"},\"guided_regex\":\"[0-9]{2}\",\"max_tokens\":9", "\"finish_reason\":\"stop\""},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"thinking\":{\"type\":\"enabled\"},\"guided_regex\":\"[0-9]{2}\",\"max_tokens\":9", "</think>"},
        {"\"tokens\":[5],\"logprobs\":21", "logprobs: 21, wanted true, false or a whole number from 0 to 20"},
        {"\"tokens\":[5],\"n\":1,\"logprobs\":true,\"user\":\"me\"", "\"finish_reason\""},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"thinking\":{\"type\":\"disabled\"}", "\"finish_reason\""},
    };
    enum { LINES = sizeof lines / sizeof *lines };
    char input[4096];
    int length = 0;
    for (int i = 0; i < LINES; i++)
        length += snprintf(input + length, sizeof input - (size_t)length, "{\"id\":%d,%s}\n", i, lines[i][0]);
    struct ran r = QUIRE_INPUT(input, GENERATE);
    assert_status(&r, 1);
    for (int i = 0; i < LINES; i++)
        assert_says(line_at(r.out, i), lines[i][1]);
    assert_says(r.err, "quire generate: 9 requests failed");
    ran_free(&r);
}

static void an_id_stands_for_one_line(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT("{\"id\":\"a\",\"tokens\":[5]}\n"
                               "{\"id\":2,\"tokens\":[5]}\n"
                               "{\"id\":\"a\",\"tokens\":[6]}\n",
                               GENERATE);
    assert_status(&r, 1);
    assert_says(line_at(r.out, 0), "{\"id\":2,\"tokens\"");
    assert_says(line_at(r.out, 1), "{\"id\":\"a\",\"tokens\"");
    assert_says(line_at(r.out, 2), "{\"id\":\"a\",\"error\":\"id: \\\"a\\\" stands on line 1 already\"");
    assert_says(r.err, "quire generate: 1 request failed");
    ran_free(&r);
}

static void what_a_string_of_c_would_cut_short_is_refused(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT("{\"id\":1,\"tokens\":[5],\"stop\":\"a\\u0000b\"}\n"
                               "{\"id\":2,\"tokens\":[5],\"logit_bias\":{\"7\\u0000\":1}}\n"
                               "{\"id\":3,\"tokens\":[5],\"logit_bias\":{\" 7\":1}}\n"
                               "{\"id\":4,\"tokens\":[5],\"logit_bias\":{\"99999999999\":1}}\n"
                               "{\"id\":5,\"tokens\":[5],\"logit_bias\":{\"7\":1}}\n",
                               GENERATE);
    assert_status(&r, 1);
    assert_says(line_at(r.out, 0), "strings without a NUL");
    for (int i = 1; i < 4; i++)
        assert_says(line_at(r.out, i), "token ids with biases");
    assert_says(line_at(r.out, 4), "{\"id\":5,\"tokens\":[");
    ran_free(&r);
}

/* Takes the members "draft" out of answers: how many steps an answer took is no part of it. */
static void forget_drafts(char *text)
{
    for (char *at = text; (at = strstr(at, ",\"draft\":{"));) {
        const char *end = strchr(at, '}');
        assert_non_null(end);
        memmove(at, end + 1, strlen(end + 1) + 1);
    }
}

static void neither_order_nor_company_changes_an_answer(void **state)
{
    (void)state;
    static const char input[] = "{\"id\":1,\"prompt\":\"Once upon a\",\"temperature\":1,\"seed\":3,\"max_tokens\":6}\n"
                                "{\"id\":2,\"prompt\":\"The\",\"temperature\":0.7,\"seed\":4,\"max_tokens\":5}\n"
                                "{\"id\":3,\"prompt\":\"A dog\",\"max_tokens\":4}\n";
    struct ran a = QUIRE_INPUT(input, GENERATE), b = QUIRE_INPUT(input, GENERATE, "--concurrency", "3", "--shuffle", "7");
    assert_status(&a, 0);
    assert_status(&b, 0);
    forget_drafts(a.out);
    forget_drafts(b.out);
    assert_string_equal(a.out, b.out);
    ran_free(&a);
    ran_free(&b);
}

/* A file of events beside the scratch folder's; freed with the folder. */
static char *events_file(const char *folder, const char *lines)
{
    char *path;
    assert_true(asprintf(&path, "%s/events.jsonl", folder) > 0);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(lines, f) >= 0);
    assert_int_equal(fclose(f), 0);
    return path;
}

static void injected_events_change_no_token_but_those_of_a_cancel(void **state)
{
    (void)state;
    static const char input[] = "{\"id\":1,\"prompt\":\"Once upon a\",\"temperature\":1,\"seed\":3,\"max_tokens\":9}\n"
                                "{\"id\":\"b\",\"prompt\":\"The\",\"seed\":4,\"max_tokens\":9}\n"
                                "{\"id\":3,\"prompt\":\"A dog\",\"max_tokens\":9}\n";
    char *folder = scratch_make();
    char *path = events_file(folder, "{\"at_step\":3,\"op\":\"preempt\",\"id\":1}\n"
                                     "{\"at_step\":5,\"op\":\"drop_cache\"}\n"
                                     "{\"at_step\":5,\"op\":\"drop_images\",\"id\":1}\n"
                                     "{\"at_step\":6,\"op\":\"preempt\",\"id\":\"b\"}\n"
                                     "{\"at_step\":0,\"op\":\"cancel\",\"id\":3}\n");
    struct ran a = QUIRE_INPUT(input, GENERATE);
    struct ran b = QUIRE_INPUT(input, GENERATE, "--concurrency", "3", "--events", path);
    assert_status(&a, 0);
    assert_status(&b, 0);
    forget_drafts(a.out);
    forget_drafts(b.out);
    for (int i = 0; i < 3; i++) {
        char *alone = strdup(line_at(a.out, i));
        assert_non_null(alone);
        if (i == 1)
            assert_says(line_at(b.out, i), "\"finish_reason\":\"cancelled\"");
        else
            assert_string_equal(line_at(b.out, i), alone);
        free(alone);
    }
    ran_free(&a);
    ran_free(&b);
    free(path);
    scratch_remove(folder);
}

static void events_are_refused_by_line(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {{"{\"at_step\":-1,\"op\":\"drop_cache\"}\n", "line 1: at_step"},
                                           {"{\"at_step\":1,\"op\":\"stop\",\"id\":1}\n", "line 1: op is none of"},
                                           {"{\"at_step\":1,\"op\":\"cancel\"}\n", "line 1: cancel without the id"},
                                           {"{\"at_step\":1,\"op\":\"cancel\",\"id\":\"1\"}\n", "line 1: id \"1\" is that of no request"},
                                           {"{\"at_step\":1,\"op\":\"drop_cache\",\"after\":1}\n", "line 1: \"after\" is none of"}};
    for (int i = 0; i < 5; i++) {
        char *folder = scratch_make(), *path = events_file(folder, wrong[i][0]);
        struct ran r = QUIRE_INPUT("{\"id\":1,\"tokens\":[5]}\n", GENERATE, "--events", path);
        assert_status(&r, 1);
        assert_says(r.err, wrong[i][1]);
        ran_free(&r);
        free(path);
        scratch_remove(folder);
    }
}

static void broken_rules_are_told_together_before_loading(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT("", GENERATE, "--tp", "2", "--encoder-swa-bounded-replay", "--enable-dp-attention",
                               "--long-prefill-cap", "5", "--method", "mtp", "--max-num-batched-tokens", "256");
    assert_status(&r, 3);
    static const char *const rules[] = {"E24 tp is 2: tensor parallelism is not built", "E29", "E16", "E30", "E08"};
    for (int i = 0; i < 5; i++)
        assert_says(r.err, rules[i]);
    ran_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_stand_in_order_of_id),
        cmocka_unit_test(a_line_has_every_member),
        cmocka_unit_test(the_three_forms_of_a_prompt_are_taken),
        cmocka_unit_test(what_cannot_be_done_has_an_error_and_the_rest_goes_on),
        cmocka_unit_test(a_member_that_nobody_reads_is_warned_about),
        cmocka_unit_test(a_member_that_cannot_be_obeyed_fails_its_line),
        cmocka_unit_test(an_id_stands_for_one_line),
        cmocka_unit_test(what_a_string_of_c_would_cut_short_is_refused),
        cmocka_unit_test(neither_order_nor_company_changes_an_answer),
        cmocka_unit_test(injected_events_change_no_token_but_those_of_a_cancel),
        cmocka_unit_test(events_are_refused_by_line),
        cmocka_unit_test(broken_rules_are_told_together_before_loading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
