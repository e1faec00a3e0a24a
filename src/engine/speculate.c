#include "engine/speculate.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/constraint.h"
#include "engine/draft_budget.h"
#include "engine/draft_record.h"
#include "engine/engine.h"

/* A span of the step just run. */
struct noted {
    struct sched_request *request;
    int32_t first_row, first_position;
    int32_t key_from; /* first position whose streams the step has for the drafter */
    bool kept;        /* MTP: the row before its first, from streams that an image brought; the token behind it is its own */
    bool draftless;   /* its rows left nothing for the drafter */
    bool drafts;      /* it shall draft for the next step */
};

struct speculation {
    struct qr_engine *engine;
    struct draft_choice choice;
    struct noted *noted; /* [max_requests] */
    int32_t noted_count;
    struct payoff payoff;
    int32_t proposed, rows;        /* of the pass in hand; rows: of MTP */
    struct payoff_request **asked; /* [max_requests] of those that could draft */
    bool *pays;                    /* [max_requests] what came of it */
    struct task **drafting;        /* [max_requests] in the pass in hand */
    int32_t *drafts;         /* [max_requests][limit] */
    int32_t *made;           /* [max_requests] drafts of each */
    int32_t others;          /* that decode and draft nothing */
    struct draft_offer *offers; /* [max_requests] of the pass in hand */
    struct draft_record *record; /* NULL: no profile is measured */
    int32_t *before;         /* [max_requests] what stands before the slot in hand */
    struct block_draft *blocks; /* DSpark: [max_requests] */
    struct draft_span *spans;   /* MTP: [max_requests] */
    int32_t *tokens, *sources;  /* MTP: [max_rows] */
    struct draft_hook hook;
    bool warned;
};

/* The counters of the engine, whose lock is held until unlock_counts. */
static struct draft_counts *lock_counts(struct speculation *s)
{
    pthread_mutex_lock(&s->engine->lock);
    return &s->engine->drafts;
}

static void unlock_counts(struct speculation *s) { pthread_mutex_unlock(&s->engine->lock); }

/* ---- sizes ---- */

