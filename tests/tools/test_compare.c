/* The comparators of v4-model.md section 10, and the texts in which files state them. */
#include <math.h>
#include <string.h>

#include "support/support.h"
#include "tools/compare.h"

static struct tolerance read(const char *text, const char *names)
{
    struct tolerance t = {0};
    qr_error err = {0};
    bool found = false;
    if (tolerance_find(text, names, &t, &found, &err) != QR_OK)
        fail_msg("%s", err.message);
    if (!found)
        fail_msg("\"%s\" says nothing of %s", text, names);
    return t;
}

static bool passes(const char *text, const double *found, const double *want, int64_t n)
{
    struct tolerance t = read(text, "x");
    struct comparison c;
    compare_points(&t, found, want, n, NULL, &c);
    return c.passed;
}

static void ra_counts_points_beyond_both_bounds(void **state)
{
    (void)state;
    double want[200], found[200];
    for (int i = 0; i < 200; i++)
        want[i] = found[i] = i;
    assert_true(passes("RA(0.5,0.1,0)", found, want, 200));
    found[100] = 110.5; /* 0.5 + 0.1 * 100 exactly */
    assert_true(passes("RA(0.5,0.1,0)", found, want, 200));
    found[100] = 110.6;
    assert_false(passes("RA(0.5,0.1,0)", found, want, 200));
    assert_true(passes("RA(0.5,0.1,0.005)", found, want, 200)); /* round(0.005 * 200) = 1 may be bad */
    found[3] = -9;
    assert_false(passes("RA(0.5,0.1,0.005)", found, want, 200));
}

static void rd_is_relative_above_theta_and_absolute_below(void **state)
{
    (void)state;
    double want[2] = {1, 1e-6}, found[2] = {1, 1e-6};
    assert_true(passes("RD(0.01,0)", found, want, 2));
    found[1] = 0.009; /* far off relatively, below theta absolutely */
    assert_true(passes("RD(0.01,0)", found, want, 2));
    found[0] = 1.0101; /* 0.0101 / 1.0101 is below 0.01 */
    assert_true(passes("RD(0.01,0)", found, want, 2));
    found[0] = 1.0103;
    assert_false(passes("RD(0.01,0)", found, want, 2));
    assert_true(passes("RD(0.01,0.5)", found, want, 2));
    assert_true(passes("RD(0.01,0.5,1)", found, want, 2));
    found[0] = -1; /* rho 2: half of the points may be bad, but none beyond the cap */
    assert_false(passes("RD(0.01,0.5,1)", found, want, 2));
    assert_true(passes("RD(0.01,0.5)", found, want, 2));
}

static void ac_takes_the_relative_bound_first(void **state)
{
    (void)state;
    double want[1] = {100}, found[1] = {101.4};
    assert_true(passes("AC(0.01,0.5)", found, want, 1));
    assert_false(passes("AC(0.005,0.5)", found, want, 1));
    assert_false(passes("AC(0.5,0.01)", (double[]){1.6}, (double[]){1}, 1));
}

static void cosine_looks_at_all_points_as_one_vector(void **state)
{
    (void)state;
    double want[3] = {3, 4, 0};
    assert_true(passes("COS(0.99,0.10)", (double[]){3.2, 4.2, 0}, want, 3)); /* 0.9996, distance 0.057 */
    assert_false(passes("COS(0.99,0.05)", (double[]){3.2, 4.2, 0}, want, 3));
    assert_false(passes("COS(0.99,0.10)", (double[]){6, 8, 0}, want, 3)); /* the same direction, twice as long */
    assert_false(passes("COS(0.99,1)", (double[]){3, 4, 1}, want, 3)); /* 0.981 */
    assert_true(passes("COS(0.99,0.10)", (double[]){0, 0}, (double[]){0, 0}, 2));
    assert_false(passes("COS(0.99,0.10)", (double[]){1e-9, 0}, (double[]){0, 0}, 2));
    assert_false(passes("COS(-1,9)", (double[]){NAN, 4, 0}, want, 3));
}

static void exact_tells_zeros_apart_and_counts_ulps_when_asked(void **state)
{
    (void)state;
    double want[2] = {0, 1}, found[2] = {-0.0, 1};
    assert_false(passes("exact", found, want, 2));
    found[0] = 0;
    assert_true(passes("exact", found, want, 2));
    found[1] = (double)nextafterf(1, 2);
    assert_false(passes("exact", found, want, 2));
    assert_true(passes("exact or 1 ulp", found, want, 2));
    found[1] = (double)nextafterf(nextafterf(1, 2), 2);
    assert_false(passes("exact or 1 ulp", found, want, 2));
}

