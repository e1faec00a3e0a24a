/* accept_lives.c: requests that share an engine: turned around, forked, preempted, cancelled, put to sleep (A03 to A08,
 * A26). */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "tools/accept_engine.h"

/* ---- A03 ---- */

/* All three prompts at once, cut into chunks, the order of the running requests turned around before every step. */
static qr_status reversed(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    struct accept_prompt p[3];
    struct accept_answer alone[3], r;
    qr_handle handle[3];
    qr_engine *engine = NULL;
    qr_status st = QR_OK;
    for (int i = 0; st == QR_OK && i < 3; i++) {
        accept_prompt(a, 0, 0, i, a->prompts[i], &p[i]);
        st = accept_alone(a, &p[i], ACCEPT_ANSWER, &alone[i], err);
    }
    if (st == QR_OK)
        st = accept_open(a, &(struct accept_setup){.replay = replay}, &engine, err);
    for (uint64_t later = 1; st == QR_OK && later < 60; later++)
        st = accept_inject(engine, QR_INJECT_REVERSE, 0, later, err);
    for (int i = 0; st == QR_OK && i < 3; i++)
        st = accept_submit(engine, &p[i], ACCEPT_ANSWER, 0, &handle[i], err);
    for (int i = 0; st == QR_OK && i < 3; i++) {
        st = accept_finish(engine, handle[i], &r, err);
        if (st == QR_OK)
            st = accept_same(&alone[i], &r, "turned around", err);
    }
    if (st == QR_OK)
        accept_count(f, "steps", (double)accept_metrics(engine).steps);
    qr_engine_destroy(engine);
    return st;
}

qr_status accept_reversed(struct accept *a, struct accept_figures *f, qr_error *err)
{
    return accept_all_modes(a, f, reversed, err);
}

/* ---- A04 ---- */

/* A prompt of whole pages and two requests that go on from it. */
static qr_status forks(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    const int32_t shared = 3 * a->block;
    const bool copies = strcmp(replay, "off") == 0;
    struct accept_prompt p[3];
    struct accept_answer alone, r;
    qr_handle handle[3] = {0};
    qr_engine *engine;
    qr_status st = accept_open(a, &(struct accept_setup){.replay = replay}, &engine, err);
    if (st != QR_OK)
        return st;
    for (int i = 0; i < 3; i++)
        accept_prompt(a, 0, shared, i, shared + (i ? 1 + 4 * i : 0), &p[i]);
    for (int i = 0; st == QR_OK && i < 3; i++)
        st = accept_submit(engine, &p[i], ACCEPT_ANSWER, i ? handle[0] : 0, &handle[i], err);
    for (int i = 0; st == QR_OK && i < 3; i++) {
        st = accept_finish(engine, handle[i], &r, err);
        if (st == QR_OK)
            st = accept_alone_from(a, &p[i], r.usage.cached_tokens, ACCEPT_ANSWER, &alone, err);
        if (st == QR_OK)
            st = accept_same(&alone, &r, i ? "fork" : "parent", err);
        /* the image of the prompt's end may still be on its way: a fork then starts from one before */
        if (st == QR_OK && i && (r.usage.cached_tokens <= 0 || (!copies && r.usage.cached_tokens != shared)))
            st = qr_fail(err, QR_INTERNAL, "fork %d starts from %d cached tokens of %d", i, r.usage.cached_tokens,
                         shared);
    }
    if (st == QR_OK) {
        const qr_metrics m = accept_metrics(engine);
        accept_count(f, "restored", (double)m.hits_restored);
        accept_count(f, "rerun", (double)m.hits_rerun);
        if (copies ? m.hits_restored < 2 : m.hits < 2)
            st = qr_fail(err, QR_INTERNAL, "%llu forks restored an image and %llu reran, of 2",
                         (unsigned long long)m.hits_restored, (unsigned long long)m.hits_rerun);
    }
    qr_engine_destroy(engine);
    return st;
}

qr_status accept_forks(struct accept *a, struct accept_figures *f, qr_error *err)
{
    TRY(accept_both(a, f, forks, err));
    return accept_bounded(a, true, f, forks, err);
}

/* ---- A05 ---- */

