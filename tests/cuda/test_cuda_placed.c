/* label: release */
/* Engines whose routed experts lie partly in host memory: the same tokens and log probabilities as with all of them on the
 * device, in no more memory than planned, behind a sleep too, and what was used most lies on the device the next time.
 * Without a device: a visible skip. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"

static const char *const models[] = {"models/tiny-v41", "models/tiny-v4"};
enum { MODELS = 2, REPLIES = 4, PROMPT = 90 };

static qr_engine_options options_of(uint64_t expert_memory, const char *use)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.kv_ram_bytes = 64 << 20;
    o.max_model_len = 512;
    o.max_num_seqs = 4;
    o.method = "auto";
    o.expert_memory = expert_memory;
    o.expert_use = use;
    return o;
}

/* Bytes of an expert, as the refusal of fewer says. */
static uint64_t expert_bytes(const char *model)
{
    const qr_engine_options o = options_of(1, NULL);
    qr_model_options m = QR_MODEL_OPTIONS;
    qr_plan_bytes plan;
    qr_error err = {0};
    m.device = "cuda";
    assert_int_equal(qr_plan(source_path(model), &m, &o, &plan, &err), QR_REFUSED);
    const char *at = strstr(err.message, " would do");
    assert_non_null(at);
    while (at[-1] >= '0' && at[-1] <= '9')
        at--;
    return strtoull(at, NULL, 10);
}

static struct reply answer(const struct opened *o, int number)
{
    int32_t tokens[PROMPT];
    qr_request q = QR_REQUEST;
    qr_sampling s = QR_SAMPLING;
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = 3 + (i * 7 + number * 11) % 200;
    s.temperature = number % 2 ? 0.8 : 0;
    s.seed = number;
    q.sampling = &s;
    q.tokens = tokens;
    q.token_count = (size_t)(PROMPT - number * 20);
    q.max_tokens = 24;
    q.ignore_eos = true;
    q.logprobs = 3;
    q.prompt_logprobs = number == 2 ? 2 : -1;
    return reply_of(o, &q);
}

static void all_answers(const struct opened *o, struct reply out[REPLIES])
{
    for (int i = 0; i < REPLIES; i++)
        out[i] = answer(o, i);
}

static void same_answers(struct reply wanted[REPLIES], struct reply found[REPLIES], const char *what)
{
    for (int i = 0; i < REPLIES; i++) {
        assert_same_reply(&wanted[i], &found[i], what);
        reply_free(&found[i]);
    }
}

static qr_metrics metrics_of(const struct opened *o)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(o->engine, &m);
    return m;
}

static void where_experts_lie_changes_no_answer(void **state)
{
    (void)state;
    static const uint64_t counts[] = {1, 5, 24};
    for (int i = 0; i < MODELS; i++) {
        qr_engine_options o = options_of(0, NULL);
        struct opened whole = engine_open(models[i], "cuda", 1, &o);
        struct reply wanted[REPLIES], found[REPLIES];
        const uint64_t each = expert_bytes(models[i]);
        all_answers(&whole, wanted);
        assert_int_equal(metrics_of(&whole).experts_copied, 0);
        engine_close(&whole);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            qr_plan_bytes plan;
            o.expert_memory = counts[c] * each;
            struct opened some = engine_open(models[i], "cuda", 1, &o);
            qr_engine_get_plan(some.engine, &plan);
            assert_int_equal(plan.device_experts + plan.seats, counts[c]);
            for (int again = 0; again < 2; again++) { /* recorded steps, and prompts from the cache */
                all_answers(&some, found);
                same_answers(wanted, found, models[i]);
            }
            const qr_metrics m = metrics_of(&some);
            assert_true(m.experts_copied > 0 && m.expert_bytes == m.experts_copied * each);
            assert_true(m.graphs_replayed > 0);
            assert_true(m.device_bytes_most <=
                        plan.device_weights + plan.device_workspace + plan.pages + plan.states + (32 << 20));
            engine_close(&some);
        }
        for (int r = 0; r < REPLIES; r++)
            reply_free(&wanted[r]);
    }
}

static void a_sleep_leaves_nobody_in_his_seat(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        const qr_engine_options o = options_of(9 * expert_bytes(models[i]), NULL);
        struct opened opened = engine_open(models[i], "cuda", 1, &o);
        struct reply wanted[REPLIES], found[REPLIES];
        qr_error err = {0};
        all_answers(&opened, wanted);
        const qr_metrics before = metrics_of(&opened);
        for (unsigned tags = QR_SLEEP_WEIGHTS; tags <= (QR_SLEEP_WEIGHTS | QR_SLEEP_KV_CACHE); tags++) {
            must(qr_engine_sleep(opened.engine, tags, &err), &err);
            must(qr_engine_wake(opened.engine, tags, &err), &err);
            all_answers(&opened, found);
            same_answers(wanted, found, "behind a sleep");
        }
        assert_int_equal(metrics_of(&opened).device_bytes, before.device_bytes);
        assert_int_equal(metrics_of(&opened).weights_laid, 3 * before.weights_laid);
        for (int r = 0; r < REPLIES; r++)
            reply_free(&wanted[r]);
        engine_close(&opened);
    }
}

static void what_was_used_most_lies_on_the_device_the_next_time(void **state)
{
    (void)state;
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "use.json");
    const qr_engine_options o = options_of(24 * expert_bytes(models[0]), path);
    struct reply wanted[REPLIES], found[REPLIES];
    struct opened first = engine_open(models[0], "cuda", 1, &o);
    all_answers(&first, wanted);
    const qr_metrics before = metrics_of(&first);
    engine_close(&first);
    assert_int_equal(access(path, R_OK), 0);
    struct opened second = engine_open(models[0], "cuda", 1, &o);
    all_answers(&second, found);
    same_answers(wanted, found, "with what was used most on the device");
    const qr_metrics after = metrics_of(&second);
    print_message("%llu experts copied, then %llu\n", (unsigned long long)before.experts_copied,
                  (unsigned long long)after.experts_copied);
    assert_true(after.experts_copied < before.experts_copied);
    engine_close(&second);
    for (int r = 0; r < REPLIES; r++)
        reply_free(&wanted[r]);
    scratch_remove(folder);
}

int main(void)
{
    if (!cuda_device_found())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_experts_lie_changes_no_answer),
        cmocka_unit_test(a_sleep_leaves_nobody_in_his_seat),
        cmocka_unit_test(what_was_used_most_lies_on_the_device_the_next_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
