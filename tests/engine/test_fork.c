/* label: threads */
/* A request that goes on from another, wherever that one is (runtime.md 4.10): it says what the other goes on to say, and the
 * other does not notice. */
#include "support/engines.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/scratch.h"
#include "support/support.h"

enum { PROMPT = 70, ANSWER = 90, THREADS = 4, ROUNDS = 6 };

static char *dir;
static struct opened o;
static int32_t prompt[PROMPT];
static qr_sampling warm;

static int set_up(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.max_num_seqs = 6;
    options.max_model_len = 256;
    options.block_size = 32;
    dir = small_model_folder();
    o = engine_open(dir, NULL, 1, &options);
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = 3 + i * 11 % 200;
    warm = (qr_sampling)QR_SAMPLING;
    warm.seed = 8;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_close(&o);
    scratch_remove(dir);
    return 0;
}

static qr_request request(int32_t most)
{
    qr_request q = QR_REQUEST;
    q.tokens = prompt;
    q.token_count = PROMPT;
    q.sampling = &warm;
    q.max_tokens = most;
    q.ignore_eos = true;
    q.logprobs = 3;
    return q;
}

static qr_handle submit(const qr_request *q)
{
    qr_handle handle;
    qr_error err = {0};
    if (qr_submit(o.engine, q, NULL, NULL, &handle, &err) != QR_OK)
        fail_msg("%s", err.message);
    return handle;
}

static qr_handle fork_of(qr_handle parent, int32_t most)
{
    const qr_request how = request(most);
    qr_handle handle;
    qr_error err = {0};
    if (qr_fork(o.engine, parent, &how, NULL, NULL, &handle, &err) != QR_OK)
        fail_msg("%s", err.message);
    return handle;
}

static void take(qr_handle handle, int tokens, struct reply *r)
{
    for (int i = 0; i < tokens; i++) {
        qr_event event;
        assert_int_equal(qr_poll(o.engine, handle, -1, &event, NULL), QR_OK);
        reply_take(r, &event);
    }
}

/* What the fork says stands in the parent's answer, from where its prompt ends. */
static void goes_on(const struct reply *parent, const struct reply *child)
{
    const size_t from = (size_t)(child->usage.prompt_tokens - PROMPT);
    assert_true(from + child->count <= parent->count);
    assert_memory_equal(child->tokens, parent->tokens + from, child->count * sizeof *child->tokens);
    assert_memory_equal(child->logprobs, parent->logprobs + from, child->count * sizeof *child->logprobs);
}

static void a_fork_of_a_decoding_request_goes_on_as_it_does(void **state)
{
    (void)state;
    const qr_request q = request(ANSWER);
    struct reply alone = reply_of(&o, &q);
    for (int after = 1; after < 40; after += 6) {
        struct reply parent = {0}, child = {0};
        const qr_handle handle = submit(&q);
        take(handle, after, &parent);
        const qr_handle forked = fork_of(handle, 12);
        reply_rest(&o, forked, &child);
        reply_rest(&o, handle, &parent);
        assert_same_reply(&alone, &parent, "forked");
        assert_true(child.usage.prompt_tokens >= PROMPT + after && child.usage.cached_tokens >= 64);
        assert_int_equal(child.finish, QR_FINISH_LENGTH);
        goes_on(&alone, &child);
        reply_free(&parent);
        reply_free(&child);
    }
    reply_free(&alone);
}

static void a_fork_may_come_at_any_time_of_its_parents_life(void **state)
{
    (void)state;
    const qr_request q = request(ANSWER);
    struct reply alone = reply_of(&o, &q), waiting = {0}, over = {0}, parent = {0};
    qr_handle handle = submit(&q);
    const qr_handle early = fork_of(handle, ANSWER); /* it has said nothing yet, or little */
    reply_rest(&o, early, &waiting);
    goes_on(&alone, &waiting);
    qr_usage usage = {0};
    while (usage.output_tokens < ANSWER) { /* its events stay unfetched */
        qr_metrics m = {.size = sizeof m};
        qr_get_metrics(o.engine, &m);
        assert_int_equal(qr_get_usage(o.engine, handle, &usage, NULL), QR_OK);
    }
    const qr_handle late = fork_of(handle, 20);
    reply_rest(&o, late, &over);
    reply_rest(&o, handle, &parent);
    assert_same_reply(&alone, &parent, "forked");
    assert_int_equal(over.usage.prompt_tokens, PROMPT + ANSWER);
    assert_int_equal(over.count, 20);
    reply_free(&alone);
    reply_free(&waiting);
    reply_free(&over);
    reply_free(&parent);
}

