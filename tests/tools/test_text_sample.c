#define _GNU_SOURCE
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/jsonl.h"
#include "tools/text_sample.h"

/* What golden/sampling allows a double implementation; a zero stays a zero. */
static const double tolerance = 1e-12;

static bool is_integer(const struct json *v)
{
    int64_t i;
    return json_int64(v, &i);
}

static void assert_same(const char *where, const struct json *found, const struct json *want);

static void assert_same_number(const char *where, const struct json *found, const struct json *want)
{
    double f, w;
    assert_true(json_double(found, &f) && json_double(want, &w));
    /* h of block verification: exactly 0 and a rounding beside it are one level */
    bool may_round_to_zero = strstr(where, ".h") || strstr(where, ".accepted");
    if (fabs(f - w) > tolerance || (is_integer(want) && is_integer(found) && f != w) ||
        ((f == 0) != (w == 0) && !may_round_to_zero))
        fail_msg("%s is %.17g, wanted %.17g", where, f, w);
}

static void assert_same_object(const char *where, const struct json *found, const struct json *want)
{
    char member[256];
    if (found->count != want->count)
        fail_msg("%s has %zu members, wanted %zu", where, found->count, want->count);
    for (const struct json *w = want->child; w; w = w->next) {
        snprintf(member, sizeof member, "%s.%s", where, w->key);
        assert_same(member, json_get(found, w->key), w);
    }
}

static void assert_same(const char *where, const struct json *found, const struct json *want)
{
    char member[256];
    size_t i = 0;
    if (!found || found->kind != want->kind)
        fail_msg("%s is missing or of another kind", where);
    switch (want->kind) {
    case JSON_NUMBER:
        assert_same_number(where, found, want);
        break;
    case JSON_STRING:
        if (found->length != want->length || memcmp(found->text, want->text, want->length) != 0)
            fail_msg("%s is \"%s\", wanted \"%s\"", where, found->text, want->text);
        break;
    case JSON_BOOL:
        assert_int_equal(found->boolean, want->boolean);
        break;
    case JSON_ARRAY:
        assert_int_equal(found->count, want->count);
        for (const struct json *f = found->child, *w = want->child; w; f = f->next, w = w->next, i++) {
            snprintf(member, sizeof member, "%s[%zu]", where, i);
            assert_same(member, f, w);
        }
        break;
    case JSON_OBJECT:
        assert_same_object(where, found, want);
        break;
    case JSON_NULL:
        break;
    }
}

/* The line without what is to be computed. */
static void strip(const struct sample_kind *kind, const struct json *line, struct json_writer *w)
{
    json_writer_reset(w);
    json_w_object(w);
    for (const struct json *m = line->child; m; m = m->next) {
        bool computed = false;
        for (const char *const *c = kind->computed; *c; c++)
            computed |= strcmp(*c, m->key) == 0;
        /* drafts that no draw gives belong to the question */
        if (strcmp(m->key, "drafts") == 0 && !json_equals(json_get(line, "drafts_drawn_with"), "tag 1"))
            computed = false;
        if (!computed) {
            json_w_key(w, m->key);
            json_w_value(w, m);
        }
    }
    json_w_end_object(w);
}

static void answer_is(const struct sample_kind *kind, const struct json *want)
{
    struct json_writer *w = json_writer_open(false);
    struct json_document *question, *answer;
    qr_error err = {0};
    const char *text;
    size_t length;
    char id[64];
    strip(kind, want, w);
    assert_int_equal(json_finish(w, &text, &length, &err), QR_OK);
    assert_int_equal(json_parse(text, length, "question", true, &question, &err), QR_OK);
    json_writer_reset(w);
    json_w_object(w);
    json_w_key(w, "id");
    json_w_value(w, json_get(want, "id"));
    if (sample_answer((void *)(uintptr_t)kind, json_root(question), w, &err) != QR_OK)
        fail_msg("%s: %s", json_get(want, "id")->text, err.message);
    json_w_end_object(w);
    assert_int_equal(json_finish(w, &text, &length, &err), QR_OK);
    assert_int_equal(json_parse(text, length, "answer", true, &answer, &err), QR_OK);
    snprintf(id, sizeof id, "%s", json_get(want, "id")->text);
    assert_same(id, json_root(answer), want);
    json_close(question);
    json_close(answer);
    json_writer_close(w);
}

