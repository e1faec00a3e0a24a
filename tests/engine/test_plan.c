/* label: faults */
/* The byte plan against what is allocated (architecture.md, law 3): only a build that counts allocations can tell. */
#include "support/engines.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "engine/engine.h"
#include "run/token_counts.h"
#include "support/support.h"

struct weighed {
    int64_t planned, held; /* pools and workspace; bytes of an engine's allocations */
};

/* An engine of these options beside a model that is open. */
static struct weighed weigh(qr_model *model, const qr_engine_options *options)
{
    qr_engine *engine;
    qr_plan_bytes plan;
    qr_error err = {0};
    const int64_t before = alloc_live_bytes();
    if (qr_engine_create(model, options, &engine, &err) != QR_OK)
        fail_msg("%s", err.message);
    qr_model_info info;
    qr_model_get_info(model, &info);
    qr_engine_get_plan(engine, &plan);
    /* Counts of tokens, the way through a grammar, and what a request has of its own, are planned for every request and taken
     * by those that run. */
    const int64_t request = (int64_t)(token_counts_bytes(info.vocab_size) + constraint_bytes(info.vocab_size)) +
                            engine_request_bytes(plan.max_model_len, options->block_size ? options->block_size : 128);
    const struct weighed w = {.held = alloc_live_bytes() - before + (int64_t)plan.slots * request};
    qr_engine_destroy(engine);
    assert_int_equal(alloc_live_bytes(), before);
    return (struct weighed){(int64_t)(plan.pages + plan.states + plan.workspace), w.held};
}

static qr_model *open_model(const char *dir, const char *device, int threads)
{
    qr_model_options options = QR_MODEL_OPTIONS;
    qr_model *model;
    qr_error err = {0};
    options.device = device;
    options.threads = threads;
    if (qr_model_open(source_path(dir), &options, &model, &err) != QR_OK)
        fail_msg("%s", err.message);
    return model;
}

/* What one more of something takes is what the plan says it takes: weights, which are the same, fall out. */
static void what_grows_grows_by_what_is_planned(void **state)
{
    (void)state;
    static const qr_engine_options small = {.size = sizeof small, .kv_ram_bytes = 64 << 20, .max_model_len = 1024,
                                            .max_num_seqs = 2, .max_num_batched_tokens = 64};
    qr_engine_options grown[4];
    for (int i = 0; i < 4; i++)
        grown[i] = small;
    grown[0].max_num_batched_tokens = 1024;
    grown[1].max_num_seqs = 16;
    grown[2].max_model_len = 16384;
    grown[3].block_size = 256;
    const char *const models[] = {"models/tiny-v41", "models/tiny-v41", "models/tiny-v4"};
    const char *const devices[] = {"cpu", "cpu-reference", "cpu"};
    for (int m = 0; m < 3; m++) {
        qr_model *model = open_model(models[m], devices[m], 3);
        const struct weighed least = weigh(model, &small);
        for (int i = 0; i < 4; i++) {
            const struct weighed more = weigh(model, &grown[i]);
            const int64_t planned = more.planned - least.planned, held = more.held - least.held;
            if (llabs(planned - held) > llabs(planned) / 1000 + 8192)
                fail_msg("%s on %s, option %d: %lld more bytes planned, %lld more held", models[m], devices[m], i,
                         (long long)planned, (long long)held);
        }
        qr_model_close(model);
    }
}

