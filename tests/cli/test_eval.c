/* label: release */
/* quire eval: scores of texts and of continuations. */
#include "support/program.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/scratch.h"
#include "support/support.h"

#define EVAL "eval", TINY

static const char requests[] = "{\"id\":\"a\",\"context\":\"Once upon\",\"continuation\":\" a time\"}\n"
                               "{\"id\":7,\"context\":\"hi\",\"continuation\":\"\"}\n"
                               "no JSON\n"
                               "{\"tokens\":[5,6,7]}\n";

static double number_at(const struct json *object, const char *key)
{
    double d;
    assert_true(json_double(json_get(object, key), &d));
    return d;
}

static void one_failed_line_is_a_failure_and_the_others_are_done(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT(requests, EVAL, "--requests", "-");
    assert_status(&r, 1);
    assert_says(r.out, "{\"id\":\"a\",\"n\":2,\"nll\":");
    assert_says(r.out, "\n{\"id\":7,\"error\":\"");
    assert_says(r.out, "\n{\"id\":null,\"error\":\"- line 3: not valid JSON");
    assert_says(r.out, "\n{\"id\":3,\"n\":2,\"nll\":");
    assert_says(r.err, "quire eval: -: 2 requests failed");
    ran_free(&r);
    r = QUIRE_INPUT("{\"tokens\":[5,6,7]}\n", EVAL, "--requests", "-");
    assert_status(&r, 0);
    ran_free(&r);
}

static void json_is_one_object_of_all_requests(void **state)
{
    (void)state;
    struct ran r = QUIRE_INPUT(requests, EVAL, "--requests", "-", "--json");
    assert_status(&r, 1);
    struct json_document *doc = whole_json(r.out, r.out_length);
    const struct json *root = json_root(doc), *lines = json_get(root, "requests");
    assert_int_equal(lines->count, 4);
    assert_true(json_equals(json_get(json_at(lines, 0), "id"), "a"));
    assert_non_null(json_get(json_at(lines, 1), "error"));
    assert_true(number_at(root, "failed") == 2);
    assert_true(number_at(root, "tokens") == 4);
    const double sum = number_at(json_at(lines, 0), "nll") + number_at(json_at(lines, 3), "nll");
    assert_true(fabs(sum - number_at(root, "nll")) < 1e-9);
    json_close(doc);
    ran_free(&r);
}

/* A text is BOS and its tokens, so its score is that of the same ids as a request; buckets add up. */
static void a_text_scores_as_its_tokens_do(void **state)
{
    (void)state;
    char *dir = scratch_make();
    const char *path = scratch_path(dir, "text");
    scratch_write(path, "Once upon a time there was a dog.", 33);
    struct ran r = QUIRE(EVAL, "--text", path, "--json"), people = QUIRE(EVAL, "--text", path);
    assert_status(&r, 0);
    assert_status(&people, 0);
    assert_says(people.out, "positions ");
    struct json_document *doc = whole_json(r.out, r.out_length);
    const struct json *root = json_root(doc), *buckets = json_get(root, "buckets");
    double tokens = 0, nll = 0;
    for (const struct json *b = buckets->child; b; b = b->next) {
        tokens += number_at(b, "tokens");
        nll += number_at(b, "tokens") * number_at(b, "mean_nll");
    }
    assert_true(tokens == number_at(root, "tokens") && tokens > 5);
    assert_true(fabs(nll - number_at(root, "nll")) < 1e-9);
    assert_true(fabs(exp(number_at(root, "mean_nll")) / number_at(root, "perplexity") - 1) < 1e-12);
    json_close(doc);
    ran_free(&people);
    ran_free(&r);
    scratch_remove(dir);
}

static void a_text_that_is_no_utf_8_is_refused(void **state)
{
    (void)state;
    char *dir = scratch_make();
    const char *path = scratch_path(dir, "text");
    scratch_write(path, "The fox \xff\xfe ran", 15);
    struct ran r = QUIRE(EVAL, "--text", path);
    assert_status(&r, 1);
    assert_says(r.err, "no UTF-8 at byte 8");
    ran_free(&r);
    scratch_remove(dir);
}