static void a_nan_or_infinity_fails_on_either_side(void **state)
{
    (void)state;
    const double good[2] = {1, 2};
    const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        double x[2] = {1, bad[i]};
        assert_false(passes("RA(1e9,1e9,1)", x, good, 2));
        assert_false(passes("RA(1e9,1e9,1)", good, x, 2));
        assert_false(passes("RA(1e9,1e9,1)", x, x, 2));
        assert_false(passes("exact", x, x, 2));
    }
}

static void slack_lets_a_code_differ_by_one(void **state)
{
    (void)state;
    struct tolerance t = read("exact", "x");
    struct comparison c;
    const bool slack[2] = {true, false};
    compare_points(&t, (double[]){3, 5}, (double[]){4, 5}, 2, slack, &c);
    assert_true(c.passed);
    compare_points(&t, (double[]){3, 5}, (double[]){5, 5}, 2, slack, &c);
    assert_false(c.passed);
    compare_points(&t, (double[]){3, 5}, (double[]){3, 6}, 2, slack, &c);
    assert_false(c.passed);
    assert_int_equal(c.worst, 1);
}

/* ---- ranks ---- */

static double score_of(void *user, int64_t row, int64_t k, int64_t id)
{
    (void)row;
    (void)k;
    return ((const double *)user)[id];
}

static bool ranks_pass(const char *text, const double *found, const double *want, int64_t count, const double *scores)
{
    struct tolerance t = read(text, "x"), values = {.kind = COMPARE_RA, .absolute = 0.01};
    const struct ranks r = {.found = found, .want = want, .rows = 1, .stride = count, .counts = &count, .value = score_of,
                            .wanted_value = score_of, .user = (void *)(uintptr_t)scores, .values = &values};
    struct comparison c;
    compare_ranks(&t, &r, &c);
    return c.passed;
}

static void ids_may_differ_only_where_their_values_stay_in_order(void **state)
{
    (void)state;
    const double scores[5] = {9, 7, 7, 7.005, 1};
    assert_true(ranks_pass("TK(s)", (double[]){0, 3, 1}, (double[]){0, 3, 1}, 3, scores));
    assert_true(ranks_pass("TK(s)", (double[]){0, 3, 2}, (double[]){0, 3, 1}, 3, scores));  /* a tie */
    assert_false(ranks_pass("TK(s)", (double[]){0, 1, 3}, (double[]){0, 3, 1}, 3, scores)); /* rising */
    assert_false(ranks_pass("TK(s)", (double[]){0, 3, 4}, (double[]){0, 3, 1}, 3, scores)); /* falling, but too small */
    assert_false(ranks_pass("TK(s)", (double[]){1, 2, 4}, (double[]){0, 3, 1}, 3, scores)); /* the best is missing */
    assert_false(ranks_pass("TK(s)", (double[]){0, 3, 3}, (double[]){0, 3, 1}, 3, scores)); /* twice */
}

static void sets_do_not_look_at_the_order(void **state)
{
    (void)state;
    const double scores[5] = {9, 7, 7, 7.005, 1};
    assert_true(ranks_pass("as sets", (double[]){1, 0, 3}, (double[]){0, 3, 1}, 3, scores));
    assert_false(ranks_pass("as sets", (double[]){0, 3, 2}, (double[]){0, 3, 1}, 3, scores));
    assert_true(ranks_pass("as sets, TK(s)", (double[]){0, 3, 2}, (double[]){0, 3, 1}, 3, scores));
    assert_true(ranks_pass("as sets, at most 1 position different", (double[]){0, 3, 4}, (double[]){0, 3, 1}, 3, scores));
    assert_false(ranks_pass("as sets, at most 1 position different", (double[]){0, 3, 3}, (double[]){0, 3, 1}, 3, scores));
}

/* ---- texts ---- */

static void assert_reads(const char *text, const char *names, const char *wanted)
{
    struct tolerance t = read(text, names);
    char short_form[96];
    assert_string_equal(tolerance_text(&t, short_form, sizeof short_form), wanted);
}