/* A verifier that keeps what drafts were drawn from takes it for every request that may run. */
static void what_verifiers_keep_is_planned(void **state)
{
    (void)state;
    enum { REQUESTS = 4, DRAFTS = 5 };
    static const char *const samplings[] = {"probabilistic", "greedy"};
    qr_model *model = open_model("models/tiny-v41", "cpu", 2);
    qr_model_info info;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    qr_model_get_info(model, &info);
    options.kv_ram_bytes = 64 << 20;
    options.max_model_len = 512;
    options.max_num_seqs = REQUESTS;
    options.method = "dspark";
    const struct weighed match = weigh(model, &options);
    options.verifier = "block";
    for (int i = 0; i < 2; i++) {
        options.draft_sampling = samplings[i];
        const struct weighed more = weigh(model, &options);
        const int64_t laws = REQUESTS * draft_law_bytes(info.vocab_size, DRAFTS, i == 1);
        const int64_t planned = more.planned - match.planned, held = more.held - match.held + laws;
        assert_true(i == 1 || laws > REQUESTS * DRAFTS * (int64_t)sizeof(float) * info.vocab_size);
        if (llabs(planned - held) > 1024)
            fail_msg("%s: %lld more bytes planned, %lld more held", samplings[i], (long long)planned, (long long)held);
    }
    qr_model_close(model);
}

/* Threads take scratch. Handles and vectors of the weights are all that the plan leaves out. */
static void all_that_is_held_is_planned(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    options.kv_ram_bytes = 64 << 20;
    struct weighed few, many;
    for (int i = 0; i < 2; i++) {
        qr_model *model = open_model("models/tiny-v41", "cpu", i ? 8 : 1);
        *(i ? &many : &few) = weigh(model, &options);
        qr_model_close(model);
    }
    assert_true(many.planned > few.planned + 100000);
    assert_true(llabs((many.planned - few.planned) - (many.held - few.held)) < 16384);
    assert_true(few.held >= few.planned);
    assert_true(few.held - few.planned < 3 << 20);
}

struct first_event {
    qr_engine *engine;
    int64_t held; /* bytes at that moment; the engine's thread waits for the callback */
};

static void weigh_and_cancel(void *user, const qr_event *event)
{
    struct first_event *first = user;
    if (event->finish != QR_FINISH_NONE)
        return;
    if (first->held == 0)
        first->held = alloc_live_bytes();
    qr_cancel(first->engine, event->handle);
}

/* Bytes that an engine holds while a request of at most `limit` tokens runs. */
static int64_t held_beside(qr_engine *engine, int32_t limit)
{
    static const int32_t prompt[] = {5, 6, 7};
    struct first_event first = {.engine = engine};
    qr_sampling greedy = QR_SAMPLING;
    qr_request q = QR_REQUEST;
    qr_metrics m = {.size = sizeof m};
    qr_handle handle;
    qr_error err = {0};
    greedy.temperature = 0;
    q.tokens = prompt;
    q.token_count = 3;
    q.sampling = &greedy;
    q.max_tokens = limit - 3;
    q.ignore_eos = true;
    qr_get_metrics(engine, &m);
    const uint64_t before = m.requests_cancelled;
    if (qr_submit(engine, &q, weigh_and_cancel, &first, &handle, &err) != QR_OK)
        fail_msg("%s", err.message);
    while (m.requests_cancelled == before)
        qr_get_metrics(engine, &m);
    assert_true(first.held > 0);
    return first.held;
}

static void a_request_that_runs_takes_what_is_planned_for_it(void **state)
{
    (void)state;
    qr_engine_options options = QR_ENGINE_OPTIONS;
    qr_model *model = open_model("models/tiny-v41", "cpu", 1);
    qr_engine *engine;
    qr_error err = {0};
    options.kv_ram_bytes = 64 << 20;
    if (qr_engine_create(model, &options, &engine, &err) != QR_OK)
        fail_msg("%s", err.message);
    held_beside(engine, 100); /* what the first one makes stays */
    const int64_t held = held_beside(engine, 60000) - held_beside(engine, 1000),
                  planned = engine_request_bytes(60000, 128) - engine_request_bytes(1000, 128);
    if (llabs(held - planned) > 4096)
        fail_msg("59000 tokens more: %lld bytes planned, %lld held", (long long)planned, (long long)held);
    qr_engine_destroy(engine);
    qr_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_grows_grows_by_what_is_planned),
        cmocka_unit_test(what_verifiers_keep_is_planned),
        cmocka_unit_test(all_that_is_held_is_planned),
        cmocka_unit_test(a_request_that_runs_takes_what_is_planned_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
