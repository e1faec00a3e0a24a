/* label: release */
#define _GNU_SOURCE
/* golden/v4, every block alone: fed with the golden's input streams it must give the golden's output, caches, scores
 * and routes, within the pass lines of its README. Both profiles, on the reference path and on the fast one. */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "support/scratch.h"
#include "support/shared_memory.h"
#include "support/v4_case.h"

static const char *const folders[] = {"tiny", "fp8exp", "wide"};
enum { FOLDERS = sizeof folders / sizeof *folders, MAX_ROWS = 320 };

/* One forced run beside its goldens. */
struct run {
    const struct v4_folder *folder;
    const struct v4_case *c;
    const struct v4_profile *profile;
    struct golden *out, *want, *layers; /* the run; the golden's arrays; the golden's streams */
};

/* A block of it: "layers.3" or "mtp". */
struct block {
    char name[32];
    int32_t rows, ratio; /* positions that pass through it; 0: window only */
};

static bool is_reference(const struct run *r) { return r->profile == &v4_profiles[0]; }

static const char *array(const struct block *b, const char *what)
{
    static char names[8][64];
    static int turn;
    char *name = names[turn++ % 8];
    snprintf(name, 64, "%s.%s", b->name, what);
    return name;
}

static void fail_at(const struct run *r, const struct block *b, const char *what, double found, double wanted)
{
    fail_msg("%s %s %s: %s is %g, wanted at most %g", r->folder->name, r->profile->golden, b->name, what, found,
             wanted);
}

static double figure(const struct run *r, const struct block *b, const char *name)
{
    double value = 0;
    const struct json *alone = json_get(json_get(json_get(r->c->json, "measured"), r->profile->golden), "layer_alone");
    assert_true(json_double(json_get(json_get(alone, b->name), name), &value));
    return value;
}

/* ---- choices ---- */

static bool same_choices(const struct run *r, const struct block *b, int32_t row)
{
    const char *lists[2] = {array(b, "route"), array(b, "selected")};
    for (int i = 0; i < 2; i++) {
        int64_t n, m;
        if (!golden_has(r->want, lists[i]))
            continue;
        const int32_t *x = golden_i32(r->out, lists[i], &n), *y = golden_i32(r->want, lists[i], &m);
        assert_int_equal(n, m);
        int32_t width = (int32_t)(n / b->rows);
        if (!same_set(x + row * width, y + row * width, width))
            return false;
    }
    return true;
}

/* ---- streams ---- */

static void check_streams(const struct run *r, const struct block *b)
{
    int64_t n, m;
    const float *x = golden_f32(r->out, array(b, "out"), &n), *y = golden_f32(r->layers, array(b, "out"), &m);
    assert_int_equal(n, m);
    int64_t width = n / b->rows;
    double near = fmax(4 * figure(r, b, "max_rel_l2"), 1e-2), far = fmax(0.1, near), all[MAX_ROWS], tail[MAX_ROWS];
    int32_t same = 0, close = 0, other = 0, tails = 0;

    for (int32_t row = 0; row < b->rows; row++) {
        double distance = relative_l2(x + row * width, y + row * width, width);
        all[row] = distance;
        if (row >= 259)
            tail[tails++] = distance;
        if (!same_choices(r, b, row)) {
            other++;
            continue;
        }
        same++;
        close += distance <= near;
        if (!(distance <= far))
            fail_at(r, b, "relative L2 of a row", distance, far);
    }
    if (close < 0.75 * same)
        fail_at(r, b, "share of rows that are not close", 1 - (double)close / same, 0.25);
    if (other > fmax(2, 3 * figure(r, b, "flips")))
        fail_at(r, b, "number of rows with another choice", other, fmax(2, 3 * figure(r, b, "flips")));

    double share = is_reference(r) ? 0.5 : 0.1, limit = is_reference(r) ? 1e-3 : 2e-4;
    double found = quantile(all, b->rows, share);
    if (!(found <= limit))
        fail_at(r, b, is_reference(r) ? "median of the rows" : "tenth percentile of the rows", found, limit);
    if (tails > 0 && !((found = quantile(tail, tails, share)) <= limit))
        fail_at(r, b, "quantile of the rows from 259 on", found, limit);
}