/* The same prompt three times: cold, from what is cached, and behind the loss of all images. */
static qr_status no_images(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    const int32_t count = a->prompts[0] + 5, whole = (count - 1) / a->block * a->block;
    const int32_t wanted[3] = {0, whole, strcmp(replay, "off") == 0 ? 0 : whole};
    struct accept_prompt p;
    struct accept_answer r;
    qr_engine *engine;
    qr_status st = accept_open(a, &(struct accept_setup){.replay = replay}, &engine, err);
    if (st != QR_OK)
        return st;
    accept_prompt(a, 0, 0, 5, count, &p);
    for (int i = 0; st == QR_OK && i < 3; i++) {
        if (i == 2)
            st = accept_inject(engine, QR_INJECT_DROP_IMAGES, 0, 1, err);
        if (st == QR_OK)
            st = accept_agree(a, engine, &p, i == 0 ? "cold" : i == 1 ? "cached" : "without images", &r, err);
        if (st == QR_OK && r.usage.cached_tokens != wanted[i])
            st = qr_fail(err, QR_INTERNAL, "run %d starts from %d cached tokens, wanted %d", i, r.usage.cached_tokens,
                         wanted[i]);
    }
    if (st == QR_OK)
        accept_count(f, "rerun", (double)accept_metrics(engine).hits_rerun);
    qr_engine_destroy(engine);
    return st;
}

qr_status accept_no_images(struct accept *a, struct accept_figures *f, qr_error *err)
{
    TRY(accept_both(a, f, no_images, err));
    return accept_bounded(a, true, f, no_images, err);
}

/* ---- A06 ---- */

/* What a bounded answer is that is preempted behind `steps` steps of its own: its beginning is the cold one's; what follows
 * comes from the prompt and that beginning together, `hit` tokens of them cached. */
static qr_status resumed(struct accept *a, const struct accept_prompt *p, uint64_t steps, struct accept_answer *out,
                         int32_t *hit, qr_error *err)
{
    const uint64_t before = accept_metrics(a->control).steps;
    struct accept_prompt longer = *p;
    struct accept_answer rest;
    TRY(accept_alone_from(a, p, 0, ACCEPT_ANSWER, out, err));
    const uint64_t prefill = accept_metrics(a->control).steps - before - (ACCEPT_ANSWER - 1);
    const int32_t said = steps < prefill ? 0 : (int32_t)(steps - prefill) + 1,
                  done = said > 0 ? p->count + said - 1 : (int32_t)steps * a->cap;
    *hit = done / a->block * a->block;
    for (int32_t i = 0; i < said; i++)
        longer.tokens[longer.count++] = out->tokens[i];
    TRY(accept_alone_from(a, &longer, *hit, ACCEPT_ANSWER - said, &rest, err));
    for (int32_t i = said; i < ACCEPT_ANSWER; i++) {
        out->tokens[i] = rest.tokens[i - said];
        out->logprobs[i] = rest.logprobs[i - said];
    }
    return QR_OK;
}

/* In the middle of its prompt, once it has 64 tokens or more; and again in its answer. */
static qr_status preempt_at(struct accept *a, qr_engine *engine, uint64_t chunks, qr_error *err)
{
    struct accept_prompt p;
    struct accept_answer alone, r;
    qr_handle handle;
    int32_t hit = 0;
    const uint64_t before = accept_metrics(engine).preemptions, rerun = accept_metrics(engine).rows_rerun;
    accept_prompt(a, 0, 0, 6, a->prompts[2], &p);
    TRY(a->bounded ? resumed(a, &p, chunks, &alone, &hit, err) : accept_alone(a, &p, ACCEPT_ANSWER, &alone, err));
    TRY(accept_inject(engine, QR_INJECT_DROP_CACHE, 0, 1, err));
    const uint64_t steps = accept_metrics(engine).steps;
    TRY(accept_submit(engine, &p, ACCEPT_ANSWER, 0, &handle, err));
    TRY(qr_inject(engine, QR_INJECT_PREEMPT, handle, steps + chunks + 1, err));
    TRY(accept_finish(engine, handle, &r, err));
    TRY(accept_same(&alone, &r, "preempted", err));
    if (accept_metrics(engine).preemptions != before + 1)
        return qr_fail(err, QR_INTERNAL, "preempted before step %llu of it: it was not",
                       (unsigned long long)chunks + 1);
    const int32_t back = hit > 0 ? a->block : 0;
    if (a->bounded && accept_metrics(engine).rows_rerun - rerun != (uint64_t)back)
        return qr_fail(err, QR_INTERNAL, "preempted with %d tokens of pages: %llu rows of them are run again, wanted %d", hit,
                       (unsigned long long)(accept_metrics(engine).rows_rerun - rerun), back);
    return accept_returned(engine, "preempted", err);
}