static void a_text_longer_than_the_context_is_scored_whole(void **state)
{
    (void)state;
    char *dir = scratch_make(), text[600] = "";
    const char *path = scratch_path(dir, "text");
    for (int i = 0; i < 50; i++)
        strcat(text, "the dog ");
    scratch_write(path, text, strlen(text));
    struct ran narrow = QUIRE(EVAL, "--text", path, "--json", "--max-model-len", "16");
    struct ran wide = QUIRE(EVAL, "--text", path, "--json");
    assert_status(&narrow, 0);
    assert_status(&wide, 0);
    struct json_document *a = whole_json(narrow.out, narrow.out_length), *b = whole_json(wide.out, wide.out_length);
    assert_true(number_at(json_root(a), "tokens") == number_at(json_root(b), "tokens"));
    assert_true(number_at(json_root(a), "nll") != number_at(json_root(b), "nll"));
    json_close(a);
    json_close(b);
    ran_free(&narrow);
    ran_free(&wide);
    scratch_remove(dir);
}

static void the_line_must_name_one_thing_to_score(void **state)
{
    (void)state;
    struct ran r = QUIRE(EVAL);
    assert_status(&r, 2);
    assert_says(r.err, "one of --text and --requests is wanted");
    ran_free(&r);
    r = QUIRE(EVAL, "--text", "a", "--requests", "b");
    assert_status(&r, 2);
    ran_free(&r);
    r = QUIRE(EVAL, "--text", "/no/such/file");
    assert_status(&r, 1);
    assert_string_equal(r.out, "");
    assert_says(r.err, "/no/such/file");
    ran_free(&r);
    r = QUIRE(EVAL, "--text", "a", "--method", "dspark", "--forced-acceptance-length", "3");
    assert_status(&r, 3);
    assert_says(r.err, "E09 a forced acceptance length of 3 in a run that measures the model");
    ran_free(&r);
}

static struct json_document *eval_text_json(const char *path, const char *decoder, const char *encoder)
{
    struct ran r = QUIRE(EVAL, "--text", path, "--json", "--decoder-replay", decoder, "--encoder-replay", encoder);
    assert_status(&r, 0);
    struct json_document *doc = whole_json(r.out, r.out_length);
    ran_free(&r);
    return doc;
}

/* 300 tokens: the last piece stands behind a prompt with a hit, of which the decoder sees one window. */
static void bounded_replay_prints_its_drift_from_exact(void **state)
{
    (void)state;
    char *dir = scratch_make(), text[1400] = "";
    const char *path = scratch_path(dir, "text");
    while (strlen(text) < 1200)
        sprintf(text + strlen(text), "The %zu men went to sea. ", strlen(text));
    scratch_write(path, text, strlen(text));
    struct json_document *exact = eval_text_json(path, "exact", "exact");
    struct json_document *bounded = eval_text_json(path, "bounded", "bounded");
    const struct json *a = json_root(exact), *b = json_root(bounded), *drift = json_get(b, "drift");
    assert_null(json_get(a, "drift"));
    assert_non_null(drift);
    assert_true(number_at(a, "tokens") == number_at(b, "tokens") && number_at(a, "tokens") > 256);
    assert_true(fabs(number_at(a, "nll") - number_at(drift, "exact_nll")) < 1e-9); /* the same scores, to the bit */
    assert_true(fabs(number_at(b, "nll") - number_at(a, "nll") - number_at(drift, "nll_difference")) < 1e-9);
    assert_true(number_at(drift, "largest_difference") > 0); /* else nothing was bounded */
    assert_true(fabs(number_at(drift, "mean_nll_difference")) < 0.1);
    assert_true(number_at(drift, "greedy_agreement") > 0.8 && number_at(drift, "greedy_agreement") <= 1);
    json_close(exact);
    json_close(bounded);
    struct ran r = QUIRE_INPUT("{\"tokens\":[5,6,7]}\n", EVAL, "--requests", "-", "--decoder-swa-bounded-replay");
    assert_status(&r, 0);
    assert_says(r.err, "drift from exact replay: mean NLL +0.000000"); /* a prompt shorter than the window has none */
    assert_says(r.err, "2 of 2 tokens the same");
    ran_free(&r);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_failed_line_is_a_failure_and_the_others_are_done),
        cmocka_unit_test(json_is_one_object_of_all_requests),
        cmocka_unit_test(a_text_scores_as_its_tokens_do),
        cmocka_unit_test(bounded_replay_prints_its_drift_from_exact),
        cmocka_unit_test(a_text_longer_than_the_context_is_scored_whole),
        cmocka_unit_test(a_text_that_is_no_utf_8_is_refused),
        cmocka_unit_test(the_line_must_name_one_thing_to_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
