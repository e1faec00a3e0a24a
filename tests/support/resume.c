#include "support/resume.h"

#include <stdio.h>
#include <string.h>

#include "support/engines.h"
#include "support/scratch.h"
#include "support/support.h"

enum { LONGEST = 1000, ANSWER = 2 };

struct bench {
    struct opened cold, warm; /* without a cache, every layer on every row; with both */
    const struct resume_world *world;
    char *made; /* the folder made for the world, or NULL */
    int32_t tokens[LONGEST];
};

static const char *name_of(const struct resume_world *w) { return w->dir ? w->dir : w->config; }

static void open_both(struct bench *b, const struct resume_world *w)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    b->world = w;
    b->made = w->dir ? NULL : small_folder_of(w->config);
    const char *dir = w->dir ? w->dir : b->made;
    o.block_size = w->block;
    o.kv_cache_dtype = w->kv;
    o.index_cache_dtype = w->index;
    o.max_model_len = 1024;
    o.max_num_batched_tokens = 2048;
    o.no_prefix_caching = true;
    o.decoder_replay = "off";
    b->cold = engine_open(dir, NULL, 1, &o);
    o.no_prefix_caching = false;
    o.decoder_replay = o.encoder_replay = w->encoder_replay;
    o.max_num_seqs = 4;
    o.max_num_batched_tokens = w->rows;
    o.state_checkpoint_interval_tokens = w->block;
    b->warm = engine_open(dir, NULL, 2, &o);
}

/* A prompt whose first `shared` tokens every prompt has; those behind it are its own. */
static qr_request prompt(struct bench *b, int32_t shared, int32_t count, int32_t own, qr_sampling *s)
{
    assert_in_range(count, 1, LONGEST);
    for (int32_t p = 0; p < count; p++)
        b->tokens[p] = 3 + (p < shared ? p * 7 % 97 + p % 5 : (p * 11 + own * 29) % 113);
    *s = (qr_sampling)QR_SAMPLING;
    s->seed = own;
    qr_request q = QR_REQUEST;
    q.tokens = b->tokens;
    q.token_count = (size_t)count;
    q.sampling = s;
    q.max_tokens = ANSWER;
    q.ignore_eos = true;
    q.logprobs = 3;
    return q;
}

static void drop(const struct bench *b, qr_injection what)
{
    assert_int_equal(qr_inject(b->warm.engine, what, 0, 0, NULL), QR_OK);
}

static uint64_t steps_of(const struct bench *b)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(b->warm.engine, &m);
    return m.steps;
}

static void compare(const struct bench *b, const struct reply *cold, qr_handle handle, int32_t cached, const char *how)
{
    char what[200];
    struct reply r = {0};
    reply_rest(&b->warm, handle, &r);
    snprintf(what, sizeof what, "%s: %d tokens, %s, %d cached", name_of(b->world), r.usage.prompt_tokens, how,
             r.usage.cached_tokens);
    if (cached >= 0 && r.usage.cached_tokens != cached)
        fail_msg("%s, wanted %d", what, cached);
    assert_same_reply(cold, &r, what);
    reply_free(&r);
}

static qr_handle submit(const struct bench *b, const qr_request *q)
{
    qr_handle handle;
    qr_error err = {0};
    if (qr_submit(b->warm.engine, q, NULL, NULL, &handle, &err) != QR_OK)
        fail_msg("%s", err.message);
    return handle;
}

static void hold(struct bench *b, int32_t boundary, int32_t suffix)
{
    qr_sampling s;
    const bool copy_mode = b->world->encoder_replay && strcmp(b->world->encoder_replay, "off") == 0;
    const int32_t count = boundary + suffix, whole = (count - 1) / b->world->block * b->world->block;
    qr_request q = prompt(b, boundary, boundary + 1, 0, &s);
    drop(b, QR_INJECT_DROP_CACHE);
    struct reply base = reply_of(&b->warm, &q);
    reply_free(&base);

    q = prompt(b, boundary, count, suffix, &s);
    struct reply cold = reply_of(&b->cold, &q);
    compare(b, &cold, submit(b, &q), copy_mode ? -1 : boundary, "hit");
    compare(b, &cold, submit(b, &q), copy_mode ? -1 : whole, "hit on the whole prompt");
    drop(b, QR_INJECT_DROP_IMAGES);
    compare(b, &cold, submit(b, &q), copy_mode ? 0 : whole, "no image");
    const qr_handle handle = submit(b, &q);
    for (uint64_t n = 2; n < 5; n++)
        qr_inject(b->warm.engine, QR_INJECT_PREEMPT, handle, steps_of(b) + n, NULL);
    const qr_handle first = submit(b, &q);
    q.after = handle;
    const qr_handle second = submit(b, &q);
    compare(b, &cold, handle, -1, "preempted");
    compare(b, &cold, first, -1, "beside it");
    compare(b, &cold, second, -1, "fork");
    reply_free(&cold);
}

void resume_all(const struct resume_world *w, const int32_t *boundaries, int boundary_count, const int32_t *suffixes,
                int suffix_count)
{
    struct bench b;
    open_both(&b, w);
    for (int i = 0; i < boundary_count; i++)
        for (int k = 0; k < suffix_count; k++)
            hold(&b, boundaries[i], suffixes[k]);
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(b.warm.engine, &m);
    print_message("%s: %d hits, %d rerun, %d restored, %d from lower images, %d preempted\n", name_of(w), (int)m.hits,
                  (int)m.hits_rerun, (int)m.hits_restored, (int)m.hits_restored_lower, (int)m.preemptions);
    assert_true(m.hits > 0 && m.preemptions > 0);
    engine_close(&b.warm);
    engine_close(&b.cold);
    if (b.made)
        scratch_remove(b.made);
}
