/* accept_soak.c: everything at once, at random, for a number of steps (A23). In a debug build the engine looks at the
 * invariants after every step, and fails the step that breaks one. */
#include <stdio.h>

#include "base/status.h"
#include "tools/accept_engine.h"

enum { PROMPTS = 12, AT_ONCE = 12, ANSWER = 12 };

struct soak {
    struct accept *a;
    qr_engine *engine;
    struct accept_prompt prompt[PROMPTS];
    struct accept_answer alone[PROMPTS];
    struct {
        qr_handle handle;
        int prompt;
        bool fork;
    } live[AT_ONCE];
    int count;
    uint64_t random;
};

static int pick(struct soak *s, int below)
{
    s->random = s->random * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (int)((s->random >> 33) % (uint64_t)below);
}

/* Prompts of three families, some of them the beginning of another. */
static qr_status prepare(struct soak *s, qr_error *err)
{
    const int32_t longest = s->a->prompts[2] < s->a->longest - ANSWER ? s->a->prompts[2] : s->a->longest - ANSWER;
    for (int i = 0; i < PROMPTS; i++) {
        const int32_t shared = pick(s, 4) * s->a->block + pick(s, 9), own = 1 + pick(s, i % 4 ? 40 : 200);
        accept_prompt(s->a, i % 3, shared, 600 + i, shared + own < longest ? shared + own : longest, &s->prompt[i]);
        TRY(accept_alone(s->a, &s->prompt[i], ANSWER, &s->alone[i], err));
    }
    return QR_OK;
}

/* What a fork says stands in its parent's answer, from where its prompt ends. */
static qr_status check_fork(const struct soak *s, int prompt, const struct accept_answer *r, qr_error *err)
{
    const int32_t from = r->usage.prompt_tokens - s->prompt[prompt].count;
    for (int32_t i = 0; i < r->count && from + i < s->alone[prompt].count; i++)
        if (r->tokens[i] != s->alone[prompt].tokens[from + i])
            return qr_fail(err, QR_INTERNAL,
                           "a fork at token %d of an answer goes on with %d at token %d, the answer with %d", from,
                           r->tokens[i], i, s->alone[prompt].tokens[from + i]);
    return QR_OK;
}

static qr_status end_one(struct soak *s, struct accept_figures *f, qr_error *err)
{
    struct accept_answer r;
    const int i = pick(s, s->count), prompt = s->live[i].prompt;
    const bool fork = s->live[i].fork;
    const qr_handle handle = s->live[i].handle;
    s->live[i] = s->live[--s->count];
    TRY(accept_finish(s->engine, handle, &r, err));
    accept_count(f, "cancelled", r.finish == QR_FINISH_CANCELLED);
    accept_count(f, "requests", 1);
    if (fork)
        return check_fork(s, prompt, &r, err);
    if (r.finish != QR_FINISH_CANCELLED)
        return accept_same(&s->alone[prompt], &r, "in the soak", err);
    for (int32_t t = 0; t < r.count; t++)
        if (r.tokens[t] != s->alone[prompt].tokens[t])
            return qr_fail(err, QR_INTERNAL, "in the soak: token %d of a cancelled answer is %d", t, r.tokens[t]);
    return QR_OK;
}

static qr_status start_one(struct soak *s, qr_error *err)
{
    const int prompt = pick(s, PROMPTS);
    const qr_handle after = s->count && pick(s, 4) == 0 ? s->live[pick(s, s->count)].handle : 0;
    TRY(accept_submit(s->engine, &s->prompt[prompt], ANSWER, after, &s->live[s->count].handle, err));
    s->live[s->count].fork = false;
    s->live[s->count++].prompt = prompt;
    return QR_OK;
}

/* The parent may have been cancelled, or the context may be full: no fork then. */
static void fork_one(struct soak *s, struct accept_figures *f)
{
    const int parent = pick(s, s->count);
    const qr_sampling greedy = accept_greedy(&s->prompt[0]);
    qr_request how = QR_REQUEST;
    how.sampling = &greedy;
    how.max_tokens = 3;
    how.ignore_eos = true;
    if (s->live[parent].fork ||
        qr_fork(s->engine, s->live[parent].handle, &how, NULL, NULL, &s->live[s->count].handle, NULL) != QR_OK)
        return;
    s->live[s->count].prompt = s->live[parent].prompt;
    s->live[s->count++].fork = true;
    accept_count(f, "forks", 1);
}

static qr_status disturb(struct soak *s, qr_error *err)
{
    static const qr_injection what[] = {QR_INJECT_PREEMPT,    QR_INJECT_PREEMPT, QR_INJECT_RELOCATE,
                                        QR_INJECT_REVERSE,    QR_INJECT_REVERSE, QR_INJECT_DROP_IMAGES,
                                        QR_INJECT_DROP_CACHE, QR_INJECT_CANCEL};
    const qr_handle handle = s->live[pick(s, s->count)].handle;
    return accept_inject(s->engine, what[pick(s, sizeof what / sizeof *what)], handle, (uint64_t)pick(s, 6), err);
}

/* Half of the steps: there are two modes. More of them where chance has preempted nobody yet, four times as many at most. */
static bool goes_on(const struct soak *s)
{
    const qr_metrics m = accept_metrics(s->engine);
    const int64_t wanted = (s->a->soak_steps + 1) / 2;
    return (int64_t)m.steps < wanted || ((m.preemptions == 0 || m.hits == 0) && (int64_t)m.steps < 4 * wanted);
}

static qr_status run(struct soak *s, struct accept_figures *f, qr_error *err)
{
    while (goes_on(s)) {
        if (s->count < AT_ONCE && (s->count < 3 || pick(s, 2)))
            TRY(start_one(s, err));
        if (s->count < AT_ONCE && pick(s, 5) == 0)
            fork_one(s, f);
        for (int i = pick(s, 3); i > 0; i--)
            TRY(disturb(s, err));
        if (s->count == AT_ONCE || pick(s, 3) == 0)
            TRY(end_one(s, f, err));
    }
    while (s->count > 0)
        TRY(end_one(s, f, err));
    return accept_returned(s->engine, "after the soak", err);
}

static qr_status soak(struct soak *s, const char *replay, struct accept_figures *f, qr_error *err)
{
    qr_status st = accept_open(s->a, &(struct accept_setup){.replay = replay}, &s->engine, err);
    if (st == QR_OK)
        st = run(s, f, err);
    if (st == QR_OK) {
        const qr_metrics m = accept_metrics(s->engine);
        accept_count(f, "steps", (double)m.steps);
        accept_count(f, "hits", (double)m.hits);
        accept_count(f, "restored", (double)(m.hits_restored + m.hits_restored_lower));
        accept_count(f, "preempted", (double)m.preemptions);
        if (m.hits == 0 || m.preemptions == 0)
            st = qr_fail(err, QR_INTERNAL, "%llu hits and %llu preemptions: the soak shows nothing",
                         (unsigned long long)m.hits, (unsigned long long)m.preemptions);
    }
    qr_engine_destroy(s->engine);
    return st;
}

qr_status accept_soak(struct accept *a, struct accept_figures *f, qr_error *err)
{
    static const char *const modes[] = {"exact", "off"};
    struct soak s = {.a = a, .random = 23};
    TRY(prepare(&s, err));
    for (int i = 0; i < 2; i++) {
        qr_error found = {0};
        accept_mode(f, modes[i]);
        const qr_status st = soak(&s, modes[i], f, &found);
        if (st != QR_OK)
            return qr_fail(err, st, "replay %s: %s", modes[i], found.message);
    }
    return QR_OK;
}
