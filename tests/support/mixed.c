#include "support/mixed.h"

#include <stdio.h>

#include "support/engines.h"

#include "support/support.h"
#include "support/tokenizers.h"

enum { MOST = 500, AT_ONCE = 16, FAMILIES = 5, LONGEST = 320, ANSWER = 6, FORKS = 10 };

struct asked {
    int32_t tokens[LONGEST];
    int32_t count;
    qr_sampling sampling;
    qr_request request;
    bool cancelled;
};

/* Request i: some of a family's tokens, then its own; every third sampled. */
static void ask(int i, struct asked *a)
{
    uint64_t seed = (uint64_t)i;
    const int family = (int)random_below(&seed, FAMILIES);
    const int32_t shared = (int32_t)random_below(&seed, 200), own = 1 + (int32_t)random_below(&seed, i % 10 ? 40 : 120);
    a->count = shared + own;
    for (int32_t p = 0; p < a->count; p++)
        a->tokens[p] = 10 + (p < shared ? p * 7 + family * 3 : (int32_t)random_below(&seed, 1000)) % 200;
    a->sampling = (qr_sampling)QR_SAMPLING;
    a->sampling.temperature = i % 3 ? 0 : 0.9;
    a->sampling.repetition_penalty = i % 9 ? 1 : 1.2;
    a->sampling.seed = i;
    a->request = (qr_request)QR_REQUEST;
    a->request.tokens = a->tokens;
    a->request.token_count = (size_t)a->count;
    a->request.sampling = &a->sampling;
    a->request.max_tokens = 1 + (int32_t)random_below(&seed, 2 * ANSWER);
    a->request.ignore_eos = true;
    a->request.logprobs = 0;
    a->request.prompt_logprobs = i % 50 == 7 ? 0 : -1;
    a->request.priority = i % 7 == 0;
    a->cancelled = i % 11 == 3;
}

static struct opened open_for(const char *dir, int32_t at_once, int32_t rows, const char *method)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.method = method;
    o.max_num_seqs = at_once;
    o.max_model_len = 512;
    o.max_num_batched_tokens = rows;
    o.attn_prefill_chunk_size = rows ? 37 : 0; /* requests share cuts, and lie in several */
    o.state_checkpoint_interval_tokens = 128;
    return engine_open(dir, NULL, 2, &o);
}

static qr_metrics metrics_of(const struct opened *o)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(o->engine, &m);
    return m;
}

static void inject(const struct opened *o, qr_injection what, qr_handle handle, uint64_t at_step)
{
    assert_int_equal(qr_inject(o->engine, what, handle, at_step, NULL), QR_OK);
}

/* Preempted, moved, cancelled somewhere; now and then everyone loses the cache. Request i of few runs about step i / 2; of many
 * with drafts nobody knows when, so that it is preempted every now and then over a long time. */
static void disturb(const struct opened *o, int i, const struct asked *a, qr_handle handle, bool drafts)
{
    for (int later = 2; i % 3 == 1 && later < 16; later += 3)
        inject(o, QR_INJECT_PREEMPT, handle, (uint64_t)(i / 2 + later));
    for (int step = i / 8; drafts && i % 3 == 1 && step < i + 20; step += 4)
        inject(o, QR_INJECT_PREEMPT, handle, (uint64_t)step);
    for (int later = 2; i % 5 == 2 && later < 16; later += 4)
        inject(o, QR_INJECT_RELOCATE, handle, (uint64_t)(i / 2 + later));
    if (a->cancelled)
        inject(o, QR_INJECT_CANCEL, handle, (uint64_t)(i % 2 ? i / 2 + 4 : 0));
    if (i % 40 == 20)
        inject(o, QR_INJECT_DROP_IMAGES, 0, (uint64_t)(20 + i));
    if (i % 80 == 60)
        inject(o, QR_INJECT_DROP_CACHE, 0, (uint64_t)(20 + i));
    if (i % 8 == 0)
        inject(o, QR_INJECT_REVERSE, 0, (uint64_t)(10 + i));
}

static void compare(int i, const struct asked *a, const struct reply *alone, const struct reply *r)
{
    char what[60];
    snprintf(what, sizeof what, "request %d, %d cached", i, r->usage.cached_tokens);
    if (a->cancelled && r->finish == QR_FINISH_CANCELLED) {
        for (size_t n = 0; n < r->count; n++)
            assert_int_equal(r->tokens[n], alone->tokens[n]);
        return;
    }
    assert_same_reply(alone, r, what);
}

int mixed(const char *dir, int requests, const char *method)
{
    static struct asked asked[MOST];
    static struct reply alone[MOST];
    qr_handle handles[MOST];
    struct opened o = open_for(dir, 1, 0, NULL);
    for (int i = 0; i < requests; i++) {
        ask(i, &asked[i]);
        inject(&o, QR_INJECT_DROP_CACHE, 0, 0);
        alone[i] = reply_of(&o, &asked[i].request);
        assert_int_equal(alone[i].usage.cached_tokens, 0);
    }
    engine_close(&o);

    o = open_for(dir, AT_ONCE, 256, method);
    const qr_metrics before = metrics_of(&o);
    for (int i = 0; i < requests; i++) {
        if (i >= FORKS && i % 20 == 10) /* shares its beginning with the one before, wherever that is */
            asked[i].request.after = handles[i - 1];
        assert_int_equal(qr_submit(o.engine, &asked[i].request, NULL, NULL, &handles[i], NULL), QR_OK);
        disturb(&o, i, &asked[i], handles[i], method != NULL);
    }
    int cancelled = 0, right = 0;
    for (int i = 0; i < requests; i++) {
        struct reply r = {0};
        reply_rest(&o, handles[i], &r);
        compare(i, &asked[i], &alone[i], &r);
        cancelled += r.finish == QR_FINISH_CANCELLED;
        right += r.usage.draft_accepted;
        reply_free(&r);
        reply_free(&alone[i]);
    }
    asked[0].request.token_count = asked[0].request.max_tokens = 1;
    inject(&o, QR_INJECT_DROP_CACHE, 0, 0);
    struct reply last = reply_of(&o, &asked[0].request); /* when this is over, the last image has been stored, and dropped */
    reply_free(&last);
    const qr_metrics after = metrics_of(&o);
    print_message("%s: %d cancelled, %d preempted, %d hits: %d rerun, %d restored; %d images\n", dir, cancelled,
                  (int)after.preemptions, (int)after.hits, (int)after.hits_rerun,
                  (int)(after.hits_restored + after.hits_restored_lower), (int)after.images_kept);
    assert_int_equal(after.blocks_free, before.blocks_free);
    assert_int_equal(after.slots_free, before.slots_free);
    assert_in_range(cancelled, requests / 25, requests / 10);
    assert_true(after.preemptions >= (uint64_t)requests / 50); /* drafts leave little time for it */
    assert_true(after.hits >= (uint64_t)requests / 6);
    engine_close(&o);
    return right;
}
