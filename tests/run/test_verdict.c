/* The verdicts of ratio and block verification over the steps of an answer (speculation.md 12: T3, T4, T5). What they emit
 * has the law of the target, whatever the drafts' law, step after step; the goldens' draws come out of the memory that an
 * engine keeps; and a schedule that looks at the drafts it admits is seen. */
#include "support/chains.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/jsonl.h"
#include "support/chi_square.h"
#include "support/support.h"

enum { ROUNDS = 12000 };
static struct drawn drawn[2];

/* ---- laws ---- */

static void answers_have_the_law_of_the_target(void **state)
{
    (void)state;
    for (int kind = 0; kind < CHAIN_KINDS; kind++) {
        const struct chain c = chain_of(kind, 5, 40 + (uint64_t)kind);
        for (int i = 0; i < 2; i++) {
            const struct drawing how = {.verifier = i ? VERIFIER_BLOCK : VERIFIER_RATIO, .drafts = 2, .tokens = 2};
            chain_draw(&c, &how, ROUNDS, &drawn[i]);
            if (!chain_follows(&c, &how, ROUNDS, &drawn[i]))
                fail_msg("%s: %s does not follow the target", c.name, i ? "block" : "ratio");
        }
        assert_no_fewer(c.name, &drawn[1], &drawn[0]);
    }
}

/* The drafts behind the first rejected one have been looked at. */
static void noise_that_is_used_again_is_seen(void **state)
{
    (void)state;
    const struct chain c = chain_of(CHAIN_RANDOM, 4, 7);
    struct drawing how = {.verifier = VERIFIER_BLOCK, .drafts = 3, .tokens = 3};
    chain_draw(&c, &how, 4 * ROUNDS, &drawn[0]);
    assert_true(chain_follows(&c, &how, 4 * ROUNDS, &drawn[0]));
    how.stale = true;
    chain_draw(&c, &how, 4 * ROUNDS, &drawn[0]);
    assert_false(chain_follows(&c, &how, 4 * ROUNDS, &drawn[0]));
}

/* ---- the scheduler's bias (6.3) ---- */

/* The counterexample of the DSpark paper: behind the first token a draft is either surely right or surely wrong, which the
 * drafter's confidence says. */
static struct chain counterexample(void)
{
    struct chain c = {.name = "counterexample", .vocab = 2};
    for (int32_t row = 0; row <= 2; row++) {
        memcpy(c.p[row], (const double[]){0.7, 0.3}, 2 * sizeof(double));
        memcpy(c.q[row], (const double[]){0.5, 0.5}, 2 * sizeof(double));
    }
    memcpy(c.q[0], c.p[0], 2 * sizeof(double));
    memcpy(c.p[1], (const double[]){1, 0}, 2 * sizeof(double));
    memcpy(c.q[1], (const double[]){0, 1}, 2 * sizeof(double));
    return c;
}

static double overlap(const struct chain *c, int32_t before)
{
    return fmin(c->p[before][0], c->q[before][0]) + fmin(c->p[before][1], c->q[before][1]);
}

/* Tokens times steps a second with 0, 1, 2 drafts, of one request. */
static void rates(const struct chain *c, const int32_t *drafts, const double speed[3], double out[3])
{
    const double first = overlap(c, c->vocab), both = first * overlap(c, drafts[0]);
    out[0] = speed[0];
    out[1] = (1 + first) * speed[1];
    out[2] = (1 + first + both) * speed[2];
}

static int32_t best_of_all(const struct chain *c, const int32_t *drafts, int32_t n)
{
    double rate[3];
    int32_t best = 0;
    rates(c, drafts, (const double[]){1, 0.5, 0.45}, rate);
    for (int32_t l = 1; l <= n; l++)
        if (rate[l] > rate[best])
            best = l;
    return best;
}

static int32_t until_it_stops_rising(const struct chain *c, const int32_t *drafts, int32_t n)
{
    double rate[3];
    int32_t l = 0;
    rates(c, drafts, (const double[]){1, 0.6, 0.45}, rate);
    while (l < n && rate[l + 1] > rate[l])
        l++;
    return l;
}

static double first_of_zero(const struct drawn *d) { return (d->counts[0] + d->counts[1]) / (d->steps); }

static void a_schedule_that_looks_at_what_it_admits_is_seen(void **state)
{
    (void)state;
    const struct chain c = counterexample();
    for (int verifier = VERIFIER_MATCH; verifier <= VERIFIER_BLOCK; verifier++) {
        struct drawing how = {.verifier = (enum verifier)verifier, .drafts = 2, .tokens = 2, .schedule = best_of_all};
        chain_draw(&c, &how, 4 * ROUNDS, &drawn[0]);
        if (verifier == VERIFIER_MATCH)
            assert_true(chain_follows(&c, &how, 4 * ROUNDS, &drawn[0]));
        else
            assert_true(fabs(first_of_zero(&drawn[0]) - 0.85) < 0.01); /* the paper's figure; 0.7 is right */
        how.schedule = until_it_stops_rising;
        chain_draw(&c, &how, 4 * ROUNDS, &drawn[0]);
        assert_true(chain_follows(&c, &how, 4 * ROUNDS, &drawn[0]));
    }
}

/* ---- the goldens ---- */

enum { MOST_VOCAB = 64 };

static int32_t read_row(const struct json *row, double out[MOST_VOCAB])
{
    assert_true(row && row->count <= MOST_VOCAB);
    for (size_t v = 0; v < row->count; v++)
        assert_true(json_double(json_at(row, v), &out[v]));
    return (int32_t)row->count;
}

