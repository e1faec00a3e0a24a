#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "run/sampling.h"

enum { SMALL = 60, PUBLISHED = 129280 };

/* Numbers for a case, the same in every run. */
static double uniform_of(uint64_t *counter)
{
    const struct keyed_stream s = {.seed = 20260, .position = (int64_t)(*counter)++, .tag = 99};
    return stream_uniform(stream_word(&s, 0));
}

static int below(uint64_t *counter, int n) { return (int)(uniform_of(counter) * n); }

/* The chain once more, the slow way: a sort of everything that is left. */
struct twin {
    double x[SMALL], p[SMALL];
    int order[SMALL], count;
};

static const double *order_by;

static int by_logit_then_id(const void *a, const void *b)
{
    int i = *(const int *)a, j = *(const int *)b;
    return order_by[i] != order_by[j] ? (order_by[i] > order_by[j] ? -1 : 1) : i - j;
}

static void twin_softmax(struct twin *t, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp(t->x[t->order[i]] - t->x[t->order[0]]);
    for (int i = 0; i < n; i++)
        t->p[t->order[i]] = exp(t->x[t->order[i]] - t->x[t->order[0]]) / sum;
}

static void twin_chain(struct twin *t, const struct sampling_params *p, int vocab)
{
    int n = vocab;
    for (int i = 0; i < vocab; i++) {
        t->x[i] /= p->temperature;
        t->order[i] = i;
        t->p[i] = 0;
    }
    order_by = t->x;
    qsort(t->order, (size_t)n, sizeof *t->order, by_logit_then_id);
    while (n > 0 && !(t->x[t->order[n - 1]] > -INFINITY))
        n--;
    if (p->top_k > 0 && p->top_k < n)
        n = p->top_k;
    twin_softmax(t, n);
    if (p->top_p < 1) {
        double kept = 0;
        int m = 0;
        while (m < n && (m == 0 || kept < p->top_p))
            kept += t->p[t->order[m++]];
        n = m;
    }
    double floor = p->min_p * t->p[t->order[0]];
    while (t->p[t->order[n - 1]] < floor)
        n--;
    twin_softmax(t, n);
    t->count = n;
}

static void random_params(uint64_t *c, struct sampling_params *p)
{
    *p = (struct sampling_params)SAMPLING_PARAMS_DEFAULT;
    p->temperature = 0.2 + 2 * uniform_of(c);
    p->top_k = below(c, 2) ? below(c, SMALL + 5) : 0;
    p->top_p = below(c, 2) ? uniform_of(c) : 1.0;
    p->min_p = below(c, 2) ? uniform_of(c) * uniform_of(c) : 0.0;
}

/* Few distinct values, so that borders fall among equals; negative zeros and masked logits among them. */
static void random_logits(uint64_t *c, float *logits, int vocab)
{
    int distinct = 2 + below(c, 40);
    for (int i = 0; i < vocab; i++) {
        logits[i] = (float)(below(c, distinct) - distinct / 2) * 0.37f;
        if (logits[i] == 0 && below(c, 2))
            logits[i] = -0.0f;
        if (below(c, 12) == 0 && i > 0)
            logits[i] = -INFINITY;
    }
}

static void the_chain_equals_a_full_sort(void **state)
{
    struct sampler_scratch *scratch;
    uint64_t c = 0;
    (void)state;
    for (int vocab = 1; vocab <= SMALL; vocab++) {
        assert_int_equal(sampler_scratch_open(vocab, &scratch, NULL), QR_OK);
        for (int turn = 0; turn < 60; turn++) {
            struct sampling_params params;
            struct distribution d;
            struct twin t = {0};
            float logits[SMALL];
            double p[SMALL];
            random_params(&c, &params);
            random_logits(&c, logits, vocab);
            for (int i = 0; i < vocab; i++)
                t.x[i] = (double)logits[i];
            twin_chain(&t, &params, vocab);
            const struct sampling_row row = {.logits = logits};
            assert_int_equal(sampling_distribution(&params, &row, scratch, &d, NULL), QR_OK);
            assert_int_equal(d.count, t.count);
            distribution_dense(&d, p, vocab);
            for (int i = 0; i < vocab; i++) {
                bool kept = false;
                for (int k = 0; k < t.count; k++)
                    kept |= t.order[k] == i;
                assert_int_equal(kept, p[i] > 0);
                assert_true(!kept || fabs(p[i] - t.p[i]) < 1e-12);
            }
        }
        sampler_scratch_close(scratch);
    }
}

static int32_t draw_by_gumbel(const struct distribution *d, const struct keyed_stream *s)
{
    int32_t winner = -1;
    double best = -INFINITY;
    for (int32_t i = 0; i < d->count; i++) {
        double key = log(d->p[i]) + stream_gumbel(stream_word(s, (uint32_t)d->ids[i]));
        if (key > best) {
            best = key;
            winner = d->ids[i];
        }
    }
    return winner;
}

