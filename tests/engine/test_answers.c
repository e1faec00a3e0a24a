/* label: release */
/* What an answer holds: tokens, texts, ends, log probabilities, counts; and that none of it depends on the others. */
#define _GNU_SOURCE
#include "support/engines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

#define MODEL "models/tiny-v41"

static struct opened o;
static qr_prompt story, sum;

static int set_up(void **state)
{
    (void)state;
    o = engine_open(MODEL, NULL, 2, NULL);
    story = chat_prompt(&o, "Tell me a story about a dragon.");
    sum = chat_prompt(&o, "What is 11 + 0?");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    qr_prompt_free(&story);
    qr_prompt_free(&sum);
    engine_close(&o);
    return 0;
}

static qr_request request_on(const qr_prompt *prompt, const qr_sampling *sampling, int32_t max_tokens)
{
    qr_request q = QR_REQUEST;
    q.tokens = prompt->tokens.data;
    q.token_count = prompt->tokens.count;
    q.sampling = sampling;
    q.max_tokens = max_tokens;
    return q;
}

static qr_sampling greedy(void)
{
    qr_sampling s = QR_SAMPLING;
    s.temperature = 0;
    return s;
}

static void an_answer_ends_with_the_models_end_token(void **state)
{
    (void)state;
    const qr_sampling s = greedy();
    const qr_request q = request_on(&sum, &s, 0);
    qr_model_info info;
    qr_model_get_info(o.model, &info);
    struct reply r = reply_of(&o, &q);
    assert_int_equal(r.finish, QR_FINISH_STOP);
    assert_int_equal(r.stop_token, info.eos);
    assert_int_equal(r.tokens[r.count - 1], info.eos);
    assert_int_equal(r.stop_string, -1);
    qr_text text;
    assert_int_equal(qr_detokenize(o.model, r.tokens, r.count - 1, &text, NULL), QR_OK);
    assert_int_equal(text.length, r.text.length);
    assert_memory_equal(text.data, r.text.data, text.length);
    assert_non_null(strstr(text.data, "11"));
    qr_text_free(&text);

    assert_int_equal(r.usage.prompt_tokens, sum.tokens.count);
    assert_int_equal(r.usage.cached_tokens, 0);
    assert_int_equal(r.usage.output_tokens, r.count);
    assert_true(r.usage.seconds_to_first_token > 0 && r.usage.seconds >= r.usage.seconds_to_first_token);
    assert_true(r.usage.seconds_prefill > 0 && r.usage.seconds_decode > 0);
    reply_free(&r);
}

static void an_end_token_is_a_token_when_it_is_to_be_ignored_or_too_early(void **state)
{
    (void)state;
    const qr_sampling s = greedy();
    qr_request q = request_on(&sum, &s, 0);
    struct reply plain = reply_of(&o, &q);
    const int32_t end = (int32_t)plain.count;

    q.ignore_eos = true;
    q.max_tokens = end + 5;
    struct reply ignored = reply_of(&o, &q);
    assert_int_equal(ignored.finish, QR_FINISH_LENGTH);
    assert_int_equal(ignored.count, end + 5);
    assert_memory_equal(ignored.tokens, plain.tokens, (size_t)end * sizeof(int32_t));

    q = request_on(&sum, &s, end + 30);
    q.min_tokens = end + 3;
    struct reply late = reply_of(&o, &q);
    assert_true(late.count > (size_t)q.min_tokens - 1);
    for (int32_t i = 0; i < q.min_tokens; i++)
        assert_int_not_equal(late.tokens[i], plain.stop_token);
    reply_free(&plain);
    reply_free(&ignored);
    reply_free(&late);
}

static void lengths_are_kept(void **state)
{
    (void)state;
    const qr_sampling s = greedy();
    qr_request q = request_on(&story, &s, 7);
    struct reply r = reply_of(&o, &q);
    assert_int_equal(r.finish, QR_FINISH_LENGTH);
    assert_int_equal(r.count, 7);
    assert_int_equal(r.stop_token, -1);
    reply_free(&r);
}

