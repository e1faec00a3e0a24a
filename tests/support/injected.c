#include "support/injected.h"

#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "support/engines.h"
#include "support/support.h"
#include "support/tokenizers.h"
#include "tools/scripted_drafts.h"

enum { REQUESTS = 5, ANSWER = 30, LONGEST = 200, ROWS = 40, VOCABULARY = 512 };

struct asked {
    int32_t tokens[LONGEST + ANSWER]; /* with the answer that it has alone */
    int32_t prompt;
    qr_sampling sampling;
    qr_request request;
    struct reply alone;
};

struct world {
    const char *folder, *method;
    int32_t width, vocab;
    int32_t nameless[VOCABULARY], nameless_count; /* ids that the tokenizer has no token for */
    struct asked asked[REQUESTS];
};

/* Request 3 is a prompt of several steps; 2 and 4 are drawn; 4 ends at a token of its answer. */
static void ask(struct world *w, int i)
{
    struct asked *a = &w->asked[i];
    uint64_t seed = 40 + (uint64_t)i;
    a->prompt = i == 3 ? LONGEST : 30 + 7 * i;
    for (int32_t p = 0; p < a->prompt; p++)
        a->tokens[p] = 10 + (int32_t)random_below(&seed, 200);
    a->sampling = (qr_sampling)QR_SAMPLING;
    a->sampling.temperature = i % 2 || i == 0 ? 0 : 0.8;
    a->sampling.top_p = i == 2 ? 0.9 : 1;
    a->sampling.frequency_penalty = i == 4 ? 0.3 : 0;
    a->sampling.repetition_penalty = i == 1 ? 1.2 : 1;
    a->sampling.seed = 7 + i;
    a->sampling.banned = w->nameless;
    a->sampling.banned_count = (size_t)w->nameless_count;
    a->request = (qr_request)QR_REQUEST;
    a->request.tokens = a->tokens;
    a->request.token_count = (size_t)a->prompt;
    a->request.sampling = &a->sampling;
    a->request.max_tokens = ANSWER - 3 * i;
    a->request.ignore_eos = true;
    a->request.logprobs = 2;
    a->request.prompt_logprobs = i == 1 ? 0 : -1;
}

static struct opened open_for(const struct world *w, bool drafts)
{
    qr_engine_options o = QR_ENGINE_OPTIONS;
    o.method = drafts ? w->method : "none";
    o.num_speculative_tokens = drafts ? w->width : 0;
    o.max_num_seqs = drafts ? 3 : 1;
    o.max_num_batched_tokens = drafts ? ROWS : 0; /* prompts come in parts beside verify rows */
    o.max_model_len = 384;
    return engine_open_ids(w->folder, 1, &o);
}

static void open_world(struct world *w)
{
    struct opened o = open_for(w, false);
    w->vocab = o.engine->model->config.vocab_size;
    for (int32_t id = tok_count(o.model->tokenizer); id < w->vocab; id++)
        w->nameless[w->nameless_count++] = id;
    for (int i = 0; i < REQUESTS; i++) {
        struct asked *a = &w->asked[i];
        ask(w, i);
        a->alone = reply_of(&o, &a->request);
        assert_int_equal(a->alone.count, a->request.max_tokens);
        memcpy(a->tokens + a->prompt, a->alone.tokens, a->alone.count * sizeof(int32_t));
    }
    engine_close(&o);
}

static void close_world(struct world *w)
{
    for (int i = 0; i < REQUESTS; i++)
        reply_free(&w->asked[i].alone);
}

static struct opened open_scripted(struct world *w, struct scripted_drafts *s, enum script_mode mode, int32_t wrong_at)
{
    struct opened o = open_for(w, true);
    *s = (struct scripted_drafts){.mode = mode,
                                  .wrong_at = wrong_at,
                                  .vocab = w->vocab,
                                  .limit = w->width,
                                  .period = 2,
                                  .ragged = mode == SCRIPT_RANDOM,
                                  .random = 3};
    for (int i = 0; i < REQUESTS; i++)
        script_tell(s, w->asked[i].tokens, w->asked[i].prompt + (int32_t)w->asked[i].alone.count);
    script_install(s, o.engine);
    return o;
}

static void inject(const struct opened *o, qr_injection what, qr_handle handle, uint64_t at_step)
{
    assert_int_equal(qr_inject(o->engine, what, handle, at_step, NULL), QR_OK);
}

/* All at once over three places: turned around before each step, the first preempted while it decodes, the long one while its
 * prompt runs, another moved; a sixth, a copy of the second, is cancelled beside them. */
