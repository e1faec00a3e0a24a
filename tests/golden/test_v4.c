/* label: release */
#define _GNU_SOURCE
/* golden/v4, whole passes: logits, drafts, caches and a forced continuation of every case, within the pass lines of its
 * README. Both profiles, on the reference path and on the fast one. Blocks alone have their own test. */
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/quantize.h"
#include "support/scratch.h"
#include "support/shared_memory.h"
#include "support/v4_case.h"

static const char *const folders[] = {"tiny", "fp8exp", "wide"};
enum { FOLDERS = sizeof folders / sizeof *folders };

struct run {
    const struct v4_folder *folder;
    const struct v4_case *c;
    const struct v4_profile *profile;
    struct golden *out, *want;
    int32_t flip, mtp_flip; /* first position judged as "after" */
};

static void fail_at(const struct run *r, const char *what, double found, double wanted)
{
    fail_msg("%s %s %s: %s is %g, wanted %g", r->folder->name, r->profile->golden, r->c->name, what, found, wanted);
}

static void assert_at_most(const struct run *r, const char *what, double found, double limit)
{
    if (!(found <= limit))
        fail_at(r, what, found, limit);
}

static void assert_at_least(const struct run *r, const char *what, double found, double limit)
{
    if (!(found >= limit))
        fail_at(r, what, found, limit);
}

/* ---- where results part ---- */

/* The first position whose set in array `name` is not the golden's, or `end`. */
static int32_t first_difference(const struct run *r, const char *name, int32_t rows, int32_t end)
{
    int64_t n, m;
    if (!golden_has(r->want, name))
        return end;
    const int32_t *x = golden_i32(r->out, name, &n), *y = golden_i32(r->want, name, &m);
    assert_int_equal(n, m);
    int32_t width = (int32_t)(n / rows);
    for (int32_t row = 0; row < rows && row < end; row++)
        if (!same_set(x + row * width, y + row * width, width))
            return row;
    return end;
}

static void find_flips(struct run *r)
{
    int32_t rows = r->c->count;
    r->flip = (int32_t)v4_smallest(r->c, r->profile, "first_flip", rows);
    for (int32_t i = 0; i < r->folder->config.num_hidden_layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.route", i);
        r->flip = first_difference(r, name, rows, r->flip);
        snprintf(name, sizeof name, "layers.%d.selected", i);
        r->flip = first_difference(r, name, rows, r->flip);
    }
    r->mtp_flip = (int32_t)v4_smallest_of(r->c, r->profile, "mtp_flips", r->flip);
    r->mtp_flip = first_difference(r, "mtp.route", rows - 1, r->mtp_flip);
}

/* ---- logits ---- */

/* Logits at the stored positions below `end`, strictly before the flip; the golden's rows beside this run's. */
static void check_logits(const struct run *r, const char *name, int32_t end, int32_t flip, double limit,
                         double least_cosine)
{
    int64_t n;
    const float *x = golden_f32(r->out, name, NULL), *y = golden_f32(r->want, name, &n);
    int32_t vocab = r->folder->config.vocab_size, stored = 0;
    float *mine = malloc((size_t)n * sizeof *mine);
    assert_non_null(mine);
    for (int32_t i = 0; i < r->c->row_count; i++) {
        int32_t p = r->c->rows[i];
        if (p >= end)
            continue;
        const float *a = x + (int64_t)p * vocab, *b = y + (int64_t)stored * vocab;
        memcpy(mine + (int64_t)stored++ * vocab, a, (size_t)vocab * sizeof *a);
        if (p >= flip)
            continue;
        double largest = 0;
        for (int32_t v = 0; v < vocab; v++)
            largest = fmax(largest, fabs((double)a[v] - b[v]));
        assert_at_most(r, name, largest, limit);
        assert_at_least(r, name, cosine(a, b, vocab), least_cosine);
    }
    assert_int_equal((int64_t)stored * vocab, n);
    assert_at_least(r, name, cosine(mine, y, n), 0.97);
    free(mine);
}