static void the_context_ends_an_answer(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    const qr_sampling s = greedy();
    options.max_model_len = (int32_t)story.tokens.count + 9;
    struct opened small = engine_open(MODEL, NULL, 1, &options);
    qr_plan_bytes plan;
    qr_engine_get_plan(small.engine, &plan);
    assert_int_equal(plan.max_model_len, options.max_model_len);
    for (int32_t wanted = 0; wanted <= 500; wanted += 500) {
        qr_request q = request_on(&story, &s, wanted);
        q.ignore_eos = true;
        struct reply r = reply_of(&small, &q);
        assert_int_equal(r.finish, QR_FINISH_LENGTH);
        assert_int_equal(r.count, 9);
        reply_free(&r);
    }
    engine_close(&small);
}

static void a_stop_string_is_cut_or_kept(void **state)
{
    (void)state;
    const qr_sampling s = greedy();
    qr_request q = request_on(&story, &s, 60);
    struct reply plain = reply_of(&o, &q);
    /* from the middle of a word to the middle of another, so that it begins and ends inside tokens */
    char *stop = strndup(plain.text.data + 41, 14);
    const char *const stops[] = {"never said", stop};
    const size_t at = (size_t)(strstr(plain.text.data, stop) - plain.text.data);
    q.stop = stops;
    q.stop_count = 2;
    struct reply cut = reply_of(&o, &q);
    assert_int_equal(cut.finish, QR_FINISH_STOP);
    assert_int_equal(cut.stop_string, 1);
    assert_int_equal(cut.stop_token, -1);
    assert_int_equal(cut.text.length, at);
    assert_memory_equal(cut.text.data, plain.text.data, at);
    assert_true(cut.count < plain.count);
    assert_memory_equal(cut.tokens, plain.tokens, cut.count * sizeof(int32_t));

    q.include_stop = true;
    struct reply kept = reply_of(&o, &q);
    assert_int_equal(kept.text.length, at + strlen(stop));
    assert_memory_equal(kept.text.data, plain.text.data, kept.text.length);

    q.min_tokens = (int32_t)cut.count + 1; /* the string is there a token too early */
    struct reply late = reply_of(&o, &q);
    assert_int_equal(late.finish, plain.finish);
    assert_int_equal(late.count, plain.count);
    reply_free(&plain);
    reply_free(&cut);
    reply_free(&kept);
    reply_free(&late);
    free(stop);
}

static void a_stop_token_ends_an_answer_without_its_text(void **state)
{
    (void)state;
    const qr_sampling s = greedy();
    qr_request q = request_on(&story, &s, 30);
    struct reply plain = reply_of(&o, &q);
    const int32_t stop = plain.tokens[12];
    size_t first = 0;
    while (plain.tokens[first] != stop)
        first++;
    q.stop_tokens = &stop;
    q.stop_token_count = 1;
    struct reply r = reply_of(&o, &q);
    assert_int_equal(r.finish, QR_FINISH_STOP);
    assert_int_equal(r.stop_token, stop);
    assert_int_equal(r.count, first + 1);
    qr_text text;
    assert_int_equal(qr_detokenize(o.model, r.tokens, first, &text, NULL), QR_OK);
    assert_int_equal(text.length, r.text.length);
    qr_text_free(&text);
    reply_free(&plain);
    reply_free(&r);
}

static void the_same_seed_draws_the_same_tokens(void **state)
{
    (void)state;
    qr_sampling s = QR_SAMPLING;
    s.temperature = 1.3;
    s.seed = 7;
    qr_request q = request_on(&story, &s, 24);
    q.logprobs = 2;
    struct reply a = reply_of(&o, &q), b = reply_of(&o, &q);
    assert_same_reply(&a, &b, "the same seed");
    s.seed = -7;
    struct reply c = reply_of(&o, &q);
    assert_true(c.count != a.count || memcmp(a.tokens, c.tokens, a.count * sizeof *a.tokens) != 0);
    reply_free(&a);
    reply_free(&b);
    reply_free(&c);
}

static void biases_bans_and_penalties_reach_the_draw(void **state)
{
    (void)state;
    qr_sampling s = greedy();
    qr_request q = request_on(&story, &s, 12);
    struct reply plain = reply_of(&o, &q);
    s.banned = plain.tokens;
    s.banned_count = 1;
    struct reply banned = reply_of(&o, &q);
    for (size_t i = 0; i < banned.count; i++)
        assert_int_not_equal(banned.tokens[i], plain.tokens[0]);
    s = greedy();
    const qr_logit_bias bias = {.token = 777, .bias = 1000};
    s.logit_bias = &bias;
    s.logit_bias_count = 1;
    struct reply biased = reply_of(&o, &q);
    for (size_t i = 0; i < biased.count; i++)
        assert_int_equal(biased.tokens[i], 777);
    s.presence_penalty = 2000;
    struct reply once = reply_of(&o, &q);
    assert_int_equal(once.tokens[0], 777);
    for (size_t i = 1; i < once.count; i++)
        assert_int_not_equal(once.tokens[i], 777);
    reply_free(&plain);
    reply_free(&banned);
    reply_free(&biased);
    reply_free(&once);
}