int32_t speculation_draft_rows(const struct draft_choice *c, int32_t requests, int32_t step_rows)
{
    return c->drafter == QR_DRAFTER_DSPARK ? requests * c->width : c->drafter == QR_DRAFTER_MTP ? step_rows : 0;
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

int32_t speculation_step_rows(const struct draft_choice *c, int32_t requests)
{
    return larger(requests * (c->limit + 1) + 1, requests * c->width); /* one is left for a prompt */
}

int32_t speculation_step_logits(const struct draft_choice *c, int32_t requests)
{
    return larger(requests * (c->limit + 1), requests * c->width);
}

/* ---- memory ---- */

int64_t speculation_bytes_for(const struct draft_choice *c, int32_t requests, int32_t step_rows)
{
    const int64_t word = (int64_t)sizeof(int32_t);
    const int64_t each = (int64_t)(sizeof(struct noted) + 2 * sizeof(struct task *) + sizeof(struct block_draft) +
                                   sizeof(struct draft_offer) + sizeof(struct draft_span) + sizeof(bool)) + (c->limit + 2) * word;
    return c->drafter == QR_DRAFTER_NONE ? 0 : (int64_t)sizeof(struct speculation) + requests * each + 2 * (int64_t)step_rows * word;
}

static qr_status allocate(struct speculation *s, int32_t rows, qr_error *err)
{
    const size_t requests = (size_t)s->engine->max_requests;
    s->noted = qr_calloc(requests, sizeof *s->noted);
    s->asked = qr_calloc(requests, sizeof *s->asked);
    s->pays = qr_calloc(requests, sizeof *s->pays);
    s->drafting = qr_calloc(requests, sizeof *s->drafting);
    s->drafts = qr_calloc(requests * (size_t)s->choice.limit, sizeof *s->drafts);
    s->made = qr_calloc(requests, sizeof *s->made);
    s->before = qr_calloc(requests, sizeof *s->before);
    s->offers = qr_calloc(requests, sizeof *s->offers);
    s->blocks = qr_calloc(requests, sizeof *s->blocks);
    s->spans = qr_calloc(requests, sizeof *s->spans);
    s->tokens = qr_calloc((size_t)rows, sizeof *s->tokens);
    s->sources = qr_calloc((size_t)rows, sizeof *s->sources);
    return s->noted && s->asked && s->pays && s->drafting && s->drafts && s->made && s->before && s->offers && s->blocks && s->spans && s->tokens &&
                   s->sources
               ? QR_OK
               : qr_fail(err, QR_NO_MEMORY, "no memory for drafts of %zu requests", requests);
}

qr_status speculation_open(struct qr_engine *engine, const struct draft_choice *choice, struct speculation **out,
                           qr_error *err)
{
    if (choice->drafter == QR_DRAFTER_NONE)
        return QR_OK;
    struct speculation *s = qr_calloc(1, sizeof *s);
    if (!s)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a record of drafts");
    s->engine = engine;
    s->choice = *choice;
    s->payoff.window = engine->model->config.sliding_window;
    qr_status st = allocate(s, engine->max_rows, err);
    if (st != QR_OK) {
        speculation_close(s);
        return st;
    }
    *out = s;
    return QR_OK;
}

void speculation_close(struct speculation *s)
{
    if (!s)
        return;
    qr_free(s->noted);
    qr_free(s->asked);
    qr_free(s->pays);
    qr_free(s->drafting);
    qr_free(s->drafts);
    qr_free(s->made);
    qr_free(s->before);
    qr_free(s->offers);
    qr_free(s->blocks);
    qr_free(s->spans);
    qr_free(s->tokens);
    qr_free(s->sources);
    qr_free(s);
}

/* ---- a step ---- */

void speculation_pass(struct speculation *s)
{
    if (!s || !s->choice.rests)
        return;
    int without = -1; /* not known: nobody waits in most passes */
    for (struct task *t = s->engine->tasks; t; t = t->next)
        if (t->r && (t->sched->state == SCHED_WAITING || t->sched->state == SCHED_HELD)) {
            if (without < 0)
                without = payoff_starts_without(&s->payoff, s->choice.limit);
            t->sched->draftless = without;
        }
}

void speculation_note(struct speculation *s, const struct batch *batch, double seconds)
{
    const int32_t layers = s ? s->engine->model->plan.layers : 0;
    int32_t row = 0, prefill = 0, drafts = 0;
    if (!s)
        return;
    s->noted_count = batch->count;
    for (int32_t b = 0; b < batch->count; b++) {
        const struct batch_span *span = &batch->spans[b];
        const int32_t from = span->rows ? span->rows->layer[layers].key : 0;
        const bool kept = s->choice.drafter == QR_DRAFTER_MTP && span->restored && span->place && from <= span->first_position;
        s->noted[b] = (struct noted){.request = sched_span_request(s->engine->sched, b),
                                     .first_row = row,
                                     .first_position = span->first_position,
                                     .key_from = larger(from, span->first_position) - kept,
                                     .kept = kept,
                                     .draftless = span->draftless};
        row += span->count;
        prefill += span->rows != NULL;
        drafts += span->drafts;
    }
    if (drafts > 0) {
        draft_counts_step(lock_counts(s), seconds);
        unlock_counts(s);
    }
    if (prefill == 0 && row > 0)
        payoff_step(&s->payoff, batch->count, row, seconds);
    if (prefill == 0 && s->record)
        draft_record_step(s->record, row, seconds);
}

void speculation_record(struct speculation *s, struct draft_record *record) { s->record = record; }

void speculation_verified(struct speculation *s, struct task *t, int32_t verified, int32_t right)
{
    struct calibration_sample sample = {.verified = verified, .accepted = right};
    memcpy(sample.logits, t->drafts.logits, sizeof sample.logits);
    if (s->record && t->drafts.rated)
        draft_record_sample(s->record, &sample);
    payoff_verified(&s->payoff, &t->payoff, right);
}

/* The request still stands where the step left it, with the next token drawn; and as many drafts could be verified. */
static bool may_draft(const struct sched_request *r, int32_t drafts)
{
    return r->state == SCHED_DECODE && !r->cancelled && r->count == r->done + 1 && r->count + drafts < r->limit;
}

/* What drafts are drawn by. Penalties are left out: they only decide how often draft and target agree. */
static struct sampling_params draft_params(const struct speculation *s, const struct task *t)
{
    struct sampling_params params = t->r->sampling;
    params.repetition_penalty = 1;
    params.frequency_penalty = params.presence_penalty = 0;
    if (s->choice.sampling == DRAFT_GREEDY)
        params.temperature = 0;
    return params;
}

/* Logits of request i of the pass on the host, until the next call. */
static qr_status whole_row(struct speculation *s, int32_t i, const float **out, qr_error *err)
{
    if (s->choice.drafter == QR_DRAFTER_DSPARK)
        return block_drafts_logits(runner_blocks(s->engine->runner), i, out, err);
    return engine_logits(s->engine, i, out, err);
}

/* From a law that is kept. */
static bool draw_by_law(struct speculation *s, struct task *t, const struct sampling_params *params,
                        const struct sampling_row *row, int32_t k, int32_t *out)
{
    struct sampler_scratch *sampler = s->engine->sampler;
    struct distribution d;
    qr_error err;
    if (k == 0)
        draft_law_begin(t->law, t->sched->count);
    if (sampling_distribution(params, row, sampler, &d, &err) != QR_OK)
        return false;
    sampling_round(sampler);
    *out = draft_law_draw(t->law, &d, params->seed);
    return true;
}

/* The drafter's word for draft k of request i of the pass: with what the target will draw there (2.8 coupled), greedily, or from
 * a law. *drawn false: its row cannot be drawn from. */
static qr_status draw(struct speculation *s, int32_t i, int32_t k, int32_t *out, bool *drawn, qr_error *err)
{
    struct task *t = s->drafting[i];
    struct sampler_scratch *sampler = s->engine->sampler;
    const struct sampling_params params = draft_params(s, t);
    const int64_t position = t->sched->count + k;
    struct id_list banned[TASK_BANS];
    struct sampling_row row = {.banned = banned, .banned_lists = task_bans(t, t->made + k, banned)};
    qr_error why;
    *drawn = !t->law && shortlists_draw(s->engine->lists, i, &params, &row, position, sampler, out);
    if (*drawn)
        return QR_OK;
    TRY(whole_row(s, i, &row.logits, err));
    *drawn = t->law ? draw_by_law(s, t, &params, &row, k, out)
                    : sampling_draw(&params, &row, position, sampler, out, &why) == QR_OK;
    return QR_OK;
}

/* Finds the likeliest ids for draft k of those of the pass that still draft; row i of `rows` is request i's. */
static qr_status find_lists(struct speculation *s, int32_t k, int32_t count, const struct block_rows *rows, qr_error *err)
{
    struct shortlists *lists = s->engine->lists;
    shortlists_clear(lists);
    for (int32_t i = 0; lists && i < count; i++) {
        const struct task *t = s->drafting[i];
        const struct sampling_params params = draft_params(s, t);
        if (s->made[i] >= k && !t->law)
            shortlists_want(lists, i, &params, t->sched->count + k, (int32_t)(rows->first + i * rows->step), i);
    }
    return shortlists_find(lists, rows->logits, rows->bias, err);
}

void speculation_hook(struct speculation *s, const struct draft_hook *hook) { s->hook = *hook; }

/* A draft that a request's grammar forbids could not be right, nor one behind it: no row is spent on them (4.7). */
static int32_t fitting(const struct speculation *s, int32_t i)
{
    return constraint_fitting(s->drafting[i]->constraint, s->drafts + (int64_t)i * s->choice.limit, s->made[i]);
}

/* How many drafts of each request of the pass the next step verifies: all that fit without a profile. */
static void choose_lengths(struct speculation *s, int32_t count)
{
    const int32_t turn = s->record ? draft_record_length(s->record, s->choice.limit) : 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t fit = fitting(s, i);
        s->offers[i] = (struct draft_offer){.survival = s->drafting[i]->drafts.survival, .made = fit, .length = fit};
    }
    if (s->choice.scheduled)
        draft_budget(&s->choice.profile, s->offers, count, s->others);
    for (int32_t i = 0; s->record && i < count; i++)
        s->offers[i].length = turn < s->offers[i].made ? turn : s->offers[i].made;
}

