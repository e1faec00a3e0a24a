/* label: threads A07 A08 */
/* Submit, poll, callback, cancel and release in every order and from several threads: no token after a cancel, one last
 * event for each request, nothing left behind. */
#define _GNU_SOURCE
#include "support/engines.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/support.h"
#include "support/scratch.h"

static char *dir;
static struct opened o;

static int set_up(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.block_size = 32;
    options.max_num_batched_tokens = 16;
    dir = small_model_folder();
    o = engine_open(dir, NULL, 1, &options);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_close(&o);
    scratch_remove(dir);
    return 0;
}

static const int32_t prompt[40] = {104, 101, 108, 108, 111, 32, 119};

/* Runs to the end of the context, 65,536 tokens, unless it is stopped. */
static qr_request endless(void)
{
    qr_request q = QR_REQUEST;
    q.tokens = prompt;
    q.token_count = 40;
    q.ignore_eos = true;
    return q;
}

static qr_request short_one(int32_t tokens)
{
    qr_request q = endless();
    q.max_tokens = tokens;
    return q;
}

static qr_handle submitted(const qr_request *q)
{
    qr_handle handle = 0;
    qr_error err = {0};
    if (qr_submit(o.engine, q, NULL, NULL, &handle, &err) != QR_OK)
        fail_msg("%s", err.message);
    return handle;
}

static qr_event polled(qr_handle handle)
{
    qr_event event;
    qr_error err = {0};
    if (qr_poll(o.engine, handle, -1, &event, &err) != QR_OK)
        fail_msg("%s", err.message);
    return event;
}

static void assert_gone(qr_handle handle)
{
    qr_event event;
    qr_usage usage;
    qr_error err = {0};
    assert_refused(qr_poll(o.engine, handle, 0, &event, &err), &err, QR_BAD_ARGUMENT, "handle");
    assert_refused(qr_get_usage(o.engine, handle, &usage, &err), &err, QR_BAD_ARGUMENT, "handle");
    qr_cancel(o.engine, handle); /* ignored */
    qr_release(o.engine, handle);
}

/* The next event is the end, and says so and nothing else. */
static void assert_cancelled(qr_handle handle)
{
    const qr_event event = polled(handle);
    assert_int_equal(event.finish, QR_FINISH_CANCELLED);
    assert_int_equal(event.token, -1);
    assert_int_equal(event.text_length, 0);
    assert_int_equal(event.stop_token, -1);
    assert_null(event.prompt);
    assert_null(event.error);
}

static qr_metrics counts(void)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(o.engine, &m);
    return m;
}

/* Waits, by a request of its own, until the engine has come to the end of what was there before. */
static void settle(void)
{
    const qr_request q = short_one(1);
    struct reply r = reply_of(&o, &q);
    reply_free(&r);
}

static void assert_all_returned(void)
{
    settle();
    const qr_metrics m = counts();
    assert_int_equal(m.requests_running + m.requests_waiting, 0);
    assert_int_equal(m.blocks_free, m.blocks_total);
    assert_int_equal(m.slots_free, m.slots_total);
    assert_int_equal(m.requests_submitted, m.requests_finished + m.requests_cancelled + m.requests_failed);
}

/* ---- one thread ---- */

static void handles_of_no_request_are_refused(void **state)
{
    (void)state;
    assert_gone(0);
    assert_gone(123456);
    assert_gone(UINT64_MAX);
}

static void a_handle_is_gone_after_its_last_event_was_handed_back(void **state)
{
    (void)state;
    const qr_request q = short_one(2);
    const qr_handle handle = submitted(&q);
    qr_usage usage;
    assert_int_equal(polled(handle).finish, QR_FINISH_NONE);
    assert_int_equal(polled(handle).finish, QR_FINISH_LENGTH);
    assert_int_equal(qr_get_usage(o.engine, handle, &usage, NULL), QR_OK);
    assert_int_equal(usage.output_tokens, 2);
    const double seconds = usage.seconds;
    assert_int_equal(qr_get_usage(o.engine, handle, &usage, NULL), QR_OK);
    assert_true(usage.seconds == seconds); /* it has ended */
    assert_gone(handle);
}