static void place_holders_are_never_drawn_unless_allowed(void **state)
{
    (void)state;
    qr_sampling s = greedy();
    const qr_logit_bias bias = {.token = 4087, .bias = 10000}; /* config.json: image_token_id */
    qr_request q = request_on(&story, &s, 3);
    s.logit_bias = &bias;
    s.logit_bias_count = 1;
    struct reply r = reply_of(&o, &q);
    for (size_t i = 0; i < r.count; i++)
        assert_int_not_equal(r.tokens[i], bias.token);
    s.allow_special = true;
    struct reply allowed = reply_of(&o, &q);
    assert_int_equal(allowed.tokens[0], bias.token);
    reply_free(&r);
    reply_free(&allowed);
}

static void a_row_with_nothing_left_is_an_error_that_names_the_request(void **state)
{
    (void)state;
    qr_sampling s = greedy();
    qr_model_info info;
    qr_model_get_info(o.model, &info);
    int32_t *all = malloc((size_t)info.vocab_size * sizeof *all);
    for (int32_t i = 0; i < info.vocab_size; i++)
        all[i] = i;
    s.banned = all;
    s.banned_count = (size_t)info.vocab_size;
    qr_request q = request_on(&story, &s, 3);
    q.id = "cornered";
    struct reply r = reply_of(&o, &q);
    assert_int_equal(r.finish, QR_FINISH_ERROR);
    assert_int_equal(r.count, 0);
    assert_refused(r.error.status, &r.error, QR_BAD_REQUEST, "request cornered");
    reply_free(&r);
    q.id = NULL;
    struct reply unnamed = reply_of(&o, &q);
    assert_non_null(strstr(unnamed.error.message, "request "));
    reply_free(&unnamed);
    free(all);

    q = request_on(&sum, NULL, 2); /* and the next one finds everything as it should be */
    struct reply next = reply_of(&o, &q);
    assert_int_not_equal(next.finish, QR_FINISH_ERROR);
    reply_free(&next);
}

/* Log softmax of every position by qr_score, which takes the rows in another cut. */
static void log_probabilities_are_those_of_a_score(void **state)
{
    (void)state;
    const qr_sampling s = greedy();
    qr_request q = request_on(&story, &s, 20);
    q.logprobs = 5;
    q.prompt_logprobs = 3;
    struct reply r = reply_of(&o, &q);
    const size_t prompt = story.tokens.count, count = prompt + r.count;
    int32_t *tokens = malloc(count * sizeof *tokens);
    double *scores = malloc(count * sizeof *scores);
    memcpy(tokens, story.tokens.data, prompt * sizeof *tokens);
    memcpy(tokens + prompt, r.tokens, r.count * sizeof *tokens);
    assert_int_equal(qr_score(o.engine, tokens, count, 1, scores, NULL), QR_OK);

    assert_int_equal(r.prompt_count, prompt);
    assert_int_equal(r.prompt_top_count, 3);
    for (size_t i = 1; i < prompt; i++) {
        const qr_token_logprob *p = &r.prompt[i], *best = r.prompt_top + i * 3;
        assert_int_equal(p->token, tokens[i]);
        assert_true(p->logprob == (float)scores[i - 1]);
        for (int k = 0; k < 3; k++) {
            assert_int_equal(best[k].rank, k + 1);
            assert_true(k == 0 || best[k].logprob <= best[k - 1].logprob);
            assert_true(best[k].token != p->token || (best[k].rank == p->rank && best[k].logprob == p->logprob));
        }
        assert_true(p->rank > 3 || best[p->rank - 1].token == p->token);
    }
    assert_int_equal(r.top_count, 5);
    for (size_t i = 0; i < r.count; i++) {
        assert_int_equal(r.logprobs[i].token, r.tokens[i]);
        assert_true(r.logprobs[i].logprob == (float)scores[prompt - 1 + i]);
        assert_int_equal(r.logprobs[i].rank, 1); /* greedy */
        assert_int_equal(r.top[i][0].token, r.tokens[i]);
    }

    double tail[8];
    assert_int_equal(qr_score(o.engine, tokens, count, count - 8, tail, NULL), QR_OK);
    for (size_t i = 0; i < 8; i++)
        assert_true(tail[i] == scores[count - 9 + i]);
    free(tokens);
    free(scores);
    reply_free(&r);
}