static void fill_published(uint64_t *c, float *logits)
{
    for (int i = 0; i < PUBLISHED; i++)
        logits[i] = (float)(4 * sqrt(-2 * log(uniform_of(c))) * cos(6.283185307179586 * uniform_of(c)));
}

static void the_race_draws_what_gumbel_draws(void **state)
{
    struct sampler_scratch *scratch;
    float *logits = qr_malloc(PUBLISHED * sizeof *logits);
    uint64_t c = 1000;
    (void)state;
    fill_published(&c, logits);
    assert_int_equal(sampler_scratch_open(PUBLISHED, &scratch, NULL), QR_OK);
    const struct sampling_row row = {.logits = logits};
    for (int turn = 0; turn < 8; turn++) {
        struct sampling_params params = SAMPLING_PARAMS_DEFAULT;
        struct distribution d;
        params.temperature = turn < 4 ? 1.0 : 3.0;
        params.top_p = turn % 2 ? 0.9 : 1.0;
        assert_int_equal(sampling_distribution(&params, &row, scratch, &d, NULL), QR_OK);
        for (int64_t position = 0; position < 10; position++) {
            const struct keyed_stream s = {.seed = (uint64_t)turn, .position = position};
            assert_int_equal(distribution_draw(&d, &s), draw_by_gumbel(&d, &s));
        }
    }
    sampler_scratch_close(scratch);
    qr_free(logits);
}

static void top_k_of_the_published_vocabulary_is_exact(void **state)
{
    struct sampler_scratch *scratch;
    float *logits = qr_malloc(PUBLISHED * sizeof *logits);
    uint64_t c = 5;
    (void)state;
    fill_published(&c, logits);
    assert_int_equal(sampler_scratch_open(PUBLISHED, &scratch, NULL), QR_OK);
    const struct sampling_row row = {.logits = logits};
    const int32_t sizes[] = {1, 2, 40, 1000, 65536, PUBLISHED - 1};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        struct sampling_params params = SAMPLING_PARAMS_DEFAULT;
        struct distribution d;
        params.top_k = sizes[k];
        assert_int_equal(sampling_distribution(&params, &row, scratch, &d, NULL), QR_OK);
        assert_int_equal(d.count, sizes[k]);
        float least = INFINITY;
        for (int32_t i = 0; i < d.count; i++)
            least = fminf(least, logits[d.ids[i]]);
        int32_t above = 0;
        for (int32_t i = 0; i < PUBLISHED; i++)
            above += logits[i] > least;
        assert_true(above < d.count);
    }
    sampler_scratch_close(scratch);
    qr_free(logits);
}

static void a_row_allocates_nothing(void **state)
{
    struct sampler_scratch *scratch;
    struct token_counts *counts;
    float logits[SMALL];
    uint64_t c = 77;
    (void)state;
    assert_int_equal(sampler_scratch_open(SMALL, &scratch, NULL), QR_OK);
    assert_int_equal(token_counts_open(SMALL, &counts, NULL), QR_OK);
    random_logits(&c, logits, SMALL);
    struct sampling_params params = {
        .temperature = 0.7, .top_k = 20, .top_p = 0.9, .min_p = 0.01, .repetition_penalty = 1.1, .seed = 3};
    const struct sampling_row row = {.logits = logits, .counts = counts};
    int64_t before = alloc_count();
    for (int64_t position = 0; position < 20; position++) {
        int32_t token;
        assert_int_equal(sampling_draw(&params, &row, position, scratch, &token, NULL), QR_OK);
        token_counts_push(counts, token);
    }
    assert_int_equal(alloc_count(), before);
    token_counts_close(counts);
    sampler_scratch_close(scratch);
}

/* Drafts are pushed for their rows and popped: nothing of them stays. */
static void popped_drafts_leave_no_trace(void **state)
{
    struct token_counts *counts, *fresh;
    const int32_t prompt[] = {3, 5, 3, 200, -1, 7};
    uint64_t c = 123;
    (void)state;
    assert_int_equal(token_counts_open(16, &counts, NULL), QR_OK);
    assert_int_equal(token_counts_open(16, &fresh, NULL), QR_OK);
    token_counts_prompt(counts, prompt, 6);
    token_counts_prompt(fresh, prompt, 6);
    for (int step = 0; step < 200; step++) {
        int32_t drafts[5], n = below(&c, 6), a = below(&c, n + 1);
        for (int i = 0; i < n; i++)
            token_counts_push(counts, drafts[i] = below(&c, 18) - 1);
        for (int i = n; i > a; i--)
            token_counts_pop(counts, drafts[i - 1]);
        for (int i = 0; i < a; i++)
            token_counts_push(fresh, drafts[i]);
        int32_t found, want;
        const int32_t *f = token_counts_distinct(counts, &found), *w = token_counts_distinct(fresh, &want);
        assert_int_equal(found, want);
        assert_memory_equal(f, w, (size_t)want * sizeof *w);
        for (int32_t id = -1; id < 18; id++)
            assert_int_equal(token_counts_output(counts, id), token_counts_output(fresh, id));
    }
    token_counts_clear(counts);
    int32_t n;
    token_counts_distinct(counts, &n);
    assert_int_equal(n, 0);
    assert_int_equal(token_counts_output(counts, 3), 0);
    token_counts_close(counts);
    token_counts_close(fresh);
}

