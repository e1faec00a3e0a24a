/* label: release */
/* Ratio and block verification in an engine (speculation.md 4.4, 4.5): at temperature 0 answers are those without drafts;
 * otherwise a seed gives the same answer again, whose log probabilities are the target's. */
#include <string.h>

#include "support/drafters.h"
#include "support/support.h"

static const char *const verifiers[] = {"ratio", "block"};
static const int32_t prompt[] = {7, 90, 41, 12};
enum { PROMPT = sizeof prompt / sizeof *prompt };

/* ---- temperature 0, and the same again ---- */

static qr_request long_request(const qr_sampling *s)
{
    qr_request q = QR_REQUEST;
    q.tokens = prompt;
    q.token_count = PROMPT;
    q.sampling = s;
    q.max_tokens = 30;
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
            int32_t tokens[PROMPT + 30];
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_answers_are_those_without_drafts),
        cmocka_unit_test(greedy_drafts_change_no_bit_under_match),
        cmocka_unit_test(a_seed_gives_the_same_answer_again_and_the_targets_log_probabilities),
    };
    return cmocka_run_group_tests(tests, drafters_make, drafters_remove);
}
