/* label: release */
/* What is told of drafts adds up (speculation.md 7, 12: T26). */
#include "engine/draft_counts.h"

#include <math.h>

#include "support/engines.h"
#include "support/support.h"

static uint64_t sum(const uint64_t *values, int count)
{
    uint64_t out = 0;
    for (int i = 0; i < count; i++)
        out += values[i];
    return out;
}

static void assert_near(double value, double wanted) { assert_true(fabs(value - wanted) < 1e-12); }

static void assert_adds_up(const qr_draft_metrics *m)
{
    uint64_t accepted = 0, verified = 0;
    for (int i = 0; i <= QR_MAX_DRAFTS; i++) {
        accepted += (uint64_t)i * m->accepted_histogram[i];
        verified += (uint64_t)i * m->verified_histogram[i];
    }
    assert_int_equal(m->emitted, m->decode_steps + m->accepted - m->dropped_by_stop);
    assert_int_equal(m->decode_steps, m->verify_steps + sum(m->rests, QR_REST_REASONS));
    assert_int_equal(m->accepted, accepted);
    assert_int_equal(m->verified, verified);
    assert_int_equal(m->verify_steps, sum(m->accepted_histogram, QR_MAX_DRAFTS + 1));
    assert_int_equal(m->decode_steps, sum(m->verified_histogram, QR_MAX_DRAFTS + 1));
    assert_int_equal(m->accepted, sum(m->position_accepted, QR_MAX_DRAFTS));
    assert_int_equal(m->verified, sum(m->position_verified, QR_MAX_DRAFTS));
    for (int k = 0; k + 1 < QR_MAX_DRAFTS; k++) {
        assert_true(m->position_accepted[k] <= m->position_reached[k]);
        assert_true(m->position_reached[k + 1] <= m->position_accepted[k]);
    }
}

static void a_few_verdicts_give_the_figures_of_the_table(void **state)
{
    (void)state;
    const double sure[] = {0.9, 0.6}, unsure[] = {0.1};
    const struct draft_verdict verdicts[] = {
        {.proposed = 2, .verified = 2, .accepted = 2, .emitted = 3, .survival = sure},
        {.proposed = 2, .verified = 2, .accepted = 1, .emitted = 1, .survival = sure}, /* ended by the draft */
        {.proposed = 2, .verified = 1, .accepted = 0, .emitted = 1, .survival = unsure},
        {.emitted = 1, .rest = QR_REST_COST},
        {.proposed = 1, .emitted = 1, .rest = QR_REST_CONFIDENCE}};
    struct draft_counts c = {0};
    qr_draft_metrics m;
    for (size_t i = 0; i < sizeof verdicts / sizeof *verdicts; i++)
        draft_counts_verdict(&c, &verdicts[i]);
    draft_counts_pass(&c, 3, 7, 0.5);
    draft_counts_step(&c, 0.25);
    draft_counts_discard(&c, 2);
    draft_counts_told(&c, &m);
    assert_adds_up(&m);
    assert_int_equal(m.decode_steps, 5);
    assert_int_equal(m.verify_steps, 3);
    assert_int_equal(m.verified, 5);
    assert_int_equal(m.unverified, 2);
    assert_int_equal(m.accepted, 3);
    assert_int_equal(m.emitted, 7);
    assert_int_equal(m.dropped_by_stop, 1);
    assert_int_equal(m.discarded, 2);
    assert_int_equal(m.proposed, 7);
    assert_int_equal(m.rests[QR_REST_COST], 1);
    assert_int_equal(m.rests[QR_REST_CONFIDENCE], 1);
    assert_near(m.acceptance_length_verify_steps, 2);
    assert_near(m.acceptance_length_decode_steps, 1.6);
    assert_near(m.acceptance_rate, 0.6);
    assert_near(m.unconditional[0], 2.0 / 3);
    assert_near(m.unconditional[1], 0.5);
    assert_near(m.conditional[1], 0.5);
    assert_near(m.survival_estimate[0], 1.9 / 3);
    assert_near(m.calibration_error[0], (2 * 0.1 + 0.1) / 3);
    assert_near(m.calibration_error[1], (1.2 - 1) / 2);
    assert_near(m.calibration_error[2], -1);
    assert_near(m.draft_seconds, 0.5);
    assert_near(m.verify_seconds, 0.25);
}

