/* Calibration and its file (speculation.md 6.4, 6.5, 12: T17). */
#include "engine/draft_profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/draft_calibration.h"
#include "support/support.h"

/* ---- temperatures ---- */

static void confidences_keep_their_order_and_tau_one_changes_nothing(void **state)
{
    (void)state;
    static const double taus[] = {0.125, 0.5, 1, 2, 8};
    for (size_t t = 0; t < sizeof taus / sizeof *taus; t++)
        for (double logit = -20; logit < 20; logit += 0.125) {
            const double a = calibration_confidence(logit, taus[t]), b = calibration_confidence(logit + 0.125, taus[t]);
            assert_true(a <= b && a > 0 && b <= 1);
            assert_true(fabs(logit) > 13 || a < b || a == 1);
        }
    for (double logit = -13; logit <= 13; logit += 0.25)
        assert_true(fabs(calibration_confidence(logit, 1) - 1 / (1 + exp(-logit))) < 1e-15);
}

enum { SAMPLES = 4000 };

/* Drafts of a drafter whose logits are `sharp` times too sure; all verified, some of them only in part. */
static void make_samples(struct calibration_sample *samples, double sharp)
{
    uint64_t state = 7;
    for (int i = 0; i < SAMPLES; i++) {
        struct calibration_sample *s = &samples[i];
        bool alive = true;
        *s = (struct calibration_sample){.verified = i % 5 ? 3 : 1};
        for (int k = 0; k < 3; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            const double logit = 6 * ((double)(state >> 40) / (1 << 24)) - 3;
            state = state * 6364136223846793005u + 1442695040888963407u;
            alive &= (double)(state >> 40) / (1 << 24) < 1 / (1 + exp(-logit));
            s->logits[k] = (float)(logit * sharp);
            s->accepted += k < s->verified && alive;
        }
    }
}

static void the_temperature_of_a_drafter_that_is_too_sure_is_found(void **state)
{
    (void)state;
    static struct calibration_sample samples[SAMPLES];
    double taus[3];
    const double ones[3] = {1, 1, 1};
    make_samples(samples, 4);
    calibration_fit(samples, SAMPLES, 3, taus);
    for (int k = 0; k < 3; k++) {
        assert_true(taus[k] > 2.8 && taus[k] < 5.7);
        assert_true(calibration_error(samples, SAMPLES, taus, k) < 0.5 * calibration_error(samples, SAMPLES, ones, k));
    }
    calibration_fit(samples, 0, 3, taus);
    assert_true(taus[0] == 1 && taus[1] == 1 && taus[2] == 1); /* nothing is known */
}

/* ---- the file ---- */

static const struct draft_profile example = {
    .place = {.config = "c0", .index = "1d", .model_type = "deepseek_v41", .device = "cpu", .profile = "reference",
              .kv_cache_dtype = "fp4", .index_cache_dtype = "fp4", .threads = 2, .width = 2, .requests = 2, .rows = 6},
    .taus = {1.5, 0.75},
    .steps = {.count = 3, .size = {1, 3, 6}, .ms = {1, 1, 2.5}},
    .drafts = {.count = 2, .size = {1, 2}, .ms = {0.5, 0.75}},
    .workload = "e0",
    .date = "2026-01-31"};

static void text_of(const struct draft_profile *p, char *out, size_t size)
{
    const char *text;
    size_t length;
    struct json_writer *w = json_writer_open(false);
    draft_profile_write(w, p);
    assert_int_equal(json_finish(w, &text, &length, NULL), QR_OK);
    assert_true(length < size);
    memcpy(out, text, length + 1);
    json_writer_close(w);
}

static void a_profile_is_read_back_as_it_was_written(void **state)
{
    (void)state;
    char text[2000], again[2000];
    struct draft_profile read;
    text_of(&example, text, sizeof text);
    assert_int_equal(draft_profile_read(text, strlen(text), "p", &example.place, &read, NULL), QR_OK);
    text_of(&read, again, sizeof again);
    assert_string_equal(text, again);
    struct draft_place unknown = example.place; /* the two files have not been looked at yet */
    unknown.config[0] = unknown.index[0] = 0;
    unknown.requests = 1;
    assert_int_equal(draft_profile_read(text, strlen(text), "p", &unknown, &read, NULL), QR_OK);
}

