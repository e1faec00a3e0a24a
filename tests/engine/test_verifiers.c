/* label: release */
/* Ratio and block verification in an engine (speculation.md 4.4, 4.5): at temperature 0 answers are those without drafts;
 * otherwise a seed gives the same answer again, whose log probabilities are the target's. */
#include <float.h>
#include <string.h>

#include "support/drafters.h"
#include "support/support.h"

static const char *const verifiers[] = {"ratio", "block"};
static const int32_t prompt[] = {7, 90, 41, 12};
enum { PROMPT = sizeof prompt / sizeof *prompt, ANSWER = 16 };

/* ---- temperature 0, and the same again ---- */

static qr_request long_request(const qr_sampling *s)
{
    qr_request q = QR_REQUEST;
    q.tokens = prompt;
    q.token_count = PROMPT;
    q.sampling = s;
    q.max_tokens = ANSWER;
    q.ignore_eos = true;
    q.logprobs = 2;
    return q;
}

static void greedy_answers_are_those_without_drafts(void **state)
{
    (void)state;
    for (int m = 0; m < DRAFTERS; m++) {
        qr_sampling s = QR_SAMPLING;
        s.temperature = 0;
        s.banned = drafter_silent(m, &s.banned_count);
        const qr_request q = long_request(&s);
        struct opened plain = drafter_open(m, NULL, NULL);
        struct reply wanted = reply_of(&plain, &q);
        assert_int_equal(wanted.finish, QR_FINISH_LENGTH);
        engine_close(&plain);
        for (int v = 0; v < 2; v++) {
            struct opened o = drafter_open(m, verifiers[v], NULL);
            struct reply r = reply_of(&o, &q);
            assert_true(r.usage.draft_steps > 0);
            assert_same_reply(&wanted, &r, verifiers[v]);
            reply_free(&r);
            engine_close(&o);
        }
        reply_free(&wanted);
    }
}

static void greedy_drafts_change_no_bit_under_match(void **state)
{
    (void)state;
    for (int m = 0; m < DRAFTERS; m++) {
        qr_sampling s = QR_SAMPLING;
        s.temperature = 0.3;
        s.banned = drafter_silent(m, &s.banned_count);
        const qr_request q = long_request(&s);
        struct opened plain = drafter_open(m, NULL, NULL), drafted = drafter_open(m, "match", "greedy");
        struct reply a = reply_of(&plain, &q), b = reply_of(&drafted, &q);
        assert_int_equal(a.finish, QR_FINISH_LENGTH);
        assert_true(b.usage.draft_steps > 0);
        assert_same_reply(&a, &b, "greedy drafts");
        reply_free(&a);
        reply_free(&b);
        engine_close(&plain);
        engine_close(&drafted);
    }
}

/* Alone; and the log probabilities are the target's for the tokens that came. */
static void a_seed_gives_the_same_answer_again_and_the_targets_log_probabilities(void **state)
{
    (void)state;
    for (int m = 0; m < DRAFTERS; m++)
        for (int v = 0; v < 2; v++) {
            struct opened o = drafter_open(m, verifiers[v], v ? "greedy" : NULL);
            qr_sampling s = QR_SAMPLING;
            int32_t tokens[PROMPT + ANSWER];
            s.seed = 77;
            s.banned = drafter_silent(m, &s.banned_count);
            const qr_request q = long_request(&s);
            struct reply a = reply_of(&o, &q), b = reply_of(&o, &q);
            assert_int_equal(a.finish, QR_FINISH_LENGTH);
            assert_same_reply(&a, &b, verifiers[v]);
            memcpy(tokens, prompt, sizeof prompt);
            memcpy(tokens + PROMPT, a.tokens, a.count * sizeof *tokens);
            qr_request again = long_request(&s);
            again.tokens = tokens;
            again.token_count = PROMPT + a.count;
            again.max_tokens = 1;
            again.prompt_logprobs = 2;
            struct reply as_prompt = reply_of(&o, &again);
            assert_string_equal(as_prompt.error.message, "");
            for (size_t i = 0; i < a.count; i++)
                assert_memory_equal(&a.logprobs[i], &as_prompt.prompt[PROMPT + i], sizeof a.logprobs[i]);
            reply_free(&as_prompt);
            reply_free(&a);
            reply_free(&b);
            engine_close(&o);
        }
}