static void propose(struct speculation *s, int32_t count)
{
    choose_lengths(s, count);
    for (int32_t i = 0; i < count; i++) {
        struct task_drafts *told = &s->drafting[i]->drafts;
        int32_t length = s->offers[i].length;
        int32_t *drafts = s->drafts + (int64_t)i * s->choice.limit;
        if (s->hook.replace) {
            s->made[i] = s->hook.replace(s->hook.user, s->drafting[i]->sched, drafts, s->made[i], s->choice.limit);
            s->offers[i].made = length = fitting(s, i);
        }
        if (length > 0)
            sched_draft(s->engine->sched, s->drafting[i]->sched, drafts, length);
        else if (s->made[i] > 0)
            told->rest = s->offers[i].made > 0 ? QR_REST_CONFIDENCE : QR_REST_GRAMMAR;
        told->proposed = s->made[i];
        told->rated &= !s->hook.replace;
        s->proposed += s->made[i];
    }
}

/* The task of a span whose request could draft; NULL. */
static struct task *could_draft(const struct speculation *s, const struct noted *n)
{
    struct task *t = n->request ? n->request->owner : NULL;
    return t && t->r && may_draft(n->request, s->choice.least) ? t : NULL;
}

/* A window of rows of the drafter's rings below the next token is not there yet. */
static bool lacks_rows(const struct speculation *s, const struct sched_request *r)
{
    return r->draft_gap > 0 && r->done < r->draft_gap + s->payoff.window;
}