static void together(struct world *w, const struct opened *o, const char *what)
{
    qr_handle handles[REQUESTS], victim;
    for (int i = 0; i < REQUESTS; i++)
        assert_int_equal(qr_submit(o->engine, &w->asked[i].request, NULL, NULL, &handles[i], NULL), QR_OK);
    assert_int_equal(qr_submit(o->engine, &w->asked[1].request, NULL, NULL, &victim, NULL), QR_OK);
    for (uint64_t step = 2; step < 40; step++)
        inject(o, QR_INJECT_REVERSE, 0, step);
    for (uint64_t step = 4; step < 30; step += 5) {
        inject(o, QR_INJECT_PREEMPT, handles[0], step);
        inject(o, QR_INJECT_PREEMPT, handles[3], step + 1);
        inject(o, QR_INJECT_RELOCATE, handles[2], step + 2);
    }
    inject(o, QR_INJECT_CANCEL, victim, 12);
    for (int i = 0; i < REQUESTS; i++) {
        struct reply r = {0};
        char name[120];
        snprintf(name, sizeof name, "%s, %d drafts, request %d", what, (int)w->width, i);
        reply_rest(o, handles[i], &r);
        assert_same_reply(&w->asked[i].alone, &r, name);
        reply_free(&r);
    }
    struct reply r = {0};
    reply_rest(o, victim, &r);
    for (size_t i = 0; i < r.count; i++)
        assert_int_equal(r.tokens[i], w->asked[1].alone.tokens[i]);
    reply_free(&r);
}

static void assert_returned(const struct opened *o)
{
    qr_metrics m = {.size = sizeof m};
    qr_get_metrics(o->engine, &m);
    assert_int_equal(m.slots_free, m.slots_total);
    assert_int_equal(m.blocks_free, m.blocks_total);
}

static void with_mode(struct world *w, enum script_mode mode, int32_t wrong_at)
{
    static const char *const names[] = {"every number right", "all right", "one wrong", "any", "its own"};
    struct scripted_drafts s;
    struct opened o = open_scripted(w, &s, mode, wrong_at);
    together(w, &o, names[mode]);
    assert_returned(&o);
    if (mode != SCRIPT_RANDOM)
        assert_true(s.steps > 5);
    engine_close(&o);
}

/* Every number of right drafts at both parities; then an answer that ends at each place of a block, by length and by stop. */
static void every_place(struct world *w)
{
    struct scripted_drafts s;
    struct opened o = open_scripted(w, &s, SCRIPT_EVERY, 0);
    together(w, &o, "every number right");
    for (int turn = 0; turn < 30 && script_missing(&s) > 0; turn++) {
        struct reply r = reply_of(&o, &w->asked[turn % REQUESTS].request); /* from the cache */
        assert_same_reply(&w->asked[turn % REQUESTS].alone, &r, "again");
        reply_free(&r);
    }
    assert_int_equal(script_missing(&s), 0);
    s.mode = SCRIPT_RIGHT; /* nothing runs now */
    for (int32_t end = 1; end < 3 + w->width; end++) {
        const struct asked *a = &w->asked[0];
        const int32_t stop = a->alone.tokens[end];
        int32_t first = 0;
        while (a->alone.tokens[first] != stop)
            first++;
        for (int by_stop = 0; by_stop < 2; by_stop++) {
            qr_request q = a->request;
            q.stop_tokens = &stop;
            q.stop_token_count = by_stop ? 1 : 0;
            q.max_tokens = by_stop ? ANSWER : end;
            struct reply r = reply_of(&o, &q);
            assert_int_equal(r.count, by_stop ? first + 1 : end);
            assert_int_equal(r.finish, by_stop ? QR_FINISH_STOP : QR_FINISH_LENGTH);
            assert_memory_equal(r.tokens, a->alone.tokens, r.count * sizeof *r.tokens);
            assert_memory_equal(r.logprobs, a->alone.logprobs, r.count * sizeof *r.logprobs);
            reply_free(&r);
        }
    }
    assert_returned(&o);
    engine_close(&o);
}

void injected(const char *folder, const char *method, int32_t width, int32_t places)
{
    struct world w = {.folder = folder, .method = method, .width = width};
    open_world(&w);
    every_place(&w);
    with_mode(&w, SCRIPT_RANDOM, 0);
    for (int32_t slot = 0; slot < width && slot < places; slot++)
        with_mode(&w, SCRIPT_WRONG_AT, slot);
    if (places > 1)
        with_mode(&w, SCRIPT_RIGHT, 0);
    close_world(&w);
}