static void log_probabilities_come_only_where_they_were_asked_for(void **state)
{
    (void)state;
    const qr_sampling s = greedy();
    qr_request q = request_on(&sum, &s, 3);
    struct reply none = reply_of(&o, &q);
    q.logprobs = 0;
    q.prompt_logprobs = 0;
    struct reply own = reply_of(&o, &q);
    assert_null(none.prompt);
    assert_int_equal(none.logprobs[0].rank, 0);
    assert_int_equal(none.top_count, 0);
    assert_int_equal(own.logprobs[0].rank, 1);
    assert_int_equal(own.top_count, 0);
    assert_int_equal(own.prompt_count, sum.tokens.count);
    assert_int_equal(own.prompt_top_count, 0);
    assert_memory_equal(none.tokens, own.tokens, 3 * sizeof(int32_t));
    reply_free(&none);
    reply_free(&own);
}

static uint64_t counted(const qr_histogram *h)
{
    uint64_t n = 0;
    for (int i = 0; i < QR_HISTOGRAM_BUCKETS; i++)
        n += h->count[i];
    return n;
}

static void latencies_are_counted_once_each(void **state)
{
    (void)state;
    struct opened fresh = engine_open(MODEL, NULL, 1, NULL);
    const qr_sampling s = greedy();
    qr_metrics m = {.size = sizeof m};
    const qr_request q = request_on(&story, &s, 5);
    for (int i = 0; i < 3; i++) {
        struct reply r = reply_of(&fresh, &q);
        reply_free(&r);
    }
    qr_get_metrics(fresh.engine, &m);
    assert_int_equal(counted(&m.time_to_first_token), 3);
    assert_int_equal(counted(&m.inter_token), 3 * 4);
    assert_int_equal(counted(&m.queue), 3);
    assert_int_equal(counted(&m.step), m.steps);
    assert_true(m.step.sum == m.step_seconds);
    assert_true(m.time_to_first_token.sum > m.queue.sum); /* a step lies between */
    assert_true(m.longest_silence == 0);
    for (int i = 1; i < QR_HISTOGRAM_BUCKETS; i++)
        assert_true(qr_histogram_bound(i) > qr_histogram_bound(i - 1));
    assert_true(qr_histogram_bound(QR_HISTOGRAM_BUCKETS - 1) > 1e300);

    qr_handle handle;
    qr_event event;
    qr_request long_one = request_on(&story, &s, 200);
    assert_int_equal(qr_submit(fresh.engine, &long_one, NULL, NULL, &handle, NULL), QR_OK);
    assert_int_equal(qr_poll(fresh.engine, handle, -1, &event, NULL), QR_OK);
    assert_int_equal(qr_engine_sleep(fresh.engine, QR_SLEEP_KV_CACHE, NULL), QR_OK); /* it runs no more, and says nothing */
    qr_get_metrics(fresh.engine, &m);
    assert_true(m.longest_silence > 0);
    engine_close(&fresh);
}

