/* label: release */
/* An engine under bounded replay: what it refuses and what goes on beside it (runtime.md 7.4, E37), scores as given answers,
 * and that the same starts give the same bits. */
#include <math.h>
#include <string.h>

#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"

enum { PROMPT = 150, ANSWER = 4, REQUESTS = 5 };

struct bench {
    char *dir;
    struct opened exact, bounded;
    int32_t tokens[REQUESTS][PROMPT + ANSWER];
};

/* The window is 8 and the block 32. */
static void open_bench(struct bench *b)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    b->dir = small_folder_of("tests/data/config/small-v41.json");
    o.block_size = 32;
    o.max_model_len = 512;
    o.max_num_seqs = 4;
    b->exact = engine_open(b->dir, NULL, 1, &o);
    o.decoder_replay = o.encoder_replay = "bounded";
    b->bounded = engine_open(b->dir, NULL, 1, &o);
    for (int i = 0; i < REQUESTS; i++)
        for (int p = 0; p < PROMPT + ANSWER; p++)
            b->tokens[i][p] = 3 + (p < 70 ? p * 7 % 97 + p % 5 : (p * 11 + i * 29) % 113);
}

static void close_bench(struct bench *b)
{
    engine_close(&b->exact);
    engine_close(&b->bounded);
    scratch_remove(b->dir);
}

static qr_request request_of(struct bench *b, int i, qr_sampling *s)
{
    *s = (qr_sampling)QR_SAMPLING;
    s->temperature = 0;
    qr_request q = QR_REQUEST;
    q.tokens = b->tokens[i];
    q.token_count = PROMPT - (size_t)i;
    q.sampling = s;
    q.max_tokens = ANSWER;
    q.ignore_eos = true;
    q.logprobs = 3;
    return q;
}

static qr_handle submit(struct opened *o, const qr_request *q)
{
    qr_handle handle;
    qr_error err = {0};
    if (qr_submit(o->engine, q, NULL, NULL, &handle, &err) != QR_OK)
        fail_msg("%s", err.message);
    return handle;
}

static void prompt_logprobs_are_refused_and_other_requests_go_on(void **state)
{
    (void)state;
    struct bench b;
    qr_sampling s;
    qr_error err = {0};
    qr_handle refused, handle;
    open_bench(&b);
    qr_request q = request_of(&b, 0, &s);
    struct reply alone = reply_of(&b.bounded, &q), r = {0};
    assert_int_equal(qr_inject(b.bounded.engine, QR_INJECT_DROP_CACHE, 0, 0, NULL), QR_OK);
    handle = submit(&b.bounded, &q);
    q.prompt_logprobs = 0;
    assert_refused(qr_submit(b.bounded.engine, &q, NULL, NULL, &refused, &err), &err, QR_BAD_REQUEST, "(E37)");
    reply_rest(&b.bounded, handle, &r);
    assert_same_reply(&alone, &r, "beside a refused one");
    reply_free(&r);
    reply_free(&alone);
    struct reply whole = reply_of(&b.exact, &q); /* exact refuses nothing */
    assert_int_equal(whole.prompt_count, PROMPT);
    reply_free(&whole);
    close_bench(&b);
}