static void golden_lines_come_out(const char *name, int lines)
{
    char path[128];
    struct jsonl_reader reader;
    struct json_document *doc;
    qr_error err = {0};
    int n = 0;
    snprintf(path, sizeof path, "tests/golden/sampling/%s.jsonl", name);
    FILE *file = fopen(source_path(path), "rb");
    assert_non_null(file);
    jsonl_open(&reader, file, path);
    while (assert_int_equal(jsonl_next(&reader, &doc, &err), QR_OK), doc) {
        answer_is(sample_kind_find(name), json_root(doc));
        json_close(doc);
        n++;
    }
    jsonl_close(&reader);
    fclose(file);
    assert_int_equal(n, lines);
}

static void golden_philox_comes_out(void **state) { (void)state, golden_lines_come_out("philox", 14); }
static void golden_stream_comes_out(void **state) { (void)state, golden_lines_come_out("stream", 56); }
static void golden_chain_comes_out(void **state) { (void)state, golden_lines_come_out("chain", 74); }
static void golden_draw_comes_out(void **state) { (void)state, golden_lines_come_out("draw", 45); }
static void golden_match_comes_out(void **state) { (void)state, golden_lines_come_out("match", 24); }
static void golden_verify_keyed_comes_out(void **state) { (void)state, golden_lines_come_out("verify_keyed", 38); }
static void golden_verify_law_comes_out(void **state) { (void)state, golden_lines_come_out("verify_law", 9); }

static void a_bad_line_is_an_error_and_the_rest_goes_on(void **state)
{
    static const char lines[] = "{\"id\":1,\"logits\":[1,2],\"temperature\":-1}\n"
                                "{\"id\":2,\"logits\":[1,\"x\"]}\n"
                                "{\"id\":3}\n"
                                "{\"id\":4,\"logits\":[]}\n"
                                "{\"id\":5,\"logits\":[1,2],\"logit_bias\":{\"2\":1}}\n"
                                "{\"id\":6,\"logits\":[1,2],\"allowed\":7}\n"
                                "{\"id\":7,\"logits\":[1e300,2]}\n"
                                "not json\n"
                                "{\"id\":8,\"logits\":[1,2],\"temperature\":0}\n";
    char out[4096] = {0};
    qr_error err = {0};
    (void)state;
    FILE *in = fmemopen((void *)(uintptr_t)lines, strlen(lines), "rb"), *to = fmemopen(out, sizeof out, "wb");
    assert_int_equal(answer_lines(in, "lines", to, sample_answer, (void *)(uintptr_t)sample_kind_find("chain"), &err),
                     QR_OK);
    fclose(in);
    fclose(to);
    int errors = 0;
    for (const char *p = out; (p = strstr(p, "\"error\"")); p++)
        errors++;
    assert_int_equal(errors, 8);
    assert_non_null(strstr(out, "{\"id\":1,\"error\":\"temperature is -1, wanted 0 or more\"}"));
    assert_non_null(strstr(out, "{\"id\":8,\"logits\":[1,2],\"temperature\":0,\"probs\":[0,1],\"greedy\":1}"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_philox_comes_out),     cmocka_unit_test(golden_stream_comes_out),
        cmocka_unit_test(golden_chain_comes_out),      cmocka_unit_test(golden_draw_comes_out),
        cmocka_unit_test(golden_match_comes_out),      cmocka_unit_test(golden_verify_keyed_comes_out),
        cmocka_unit_test(golden_verify_law_comes_out), cmocka_unit_test(a_bad_line_is_an_error_and_the_rest_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