/* ---- caches ---- */

/* Equal but for `share` of the elements, or 8 of them. */
static void check_equal(const struct run *r, const struct block *b, const char *what, double share)
{
    int64_t n, m, different = 0;
    if (!golden_has(r->want, array(b, what)))
        return;
    const float *x = golden_f32(r->out, array(b, what), &n), *y = golden_f32(r->want, array(b, what), &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        different += x[i] != y[i];
    if ((double)different > fmax(8, share * (double)n))
        fail_at(r, b, what, (double)different, fmax(8, share * (double)n));
}

static void check_close(const struct run *r, const struct block *b, const char *what, double absolute, double relative)
{
    int64_t n, m;
    if (!golden_has(r->want, array(b, what)))
        return;
    const float *x = golden_f32(r->out, array(b, what), &n), *y = golden_f32(r->want, array(b, what), &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)x[i] - y[i]) <= absolute + relative * fabs((double)y[i])))
            fail_at(r, b, what, fabs((double)x[i] - y[i]), absolute + relative * fabs((double)y[i]));
}

static void check_route_weights(const struct run *r, const struct block *b)
{
    int64_t n;
    const int32_t *e = golden_i32(r->out, array(b, "route"), &n), *f = golden_i32(r->want, array(b, "route"), NULL);
    const float *x = golden_f32(r->out, array(b, "route_weight"), NULL);
    const float *y = golden_f32(r->want, array(b, "route_weight"), NULL);
    int32_t k = (int32_t)(n / b->rows);
    for (int32_t row = 0; row < b->rows; row++)
        for (int32_t i = 0; i < k && same_set(e + row * k, f + row * k, k); i++)
            for (int32_t j = 0; j < k; j++)
                if (e[row * k + i] == f[row * k + j] &&
                    !(fabsf(x[row * k + i] - y[row * k + j]) <= 1e-2f * y[row * k + j]))
                    fail_at(r, b, "difference of a route weight", fabsf(x[row * k + i] - y[row * k + j]),
                            1e-2f * y[row * k + j]);
}

/* ---- index scores and selections ---- */

static void check_scores(const struct run *r, const struct block *b)
{
    int64_t n;
    const float *x = golden_f32(r->out, array(b, "index_score"), &n),
                *y = golden_f32(r->want, array(b, "index_score"), NULL);
    int64_t columns = n / b->rows, all = 0, outside = 0;
    for (int32_t i = 0; i < r->c->row_count; i++) {
        int32_t p = r->c->rows[i], visible = (p + 1) / b->ratio;
        const float *a = x + p * columns, *w = y + i * columns;
        float largest = 0;
        for (int32_t j = 0; j < visible; j++)
            largest = fmaxf(largest, fabsf(w[j]));
        for (int32_t j = 0; j < visible; j++, all++)
            outside += !(fabsf(a[j] - w[j]) <= 1e-3f * fabsf(w[j]) + 1e-4f * largest);
    }
    if ((double)outside > 0.1 * (double)all)
        fail_at(r, b, "share of index scores outside", (double)outside / (double)all, 0.1);
}

/* Two bf16 steps, or a thousandth of an f32 score, at `score`. */
static float near_tie(const struct run *r, float score)
{
    return is_reference(r) ? 2 * ldexpf(1, ilogbf(fmaxf(fabsf(score), 1e-30f)) - 7) : 1e-3f * fabsf(score);
}