static void polling_gives_up_in_time_and_goes_on(void **state)
{
    (void)state;
    const qr_request q = endless();
    const qr_handle first = submitted(&q), second = submitted(&q);
    qr_event event;
    qr_error err = {0};
    assert_refused(qr_poll(o.engine, second, 0, &event, &err), &err, QR_BUSY, "no event");
    assert_refused(qr_poll(o.engine, second, 2, &event, &err), &err, QR_BUSY, "2 ms");
    qr_cancel(o.engine, first);
    assert_cancelled(first);
    assert_int_equal(polled(second).finish, QR_FINISH_NONE);
    qr_release(o.engine, first);
    qr_release(o.engine, second);
    assert_gone(second);
    assert_all_returned();
}

static void no_token_follows_a_cancel(void **state)
{
    (void)state;
    for (int tokens = 0; tokens < 4; tokens++) {
        const qr_request q = endless();
        const qr_handle handle = submitted(&q);
        for (int i = 0; i < tokens; i++)
            assert_int_equal(polled(handle).finish, QR_FINISH_NONE);
        qr_cancel(o.engine, handle);
        qr_cancel(o.engine, handle);
        assert_cancelled(handle);
        assert_gone(handle);
    }
    assert_all_returned();
}

static void tokens_that_nobody_fetched_are_dropped_by_a_cancel(void **state)
{
    (void)state;
    const qr_request q = short_one(5);
    const qr_handle handle = submitted(&q);
    settle(); /* all five events are there, and the end */
    qr_cancel(o.engine, handle);
    assert_cancelled(handle);
    assert_gone(handle);
}

static void what_waits_is_cancelled_before_its_turn(void **state)
{
    (void)state;
    const qr_request q = endless();
    const qr_metrics before = counts();
    const qr_handle running = submitted(&q), waiting = submitted(&q), later = submitted(&q);
    assert_int_equal(polled(running).finish, QR_FINISH_NONE);
    qr_cancel(o.engine, waiting);
    assert_cancelled(waiting);
    qr_usage usage;
    assert_int_equal(qr_get_usage(o.engine, waiting, &usage, NULL), QR_OK);
    assert_int_equal(usage.output_tokens, 0);
    assert_int_equal(counts().requests_running, 1);
    assert_int_equal(polled(running).finish, QR_FINISH_NONE);
    qr_release(o.engine, later); /* waiting too */
    qr_release(o.engine, running);
    assert_all_returned();
    assert_int_equal(counts().requests_cancelled - before.requests_cancelled, 3);
    assert_int_equal(counts().prompt_tokens - before.prompt_tokens, 40 + 40); /* running's, and settle's */
}

/* Ends unless pausing does: what comes meanwhile is taken. */
static void wait_for_silence(qr_handle handle, struct reply *r)
{
    qr_event event;
    while (qr_poll(o.engine, handle, 200, &event, NULL) == QR_OK) {
        reply_take(r, &event);
        assert_int_equal(event.finish, QR_FINISH_NONE);
    }
}

static void a_paused_request_rests_and_goes_on_with_the_same_tokens(void **state)
{
    (void)state;
    const qr_request q = short_one(400);
    struct reply alone = reply_of(&o, &q), paused = {0}, second = {0};
    const qr_handle handle = submitted(&q);
    const qr_event first = polled(handle);
    reply_take(&paused, &first);
    qr_pause(o.engine, handle, true);
    wait_for_silence(handle, &paused);
    assert_int_equal(counts().requests_running, 1);
    assert_int_equal(counts().requests_paused, 1);
    const qr_handle behind = submitted(&q); /* there is one seat */
    assert_int_equal(qr_poll(o.engine, behind, 100, NULL, NULL), QR_BUSY);
    assert_int_equal(counts().requests_waiting, 1);
    qr_pause(o.engine, handle, false);
    reply_rest(&o, handle, &paused);
    reply_rest(&o, behind, &second);
    assert_same_reply(&second, &alone, "behind it");
    assert_same_reply(&paused, &alone, "paused");
    assert_int_equal(counts().requests_paused, 0);
    qr_pause(o.engine, handle, true); /* ignored: it has ended */
    reply_free(&alone);
    reply_free(&paused);
    reply_free(&second);
    assert_all_returned();
}