static void what_cannot_be_forked_is_refused(void **state)
{
    (void)state;
    const qr_request q = request(ANSWER);
    qr_request how = request(4);
    qr_handle handle = submit(&q), out;
    qr_event event;
    qr_error err = {0};
    how.size = 3;
    assert_refused(qr_fork(o.engine, handle, &how, NULL, NULL, &out, &err), &err, QR_BAD_ARGUMENT, "qr_request");
    how = request(-1);
    assert_refused(qr_fork(o.engine, handle, &how, NULL, NULL, &out, &err), &err, QR_BAD_REQUEST, "max_tokens");
    qr_cancel(o.engine, handle);
    assert_refused(qr_fork(o.engine, handle, NULL, NULL, NULL, &out, &err), &err, QR_BAD_ARGUMENT, "cancelled");
    do
        assert_int_equal(qr_poll(o.engine, handle, -1, &event, NULL), QR_OK);
    while (event.finish == QR_FINISH_NONE);
    qr_release(o.engine, handle);
    assert_refused(qr_fork(o.engine, handle, NULL, NULL, NULL, &out, &err), &err, QR_BAD_ARGUMENT, "no live request");
}

/* ---- many threads ---- */

static struct reply expected;
static qr_handle shared;

/* Forks what another thread's request says, and what its own does; cancels some; polls its own. */
static void *forker(void *argument)
{
    const int number = *(int *)argument;
    for (int round = 0; round < ROUNDS; round++) {
        const qr_request q = request(10 + number), how = request(5);
        const qr_handle own = submit(&q);
        qr_handle of_shared = 0, of_own = 0;
        struct reply a = {0}, b = {0}, c = {0};
        const bool there = qr_fork(o.engine, shared, &how, NULL, NULL, &of_shared, NULL) == QR_OK;
        if (qr_fork(o.engine, own, &how, NULL, NULL, &of_own, NULL) != QR_OK)
            abort();
        if ((number + round) % 3 == 0)
            qr_cancel(o.engine, of_own);
        reply_rest(&o, own, &a);
        reply_rest(&o, of_own, &b);
        if (there)
            reply_rest(&o, of_shared, &c);
        if (a.count != (size_t)q.max_tokens || memcmp(a.tokens, expected.tokens, a.count * sizeof *a.tokens) != 0)
            abort();
        if (b.finish == QR_FINISH_LENGTH)
            goes_on(&expected, &b);
        if (there)
            goes_on(&expected, &c);
        reply_free(&a);
        reply_free(&b);
        reply_free(&c);
    }
    return NULL;
}

static void many_threads_fork_one_request_and_their_own(void **state)
{
    (void)state;
    const qr_request q = request(ANSWER), longer = request(180);
    pthread_t threads[THREADS];
    int numbers[THREADS];
    expected = reply_of(&o, &longer);
    shared = submit(&q);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, forker, &numbers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    struct reply parent = {0};
    reply_rest(&o, shared, &parent);
    assert_memory_equal(parent.tokens, expected.tokens, ANSWER * sizeof *parent.tokens);
    reply_free(&parent);
    reply_free(&expected);
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(o.engine, &m);
    assert_int_equal(m.blocks_free, m.blocks_total);
    assert_int_equal(m.slots_free, m.slots_total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_of_a_decoding_request_goes_on_as_it_does),
        cmocka_unit_test(a_fork_may_come_at_any_time_of_its_parents_life),
        cmocka_unit_test(what_cannot_be_forked_is_refused),
        cmocka_unit_test(many_threads_fork_one_request_and_their_own),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
