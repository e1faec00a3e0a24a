#include "support/chi_square.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/jsonl.h"
#include "run/sampling.h"
#include "run/verify.h"

enum { MOST_DRAFTS = 3, MOST_VOCAB = 5, MOST_SEQUENCES = 625, ROUNDS = 60000 };

/* A law of golden/sampling/verify_law.jsonl: rows by prefix, the prefix read as a number with a leading 1. */
struct table {
    int32_t vocab, n;
    double p[MOST_SEQUENCES * 2][MOST_VOCAB], q[MOST_SEQUENCES * 2][MOST_VOCAB];
    int32_t greedy[MOST_SEQUENCES * 2]; /* -1: drawn from q */
};

static int index_of(const char *digits, int32_t vocab)
{
    int index = 1;
    for (; *digits; digits++)
        index = index * vocab + (*digits - '0');
    return index;
}

static void read_table(const struct json *line, struct table *t)
{
    int64_t v;
    memset(t, 0, sizeof *t);
    assert_true(json_int64(json_get(line, "vocab"), &v));
    t->vocab = (int32_t)v;
    assert_true(json_int64(json_get(line, "drafts"), &v));
    t->n = (int32_t)v;
    assert_true(t->vocab <= MOST_VOCAB && t->n <= MOST_DRAFTS);
    for (const struct json *row = json_get(line, "p")->child; row; row = row->next)
        for (int32_t i = 0; i < t->vocab; i++)
            assert_true(json_double(json_at(row, (size_t)i), &t->p[index_of(row->key, t->vocab)][i]));
    for (const struct json *row = json_get(line, "q")->child; row; row = row->next) {
        int index = index_of(row->key, t->vocab);
        t->greedy[index] = -1;
        if (row->kind == JSON_NULL) {
            assert_true(json_int64(json_get(json_get(line, "greedy_draft"), row->key), &v));
            t->greedy[index] = (int32_t)v;
            continue;
        }
        for (int32_t i = 0; i < t->vocab; i++)
            assert_true(json_double(json_at(row, (size_t)i), &t->q[index][i]));
    }
}

/* Which purpose the draft's noise has: the wrong one must be seen. */
static int emit_once(const struct table *t, bool block, uint64_t seed, uint32_t draft_tag, int *accepted)
{
    const double *p[MOST_DRAFTS + 1], *q[MOST_DRAFTS];
    int32_t drafts[MOST_DRAFTS];
    double u[MOST_DRAFTS], P[MOST_DRAFTS + 1], h[MOST_DRAFTS + 1], next[MOST_VOCAB];
    const int64_t cursor = 100;
    int prefix = 1;
    for (int32_t k = 0; k < t->n; k++) {
        const struct keyed_stream noise = {.seed = seed, .position = cursor + k + 1, .tag = draft_tag};
        const struct distribution d = {.count = t->vocab, .p = t->q[prefix]};
        p[k] = t->p[prefix];
        q[k] = t->greedy[prefix] < 0 ? t->q[prefix] : NULL;
        drafts[k] = q[k] ? distribution_draw(&d, &noise) : t->greedy[prefix];
        prefix = prefix * t->vocab + drafts[k];
    }
    p[t->n] = t->p[prefix];
    const struct verify_rows rows = {.vocab = t->vocab, .n = t->n, .drafts = drafts, .p = p, .q = q};
    verify_uniforms(seed, cursor, t->n, u);
    verify_block_levels(&rows, P, h);
    int32_t a = block ? verify_block(h, t->n, u) : verify_ratio(&rows, u);
    verify_next(&rows, a, block ? P[a] : 1.0, next);
    const struct keyed_stream noise = {.seed = seed, .position = cursor + a + 1, .tag = STREAM_TARGET};
    const struct distribution d = {.count = t->vocab, .p = next};
    int emitted = 1;
    for (int32_t k = 0; k < a; k++)
        emitted = emitted * t->vocab + drafts[k];
    *accepted = a;
    return emitted * t->vocab + distribution_draw(&d, &noise);
}

static double expected_of(const struct json *law, const struct table *t, int index)
{
    for (const struct json *e = law->child; e; e = e->next) {
        double value;
        if (index_of(e->key, t->vocab) == index && json_double(e, &value))
            return value * ROUNDS;
    }
    return 0;
}

