/* label: release */
/* Forced acceptance (speculation.md 7, 12: T18): steps take as many tokens as were asked for, never fewer than the whole ones
 * nor more than one above, whatever the drafts are; and a line says so at the start. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run/forced.h"
#include "support/drafters.h"
#include "support/support.h"

static void lengths_have_the_mean_asked_for_and_two_values(void **state)
{
    (void)state;
    enum { STEPS = 100000 };
    static const double lengths[] = {1, 1.25, 1.5, 2, 3.51, 3.78, 5.9, 6};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const int32_t whole = (int32_t)floor(lengths[i]) - 1;
        double sum = 0;
        for (int64_t step = 0; step < STEPS; step++) {
            const int32_t a = forced_accepted(lengths[i], 5, 100 + 7 * step);
            assert_in_range(a, whole, forced_most(lengths[i]));
            sum += 1 + a;
        }
        assert_true(forced_most(lengths[i]) - whole == (lengths[i] != floor(lengths[i])));
        assert_true(fabs(sum / STEPS - lengths[i]) < 0.01 * lengths[i]);
    }
}

/* ---- an engine ---- */

static int loud;

static void count_loud(void *user, qr_log_severity severity, const char *line)
{
    (void)user;
    loud += severity == QR_SEVERITY_WARN && strstr(line, "FORCED ACCEPTANCE") != NULL;
}

static struct opened open_forced(double length)
{
    qr_model_options model = QR_MODEL_OPTIONS;
    qr_engine_options o = QR_ENGINE_OPTIONS;
    struct opened out;
    qr_error err = {0};
    model.log = count_loud;
    model.threads = 2;
    o.method = "auto";
    o.forced_acceptance_length = length;
    o.max_num_seqs = 4;
    o.max_model_len = 512;
    o.kv_ram_bytes = 64 << 20;
    must(qr_model_open(drafter_folder(0), &model, &out.model, &err), &err);
    must(qr_engine_create(out.model, &o, &out.engine, &err), &err);
    return out;
}

static void run_requests(const struct opened *o, int steps, double length)
{
    enum { REQUESTS = 4 };
    static const int32_t prompt[] = {7, 90, 41, 12};
    qr_sampling s = QR_SAMPLING;
    qr_request q = QR_REQUEST;
    qr_handle handles[REQUESTS];
    qr_error err = {0};
    s.banned = drafter_silent(0, &s.banned_count);
    q.tokens = prompt;
    q.token_count = sizeof prompt / sizeof *prompt;
    q.sampling = &s;
    q.max_tokens = 2 + (int32_t)(steps * length / REQUESTS);
    q.ignore_eos = true;
    for (int i = 0; i < REQUESTS; i++) {
        s.seed = i;
        s.temperature = i % 2;
        must(qr_submit(o->engine, &q, NULL, NULL, &handles[i], &err), &err);
    }
    for (int i = 0; i < REQUESTS; i++) {
        struct reply r = {0};
        reply_rest(o, handles[i], &r);
        assert_int_equal(r.finish, QR_FINISH_LENGTH);
        assert_int_equal(r.count, q.max_tokens);
        reply_free(&r);
    }
}

static void steps_of_an_engine_take_the_length_asked_for(void **state)
{
    (void)state;
    static const struct {
        double length;
        int steps;
    } cases[] = {{1, 60}, {2, 60}, {2.9, 500}, {4, 60}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int least = (int)floor(cases[i].length) - 1, most = (int)ceil(cases[i].length) - 1;
        struct opened o = open_forced(cases[i].length);
        qr_metrics m = {.size = sizeof m};
        assert_int_equal(loud, i + 1);
        run_requests(&o, cases[i].steps, cases[i].length);
        qr_get_metrics(o.engine, &m);
        const double steps = (double)m.drafts.verify_steps, length = 1 + (double)m.drafts.accepted / steps;
        for (int a = 0; a <= QR_MAX_DRAFTS; a++)
            assert_true(m.drafts.accepted_histogram[a] == 0 || (a >= least && a <= most));
        if (steps < 0.9 * cases[i].steps || fabs(length - cases[i].length) > 0.01 * cases[i].length)
            fail_msg("%g steps of %g tokens, wanted %d of %g", steps, length, cases[i].steps, cases[i].length);
        engine_close(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_have_the_mean_asked_for_and_two_values),
        cmocka_unit_test(steps_of_an_engine_take_the_length_asked_for),
    };
    return cmocka_run_group_tests(tests, drafters_make, drafters_remove);
}