static void check_choices(const struct run *r, const char *name, double share)
{
    int64_t n, m, equal = 0;
    const int32_t *x = golden_i32(r->out, name, &n), *y = golden_i32(r->want, name, &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        equal += x[i] == y[i];
    if (equal < n - 1)
        assert_at_least(r, name, (double)equal / (double)n, share);
}

static void check_all_logits(const struct run *r)
{
    double difference = v4_largest(r->c, r->profile, "logit_diff_before_flip", 0);
    double mtp = v4_largest(r->c, r->profile, "mtp_diff_before_flip", 0), least = 0.995;
    if (v4_smallest(r->c, r->profile, "first_flip", -1) < 0)
        least = fmin(least, 1 - 2 * (1 - v4_smallest(r->c, r->profile, "min_cosine", 1)));
    check_logits(r, "logits", r->c->count, r->flip, fmax(4 * difference, 0.25), least);
    check_logits(r, "mtp_logits", r->c->count - 1, r->mtp_flip, fmax(4 * mtp, 0.5), 0.985);
    check_choices(r, "greedy", 0.9);
    check_choices(r, "draft", 0.85);
}

/* ---- what stands in the caches ---- */

/* Rows of layer 0 are made of exact inputs: equal but for one step of bf16 in 0.5 % of the elements, or 8 of them. */
static void check_exact(const struct run *r, const char *name)
{
    int64_t n, m, different = 0;
    if (!golden_has(r->want, name))
        return;
    const float *x = golden_f32(r->out, name, &n), *y = golden_f32(r->want, name, &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        different += x[i] != y[i];
    assert_at_most(r, name, (double)different, fmax(8, 0.005 * (double)n));
}

static void check_state(const struct run *r, const char *name)
{
    int64_t n, m;
    if (!golden_has(r->want, name))
        return;
    const float *x = golden_f32(r->out, name, &n), *y = golden_f32(r->want, name, &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++)
        assert_at_most(r, name, fabs((double)x[i] - y[i]), 1e-3 + 1e-3 * fabs((double)y[i]));
}

/* Rows of the MTP layer's window before its flip; the first one is of position `rows` less their number. */
static void check_mtp_window(const struct run *r)
{
    int64_t n, m;
    const float *x = golden_f32(r->out, "mtp.window", &n), *y = golden_f32(r->want, "mtp.window", &m);
    int32_t width = r->folder->config.head_dim, count = (int32_t)(n / width), first = r->c->count - 1 - count;
    assert_int_equal(n, m);
    for (int32_t i = 0; i < count && first + i < r->mtp_flip; i++)
        assert_at_most(r, "mtp.window", relative_l2(x + i * width, y + i * width, width), 0.2);
}

/* Weights of rows with the golden's experts, before the flip. */
static void check_route_weights(const struct run *r, const char *block, int32_t rows, int32_t flip)
{
    char route[64], weight[64];
    int64_t n;
    snprintf(route, sizeof route, "%s.route", block);
    snprintf(weight, sizeof weight, "%s.route_weight", block);
    const int32_t *e = golden_i32(r->out, route, &n), *f = golden_i32(r->want, route, NULL);
    const float *x = golden_f32(r->out, weight, NULL), *y = golden_f32(r->want, weight, NULL);
    int32_t k = (int32_t)(n / rows);
    for (int32_t row = 0; row < rows && row < flip; row++)
        for (int32_t i = row * k; i < (row + 1) * k && same_set(e + row * k, f + row * k, k); i++)
            for (int32_t j = row * k; j < (row + 1) * k; j++)
                if (e[i] == f[j])
                    assert_at_most(r, weight, fabs((double)x[i] - y[j]), 0.05 * y[j]);
}

static void check_caches(const struct run *r)
{
    check_exact(r, "layers.0.window");
    check_exact(r, "layers.0.compressed");
    check_mtp_window(r);
    for (int32_t i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.state", i);
        check_state(r, name);
        snprintf(name, sizeof name, "layers.%d.index_state", i);
        check_state(r, name);
    }
}

static void check_all_route_weights(const struct run *r)
{
    for (int32_t i = 0; i < r->folder->config.num_hidden_layers; i++) {
        char block[32];
        snprintf(block, sizeof block, "layers.%d", i);
        check_route_weights(r, block, r->c->count, r->flip);
    }
    check_route_weights(r, "mtp", r->c->count - 1, r->mtp_flip);
}

/* ---- a forced continuation ---- */

static float margin_of(const float *logits, int32_t vocab, int32_t best)
{
    float second = -INFINITY;
    for (int32_t v = 0; v < vocab; v++)
        second = v != best && logits[v] > second ? logits[v] : second;
    return logits[best] - second;
}

/* Row first + i of `logits` chooses want[i], unless its own margin is within twice the noise. */
static void check_forced(const struct run *r, const char *name, int32_t first, const int32_t *want, int32_t count,
                         double noise)
{
    const float *logits = golden_f32(r->out, name, NULL);
    int32_t vocab = r->folder->config.vocab_size;
    for (int32_t i = 0; i < count; i++) {
        const float *row = logits + (int64_t)(first + i) * vocab;
        int32_t best = best_of(row, vocab);
        if (best != want[i])
            assert_at_most(r, name, margin_of(row, vocab, best), 2 * noise);
    }
}

static const struct v4_case *case_of(const struct v4_folder *f, const int32_t *ids, int32_t count)
{
    for (int32_t i = 0; i < f->count; i++)
        if (f->cases[i].count == count && memcmp(f->cases[i].ids, ids, (size_t)count * sizeof *ids) == 0)
            return &f->cases[i];
    return NULL;
}

static void check_continuation(const struct v4_folder *f, const struct json *e, const struct v4_profile *profile,
                               const char *device)
{
    int32_t prompt_count, count, drafts;
    int32_t *prompt = v4_ints(json_get(e, "prompt"), &prompt_count), *tokens = v4_ints(json_get(e, "tokens"), &count);
    int32_t *draft_for = v4_ints(json_get(e, "draft_for"), &drafts);
    struct run r = {.folder = f, .profile = profile, .c = case_of(f, prompt, prompt_count)};
    assert_non_null(r.c);
    int32_t *ids = realloc(prompt, (size_t)(prompt_count + count) * sizeof *ids);
    assert_non_null(ids);
    memcpy(ids + prompt_count, tokens, (size_t)count * sizeof *ids);

    r.out = v4_trace(scratch, f->model, ids, prompt_count + count, device, profile, NULL);
    check_forced(&r, "logits", prompt_count - 1, tokens, count,
                 fmax(v4_largest(r.c, profile, "logit_diff_before_flip", 0), 0.25));
    assert_int_equal(drafts, count); /* draft_for[i]: the guess for tokens[i + 1], made with tokens[i] */
    check_forced(&r, "mtp_logits", prompt_count - 1, draft_for, count,
                 fmax(v4_largest(r.c, profile, "mtp_diff_before_flip", 0), 0.5));
    golden_close(r.out);
    free(ids);
    free(tokens);
    free(draft_for);
}

/* ---- everything ---- */

static void check_folder(const char *name, const struct v4_profile *profile, const char *device)
{
    struct v4_folder f;
    v4_folder_open(&f, name);
    for (int32_t i = 0; i < f.count; i++) {
        struct run r = {.folder = &f, .c = &f.cases[i], .profile = profile};
        r.out = v4_trace(scratch, f.model, r.c->ids, r.c->count, device, profile, NULL);
        r.want = v4_golden(&f, profile, r.c->name);
        find_flips(&r);
        check_all_logits(&r);
        check_caches(&r);
        check_all_route_weights(&r);
        golden_close(r.out);
        golden_close(r.want);
    }
    int32_t continued = 0;
    for (const struct json *e = json_get(json_root(f.document), "generate")->child; e; e = e->next)
        if (json_equals(json_get(e, "profile"), profile->golden)) {
            check_continuation(&f, e, profile, device);
            continued++;
        }
    assert_true(continued > 0);
    v4_folder_close(&f);
}

static void the_reference_profile_gives_the_goldens_on_the_reference_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder(folders[i], &v4_profiles[0], "cpu-reference");
}

static void the_reference_profile_gives_the_goldens_on_the_fast_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder(folders[i], &v4_profiles[0], fast_device());
}

