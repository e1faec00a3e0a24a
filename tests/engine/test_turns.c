/* Whose turn is next (runtime.md 4.3: classes, arrival, the delay of new prompts; architecture.md, Threads). */
#include "support/engines.h"

#include "support/scratch.h"
#include "support/support.h"

enum { PROMPT = 40, MOST = 8 };

static char *dir;
static int32_t tokens[PROMPT];

static int set_up(void **state)
{
    (void)state;
    dir = small_model_folder();
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = 3 + i;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

static struct opened open_small(int32_t at_once, double delay)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.block_size = 32;
    o.max_model_len = 4096;
    o.max_num_seqs = at_once;
    o.scheduler_delay_factor = delay;
    return engine_open(dir, NULL, 1, &o);
}

static qr_request request(int32_t answer, int32_t priority)
{
    qr_request q = QR_REQUEST;
    q.tokens = tokens;
    q.token_count = PROMPT;
    q.max_tokens = answer;
    q.ignore_eos = true;
    q.priority = priority;
    return q;
}

static qr_handle submit(const struct opened *o, const qr_request *q)
{
    qr_handle handle;
    assert_int_equal(qr_submit(o->engine, q, NULL, NULL, &handle, NULL), QR_OK);
    return handle;
}

static qr_event next_event(const struct opened *o, qr_handle handle)
{
    qr_event event;
    assert_int_equal(qr_poll(o->engine, handle, -1, &event, NULL), QR_OK);
    return event;
}

static bool begun(const struct opened *o, qr_handle handle)
{
    qr_usage usage;
    assert_int_equal(qr_get_usage(o->engine, handle, &usage, NULL), QR_OK);
    return usage.begun;
}

static void rest(const struct opened *o, qr_handle handle)
{
    struct reply r = {0};
    reply_rest(o, handle, &r);
    reply_free(&r);
}

static int spoken[MOST], speakers; /* in the order of their only tokens; the engine's thread writes it */

static void note(void *user, const qr_event *event)
{
    if (event->token >= 0 && speakers < MOST)
        spoken[speakers++] = *(const int *)user;
}

/* One at a time: higher classes first, whoever came first in a class. */
static void waiting_requests_go_by_class_then_by_arrival(void **state)
{
    (void)state;
    static const int32_t priority[] = {0, 1, 0, -1, 1};
    static const int number[] = {0, 1, 2, 3, 4}, wanted[] = {1, 4, 0, 2, 3};
    struct opened o = open_small(1, 0);
    const qr_request running = request(4000, 0);
    const qr_handle first = submit(&o, &running);
    next_event(&o, first);
    speakers = 0;
    for (int i = 0; i < 5; i++) {
        const qr_request q = request(1, priority[i]);
        qr_handle handle;
        assert_int_equal(qr_submit(o.engine, &q, note, (void *)&number[i], &handle, NULL), QR_OK);
    }
    qr_release(o.engine, first);
    const qr_request last = request(1, -2); /* behind all of them */
    rest(&o, submit(&o, &last));
    assert_int_equal(speakers, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(spoken[i], wanted[i]);
    engine_close(&o);
}

/* While somebody runs, a new prompt is held for so many times the last one's latency: here, for ever; when nobody does, not
 * at all. */
static void new_prompts_wait_while_others_run(void **state)
{
    (void)state;
    for (int held = 0; held < 2; held++) {
        struct opened o = open_small(2, held ? 1e9 : 0);
        const qr_request one = request(1, 0), running = request(4000, 0);
        rest(&o, submit(&o, &one)); /* a latency is known */
        const qr_handle first = submit(&o, &running);
        next_event(&o, first);
        const qr_handle second = submit(&o, &one);
        for (int i = 0; i < 20; i++)
            next_event(&o, first); /* turns in which the second would have come */
        if (held)
            assert_false(begun(&o, second));
        else
            assert_int_equal(next_event(&o, second).finish, QR_FINISH_LENGTH);
        qr_release(o.engine, first);
        if (held)
            assert_int_equal(next_event(&o, second).finish, QR_FINISH_LENGTH);
        engine_close(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_requests_go_by_class_then_by_arrival),
        cmocka_unit_test(new_prompts_wait_while_others_run),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