static void a_profile_that_is_not_of_this_engine_or_says_nonsense_is_refused_by_e10(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *says;
    } cases[] = {{"\"format\":1", "\"format\":2", "format is 2, here it is 1"},
                 {"\"c0\"", "\"c1\"", "config_sha256 is \"c1\", here it is \"c0\""},
                 {"\"1d\"", "\"1e\"", "index_sha256 is \"1e\""},
                 {"deepseek_v41", "deepseek_v4", "model_type is \"deepseek_v4\""},
                 {"\"cpu\"", "\"cuda:0\"", "device is \"cuda:0\""},
                 {"\"threads\":2", "\"threads\":3", "threads is 3, here it is 2"},
                 {"reference", "w8a8", "profile is \"w8a8\""},
                 {"\"kv_cache_dtype\":\"fp4\"", "\"kv_cache_dtype\":\"bf16\"", "kv_cache_dtype is \"bf16\""},
                 {"\"index_cache_dtype\":\"fp4\"", "\"index_cache_dtype\":\"fp8\"", "index_cache_dtype is \"fp8\""},
                 {"\"tp_size\":1", "\"tp_size\":4", "tp_size is 4"},
                 {"\"width\":2", "\"width\":5", "width is 5"},
                 {"[1.5,0.75]", "[1.5]", "taus is missing or no value of its kind"},
                 {"[1.5,0.75]", "[1.5,0]", "tau 2 is 0, wanted a finite number above 0"},
                 {"[1.5,0.75]", "[1.5,-1]", "tau 2 is -1"},
                 {"[1.5,0.75]", "[1e999,0.75]", "tau 1 is 1e999"},
                 {"[1.5,0.75]", "[null,0.75]", "tau 1 is no number"},
                 {"[1.5,0.75]", "[NaN,0.75]", "p"},
                 {"[6,2.5]", "[6,0.5]", "0.5 ms of 6 and 1 ms of 3: a rate that rises"},
                 {"[6,2.5]", "[5,2.5]", "steps go up to 5, 6 is not covered"},
                 {"[3,1", "[1,1", "steps has 1 behind 1, wanted rising sizes"},
                 {",[2,0.75]", "", "drafts go up to 1, 2 is not covered"},
                 {"\"max_requests\":2", "\"max_requests\":1", "max_requests is 1, an engine with 2 is not covered"},
                 {"\"max_rows\":6", "\"max_rows\":4", "max_rows is 4, an engine with 6"},
                 {"\"workload_sha256\"", "\"x\"", "workload_sha256 is missing"},
                 {"{\"format\"", "[{\"format\"", "p"}};
    char text[2000], changed[2100];
    text_of(&example, text, sizeof text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct draft_profile read;
        qr_error err = {0};
        const char *at = strstr(text, cases[i].from);
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, cases[i].to, at + strlen(cases[i].from));
        assert_int_equal(draft_profile_read(changed, strlen(changed), "p", &example.place, &read, &err), QR_REFUSED);
        if (strncmp(err.message, "E10 speculation profile p", strlen("E10 speculation profile p")) != 0 ||
            !strstr(err.message, cases[i].says))
            fail_msg("case %zu: %s", i, err.message);
    }
}

static void costs_hold_the_smallest_size_that_is_enough(void **state)
{
    (void)state;
    struct draft_cost c = {0};
    assert_true(draft_cost_add(&c, 4, 2) && draft_cost_add(&c, 1, 3) && draft_cost_add(&c, 8, 4));
    assert_false(draft_cost_add(&c, 4, 9));
    draft_cost_settle(&c); /* four rows do not take less than one */
    assert_true(draft_cost_ms(&c, 1) == 3 && draft_cost_ms(&c, 2) == 3 && draft_cost_ms(&c, 4) == 3);
    assert_true(draft_cost_ms(&c, 5) == 4 && draft_cost_ms(&c, 16) == 8 && draft_cost_ms(&c, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(confidences_keep_their_order_and_tau_one_changes_nothing),
        cmocka_unit_test(the_temperature_of_a_drafter_that_is_too_sure_is_found),
        cmocka_unit_test(a_profile_is_read_back_as_it_was_written),
        cmocka_unit_test(a_profile_that_is_not_of_this_engine_or_says_nonsense_is_refused_by_e10),
        cmocka_unit_test(costs_hold_the_smallest_size_that_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