static void a_score_is_that_of_a_given_answer(void **state)
{
    (void)state;
    struct bench b;
    qr_sampling s;
    qr_error err = {0};
    double scores[PROMPT + ANSWER], exact[PROMPT + ANSWER];
    int32_t best[PROMPT + ANSWER];
    open_bench(&b);
    qr_request q = request_of(&b, 0, &s);
    struct reply r = reply_of(&b.bounded, &q);
    memcpy(b.tokens[0] + PROMPT, r.tokens, ANSWER * sizeof *r.tokens);
    assert_int_equal(qr_inject(b.bounded.engine, QR_INJECT_DROP_CACHE, 0, 0, NULL), QR_OK);
    assert_int_equal(qr_score_best(b.bounded.engine, b.tokens[0], PROMPT + ANSWER, PROMPT, scores, best, &err), QR_OK);
    for (int i = 0; i < ANSWER; i++) {
        assert_true((float)scores[i] == r.logprobs[i].logprob);
        assert_int_equal(best[i], r.tokens[i]); /* it was greedy */
    }
    reply_free(&r);
    /* from the first token on nothing is bounded: the bits of an exact engine */
    assert_int_equal(qr_score(b.bounded.engine, b.tokens[1], 40, 1, scores, &err), QR_OK);
    assert_int_equal(qr_score_best(b.exact.engine, b.tokens[1], 40, 1, exact, best, &err), QR_OK);
    assert_memory_equal(scores, exact, 39 * sizeof *scores);
    /* behind a long prompt it is */
    assert_int_equal(qr_score(b.bounded.engine, b.tokens[2], PROMPT, PROMPT - 5, scores, &err), QR_OK);
    assert_int_equal(qr_score(b.exact.engine, b.tokens[2], PROMPT, PROMPT - 5, exact, &err), QR_OK);
    bool same = true;
    for (int i = 0; i < 5; i++) {
        same &= scores[i] == exact[i];
        assert_true(fabs(scores[i] - exact[i]) < 5);
    }
    assert_false(same);
    close_bench(&b);
}

/* All prompts fit into a step whole: none is cut, so all start where they do alone. */
static void prompts_together_give_the_bits_of_each_alone(void **state)
{
    (void)state;
    struct bench b;
    qr_sampling s[REQUESTS];
    struct reply alone[REQUESTS];
    qr_handle handles[REQUESTS];
    open_bench(&b);
    for (int i = 0; i < REQUESTS; i++) {
        qr_request q = request_of(&b, i, &s[i]);
        qr_inject(b.bounded.engine, QR_INJECT_DROP_CACHE, 0, 0, NULL);
        alone[i] = reply_of(&b.bounded, &q);
        assert_int_equal(alone[i].usage.cached_tokens, 0);
    }
    qr_inject(b.bounded.engine, QR_INJECT_DROP_CACHE, 0, 0, NULL);
    for (int i = 0; i < 4; i++) {
        qr_request q = request_of(&b, i, &s[i]);
        handles[i] = submit(&b.bounded, &q);
    }
    for (int i = 0; i < 4; i++) {
        struct reply r = {0};
        reply_rest(&b.bounded, handles[i], &r);
        if (r.usage.cached_tokens == 0) /* one that came a step later starts from the others' pages */
            assert_same_reply(&alone[i], &r, "together");
        reply_free(&r);
    }
    for (int i = 0; i < REQUESTS; i++)
        reply_free(&alone[i]);
    close_bench(&b);
}

static void what_bounded_replay_ran_is_counted(void **state)
{
    (void)state;
    struct bench b;
    qr_sampling s;
    qr_metrics m = {.size = sizeof m};
    open_bench(&b);
    qr_request q = request_of(&b, 0, &s);
    struct reply first = reply_of(&b.bounded, &q);
    qr_get_metrics(b.bounded.engine, &m);
    assert_int_equal(m.rows_rerun, 0);
    assert_int_equal(m.prefill_rows, PROMPT);
    struct reply again = reply_of(&b.bounded, &q);
    qr_get_metrics(b.bounded.engine, &m);
    assert_int_equal(again.usage.cached_tokens, 128);
    assert_int_equal(m.rows_rerun, 32); /* one block */
    assert_int_equal(m.hits_rerun, 1);
    assert_int_equal(m.images_kept, 0);
    assert_int_equal(m.prefill_rows, PROMPT + PROMPT - 128 + 32);
    reply_free(&first);
    reply_free(&again);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompt_logprobs_are_refused_and_other_requests_go_on),
        cmocka_unit_test(a_score_is_that_of_a_given_answer),
        cmocka_unit_test(prompts_together_give_the_bits_of_each_alone),
        cmocka_unit_test(what_bounded_replay_ran_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