/* The chosen rows are the golden's, but for those that score like the last one chosen. */
static void check_selected(const struct run *r, const struct block *b)
{
    int64_t n, m;
    const int32_t *x = golden_i32(r->out, array(b, "selected"), &n),
                  *y = golden_i32(r->want, array(b, "selected"), NULL);
    const float *scores = golden_f32(r->out, array(b, "index_score"), &m);
    int32_t width = (int32_t)(n / b->rows), columns = (int32_t)(m / b->rows);
    for (int32_t row = 0; row < b->rows; row++) {
        int32_t visible = (row + 1) / b->ratio, count = visible < width ? visible : width;
        const int32_t *a = x + row * width, *w = y + row * width;
        const float *s = scores + row * columns;
        for (int32_t i = 0; i < count; i++) {
            assert_in_range(a[i], 0, visible - 1);
            if (i > 0) /* best first, equal ones by row */
                assert_true(s[a[i - 1]] > s[a[i]] || (s[a[i - 1]] == s[a[i]] && a[i - 1] < a[i]));
        }
        for (int32_t i = count; i < width; i++)
            assert_int_equal(a[i], -1);
        if (count == 0 || same_set(a, w, width))
            continue;
        for (int32_t i = 0; i < count; i++) {
            bool there = false;
            for (int32_t j = 0; j < count; j++)
                there |= w[i] == a[j];
            float last = s[a[count - 1]];
            if (!there && fabsf(s[w[i]] - last) > near_tie(r, last))
                fail_at(r, b, "score of a row left out, under the last one chosen", last - s[w[i]], near_tie(r, last));
        }
    }
}

/* ---- runs ---- */

static void check_block(const struct run *r, const struct block *b)
{
    check_streams(r, b);
    check_equal(r, b, "window", 0.01);
    check_equal(r, b, "compressed", 0.01);
    check_equal(r, b, "index_key", 0.01);
    check_close(r, b, "index_key_scale", 0, 1.0 / 128);
    check_close(r, b, "state", 1e-3, 1e-3);
    check_close(r, b, "index_state", 1e-3, 1e-3);
    check_route_weights(r, b);
    if (golden_has(r->want, array(b, "index_score"))) {
        check_scores(r, b);
        check_selected(r, b);
    }
}

static void check_folder(const char *name, const struct v4_profile *profile, const char *device)
{
    struct v4_folder f;
    char stem[32], forced[256];
    v4_folder_open(&f, name);
    struct run r = {.folder = &f, .c = v4_blocks_case(&f), .profile = profile};
    snprintf(stem, sizeof stem, "layers-%s", r.c->name);
    snprintf(forced, sizeof forced, "%s/%s/%s-%s.safetensors", source_path("tests/golden/v4"), name, profile->golden,
             stem);
    r.layers = v4_golden(&f, profile, stem);
    r.want = v4_golden(&f, profile, r.c->name);
    r.out =
        v4_trace(scratch, f.model, r.c->ids, r.c->count, device, profile, (const char *[]){"--force", forced, NULL});

    for (int32_t i = 0; i < f.config.num_hidden_layers; i++) {
        struct block b = {.rows = r.c->count, .ratio = f.config.compress_ratios[i]};
        snprintf(b.name, sizeof b.name, "layers.%d", i);
        check_block(&r, &b);
    }
    if (golden_has(r.layers, "mtp.out"))
        check_block(&r, &(struct block){.name = "mtp", .rows = r.c->count - 1});
    golden_close(r.out);
    golden_close(r.want);
    golden_close(r.layers);
    v4_folder_close(&f);
}

static void blocks_of_the_reference_profile_are_the_goldens_on_the_reference_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder(folders[i], &v4_profiles[0], "cpu-reference");
}

static void blocks_of_the_reference_profile_are_the_goldens_on_the_fast_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder(folders[i], &v4_profiles[0], fast_device());
}

static void blocks_of_the_int8_profile_are_the_goldens_on_the_reference_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder(folders[i], &v4_profiles[1], "cpu-reference");
}

static void blocks_of_the_int8_profile_are_the_goldens_on_the_fast_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder(folders[i], &v4_profiles[1], fast_device());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_the_reference_profile_are_the_goldens_on_the_reference_path),
        cmocka_unit_test(blocks_of_the_reference_profile_are_the_goldens_on_the_fast_path),
        cmocka_unit_test(blocks_of_the_int8_profile_are_the_goldens_on_the_reference_path),
        cmocka_unit_test(blocks_of_the_int8_profile_are_the_goldens_on_the_fast_path),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