static bool follows_law(const struct json *line, bool block, uint32_t draft_tag)
{
    static struct table t;
    static double counts[MOST_SEQUENCES * 2 * MOST_VOCAB];
    double accepted[MOST_DRAFTS + 1] = {0};
    const struct json *law = json_get(line, block ? "block" : "ratio");
    struct fit emitted = {0}, lengths = {0};
    read_table(line, &t);
    memset(counts, 0, sizeof counts);
    for (int round = 0; round < ROUNDS; round++) {
        int a;
        counts[emit_once(&t, block, (uint64_t)round * 0x9E3779B97F4A7C15u, draft_tag, &a)]++;
        accepted[a]++;
    }
    for (int i = 0; i < MOST_SEQUENCES * 2 * MOST_VOCAB; i++)
        if (counts[i] > 0 || expected_of(json_get(law, "emitted"), &t, i) > 0)
            fit_add(&emitted, expected_of(json_get(law, "emitted"), &t, i), counts[i]);
    for (int a = 0; a <= t.n; a++) {
        double chance;
        assert_true(json_double(json_at(json_get(law, "accepted"), (size_t)a), &chance));
        fit_add(&lengths, chance * ROUNDS, accepted[a]);
    }
    return fit_holds(&emitted) && fit_holds(&lengths);
}

static void for_each_law(void (*body)(const struct json *line))
{
    const char *path = source_path("tests/golden/sampling/verify_law.jsonl");
    struct jsonl_reader reader;
    struct json_document *doc;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    jsonl_open(&reader, file, path);
    while (assert_int_equal(jsonl_next(&reader, &doc, NULL), QR_OK), doc) {
        body(json_root(doc));
        json_close(doc);
    }
    jsonl_close(&reader);
    fclose(file);
}

static void assert_laws(const struct json *line)
{
    for (int block = 0; block < 2; block++)
        if (!follows_law(line, block, STREAM_DRAFT))
            fail_msg("%s: %s does not follow its law", json_get(line, "id")->text, block ? "block" : "ratio");
}

static void ratio_and_block_follow_their_laws(void **state) { (void)state, for_each_law(assert_laws); }

static void assert_shared_noise_is_seen(const struct json *line)
{
    if (json_equals(json_get(line, "id"), "random-V4-L1"))
        assert_false(follows_law(line, false, STREAM_TARGET));
}

/* Noise that draft and residual share biases the residual: the proof that the test above can fail. */
static void noise_shared_by_draft_and_residual_is_seen(void **state)
{
    (void)state;
    for_each_law(assert_shared_noise_is_seen);
}

static void match_accepts_up_to_the_first_difference(void **state)
{
    const int32_t drafts[] = {4, 5, 6}, tokens[] = {4, 5, 6, 7}, late[] = {4, 5, 9, 7}, early[] = {9, 5, 6, 7};
    (void)state;
    assert_int_equal(verify_match(drafts, 3, tokens), 3);
    assert_int_equal(verify_match(drafts, 3, late), 2);
    assert_int_equal(verify_match(drafts, 3, early), 0);
    assert_int_equal(verify_match(drafts, 0, tokens), 0);
}

static void impossible_drafts_are_never_accepted(void **state)
{
    const double p0[] = {0, 1}, p1[] = {0.5, 0.5}, q0[] = {0, 1}, *p[] = {p0, p1}, *q[] = {q0}, *point[] = {NULL};
    const int32_t drafts[] = {0};
    const double least[] = {1e-300};
    double P[2], h[2], next[2];
    (void)state;
    for (int greedy = 0; greedy < 2; greedy++) {
        const struct verify_rows rows = {.vocab = 2, .n = 1, .drafts = drafts, .p = p, .q = greedy ? point : q};
        assert_int_equal(verify_ratio(&rows, least), 0);
        assert_true(verify_ratio_chance(&rows, 1) == 0);
        verify_block_levels(&rows, P, h);
        assert_true(P[1] == 0 && h[1] == 0);
        assert_int_equal(verify_block(h, 1, least), 0);
        verify_next(&rows, 0, 1.0, next);
        assert_true(next[0] == 0 && next[1] == 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ratio_and_block_follow_their_laws),
        cmocka_unit_test(noise_shared_by_draft_and_residual_is_seen),
        cmocka_unit_test(match_accepts_up_to_the_first_difference),
        cmocka_unit_test(impossible_drafts_are_never_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