/* Why a task drafts nothing; once it has drafts that is forgotten. */
static qr_rest why_not(const struct speculation *s, bool could, bool drafts)
{
    if (drafts)
        return QR_REST_LOST; /* until there are some */
    return !could ? QR_REST_END : payoff_known(&s->payoff) ? QR_REST_COST : QR_REST_TIMES;
}

/* The automatic setting's for one that could draft. */
static void take_choice(struct speculation *s, struct noted *n, struct payoff_request *payoff)
{
    if (s->hook.choose)
        s->hook.choose(s->hook.user, n->request, &n->drafts, &payoff->spares_rows);
    n->drafts = n->drafts && !payoff->lacks_rows;
    n->request->draftless = payoff->spares_rows && !n->drafts;
}

/* Of those that could, the ones that shall (6.8), and why the others do not. Returns how many. */
static int32_t choose(struct speculation *s)
{
    int32_t count = 0, chosen = 0;
    s->others = 0;
    for (int32_t b = 0; b < s->noted_count; b++) {
        struct task *t = could_draft(s, &s->noted[b]);
        if (t) {
            t->payoff.lacks_rows = lacks_rows(s, t->sched);
            s->asked[count++] = &t->payoff;
        }
    }
    for (int32_t i = 0; i < count; i++)
        s->pays[i] = true;
    if (s->choice.rests)
        payoff_choose(&s->payoff, s->asked, count, s->choice.limit, s->pays);
    count = 0;
    for (int32_t b = 0; b < s->noted_count; b++) {
        struct noted *n = &s->noted[b];
        struct task *t = n->request ? n->request->owner : NULL;
        const bool could = could_draft(s, n);
        n->drafts = could && s->pays[count++];
        if (could && s->choice.rests)
            take_choice(s, n, &t->payoff);
        chosen += n->drafts;
        s->others += !n->drafts && n->request && n->request->state == SCHED_DECODE;
        if (t)
            t->drafts = (struct task_drafts){.rest = why_not(s, could, n->drafts)};
    }
    return chosen;
}

/* ---- DSpark ---- */

/* What the drafter thinks of draft k of request i of the pass, and of all before it. */
static void rate(struct speculation *s, int32_t k, int32_t i)
{
    struct task_drafts *d = &s->drafting[i]->drafts;
    const double logit = block_drafts_confidence(runner_blocks(s->engine->runner), i);
    const double tau = s->choice.scheduled ? s->choice.profile.taus[k] : 1;
    d->logits[k] = (float)logit;
    d->survival[k] = (k > 0 ? d->survival[k - 1] : 1) * calibration_confidence(logit, tau);
    d->rated = true;
}

/* Slot k of every block, behind what stands before it. A request whose row cannot be drawn from ends its drafts there. */
static qr_status next_slot(struct speculation *s, int32_t k, int32_t count, qr_error *err)
{
    struct runner *runner = s->engine->runner;
    TRY(runner_block_next(runner, k, s->before, err));
    const struct block_rows rows = block_drafts_rows(runner_blocks(runner));
    TRY(find_lists(s, k, count, &rows, err));
    for (int32_t i = 0; i < count; i++) {
        int32_t *draft = s->drafts + (int64_t)i * s->choice.limit + k;
        bool drawn = false;
        rate(s, k, i);
        if (s->made[i] == k)
            TRY(draw(s, i, k, draft, &drawn, err));
        if (!drawn)
            continue;
        s->made[i] = k + 1;
        s->before[i] = *draft;
    }
    return QR_OK;
}

static qr_status draft_blocks(struct speculation *s, qr_error *err)
{
    int32_t count = 0;
    for (int32_t b = 0; b < s->noted_count; b++) {
        const struct sched_request *r = s->noted[b].request;
        if (!s->noted[b].drafts)
            continue;
        s->blocks[count] = (struct block_draft){.slot = r->slot, .position = r->done, .anchor = r->tokens[r->done],
                                                .valid_from = r->draft_from};
        s->before[count] = r->tokens[r->done];
        s->made[count] = 0;
        s->drafting[count++] = r->owner;
    }
    if (count == 0)
        return QR_OK;
    TRY(runner_block_draft(s->engine->runner, s->blocks, count, NULL, err));
    for (int32_t k = 0; k < s->choice.limit; k++)
        TRY(next_slot(s, k, count, err));
    propose(s, count);
    return QR_OK;
}