static void metrics_add_up(void **state)
{
    (void)state;
    struct opened fresh = engine_open(MODEL, NULL, 1, NULL);
    const qr_sampling s = greedy();
    qr_metrics m = {.size = sizeof m};
    qr_plan_bytes plan;
    qr_engine_get_plan(fresh.engine, &plan);
    for (int i = 0; i < 3; i++) {
        const qr_request q = request_on(&story, &s, 5);
        struct reply r = reply_of(&fresh, &q);
        reply_free(&r);
    }
    double scores[4];
    assert_int_equal(qr_score(fresh.engine, story.tokens.data, 5, 1, scores, NULL), QR_OK);
    qr_get_metrics(fresh.engine, &m);
    assert_int_equal(m.requests_submitted, 3);
    assert_int_equal(m.requests_finished, 3);
    assert_int_equal(m.requests_cancelled + m.requests_failed + m.requests_running + m.requests_waiting, 0);
    assert_int_equal(m.prompt_tokens, 3 * story.tokens.count);
    assert_int_equal(m.output_tokens, 15);
    assert_int_equal(m.prefill_rows, 3 * story.tokens.count + 4);
    assert_int_equal(m.decode_rows, 12); /* the first token comes from the prompt's last row */
    assert_int_equal(m.steps, 3 + 12 + 1);
    assert_true(m.step_seconds > 0);
    assert_int_equal(m.blocks_total, plan.blocks - 1);
    assert_int_equal(m.blocks_free, m.blocks_total);
    assert_int_equal(m.slots_free, m.slots_total);
    assert_int_equal(m.looked_up_tokens, 3 * story.tokens.count + 4); /* the score's too */
    assert_int_equal(m.requests_prefilling, 0);
    assert_int_equal(m.prefill_steps, 4);
    assert_int_equal(m.prefill_chunks, 4);
    assert_int_equal(m.prefill_context_tokens, 0);
    assert_int_equal(m.decode_steps, 12);
    assert_int_equal(m.decode_requests, 12);

    struct {
        qr_metrics m;
    } older = {.m = {.size = offsetof(qr_metrics, steps), .steps = 99}};
    qr_get_metrics(fresh.engine, &older.m);
    assert_int_equal(older.m.requests_submitted, 3);
    assert_int_equal(older.m.steps, 99);
    engine_close(&fresh);
}

/* Twice the same prompt, cut into chunks: of what the second one looks up all but the last page is found. */
static void what_the_cache_holds_is_counted_once(void **state)
{
    (void)state;
    enum { BLOCK = 32, PROMPT = 2 * BLOCK, CHUNK = 40 };
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.block_size = BLOCK;
    options.max_model_len = 128;
    options.max_num_batched_tokens = CHUNK;
    struct opened fresh = engine_open(MODEL, NULL, 1, &options);
    const qr_sampling s = greedy();
    int32_t tokens[PROMPT];
    qr_metrics m = {.size = sizeof m};
    for (int32_t i = 0; i < PROMPT; i++)
        tokens[i] = 10 + i;
    qr_request q = QR_REQUEST;
    q.tokens = tokens;
    q.token_count = PROMPT;
    q.sampling = &s;
    q.max_tokens = 2;
    q.ignore_eos = true;
    struct reply r = reply_of(&fresh, &q);
    reply_free(&r);
    qr_get_metrics(fresh.engine, &m);
    assert_int_equal(m.prefill_chunks, 2);
    assert_int_equal(m.prefill_context_tokens, CHUNK);
    r = reply_of(&fresh, &q);
    reply_free(&r);
    qr_get_metrics(fresh.engine, &m);
    assert_int_equal(m.looked_up_tokens, 2 * PROMPT);
    assert_int_equal(m.prompt_tokens, 2 * PROMPT);
    assert_int_equal(m.cached_tokens, BLOCK);
    assert_int_equal(m.blocks_free, m.blocks_total);
    assert_true(m.blocks_total - m.blocks_vacant >= 2); /* cached, and whatever image stands behind them */
    engine_close(&fresh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_ends_with_the_models_end_token),
        cmocka_unit_test(an_end_token_is_a_token_when_it_is_to_be_ignored_or_too_early),
        cmocka_unit_test(lengths_are_kept),
        cmocka_unit_test(the_context_ends_an_answer),
        cmocka_unit_test(a_stop_string_is_cut_or_kept),
        cmocka_unit_test(a_stop_token_ends_an_answer_without_its_text),
        cmocka_unit_test(the_same_seed_draws_the_same_tokens),
        cmocka_unit_test(biases_bans_and_penalties_reach_the_draw),
        cmocka_unit_test(place_holders_are_never_drawn_unless_allowed),
        cmocka_unit_test(a_row_with_nothing_left_is_an_error_that_names_the_request),
        cmocka_unit_test(log_probabilities_are_those_of_a_score),
        cmocka_unit_test(log_probabilities_come_only_where_they_were_asked_for),
        cmocka_unit_test(metrics_add_up),
        cmocka_unit_test(what_the_cache_holds_is_counted_once),
        cmocka_unit_test(latencies_are_counted_once_each),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
