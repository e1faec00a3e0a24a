/* label: release */
/* What an engine takes of a device is what it planned; and behind a sleep every tensor is laid out once more, and what was
 * recorded is replayed (runtime.md 2.10, 12.2). Without a device: a visible skip. */
#include "engine/engine.h"
#include "support/engines.h"
#include "support/support.h"

static struct opened open_tiny(const char *model)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.kv_ram_bytes = 64 << 20;
    o.max_model_len = 512;
    o.max_num_seqs = 2;
    return engine_open(model, "cuda", 1, &o);
}

enum { LONGEST = 120 };

static struct reply answer_to(const struct opened *o, int32_t count)
{
    int32_t tokens[LONGEST];
    qr_request q = QR_REQUEST;
    for (int i = 0; i < LONGEST; i++)
        tokens[i] = 3 + (i * 7 + count) % 200;
    q.tokens = tokens;
    q.token_count = (size_t)count;
    q.max_tokens = 24;
    q.ignore_eos = true;
    q.logprobs = 2;
    return reply_of(o, &q);
}

static struct reply answer(const struct opened *o) { return answer_to(o, 40); }

static qr_metrics metrics_of(const struct opened *o)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(o->engine, &m);
    return m;
}

static void no_more_is_taken_than_planned(void **state)
{
    (void)state;
    static const char *const models[] = {"models/tiny-v41", "models/tiny-v4"};
    for (int i = 0; i < 2; i++) {
        struct opened o = open_tiny(models[i]);
        qr_plan_bytes plan;
        struct reply r = answer(&o);
        const qr_metrics m = metrics_of(&o);
        qr_engine_get_plan(o.engine, &plan);
        const uint64_t planned = plan.device_weights + plan.device_workspace + plan.pages + plan.states + (32 << 20);
        assert_true(m.device_bytes_most > 0 && m.device_bytes_most <= planned);
        assert_true(planned - m.device_bytes_most < 80 << 20); /* staging, chunks and blocks of vectors */
        reply_free(&r);
        engine_close(&o);
    }
}

static void buffers_and_graphs_survive_a_sleep_and_tensors_come_back_once(void **state)
{
    (void)state;
    struct opened o = open_tiny("models/tiny-v41");
    qr_error err = {0};
    struct reply first = answer(&o), second = answer(&o);
    const qr_metrics before = metrics_of(&o);
    assert_true(before.weights_laid > 0 && before.graphs_replayed > 0);
    for (unsigned tags = QR_SLEEP_WEIGHTS; tags <= (QR_SLEEP_WEIGHTS | QR_SLEEP_KV_CACHE); tags++) {
        const qr_metrics awake = metrics_of(&o);
        if (qr_engine_sleep(o.engine, tags, &err) != QR_OK || qr_engine_wake(o.engine, tags, &err) != QR_OK)
            fail_msg("%s", err.message);
        struct reply again = answer(&o), more = answer(&o);
        const qr_metrics m = metrics_of(&o);
        assert_same_reply(&first, &again, "behind a sleep");
        assert_same_reply(&second, &more, "behind a sleep, from the cache");
        assert_int_equal(m.weights_laid, awake.weights_laid + (tags & QR_SLEEP_WEIGHTS ? before.weights_laid : 0));
        assert_int_equal(m.graphs_recorded, awake.graphs_recorded);
        assert_int_equal(m.device_bytes, before.device_bytes);
        reply_free(&again);
        reply_free(&more);
    }
    reply_free(&first);
    reply_free(&second);
    engine_close(&o);
}

/* A prompt of every length is a list of its own, recorded when it comes again. */
static void recorded_steps_take_no_more_than_planned(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.kv_ram_bytes = 64 << 20;
    options.max_model_len = 512;
    options.no_prefix_caching = true;
    struct opened o = engine_open("models/tiny-v41", "cuda", 1, &options);
    struct device_memory before, after;
    qr_plan_bytes plan;
    qr_error err = {0};
    struct reply r;
    for (int i = 0; i < 3; i++) {
        r = answer(&o);
        reply_free(&r);
    }
    const qr_metrics first = metrics_of(&o);
    qr_engine_get_plan(o.engine, &plan);
    must(backend_memory("cuda", &before, &err), &err);
    for (int32_t count = 50; count < 50 + 60; count++)
        for (int twice = 0; twice < 2; twice++) {
            r = answer_to(&o, count);
            reply_free(&r);
        }
    must(backend_memory("cuda", &after, &err), &err);
    const qr_metrics last = metrics_of(&o);
    const int64_t graphs = (int64_t)(last.graphs_recorded - first.graphs_recorded), taken = before.free - after.free;
    print_message("%lld recorded lists took %lld bytes\n", (long long)graphs, (long long)taken);
    assert_true(graphs >= 60);
    assert_int_equal(last.device_bytes, first.device_bytes);
    assert_true(taken <= (int64_t)plan.device_graphs);
    engine_close(&o);
}

/* Lists recorded while prompts of `count` lengths from 50 on are answered, none of them met before. */
static int64_t recorded_by_answers(struct opened *o, int32_t count, struct reply *out)
{
    const qr_metrics before = metrics_of(o);
    for (int32_t i = 0; i < count; i++)
        out[i] = answer_to(o, 50 + i);
    return (int64_t)(metrics_of(o).graphs_recorded - before.graphs_recorded);
}

/* Sizes that were asked for are recorded before the first request comes, which then records none of its own. */
static void sizes_asked_for_are_recorded_when_the_engine_opens(void **state)
{
    (void)state;
    enum { ANSWERS = 3 };
    static const char *const models[] = {"models/tiny-v41", "models/tiny-v4"};
    for (int m = 0; m < 2; m++) {
        struct reply without[ANSWERS], with[ANSWERS];
        qr_engine_options options = QR_ENGINE_OPTIONS;
        options.kv_ram_bytes = 64 << 20;
        options.max_model_len = 512;
        options.max_num_seqs = 4;
        options.no_prefix_caching = true;
        options.method = "none";
        struct opened o = engine_open(models[m], "cuda", 1, &options);
        assert_int_equal(metrics_of(&o).graphs_recorded, 0);
        assert_true(recorded_by_answers(&o, ANSWERS, without) > 0);
        engine_close(&o);
        options.cudagraph_capture_sizes = "1,2,4";
        o = engine_open(models[m], "cuda", 1, &options);
        const qr_metrics opened = metrics_of(&o);
        print_message("%llu lists recorded ahead\n", (unsigned long long)opened.graphs_recorded);
        assert_true(opened.graphs_recorded >= 3);
        assert_int_equal(recorded_by_answers(&o, ANSWERS, with), 0);
        assert_true(metrics_of(&o).graphs_replayed > opened.graphs_replayed);
        for (int i = 0; i < ANSWERS; i++) {
            assert_same_reply(&without[i], &with[i], "recorded ahead");
            reply_free(&without[i]);
            reply_free(&with[i]);
        }
        engine_close(&o);
    }
}

int main(void)
{
    if (!cuda_device_found())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_is_taken_than_planned),
        cmocka_unit_test(recorded_steps_take_no_more_than_planned),
        cmocka_unit_test(sizes_asked_for_are_recorded_when_the_engine_opens),
        cmocka_unit_test(buffers_and_graphs_survive_a_sleep_and_tensors_come_back_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
