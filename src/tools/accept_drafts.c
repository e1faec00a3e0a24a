/* accept_drafts.c: case A16: drafts, of which every number is right at every step parity, with what may happen between them. */
#include <string.h>

#include "base/alloc.h"
#include "tools/accept_engine.h"
#include "tools/scripted_drafts.h"

enum { PROMPTS = 3, DRAFTED = 24, PARITIES = 2, ASKS_MOST = 40 };

struct drafted {
    struct accept *a;
    qr_engine *engine;
    struct scripted_drafts script;
    struct accept_prompt p[PROMPTS];
    struct accept_answer alone[PROMPTS];
    int32_t whole[PROMPTS][ACCEPT_LONGEST + DRAFTED]; /* prompt and answer */
    struct accept_figures *figures;
};

static void count(struct drafted *d, const struct accept_answer *r)
{
    accept_count(d->figures, "proposed", r->usage.draft_proposed);
    accept_count(d->figures, "accepted", r->usage.draft_accepted);
}

/* The answer is that alone, or where it was cut short a beginning of it. */
static qr_status begins_as(const struct accept_answer *alone, const struct accept_answer *r, const char *what, qr_error *err)
{
    struct accept_answer part = *alone;
    part.count = r->count < alone->count ? r->count : alone->count;
    part.finish = r->finish;
    return accept_same(&part, r, what, err);
}

/* One is preempted with drafts pending, one cancelled behind a verify step, and their order turned around. */
static qr_status disturbed(struct drafted *d, qr_error *err)
{
    qr_handle handle[PROMPTS];
    struct accept_answer r;
    const uint64_t steps = accept_metrics(d->engine).steps, preempted = accept_metrics(d->engine).preemptions;
    for (int i = 0; i < PROMPTS; i++)
        TRY(accept_submit(d->engine, &d->p[i], DRAFTED, 0, &handle[i], err));
    for (uint64_t later = 2; later < 40; later += 3) {
        TRY(qr_inject(d->engine, QR_INJECT_PREEMPT, handle[0], steps + later, err));
        TRY(qr_inject(d->engine, QR_INJECT_REVERSE, 0, steps + later + 1, err));
        TRY(qr_inject(d->engine, QR_INJECT_RELOCATE, handle[2], steps + later + 1, err));
    }
    TRY(qr_inject(d->engine, QR_INJECT_CANCEL, handle[1], steps + 20, err));
    for (int i = 0; i < PROMPTS; i++) {
        TRY(accept_finish(d->engine, handle[i], &r, err));
        TRY((r.finish == QR_FINISH_CANCELLED ? begins_as : accept_same)(&d->alone[i], &r, "with drafts", err));
        count(d, &r);
    }
    if (accept_metrics(d->engine).preemptions == preempted)
        return qr_fail(err, QR_INTERNAL, "no request was preempted: drafted answers show nothing");
    return QR_OK;
}

/* An answer that ends inside a block, by its length and by a stop token, whose place in the block each of them is in turn. */
static qr_status cut_short(struct drafted *d, int32_t tokens, qr_error *err)
{
    const struct accept_answer *alone = &d->alone[0];
    struct accept_answer r;
    qr_handle handle;
    TRY(accept_ask(d->engine, &d->p[0], tokens, &r, err));
    TRY(begins_as(alone, &r, "with drafts, cut by its length", err));
    if (r.count != tokens || r.finish != QR_FINISH_LENGTH)
        return qr_fail(err, QR_INTERNAL, "an answer of %d tokens with drafts has %d and ends by %s", tokens, r.count,
                       qr_finish_name(r.finish));
    const int32_t stop = alone->tokens[tokens - 1];
    int32_t first = 0;
    while (alone->tokens[first] != stop)
        first++;
    TRY(accept_submit_stop(d->engine, &d->p[0], DRAFTED, stop, &handle, err));
    TRY(accept_finish(d->engine, handle, &r, err));
    TRY(begins_as(alone, &r, "with drafts, stopped", err));
    if (r.count != first + 1 || r.finish != QR_FINISH_STOP)
        return qr_fail(err, QR_INTERNAL, "an answer with drafts whose token %d is its end has %d tokens and ends by %s", first,
                       r.count, qr_finish_name(r.finish));
    return QR_OK;
}