static qr_status status_of(const struct sampling_params *params, const float *logits, int32_t vocab)
{
    struct sampler_scratch *scratch;
    qr_error err = {0};
    int32_t token = -7;
    const struct sampling_row row = {.logits = logits};
    assert_int_equal(sampler_scratch_open(vocab, &scratch, NULL), QR_OK);
    qr_status st = sampling_draw(params, &row, 0, scratch, &token, &err);
    assert_int_equal(st == QR_OK, err.message[0] == '\0');
    sampler_scratch_close(scratch);
    return st;
}

static void rows_without_a_number_are_errors(void **state)
{
    struct sampling_params params = SAMPLING_PARAMS_DEFAULT;
    const float nan_row[] = {1, NAN, 2}, infinite[] = {1, INFINITY}, none[] = {-INFINITY, -INFINITY},
                one[] = {-INFINITY, 3};
    (void)state;
    for (int greedy = 0; greedy < 2; greedy++) {
        params.temperature = greedy ? 0 : 1;
        assert_int_equal(status_of(&params, nan_row, 3), QR_NUMERIC);
        assert_int_equal(status_of(&params, infinite, 2), QR_NUMERIC);
        assert_int_equal(status_of(&params, none, 2), QR_NUMERIC);
        assert_int_equal(status_of(&params, one, 2), QR_OK);
    }
}

static void parameters_out_of_range_are_named(void **state)
{
    const struct sampling_params good = SAMPLING_PARAMS_DEFAULT;
    const struct logit_bias outside = {.id = 8, .value = 1}, endless = {.id = 7, .value = INFINITY};
    struct sampling_params bad[9];
    const char *names[9] = {"temperature",       "temperature",      "top_p",      "min_p",     "repetition_penalty",
                            "frequency_penalty", "presence_penalty", "logit_bias", "logit_bias"};
    (void)state;
    for (int i = 0; i < 9; i++)
        bad[i] = good;
    bad[0].temperature = -0.1;
    bad[1].temperature = NAN;
    bad[2].top_p = 1.5;
    bad[3].min_p = -1;
    bad[4].repetition_penalty = 0;
    bad[5].frequency_penalty = INFINITY;
    bad[6].presence_penalty = NAN;
    bad[7].bias = &outside, bad[7].bias_count = 1;
    bad[8].bias = &endless, bad[8].bias_count = 1;
    assert_int_equal(sampling_check(&good, 8, NULL), QR_OK);
    for (int i = 0; i < 9; i++) {
        qr_error err = {0};
        assert_int_equal(sampling_check(&bad[i], 8, &err), QR_BAD_REQUEST);
        assert_non_null(strstr(err.message, names[i]));
    }
}

static void failing_allocations_are_statuses(void **state)
{
    (void)state;
    int64_t live = alloc_live();
    for (int64_t n = 1; n <= 5; n++) {
        struct sampler_scratch *scratch;
        struct token_counts *counts;
        qr_error err = {0};
        alloc_fault_at(n, 0);
        assert_int_equal(sampler_scratch_open(100, &scratch, &err), QR_NO_MEMORY);
        alloc_fault_at(n, 0);
        qr_status st = token_counts_open(100, &counts, &err);
        alloc_fault_at(0, 0);
        assert_int_equal(st, n <= 4 ? QR_NO_MEMORY : QR_OK);
        token_counts_close(counts);
        assert_int_equal(alloc_live(), live);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chain_equals_a_full_sort),
        cmocka_unit_test(the_race_draws_what_gumbel_draws),
        cmocka_unit_test(top_k_of_the_published_vocabulary_is_exact),
        cmocka_unit_test(a_row_allocates_nothing),
        cmocka_unit_test(popped_drafts_leave_no_trace),
        cmocka_unit_test(rows_without_a_number_are_errors),
        cmocka_unit_test(parameters_out_of_range_are_named),
        fault_test(failing_allocations_are_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