static void no_verdict_leaves_no_ratio_that_is_no_number(void **state)
{
    (void)state;
    const struct draft_counts c = {0};
    qr_draft_metrics m;
    draft_counts_told(&c, &m);
    assert_adds_up(&m);
    assert_true(m.acceptance_length_verify_steps == 0 && m.acceptance_rate == 0 && m.conditional[0] == 0);
}

/* ---- an engine ---- */

enum { REQUESTS = 8, ANSWER = 48 };
static const char *const stops[] = {" the", "."};

static void ask(const struct opened *o, int i, qr_prompt *prompt, qr_handle *handle)
{
    static const char *const questions[] = {"Add 17 and 25.", "Tell me a story about a dragon."};
    qr_sampling sampling = QR_SAMPLING;
    qr_request request = QR_REQUEST;
    sampling.temperature = i % 4 < 2 ? 0 : 0.8;
    sampling.seed = i;
    sampling.frequency_penalty = i == 3 ? 0.3 : 0;
    *prompt = chat_prompt(o, questions[i % 2]);
    request.tokens = prompt->tokens.data;
    request.token_count = prompt->tokens.count;
    request.sampling = &sampling;
    request.max_tokens = i == 7 ? 1 : ANSWER;
    request.stop = stops;
    request.stop_count = i >= 4 ? 2 : 0;
    assert_int_equal(qr_submit(o->engine, &request, NULL, NULL, handle, NULL), QR_OK);
}

/* Some end by a stop in the middle of a block, one is cancelled with drafts pending, one is preempted. Every token but the
 * first of each answer, and the one behind each preemption, is of a decode step. */
static void counts_of(const char *dir, const char *method, qr_draft_metrics *out)
{
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.method = method;
    options.max_num_seqs = 4;
    options.max_model_len = 512;
    struct opened o = engine_open(dir, NULL, 2, &options);
    qr_handle handles[REQUESTS];
    qr_prompt prompts[REQUESTS];
    uint64_t drawn = 0;
    qr_metrics m = {.size = sizeof m};
    for (int i = 0; i < REQUESTS; i++)
        ask(&o, i, &prompts[i], &handles[i]);
    assert_int_equal(qr_inject(o.engine, QR_INJECT_PREEMPT, handles[1], 9, NULL), QR_OK);
    assert_int_equal(qr_inject(o.engine, QR_INJECT_CANCEL, handles[2], 12, NULL), QR_OK);
    for (int i = 0; i < REQUESTS; i++) {
        struct reply r = {0};
        reply_rest(&o, handles[i], &r);
        drawn += (uint64_t)r.usage.output_tokens;
        reply_free(&r);
        qr_prompt_free(&prompts[i]);
    }
    qr_get_metrics(o.engine, &m);
    assert_adds_up(&m.drafts);
    assert_int_equal(m.preemptions, 1);
    assert_int_equal(m.drafts.emitted, drawn - REQUESTS - m.preemptions);
    assert_int_equal(m.drafts.proposed, m.drafts.verified + m.drafts.unverified + m.drafts.discarded);
    *out = m.drafts;
    engine_close(&o);
}

static void an_engines_counts_add_up_whatever_ends_its_answers(void **state)
{
    (void)state;
    qr_draft_metrics m;
    counts_of("models/tiny-v41", "dspark", &m);
    assert_true(m.dropped_by_stop > 0 && m.discarded > 0 && m.rests[QR_REST_END] > 0);
    assert_true(m.draft_seconds > 0 && m.verify_seconds > 0);
    assert_true(m.survival_estimate[4] > 0 && m.calibration_error[4] >= 0 && m.calibration_error[5] == -1);
    counts_of("models/tiny-v4", "mtp", &m);
    assert_true(m.discarded > 0 && m.verified_histogram[2] == 0);
    assert_true(m.calibration_error[0] == -1); /* nobody asks it how sure it is */
    counts_of("models/tiny-v4", "none", &m);
    assert_int_equal(m.decode_steps, m.rests[QR_REST_NO_DRAFTER]);
    assert_int_equal(m.proposed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_few_verdicts_give_the_figures_of_the_table),
        cmocka_unit_test(no_verdict_leaves_no_ratio_that_is_no_number),
        cmocka_unit_test(an_engines_counts_add_up_whatever_ends_its_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