/* From what others left in the cache, or with that lost, until everything came up. */
static qr_status ask_until_seen(struct drafted *d, qr_error *err)
{
    struct accept_answer r;
    for (int32_t i = 0; i < ASKS_MOST && (i < 2 || script_missing(&d->script) > 0); i++) {
        if (i % 4 == 3)
            TRY(accept_inject(d->engine, i % 8 == 3 ? QR_INJECT_DROP_IMAGES : QR_INJECT_DROP_CACHE, 0, 1, err));
        TRY(accept_ask(d->engine, &d->p[i % PROMPTS], DRAFTED, &r, err));
        TRY(accept_same(&d->alone[i % PROMPTS], &r, "with drafts, from the cache", err));
        count(d, &r);
    }
    const int32_t missing = script_missing(&d->script);
    if (missing > 0)
        return qr_fail(err, QR_INTERNAL, "of %d parities times numbers of right drafts %d never came up",
                       PARITIES * (d->script.limit + 1), missing);
    accept_count(d->figures, "parities_times_accepted", PARITIES * (d->script.limit + 1));
    return QR_OK;
}

static qr_status with_drafts(struct drafted *d, qr_error *err)
{
    TRY(disturbed(d, err));
    for (int32_t tokens = 2; tokens < 4 + d->script.limit; tokens++)
        TRY(cut_short(d, tokens, err));
    TRY(ask_until_seen(d, err));
    return accept_returned(d->engine, "with drafts", err);
}

static void tell(struct drafted *d)
{
    for (int i = 0; i < PROMPTS; i++) {
        memcpy(d->whole[i], d->p[i].tokens, (size_t)d->p[i].count * sizeof(int32_t));
        memcpy(d->whole[i] + d->p[i].count, d->alone[i].tokens, (size_t)d->alone[i].count * sizeof(int32_t));
        script_tell(&d->script, d->whole[i], d->p[i].count + d->alone[i].count);
    }
}

/* Once with the checkpoint's own drafter, once with drafts that are known to be right and wrong. */
static qr_status of_width(struct drafted *d, int32_t drafts, enum script_mode mode, qr_error *err)
{
    TRY(accept_open(d->a, &(struct accept_setup){.drafts = drafts}, &d->engine, err));
    d->script = (struct scripted_drafts){
        .mode = mode, .vocab = d->a->config.vocab_size, .limit = drafts, .period = PARITIES, .random = (uint64_t)drafts};
    script_install(&d->script, d->engine);
    tell(d);
    const qr_status st = mode == SCRIPT_OWN ? disturbed(d, err) : with_drafts(d, err);
    qr_engine_destroy(d->engine);
    return st;
}

const char *accept_no_drafts(const struct accept *a)
{
    return a->config.drafter == QR_DRAFTER_NONE ? "the checkpoint has no drafter" : NULL;
}

static qr_status every_width(struct drafted *d, qr_error *err)
{
    const int32_t most = geometry_defaults(&d->a->plan).draft_width;
    for (int i = 0; i < PROMPTS; i++) {
        accept_prompt(d->a, 0, 0, 30 + i, d->a->prompts[i < 2 ? i : 0] + i, &d->p[i]);
        TRY(accept_alone(d->a, &d->p[i], DRAFTED, &d->alone[i], err));
    }
    for (int32_t drafts = 1; drafts <= most; drafts++) {
        TRY(of_width(d, drafts, SCRIPT_OWN, err));
        TRY(of_width(d, drafts, SCRIPT_EVERY, err));
    }
    return QR_OK;
}

qr_status accept_drafts(struct accept *a, struct accept_figures *f, qr_error *err)
{
    struct drafted *d = qr_calloc(1, sizeof *d);
    if (!d)
        return qr_fail(err, QR_NO_MEMORY, "no memory for answers with drafts");
    d->a = a;
    d->figures = f;
    accept_mode(f, "exact");
    const qr_status st = every_width(d, err);
    qr_free(d);
    return st;
}