static void a_paused_request_can_be_cancelled(void **state)
{
    (void)state;
    const qr_request q = endless();
    struct reply taken = {0};
    const qr_handle handle = submitted(&q), behind = submitted(&q);
    const qr_event first = polled(handle);
    reply_take(&taken, &first);
    qr_pause(o.engine, handle, true);
    wait_for_silence(handle, &taken);
    qr_cancel(o.engine, handle);
    assert_cancelled(handle);
    assert_int_equal(polled(behind).finish, QR_FINISH_NONE);
    qr_release(o.engine, behind);
    reply_free(&taken);
    assert_all_returned();
}

static void a_released_request_is_forgotten_in_any_state(void **state)
{
    (void)state;
    const qr_request longer = endless(), q = short_one(1);
    const qr_handle running = submitted(&longer);
    polled(running);
    qr_release(o.engine, running);
    assert_gone(running);
    const qr_handle finished = submitted(&q);
    settle();
    qr_release(o.engine, finished);
    assert_gone(finished);
    const qr_handle handed = submitted(&q);
    assert_int_equal(polled(handed).finish, QR_FINISH_LENGTH);
    qr_release(o.engine, handed);
    assert_gone(handed);
    assert_all_returned();
}

static void the_queue_has_an_end(void **state)
{
    (void)state;
    const qr_request q = endless();
    enum { QUEUE = 4096 };
    static qr_handle handles[QUEUE];
    qr_handle none;
    qr_error err = {0};
    const qr_handle running = submitted(&q);
    polled(running);
    for (int i = 0; i < QUEUE; i++)
        handles[i] = submitted(&q);
    assert_int_equal(counts().requests_waiting, QUEUE);
    assert_refused(qr_submit(o.engine, &q, NULL, NULL, &none, &err), &err, QR_BUSY, "4096 requests");
    qr_cancel(o.engine, handles[17]);
    assert_cancelled(handles[17]);
    handles[17] = submitted(&q); /* there is room for one */
    for (int i = 0; i < QUEUE; i++)
        qr_release(o.engine, handles[i]);
    qr_release(o.engine, running);
    while (counts().requests_waiting == QUEUE) /* until the engine has looked there is no room to settle in */
        sched_yield();
    assert_all_returned();
}

static void an_engine_goes_down_with_everything_in_it(void **state)
{
    (void)state;
    const int64_t live = alloc_live();
    for (int i = 0; i < 6; i++) {
        qr_engine_options options = QR_ENGINE_OPTIONS;
        qr_engine *engine;
        qr_error err = {0};
        options.kv_ram_bytes = 1 << 20;
        if (qr_engine_create(o.model, &options, &engine, &err) != QR_OK)
            fail_msg("%s", err.message);
        const qr_request q = endless(), one = short_one(1);
        qr_handle handle;
        for (int k = 0; k < i; k++)
            assert_int_equal(qr_submit(engine, k == 0 ? &one : &q, NULL, NULL, &handle, NULL), QR_OK);
        qr_event event;
        if (i == 3)
            assert_int_equal(qr_poll(engine, 1, -1, &event, NULL), QR_OK); /* handed out and not handed back */
        qr_engine_destroy(engine);
        assert_int_equal(alloc_live(), live);
    }
    qr_engine_destroy(NULL);
}

/* ---- callbacks ---- */

