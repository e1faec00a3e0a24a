/* label: threads A26 */
/* Sleep and wake (runtime.md 12.2, 13: A26): memory comes back in its size, the cache is forgotten, and no answer changes. */
#include "support/engines.h"

#include <pthread.h>

#include "support/scratch.h"
#include "support/support.h"

enum { PROMPT = 100, BLOCK = 32, ANSWER = 60 };

static char *dir;
static int32_t tokens[PROMPT];

static int set_up(void **state)
{
    (void)state;
    dir = small_model_folder();
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = 3 + i * 7 % 200;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

static struct opened open_small(void)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.block_size = BLOCK;
    o.max_model_len = 256;
    o.max_num_seqs = 2;
    return engine_open(dir, NULL, 1, &o);
}

static qr_request request(void)
{
    qr_request q = QR_REQUEST;
    q.tokens = tokens;
    q.token_count = PROMPT;
    q.max_tokens = ANSWER;
    q.ignore_eos = true;
    q.logprobs = 2;
    return q;
}

static void sleep_and_wake(const struct opened *o, unsigned tags)
{
    qr_error err = {0};
    if (qr_engine_sleep(o->engine, tags, &err) != QR_OK || qr_engine_wake(o->engine, tags, &err) != QR_OK)
        fail_msg("%s", err.message);
}

static void answers_are_the_same_behind_a_sleep(void **state)
{
    (void)state;
    struct opened o = open_small();
    const qr_request q = request();
    struct reply before = reply_of(&o, &q);
    for (unsigned tags = QR_SLEEP_WEIGHTS; tags <= (QR_SLEEP_WEIGHTS | QR_SLEEP_KV_CACHE); tags++) {
        qr_metrics m = {.size = sizeof m};
        sleep_and_wake(&o, tags);
        struct reply after = reply_of(&o, &q);
        assert_int_equal(after.usage.cached_tokens, 0); /* the index is cleared */
        assert_same_reply(&before, &after, "behind a sleep");
        reply_free(&after);
        after = reply_of(&o, &q);
        assert_int_equal(after.usage.cached_tokens, PROMPT / BLOCK * BLOCK); /* and fills again */
        assert_same_reply(&before, &after, "from the cache behind a sleep");
        reply_free(&after);
        qr_get_metrics(o.engine, &m);
        assert_int_equal(m.slots_free, m.slots_total);
    }
    reply_free(&before);
    engine_close(&o);
}

static void a_request_that_runs_goes_on_when_the_engine_is_awake(void **state)
{
    (void)state;
    struct opened o = open_small();
    const qr_request q = request();
    struct reply alone = reply_of(&o, &q), woken = {0}, waited = {0};
    qr_handle running, waiting;
    qr_event event;
    assert_int_equal(qr_submit(o.engine, &q, NULL, NULL, &running, NULL), QR_OK);
    assert_int_equal(qr_poll(o.engine, running, -1, &event, NULL), QR_OK);
    reply_take(&woken, &event);
    assert_int_equal(qr_engine_sleep(o.engine, QR_SLEEP_KV_CACHE, NULL), QR_OK);
    assert_int_equal(qr_engine_sleep(o.engine, QR_SLEEP_WEIGHTS, NULL), QR_OK);
    assert_int_equal(qr_submit(o.engine, &q, NULL, NULL, &waiting, NULL), QR_OK);
    assert_int_equal(qr_poll(o.engine, waiting, 30, &event, NULL), QR_BUSY);
    assert_int_equal(qr_engine_wake(o.engine, QR_SLEEP_WEIGHTS, NULL), QR_OK);
    assert_int_equal(qr_engine_wake(o.engine, QR_SLEEP_KV_CACHE, NULL), QR_OK);
    reply_rest(&o, running, &woken);
    reply_rest(&o, waiting, &waited);
    assert_same_reply(&alone, &woken, "slept");
    assert_same_reply(&alone, &waited, "came while it slept");
    reply_free(&alone);
    reply_free(&woken);
    reply_free(&waited);
    engine_close(&o);
}

static void a_sleeping_engine_cancels_and_ends(void **state)
{
    (void)state;
    struct opened o = open_small();
    const qr_request q = request();
    qr_handle first, second;
    qr_error err = {0};
    struct reply r = {0};
    assert_int_equal(qr_submit(o.engine, &q, NULL, NULL, &first, NULL), QR_OK);
    assert_int_equal(qr_engine_sleep(o.engine, QR_SLEEP_WEIGHTS | QR_SLEEP_KV_CACHE, NULL), QR_OK);
    assert_int_equal(qr_submit(o.engine, &q, NULL, NULL, &second, NULL), QR_OK);
    qr_cancel(o.engine, second);
    reply_rest(&o, second, &r);
    assert_int_equal(r.finish, QR_FINISH_CANCELLED);
    reply_free(&r);
    qr_cancel(o.engine, first);
    reply_rest(&o, first, &r);
    assert_int_equal(r.finish, QR_FINISH_CANCELLED);
    reply_free(&r);
    assert_refused(qr_engine_sleep(o.engine, 0, &err), &err, QR_BAD_ARGUMENT, "tags are 0");
    assert_refused(qr_engine_wake(o.engine, 4, &err), &err, QR_BAD_ARGUMENT, "tags are 4");
    assert_int_equal(qr_submit(o.engine, &q, NULL, NULL, &first, NULL), QR_OK);
    engine_close(&o); /* asleep, with a request that waits */
}

struct sleeper {
    qr_engine *engine;
    _Atomic bool done;
};

static void *sleep_often(void *user)
{
    struct sleeper *s = user;
    while (!s->done)
        qr_engine_sleep(s->engine, QR_SLEEP_WEIGHTS, NULL);
    return NULL;
}

static void a_sleep_ends_a_wake_that_goes_on_and_both_return(void **state)
{
    (void)state;
    enum { MOST = 10000 };
    struct opened o = open_small();
    const qr_request q = request();
    struct sleeper s = {.engine = o.engine};
    struct reply before = reply_of(&o, &q), after;
    pthread_t thread;
    int cut = 0;
    assert_int_equal(pthread_create(&thread, NULL, sleep_often, &s), 0);
    for (int i = 0; i < MOST && cut < 10; i++) {
        qr_engine_sleep(o.engine, QR_SLEEP_WEIGHTS, NULL);
        cut += qr_engine_wake(o.engine, QR_SLEEP_WEIGHTS | QR_SLEEP_KV_CACHE, NULL) == QR_CANCELLED;
    }
    s.done = true;
    assert_int_equal(cut, 10);
    pthread_join(thread, NULL);
    assert_int_equal(qr_engine_wake(o.engine, QR_SLEEP_WEIGHTS, NULL), QR_OK);
    after = reply_of(&o, &q);
    assert_same_reply(&before, &after, "behind all of them");
    reply_free(&before);
    reply_free(&after);
    engine_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_same_behind_a_sleep),
        cmocka_unit_test(a_request_that_runs_goes_on_when_the_engine_is_awake),
        cmocka_unit_test(a_sleeping_engine_cancels_and_ends),
        cmocka_unit_test(a_sleep_ends_a_wake_that_goes_on_and_both_return),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
