/* label: full */
/* Requests that run side by side, and start from the prefix cache, give the bits that each gives alone and cold
 * (runtime.md 13, law 2), greedy and sampled, in both families. */
#include "support/support.h"

#include <string.h>

#include "quire.h"

enum { REQUESTS = 14, ANSWER = 12, SHARED = 300, LONGEST = 420 };

struct reply {
    int32_t tokens[ANSWER];
    float logprobs[ANSWER];
    int32_t count, cached;
    qr_finish finish;
};

static qr_model *open_model(const char *folder)
{
    qr_model *model;
    qr_error err = {0};
    qr_model_options o = QR_MODEL_OPTIONS;
    if (qr_model_open(source_path(folder), &o, &model, &err) != QR_OK)
        fail_msg("%s", err.message);
    return model;
}

static qr_engine *open_engine(qr_model *model, int32_t at_once, uint64_t bytes)
{
    qr_engine *engine;
    qr_error err = {0};
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.max_num_seqs = at_once;
    o.max_model_len = 512;
    o.max_num_batched_tokens = 200;
    o.kv_ram_bytes = bytes;
    if (qr_engine_create(model, &o, &engine, &err) != QR_OK)
        fail_msg("%s", err.message);
    return engine;
}

/* Prompt i: some of the shared beginning, then its own tokens. */
static qr_request request(int i, int32_t tokens[LONGEST], qr_sampling *sampling)
{
    const int32_t shared = i % 3 == 2 ? 0 : SHARED - 70 * (i % 2), count = shared + 20 + 7 * i;
    for (int32_t p = 0; p < count; p++)
        tokens[p] = 10 + (p < shared ? p * 7 : p * 13 + i * 31) % 200;
    *sampling = (qr_sampling)QR_SAMPLING;
    sampling->temperature = i % 2 ? 0.9 : 0;
    sampling->repetition_penalty = i % 4 == 1 ? 1.2 : 1;
    sampling->seed = i;
    qr_request q = QR_REQUEST;
    q.tokens = tokens;
    q.token_count = (size_t)count;
    q.sampling = sampling;
    q.max_tokens = ANSWER;
    q.ignore_eos = true;
    q.logprobs = 0;
    q.prompt_logprobs = i == 5 ? 0 : -1;
    return q;
}

static qr_handle submit(qr_engine *engine, int i)
{
    int32_t tokens[LONGEST];
    qr_sampling sampling;
    const qr_request q = request(i, tokens, &sampling);
    qr_handle handle = 0;
    qr_error err = {0};
    if (qr_submit(engine, &q, NULL, NULL, &handle, &err) != QR_OK)
        fail_msg("%s", err.message);
    return handle;
}

static struct reply fetch(qr_engine *engine, qr_handle handle)
{
    struct reply r = {.finish = QR_FINISH_NONE};
    while (r.finish == QR_FINISH_NONE) {
        qr_event e;
        qr_usage usage;
        assert_int_equal(qr_poll(engine, handle, -1, &e, NULL), QR_OK);
        if (e.token >= 0) {
            r.tokens[r.count] = e.token;
            r.logprobs[r.count++] = e.logprob.logprob;
        }
        r.finish = e.finish;
        assert_int_equal(qr_get_usage(engine, handle, &usage, NULL), QR_OK);
        r.cached = usage.cached_tokens;
    }
    return r;
}

static void compare(const struct reply *alone, const struct reply *other, int i)
{
    assert_int_equal(other->finish, QR_FINISH_LENGTH);
    assert_int_equal(other->count, alone->count);
    if (memcmp(other->tokens, alone->tokens, sizeof alone->tokens) != 0 ||
        memcmp(other->logprobs, alone->logprobs, sizeof alone->logprobs) != 0)
        fail_msg("request %d: %d tokens cached, and other bits than alone", i, other->cached);
}

static void side_by_side(const char *folder)
{
    struct reply alone[REQUESTS];
    qr_handle handles[REQUESTS];
    int32_t cached = 0;
    qr_model *model = open_model(folder);
    for (int i = 0; i < REQUESTS; i++) {
        qr_engine *engine = open_engine(model, 1, 64 << 20);
        alone[i] = fetch(engine, submit(engine, i));
        assert_int_equal(alone[i].cached, 0);
        qr_engine_destroy(engine);
    }
    qr_engine *engine = open_engine(model, 4, 64 << 20);
    for (int turn = 0; turn < 2; turn++) { /* the second time from the cache */
        for (int k = 0; k < REQUESTS; k++)
            handles[k] = submit(engine, turn ? REQUESTS - 1 - k : k);
        for (int k = 0; k < REQUESTS; k++) {
            const int i = turn ? REQUESTS - 1 - k : k;
            const struct reply r = fetch(engine, handles[k]);
            compare(&alone[i], &r, i);
            cached += r.cached;
            if (i == 5)
                assert_int_equal(r.cached, 0); /* every row of its prompt wants logits */
        }
    }
    assert_true(cached >= REQUESTS * 128); /* the cache is not silently dead */
    qr_engine_destroy(engine);
    qr_model_close(model);
}

static void v41_answers_side_by_side_are_those_of_each_alone(void **state)
{
    (void)state;
    side_by_side("models/tiny-v41");
}

static void v4_answers_side_by_side_are_those_of_each_alone(void **state)
{
    (void)state;
    side_by_side("models/tiny-v4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v41_answers_side_by_side_are_those_of_each_alone),
        cmocka_unit_test(v4_answers_side_by_side_are_those_of_each_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