static void the_int8_profile_gives_the_goldens_on_the_reference_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder(folders[i], &v4_profiles[1], "cpu-reference");
}

static void the_int8_profile_gives_the_goldens_on_the_fast_path(void **state)
{
    (void)state;
    for (int i = 0; i < FOLDERS; i++)
        check_folder(folders[i], &v4_profiles[1], fast_device());
}

/* kv_fp8_sim=off (v4-model.md 4.1) keeps the values that the rounding starts from. Layer 0 has the same input either
 * way. */
static void without_the_fp8_rounding_keys_are_what_the_rounding_starts_from(void **state)
{
    (void)state;
    struct v4_folder f;
    int64_t n, different = 0;
    v4_folder_open(&f, "tiny");
    const struct v4_case *c = &f.cases[1];
    int32_t width = f.config.head_dim, nope = width - f.config.rope_head_dim;
    struct golden *on = v4_trace(scratch, f.model, c->ids, c->count, "cpu-reference", &v4_profiles[0], NULL);
    struct golden *off = v4_trace(scratch, f.model, c->ids, c->count, "cpu-reference", &v4_profiles[0],
                                  (const char *[]){"--kv-fp8-sim", "off", NULL});
    const uint16_t *rounded = golden_bf16(on, "layers.0.window", &n),
                   *plain = golden_bf16(off, "layers.0.window", NULL);
    for (int64_t row = 0; row < n / width; row++) {
        uint16_t key[512];
        assert_true(width <= 512);
        memcpy(key, plain + row * width, (size_t)width * sizeof *key);
        q8_round(key, nope, 64);
        assert_memory_equal(key, rounded + row * width, (size_t)width * sizeof *key);
        different += memcmp(plain + row * width, rounded + row * width, (size_t)width * sizeof *key) != 0;
    }
    assert_true(different > c->count / 2);
    golden_close(on);
    golden_close(off);
    v4_folder_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_profile_gives_the_goldens_on_the_reference_path),
        cmocka_unit_test(the_reference_profile_gives_the_goldens_on_the_fast_path),
        cmocka_unit_test(the_int8_profile_gives_the_goldens_on_the_reference_path),
        cmocka_unit_test(the_int8_profile_gives_the_goldens_on_the_fast_path),
        cmocka_unit_test(without_the_fp8_rounding_keys_are_what_the_rounding_starts_from),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