static qr_status preempted(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    const uint64_t first = (uint64_t)((64 + a->cap - 1) / a->cap), whole = (uint64_t)(a->prompts[2] / a->cap);
    qr_engine *engine;
    qr_status st = accept_open(a, &(struct accept_setup){.replay = replay}, &engine, err);
    if (st != QR_OK)
        return st;
    for (uint64_t chunks = first; st == QR_OK && chunks < whole + 3; chunks += chunks < first + 2 ? 1 : whole / 4 + 1)
        st = preempt_at(a, engine, chunks, err);
    const qr_metrics m = accept_metrics(engine);
    accept_count(f, "preempted", (double)m.preemptions);
    accept_count(f, "restored", (double)(m.hits_restored + m.hits_restored_lower));
    accept_count(f, "rerun", (double)m.hits_rerun);
    if (st == QR_OK && strcmp(replay, "off") == 0 && m.hits_restored + m.hits_restored_lower == 0)
        st = qr_fail(err, QR_INTERNAL, "no preempted request started from an image");
    qr_engine_destroy(engine);
    return st;
}

qr_status accept_preempted(struct accept *a, struct accept_figures *f, qr_error *err)
{
    TRY(accept_both(a, f, preempted, err));
    return accept_bounded(a, true, f, preempted, err);
}

/* ---- A07, A08 ---- */

/* A cancelled answer is the beginning of the one that it would have been. */
static qr_status begins_like(const struct accept_answer *alone, const struct accept_answer *r, const char *what,
                             qr_error *err)
{
    if (r->finish != QR_FINISH_CANCELLED)
        return accept_same(alone, r, what, err); /* the cancel came too late */
    for (int32_t i = 0; i < r->count; i++)
        if (i >= alone->count || r->tokens[i] != alone->tokens[i])
            return qr_fail(err, QR_INTERNAL, "%s: token %d before the cancel is %d", what, i, r->tokens[i]);
    return QR_OK;
}

/* Two places for three requests. The long one is cancelled before a step; the one that waits at once, or not. */
static qr_status cancel_at(qr_engine *engine, uint64_t later, const struct accept_prompt p[3],
                           const struct accept_answer alone[3], struct accept_figures *f, qr_error *err)
{
    static const int order[3] = {2, 0, 1};
    struct accept_answer r;
    qr_handle handle[3];
    const uint64_t steps = accept_metrics(engine).steps;
    for (int i = 0; i < 3; i++)
        TRY(accept_submit(engine, &p[order[i]], ACCEPT_ANSWER, 0, &handle[order[i]], err));
    TRY(qr_inject(engine, QR_INJECT_CANCEL, handle[2], steps + later, err));
    if (later % 2)
        qr_cancel(engine, handle[1]);
    for (int i = 0; i < 3; i++) {
        TRY(accept_finish(engine, handle[i], &r, err));
        accept_count(f, "cancelled", r.finish == QR_FINISH_CANCELLED);
        TRY(i == 0 ? accept_same(&alone[i], &r, "beside a cancelled one", err)
                   : begins_like(&alone[i], &r, "cancelled", err));
    }
    return accept_returned(engine, "after a cancel", err);
}

/* The caller cancels when it has `taken` tokens: none comes after, only the end. */
static qr_status cancel_after(qr_engine *engine, const struct accept_prompt *p, int32_t taken, qr_error *err)
{
    qr_handle handle;
    qr_event event;
    struct accept_answer r;
    TRY(accept_submit(engine, p, ACCEPT_TOKENS, 0, &handle, err));
    for (int32_t i = 0; i < taken; i++)
        TRY(qr_poll(engine, handle, -1, &event, err));
    qr_cancel(engine, handle);
    TRY(accept_finish(engine, handle, &r, err));
    if (r.count != 0 || r.finish != QR_FINISH_CANCELLED)
        return qr_fail(err, QR_INTERNAL, "%d tokens came after a cancel, and it ended by %s", r.count,
                       qr_finish_name(r.finish));
    return accept_returned(engine, "after a cancel", err);
}