/* Whatever comes between a draft and its verdict, what is judged is what was drawn. */
static void answers_go_on_through_everything_that_moves_them(void **state)
{
    (void)state;
    enum { REQUESTS = 6, STEPS = 40 };
    static const qr_injection events[] = {QR_INJECT_PREEMPT, QR_INJECT_RELOCATE, QR_INJECT_REVERSE, QR_INJECT_DROP_CACHE};
    for (int v = 0; v < 2; v++) {
        struct opened o = drafter_open(0, verifiers[v], NULL);
        qr_sampling s = QR_SAMPLING;
        qr_handle handles[REQUESTS];
        qr_metrics m = {.size = sizeof m};
        qr_error err = {0};
        s.banned = drafter_silent(0, &s.banned_count);
        qr_request q = long_request(&s);
        q.max_tokens = 60;
        for (int step = 3; step < STEPS; step++)
            must(qr_inject(o.engine, events[step % 4], 1 + (qr_handle)(step / 4 % REQUESTS), (uint64_t)step, &err), &err);
        for (int i = 0; i < REQUESTS; i++) {
            s.seed = i;
            must(qr_submit(o.engine, &q, NULL, NULL, &handles[i], &err), &err);
        }
        for (int i = 0; i < REQUESTS; i++) {
            struct reply r = {0};
            reply_rest(&o, handles[i], &r);
            assert_string_equal(r.error.message, "");
            assert_int_equal(r.count, 60);
            assert_true(r.usage.draft_steps > 0);
            reply_free(&r);
        }
        qr_get_metrics(o.engine, &m);
        assert_true(m.preemptions > 3 && m.drafts.discarded > 0);
        engine_close(&o);
    }
}

/* ---- a row that cannot be drawn from (T20) ---- */

/* One token may be said, and its penalty lets it be said twice. */
static void dead_end(int which, int32_t *banned, qr_sampling *s)
{
    enum { ONLY = 100 };
    size_t silent;
    const int32_t *ids = drafter_silent(which, &silent);
    *s = (qr_sampling)QR_SAMPLING;
    s->temperature = 0.7;
    s->frequency_penalty = DBL_MAX;
    s->banned = banned;
    for (int32_t id = 0; id <= ids[silent - 1]; id++)
        if (id != ONLY)
            banned[s->banned_count++] = id;
}

static void a_row_without_a_token_is_an_error_of_its_request_alone(void **state)
{
    (void)state;
    static const char *const all[] = {NULL, "match", "ratio", "block"};
    const int m = 0;
    for (int v = 0; v < 4; v++) {
        struct opened o = drafter_open(m, all[v], NULL);
        int32_t banned[600];
        qr_sampling good = QR_SAMPLING, dead;
        qr_handle handles[3];
        qr_error err = {0};
        dead_end(m, banned, &dead);
        good.temperature = 0;
        good.banned = drafter_silent(m, &good.banned_count);
        const qr_request q = long_request(&good), d = long_request(&dead);
        struct reply alone = reply_of(&o, &q), beside[3] = {0};
        must(qr_submit(o.engine, &q, NULL, NULL, &handles[0], &err), &err);
        must(qr_submit(o.engine, &d, NULL, NULL, &handles[1], &err), &err);
        must(qr_submit(o.engine, &q, NULL, NULL, &handles[2], &err), &err);
        for (int i = 0; i < 3; i++)
            reply_rest(&o, handles[i], &beside[i]);
        assert_int_equal(beside[1].count, 2);
        assert_refused(beside[1].finish == QR_FINISH_ERROR ? beside[1].error.status : QR_OK, &beside[1].error,
                       QR_BAD_REQUEST, "leave none");
        assert_same_reply(&alone, &beside[0], "beside a dead end");
        assert_same_reply(&alone, &beside[2], "beside a dead end");
        assert_int_equal(alone.finish, QR_FINISH_LENGTH);
        for (int i = 0; i < 3; i++)
            reply_free(&beside[i]);
        reply_free(&alone);
        engine_close(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_answers_are_those_without_drafts),
        cmocka_unit_test(greedy_drafts_change_no_bit_under_match),
        cmocka_unit_test(answers_go_on_through_everything_that_moves_them),
        cmocka_unit_test(a_row_without_a_token_is_an_error_of_its_request_alone),
        cmocka_unit_test(a_seed_gives_the_same_answer_again_and_the_targets_log_probabilities),
    };
    return cmocka_run_group_tests(tests, drafters_make, drafters_remove);
}