static int32_t int_at(const struct json *list, size_t i)
{
    int64_t n;
    assert_true(json_int64(json_at(list, i), &n));
    return (int32_t)n;
}

/* Draws from q, or puts all mass on a greedy draft. */
static int32_t draft_of(const struct json *q, struct draft_law *law, int32_t given, int32_t vocab, uint64_t seed)
{
    double row[MOST_VOCAB] = {0};
    if (q->kind == JSON_NULL)
        row[given] = 1;
    else
        read_row(q, row);
    for (int32_t v = 0; v < vocab; v++)
        row[v] = (double)(float)row[v];
    const struct distribution d = {.count = vocab, .p = row};
    return draft_law_draw(law, &d, seed);
}

static void check_verdict(const struct json *line, const char *name, struct verdict_scratch *s, enum verifier verifier,
                          const struct draft_law *law, const int32_t *drafts, int32_t n, uint64_t seed, int64_t first)
{
    const struct json *wanted = json_get(line, name), *emitted = json_get(wanted, "emitted");
    const struct verdict said = verdict_take(s, verifier, law, drafts, n, false, seed, first);
    int64_t accepted;
    assert_true(json_int64(json_get(wanted, "accepted"), &accepted));
    if (said.accepted != accepted || said.next != int_at(emitted, emitted->count - 1))
        fail_msg("%s: %s accepts %d and goes on with %d, wanted %d and %d", json_get(line, "id")->text, name, said.accepted,
                 said.next, (int)accepted, int_at(emitted, emitted->count - 1));
}

static void check_line(const struct json *line)
{
    const struct json *p = json_get(line, "p"), *q = json_get(line, "q"), *given = json_get(line, "drafts");
    const int32_t n = (int32_t)q->count;
    const bool own = json_equals(json_get(line, "drafts_drawn_with"), "tag 1");
    int32_t drafts[DRAFT_LAW_MOST];
    int64_t seed, cursor;
    struct draft_law *law;
    struct verdict_scratch *s;
    double row[MOST_VOCAB];
    qr_error err = {0};
    assert_true(n <= DRAFT_LAW_MOST && json_int64(json_get(line, "seed"), &seed) && json_int64(json_get(line, "cursor"), &cursor));
    const int32_t vocab = read_row(json_at(p, 0), row);
    must(draft_law_open(vocab, n, false, &law, &err), &err);
    must(verdict_open(vocab, n, &s, &err), &err);
    draft_law_begin(law, cursor + 1);
    for (int32_t k = 0; k < n; k++) {
        drafts[k] = int_at(given, (size_t)k);
        const int32_t found = draft_of(json_at(q, (size_t)k), law, drafts[k], vocab, (uint64_t)seed);
        if (own)
            assert_int_equal(found, drafts[k]);
    }
    for (int32_t k = 0; k <= n; k++)
        read_row(json_at(p, (size_t)k), verdict_target(s, k));
    check_verdict(line, "ratio", s, VERIFIER_RATIO, law, drafts, n, (uint64_t)seed, cursor + 1);
    check_verdict(line, "block", s, VERIFIER_BLOCK, law, drafts, n, (uint64_t)seed, cursor + 1);
    draft_law_close(law);
    verdict_close(s);
}

static void first_tries_are_those_of_the_goldens(void **state)
{
    (void)state;
    const char *path = source_path("tests/golden/sampling/verify_keyed.jsonl");
    struct jsonl_reader reader;
    struct json_document *doc;
    int lines = 0;
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    jsonl_open(&reader, file, path);
    for (; assert_int_equal(jsonl_next(&reader, &doc, NULL), QR_OK), doc; lines++) {
        check_line(json_root(doc));
        json_close(doc);
    }
    jsonl_close(&reader);
    fclose(file);
    assert_true(lines > 10);
}

/* ---- a row that cannot be drawn from ---- */

static void a_missing_row_matters_only_where_it_is_reached(void **state)
{
    (void)state;
    const struct chain c = chain_of(CHAIN_DISJOINT, 4, 3), same = chain_of(CHAIN_SAME, 4, 3);
    for (int i = 0; i < 4; i++) {
        const struct chain *of = i % 2 ? &same : &c;
        struct draft_law *law;
        struct verdict_scratch *s;
        qr_error err = {0};
        int32_t draft;
        double q[CHAIN_VOCAB];
        must(draft_law_open(4, 1, false, &law, &err), &err);
        must(verdict_open(4, 1, &s, &err), &err);
        for (int32_t v = 0; v < 4; v++)
            q[v] = (double)(float)of->q[4][v];
        draft_law_begin(law, 9);
        draft = draft_law_draw(law, &(struct distribution){.count = 4, .p = q}, 5);
        memcpy(verdict_target(s, 0), of->p[4], 4 * sizeof(double));
        const struct verdict said = verdict_take(s, i < 2 ? VERIFIER_RATIO : VERIFIER_BLOCK, law, &draft, 1, true, 5, 9);
        assert_int_equal(said.accepted, i % 2);
        assert_int_equal(said.next < 0, i % 2);
        draft_law_close(law);
        verdict_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_tries_are_those_of_the_goldens),
        cmocka_unit_test(answers_have_the_law_of_the_target),
        cmocka_unit_test(noise_that_is_used_again_is_seen),
        cmocka_unit_test(a_schedule_that_looks_at_what_it_admits_is_seen),
        cmocka_unit_test(a_missing_row_matters_only_where_it_is_reached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