struct listener {
    struct opened *o;
    int cancel_at, release_at; /* inside the callback, at that token; 0: never */
    qr_handle handle;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int tokens, ends;
    qr_finish finish;
    bool after_end;
};

static void hear(void *user, const qr_event *event)
{
    struct listener *l = user;
    pthread_mutex_lock(&l->lock);
    l->after_end |= l->ends > 0;
    l->tokens += event->token >= 0;
    l->ends += event->finish != QR_FINISH_NONE;
    l->finish = event->finish;
    const int tokens = l->tokens;
    const bool last = event->finish != QR_FINISH_NONE;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (last)
        return; /* the listener may be gone */
    if (l->cancel_at == tokens)
        qr_cancel(l->o->engine, event->handle);
    if (l->release_at == tokens)
        qr_release(l->o->engine, event->handle);
}

static void listener_start(struct listener *l, const qr_request *q)
{
    qr_error err = {0};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->o = &o;
    if (qr_submit(o.engine, q, hear, l, &l->handle, &err) != QR_OK)
        fail_msg("%s", err.message);
}

enum { THE_END = -1 };

/* Waits for that many tokens, or for the end. */
static void listener_wait(struct listener *l, int tokens)
{
    pthread_mutex_lock(&l->lock);
    while (l->ends == 0 && (tokens == THE_END || l->tokens < tokens))
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

static void listener_stop(struct listener *l)
{
    pthread_mutex_lock(&l->lock); /* the callback that brought the end may still hold it */
    assert_false(l->after_end);
    pthread_mutex_unlock(&l->lock);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
}

static void a_callback_hears_every_token_and_one_end(void **state)
{
    (void)state;
    const qr_request q = short_one(9);
    struct listener l = {0};
    qr_event event;
    qr_error err = {0};
    listener_start(&l, &q);
    listener_wait(&l, THE_END);
    settle();
    assert_int_equal(l.tokens, 9);
    assert_int_equal(l.ends, 1);
    assert_int_equal(l.finish, QR_FINISH_LENGTH);
    assert_gone(l.handle);
    listener_stop(&l);

    struct listener polled_too = {0};
    const qr_request longer = endless();
    listener_start(&polled_too, &longer);
    assert_refused(qr_poll(o.engine, polled_too.handle, -1, &event, &err), &err, QR_BAD_ARGUMENT, "callback");
    qr_release(o.engine, polled_too.handle);
    listener_stop(&polled_too);
}

static void a_callback_may_cancel_or_release_its_request(void **state)
{
    (void)state;
    const qr_request q = endless();
    struct listener cancels = {.cancel_at = 3}, releases = {.release_at = 2};
    listener_start(&cancels, &q);
    listener_wait(&cancels, THE_END);
    assert_int_equal(cancels.tokens, 3);
    assert_int_equal(cancels.finish, QR_FINISH_CANCELLED);
    listener_start(&releases, &q);
    listener_wait(&releases, 2);
    settle();
    assert_int_equal(releases.tokens, 2);
    assert_int_equal(releases.ends, 0);
    assert_gone(releases.handle);
    listener_stop(&cancels);
    listener_stop(&releases);
    assert_all_returned();
}

static void a_callback_is_silent_once_its_request_is_released(void **state)
{
    (void)state;
    const qr_request q = endless();
    for (int tokens = 1; tokens < 6; tokens++) {
        struct listener *l = calloc(1, sizeof *l);
        listener_start(l, &q);
        listener_wait(l, tokens);
        qr_release(o.engine, l->handle);
        listener_stop(l); /* a callback from here on would touch freed memory */
        free(l);
    }
    assert_all_returned();
}

/* ---- many threads ---- */

enum { THREADS = 4, ROUNDS = 12 };

/* One caller: every way of ending a request, in turn. */
static void *caller(void *argument)
{
    const int number = *(int *)argument;
    double scores[39];
    for (int round = 0; round < ROUNDS; round++) {
        const qr_request q = short_one(1 + (number + round) % 7), longer = endless();
        const qr_handle a = submitted(&q), b = submitted(&longer);
        if (round % 3 == 0 && qr_score(o.engine, prompt, 40, 1, scores, NULL) != QR_OK)
            abort();
        if (round % 4 == 1)
            polled(b);
        if (round % 4 == 3)
            qr_release(o.engine, b);
        qr_cancel(o.engine, b);
        struct reply r = {0};
        reply_rest(&o, a, &r);
        if (r.count != (size_t)q.max_tokens || r.finish != QR_FINISH_LENGTH)
            abort();
        reply_free(&r);
        if (round % 4 != 3 && polled(b).finish != QR_FINISH_CANCELLED)
            abort();
        qr_release(o.engine, b);
    }
    return NULL;
}

static void many_callers_get_their_own(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, caller, &numbers[i]), 0);
    }
    for (int i = 0; i < 50; i++)
        (void)counts();
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_all_returned();
}