/* ---- MTP ---- */

/* The rows of a span that the MTP layer runs on, with the token that follows each; false: none. */
static bool serial_span(struct speculation *s, const struct noted *n, int32_t used, struct draft_span *out)
{
    const struct sched_request *r = n->request;
    const int32_t end = r && r->slot >= 0 ? r->done : 0; /* one that has ended keeps its slot until its image is stored */
    if (n->draftless || end <= n->key_from || end >= r->count) /* gone, or the tokens behind it are not known */
        return false;
    if (used + end - n->key_from > s->engine->max_rows) /* rows that images brought may be more than a step has room for */
        return false;
    *out = (struct draft_span){.slot = r->slot,
                               .first_position = n->key_from,
                               .count = end - n->key_from,
                               .tokens = s->tokens + used,
                               .sources = s->sources + used};
    for (int32_t i = 0; i < out->count; i++) {
        s->tokens[used + i] = r->tokens[n->key_from + i + 1];
        s->sources[used + i] = n->first_row + n->key_from - n->first_position + i;
    }
    if (n->kept)
        s->sources[used] = -1;
    out->logits_from = n->drafts ? out->count - 1 : out->count;
    return true;
}

static qr_status draft_serially(struct speculation *s, qr_error *err)
{
    int32_t spans = 0, rows = 0, count = 0;
    for (int32_t b = 0; b < s->noted_count; b++) {
        struct draft_span *span = &s->spans[spans];
        if (!serial_span(s, &s->noted[b], rows, span))
            continue;
        rows += span->count;
        spans++;
        if (span->logits_from < span->count)
            s->drafting[count++] = s->noted[b].request->owner;
    }
    s->rows = rows;
    if (spans == 0)
        return QR_OK;
    TRY(runner_draft(s->engine->runner, s->spans, spans, NULL, err));
    memset(s->made, 0, (size_t)count * sizeof *s->made);
    const struct block_rows all = {.logits = runner_workspace(s->engine->runner)->logits, .step = 1};
    TRY(find_lists(s, 0, count, &all, err));
    for (int32_t i = 0; i < count; i++) {
        bool drawn;
        TRY(draw(s, i, 0, s->drafts + (int64_t)i * s->choice.limit, &drawn, err));
        s->made[i] = drawn;
    }
    propose(s, count);
    return QR_OK;
}

/* The last row before a boundary holds the token behind it, which is another's for whoever starts from the image there: the row's
 * streams go into the image. */
static qr_status keep_for_images(struct speculation *s, qr_error *err)
{
    for (int32_t b = 0; b < s->noted_count; b++) {
        const struct noted *n = &s->noted[b];
        const struct sched_request *r = n->request;
        const int32_t last = r && r->slot >= 0 ? r->image_due - 1 : -1;
        if (last >= n->first_position && last >= n->key_from && last < r->done)
            TRY(runner_keep_streams(s->engine->runner, r->slot, n->first_row + last - n->first_position, err));
    }
    return QR_OK;
}

void speculation_draft(struct speculation *s)
{
    qr_error err = {0};
    if (!s)
        return;
    const double start = clock_seconds();
    const int32_t chosen = choose(s);
    s->proposed = s->rows = 0;
    qr_status st = s->choice.drafter == QR_DRAFTER_DSPARK ? draft_blocks(s, &err) : draft_serially(s, &err);
    if (st == QR_OK && s->choice.drafter == QR_DRAFTER_MTP)
        st = keep_for_images(s, &err);
    const double seconds = clock_seconds() - start;
    if (chosen == 0 && s->rows > 0)
        payoff_rows(&s->payoff, s->rows, seconds);
    if (chosen > 0) {
        payoff_draft(&s->payoff, chosen, seconds);
        if (s->record)
            draft_record_pass(s->record, chosen, seconds);
        draft_counts_pass(lock_counts(s), chosen, s->proposed, seconds);
        unlock_counts(s);
    }
    if (st != QR_OK && !s->warned)
        qr_logf(&s->engine->model->log, QR_LOG_WARN, "no drafts: %s", err.message);
    s->warned |= st != QR_OK;
}