static qr_status cancel_everywhere(struct accept *a, qr_engine *engine, struct accept_figures *f, qr_error *err)
{
    struct accept_prompt p[3];
    struct accept_answer alone[3];
    const uint64_t chunks = (uint64_t)((a->prompts[2] + a->cap - 1) / a->cap);
    for (int i = 0; i < 3; i++) {
        accept_prompt(a, 0, 0, 7 + i, a->prompts[i], &p[i]);
        TRY(accept_alone(a, &p[i], ACCEPT_ANSWER, &alone[i], err));
    }
    for (uint64_t later = 0; later<chunks + ACCEPT_ANSWER + 2; later += later> 3 && later + 3 < chunks ? chunks / 3 : 1)
        TRY(cancel_at(engine, later, p, alone, f,
                      err)); /* the cache is warm from the second on: restores are cancelled too */
    for (int32_t taken = 0; taken < 6; taken++)
        TRY(cancel_after(engine, &p[0], taken, err));
    return QR_OK;
}

static qr_status cancelled(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    qr_engine *engine;
    qr_status st = accept_open(a, &(struct accept_setup){.replay = replay, .requests = 2}, &engine, err);
    if (st != QR_OK)
        return st;
    st = cancel_everywhere(a, engine, f, err);
    qr_engine_destroy(engine);
    return st;
}

qr_status accept_cancelled(struct accept *a, struct accept_figures *f, qr_error *err)
{
    return accept_all_modes(a, f, cancelled, err);
}

/* One slot: an answer, another request that is cancelled in it, the answer again. */
static qr_status slot_reuse(struct accept *a, const char *replay, struct accept_figures *f, qr_error *err)
{
    struct accept_prompt first, second;
    struct accept_answer r;
    qr_engine *engine;
    qr_status st = accept_open(a, &(struct accept_setup){.replay = replay, .requests = 1}, &engine, err);
    if (st != QR_OK)
        return st;
    accept_prompt(a, 0, 0, 10, a->prompts[0], &first);
    accept_prompt(a, 0, 0, 11, a->prompts[1], &second);
    st = accept_agree(a, engine, &first, "first in its slot", &r, err);
    for (int32_t taken = 0; st == QR_OK && taken < 4; taken++) {
        st = cancel_after(engine, &second, taken, err);
        if (st == QR_OK && taken % 2)
            st = accept_inject(engine, QR_INJECT_DROP_CACHE, 0, 1, err);
        if (st == QR_OK)
            st = accept_agree(a, engine, &first, "in the slot of a cancelled one", &r, err);
        accept_count(f, "reused", 1);
    }
    qr_engine_destroy(engine);
    return st;
}

qr_status accept_slot_reuse(struct accept *a, struct accept_figures *f, qr_error *err)
{
    return accept_all_modes(a, f, slot_reuse, err);
}

/* ---- A26 ---- */

qr_status accept_sleep(struct accept *a, struct accept_figures *f, qr_error *err)
{
    struct accept_prompt p;
    struct accept_answer r;
    qr_engine *engine;
    qr_status st = accept_open(a, &(struct accept_setup){0}, &engine, err);
    if (st != QR_OK)
        return st;
    const qr_metrics before = accept_metrics(engine);
    accept_mode(f, "exact");
    accept_prompt(a, 0, 0, 12, a->prompts[0] + 1, &p);
    st = accept_agree(a, engine, &p, "before the first sleep", &r, err);
    for (unsigned tags = QR_SLEEP_WEIGHTS; st == QR_OK && tags <= (QR_SLEEP_WEIGHTS | QR_SLEEP_KV_CACHE); tags++) {
        st = qr_engine_sleep(engine, tags, err);
        if (st == QR_OK)
            st = qr_engine_wake(engine, tags, err);
        for (int turn = 0; st == QR_OK && turn < 2; turn++) { /* the index is cleared, and fills again */
            st = accept_agree(a, engine, &p, "behind a sleep", &r, err);
            if (st == QR_OK && (r.usage.cached_tokens > 0) != turn)
                st = qr_fail(err, QR_INTERNAL, "run %d behind a sleep starts from %d cached tokens", turn,
                             r.usage.cached_tokens);
        }
        accept_count(f, "sleeps", 1);
    }
    if (st == QR_OK && accept_metrics(engine).blocks_total != before.blocks_total)
        st = qr_fail(err, QR_INTERNAL, "the pool has another size behind a sleep");
    if (st == QR_OK)
        st = accept_returned(engine, "behind a sleep", err);
    qr_engine_destroy(engine);
    return st;
}