static void *poll_to_the_end(void *argument)
{
    const qr_handle *handle = argument;
    qr_event event;
    while (qr_poll(o.engine, *handle, -1, &event, NULL) == QR_OK)
        if (event.finish != QR_FINISH_NONE)
            return (void *)1;
    return NULL;
}

static void a_release_wakes_the_thread_that_polls(void **state)
{
    (void)state;
    const qr_request q = endless();
    const qr_handle running = submitted(&q);
    qr_handle waiting = submitted(&q);
    pthread_t thread;
    void *ended;
    polled(running);
    assert_int_equal(pthread_create(&thread, NULL, poll_to_the_end, &waiting), 0);
    qr_release(o.engine, waiting);
    pthread_join(thread, &ended);
    assert_null(ended);
    qr_release(o.engine, running);
    assert_all_returned();
}

static void a_cancel_from_another_thread_ends_a_callback_request(void **state)
{
    (void)state;
    const qr_request q = endless();
    for (int i = 0; i < 8; i++) {
        struct listener l = {0};
        listener_start(&l, &q);
        listener_wait(&l, i);
        qr_cancel(o.engine, l.handle);
        pthread_mutex_lock(&l.lock);
        const int heard = l.tokens;
        while (l.ends == 0)
            pthread_cond_wait(&l.changed, &l.lock);
        pthread_mutex_unlock(&l.lock);
        assert_int_equal(l.finish, QR_FINISH_CANCELLED);
        assert_in_range(l.tokens, heard, heard + 1); /* at most the one whose callback had begun */
        settle();
        listener_stop(&l);
    }
    assert_all_returned();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handles_of_no_request_are_refused),
        cmocka_unit_test(a_handle_is_gone_after_its_last_event_was_handed_back),
        cmocka_unit_test(polling_gives_up_in_time_and_goes_on),
        cmocka_unit_test(no_token_follows_a_cancel),
        cmocka_unit_test(tokens_that_nobody_fetched_are_dropped_by_a_cancel),
        cmocka_unit_test(what_waits_is_cancelled_before_its_turn),
        cmocka_unit_test(a_paused_request_rests_and_goes_on_with_the_same_tokens),
        cmocka_unit_test(a_paused_request_can_be_cancelled),
        cmocka_unit_test(a_released_request_is_forgotten_in_any_state),
        cmocka_unit_test(the_queue_has_an_end),
        cmocka_unit_test(an_engine_goes_down_with_everything_in_it),
        cmocka_unit_test(a_callback_hears_every_token_and_one_end),
        cmocka_unit_test(a_callback_may_cancel_or_release_its_request),
        cmocka_unit_test(a_callback_is_silent_once_its_request_is_released),
        cmocka_unit_test(many_callers_get_their_own),
        cmocka_unit_test(a_release_wakes_the_thread_that_polls),
        cmocka_unit_test(a_cancel_from_another_thread_ends_a_callback_request),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