/* Every kind of text that golden/ops4 has. */
static void texts_are_read_clause_by_clause(void **state)
{
    (void)state;
    assert_reads("exact", "hidden", "exact");
    assert_reads("RA(1e-4,1/128,0.005)", "y", "RA(0.0001,0.0078125,0.005)");
    assert_reads("RA(1/128)", "y", "RA(0.0001,0.0078125,0.005)");
    assert_reads("x_mixed RA(1e-4,1/128,0.005); post, comb RA(2.5e-5,5e-3,0.005)", "comb", "RA(2.5e-05,0.005,0.005)");
    assert_reads("kv, cache RA(1e-4,1/128,0); state RA(1e-3,1e-3,0)", "cmp_kv_cache|cache", "RA(0.0001,0.0078125,0)");
    assert_reads("kv, cache RA(1e-4,1/128,0); state RA(1e-3,1e-3,0)", "state_rows|state", "RA(0.001,0.001,0)");
    assert_reads("score over the visible part RA(1e-4,1/128,0.005); topk TK(score)", "score", "RA(0.0001,0.0078125,0.005)");
    assert_reads("score over the visible part RA(1e-4,1/128,0.005); topk TK(score)", "topk_idxs|topk", "TK");
    assert_reads("i8 RA(1,0,.001); indices TK(weights); others AC(1e-3,1e-3)", "weights", "AC(0.001,0.001)");
    assert_reads("indices exact; others AC(1e-5,1e-5)", "indices", "exact");
    assert_reads("route exact; weight AC(1e-5,1e-6); outputs RA(1e-4,1/128,0.005)", "weight", "AC(1e-05,1e-06)");
    assert_reads("route exact; weight AC(1e-5,1e-6); outputs RA(1e-4,1/128,0.005)", "shared", "RA(0.0001,0.0078125,0.005)");
    assert_reads("logits AC(1e-3,1e-3); sampled_ids exactly the lowest arg max", "sampled_ids", "arg max");
    assert_reads("attn_out RA(1e-4,1/128,0.005), rows from num_tokens on exactly 0", "attn_out", "RA(0.0001,0.0078125,0.005)");
    assert_reads("cmp_kv RA(1e-4,1/128,0.005) (a step of the last quantizer may be one code); state RA(1e-3,1e-3,0)", "cmp_kv",
                 "RA(0.0001,0.0078125,0.005)");
    assert_reads("score RA(1e-4,1/128,0.005) but one code of a quantizer may move a score more: compare 98 %; topk as sets, TK(score)",
                 "score", "RA(0.0001,0.0078125,0.02)");
    assert_reads("freq exact or 1 ulp; cos/sin 2e-7; rotations RA(1/128)", "plain_freq|freq", "exact or 1 ulp");
    assert_reads("freq exact or 1 ulp; cos/sin 2e-7; rotations RA(1/128)", "plain_sin|sin", "AC(0,2e-07)");
    assert_reads("freq exact or 1 ulp; cos/sin 2e-7; rotations RA(1/128)", "plain_cos|cos", "AC(0,2e-07)");
    assert_reads("exact (i8: a code may differ by 1 where x*m is within 1 ulp of a half)", "i8", "exact");
    assert_reads("exact; rows that are not live: see note", "slot_tail", "exact");
    assert_reads("RD(3e-3,.008,1)", "x_out", "RD(0.003,0.008,1)");
    assert_reads("RD(2e-3,.01)", "sh", "RD(0.002,0.01)");
}

static void a_text_that_says_nothing_or_nonsense_is_told(void **state)
{
    (void)state;
    struct tolerance t;
    qr_error err = {0};
    bool found = true;
    assert_int_equal(tolerance_find("post RA(1,1,1)", "pre", &t, &found, &err), QR_OK);
    assert_false(found);
    assert_int_equal(tolerance_find("post about right", "post", &t, &found, &err), QR_BAD_FILE);
    assert_non_null(strstr(err.message, "about right"));
    assert_int_equal(tolerance_find("post RA(1e-3,,0)", "post", &t, &found, &err), QR_BAD_FILE);
    assert_int_equal(tolerance_find("post RA(", "post", &t, &found, &err), QR_BAD_FILE);
    assert_int_equal(tolerance_find("post AC(1)", "post", &t, &found, &err), QR_BAD_FILE);
    assert_int_equal(tolerance_find("post RA(1,1/0,0)", "post", &t, &found, &err), QR_BAD_FILE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ra_counts_points_beyond_both_bounds),
        cmocka_unit_test(rd_is_relative_above_theta_and_absolute_below),
        cmocka_unit_test(ac_takes_the_relative_bound_first),
        cmocka_unit_test(cosine_looks_at_all_points_as_one_vector),
        cmocka_unit_test(exact_tells_zeros_apart_and_counts_ulps_when_asked),
        cmocka_unit_test(a_nan_or_infinity_fails_on_either_side),
        cmocka_unit_test(slack_lets_a_code_differ_by_one),
        cmocka_unit_test(ids_may_differ_only_where_their_values_stay_in_order),
        cmocka_unit_test(sets_do_not_look_at_the_order),
        cmocka_unit_test(texts_are_read_clause_by_clause),
        cmocka_unit_test(a_text_that_says_nothing_or_nonsense_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
