#include "engine/engine.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "run/logprobs.h"

/* ---- log probabilities ---- */

/* How many best tokens a row can have of the number that was asked for. */
static int32_t top_count(const struct task *t, int32_t wanted)
{
    const int32_t vocab = t->engine->model->config.vocab_size;
    return wanted < vocab ? wanted : vocab;
}

static qr_status top_of_row(const float *logits, int32_t vocab, int32_t token, int32_t count, qr_token_logprob *chosen,
                            qr_token_logprob *top, qr_error *err)
{
    struct token_logprob one, best[20];
    qr_status st = logprobs_of_row(logits, vocab, token, count, &one, count ? best : NULL, err);
    if (st != QR_OK)
        return st;
    *chosen = (qr_token_logprob){.token = token, .rank = one.rank, .logprob = (float)one.logprob};
    for (int32_t i = 0; i < count; i++)
        top[i] = (qr_token_logprob){.token = best[i].id, .rank = best[i].rank, .logprob = (float)best[i].logprob};
    return QR_OK;
}

/* A row of the prompt predicts its next token. */
static qr_status note_prompt(struct task *t, const struct span_rows *rows, qr_error *err)
{
    const int32_t n = top_count(t, t->r->prompt_logprobs), vocab = t->engine->model->config.vocab_size;
    const struct batch_span *span = rows->span;
    qr_status st = QR_OK;
    for (int32_t i = span->logits_from; st == QR_OK && i < span->count; i++) {
        const int32_t next = span->first_position + i + 1;
        const float *logits;
        if (next >= t->r->prompt_count)
            break;
        st = engine_logits(t->engine, rows->logits + i - span->logits_from, &logits, err);
        if (st == QR_OK)
            st = top_of_row(logits, vocab, t->r->tokens[next], n, &t->pending->prompt[next],
                            t->pending->prompt_top + (int64_t)next * n, err);
    }
    return st;
}

static qr_status prepare_prompt_event(struct task *t, qr_error *err)
{
    struct request *r = t->r;
    const size_t n = (size_t)top_count(t, r->prompt_logprobs), count = (size_t)r->prompt_count;
    if (r->prompt_logprobs < 0)
        return QR_OK;
    t->pending = event_make();
    if (t->pending) {
        t->pending->prompt = qr_calloc(count, sizeof *t->pending->prompt);
        t->pending->prompt_top = qr_calloc(count * n + 1, sizeof *t->pending->prompt_top);
    }
    if (!t->pending || !t->pending->prompt || !t->pending->prompt_top)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu prompt log probabilities", count);
    t->pending->event.prompt = t->pending->prompt;
    t->pending->event.prompt_count = count;
    t->pending->event.prompt_top = t->pending->prompt_top;
    t->pending->event.prompt_top_count = n;
    return QR_OK;
}

/* ---- one token ---- */

int32_t task_bans(const struct task *t, int32_t made, struct id_list out[TASK_BANS])
{
    const struct request *r = t->r;
    const struct qr_model *model = t->engine->model;
    int32_t lists = 0;
    out[lists++] = (struct id_list){r->banned, r->banned_count};
    if (!r->allow_special)
        out[lists++] = (struct id_list){model->banned.data, (int32_t)model->banned.count};
    if (ending_bans_stops(&r->ending, made))
        out[lists++] = (struct id_list){r->ends, r->end_count};
    return lists;
}

/* Whether the rows of its tokens are looked at only to draw from them. */
static bool only_draws(const struct task *t) { return t->r->logprobs < 0 && !t->law; }

void generate_want(const struct task *t, const struct span_rows *rows)
{
    const struct batch_span *span = rows->span;
    const int32_t certain = span->count - span->drafts;
    if (!span->final || !only_draws(t))
        return;
    for (int32_t i = 0; i <= span->drafts; i++) {
        const int32_t at = rows->logits + certain - 1 + i - span->logits_from;
        shortlists_want(t->engine->lists, at, &t->r->sampling, t->r->count + i, at, 0);
    }
}

/* Token number `made` of the answer, from row `at` of the step's logits. */
static qr_status draw_token(struct task *t, int32_t at, int32_t made, int32_t *token, qr_error *err)
{
    const struct request *r = t->r;
    struct qr_engine *engine = t->engine;
    const int64_t position = r->count + made - t->made;
    struct id_list banned[TASK_BANS];
    struct sampling_row row = {.counts = t->counts, .banned = banned, .banned_lists = task_bans(t, made, banned)};
    if (t->constraint)
        TRY(constraint_mask(t->constraint, &row.allowed, err));
    if (shortlists_draw(engine->lists, at, &r->sampling, &row, position, engine->sampler, token))
        return QR_OK;
    TRY(engine_logits(engine, at, &row.logits, err));
    return sampling_draw(&r->sampling, &row, position, engine->sampler, token, err);
}

/* `at`: the row of the step's logits to draw from, and to score `given` by, a token that is drawn already; NULL. */
static qr_status draw(struct task *t, int32_t at, const int32_t *given, int32_t *token, struct event *e, qr_error *err)
{
    const struct request *r = t->r;
    const struct qr_model *model = t->engine->model;
    const float *logits;
    qr_status st = given ? QR_OK : draw_token(t, at, t->made, token, err);
    if (given)
        *token = *given;
    if (st != QR_OK || r->logprobs < 0)
        return st;
    TRY(engine_logits(t->engine, at, &logits, err));
    const int32_t best = top_count(t, r->logprobs);
    e->top = qr_calloc((size_t)best + 1, sizeof *e->top);
    if (!e->top)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d log probabilities", best);
    e->event.top = e->top;
    e->event.top_count = (size_t)best;
    return top_of_row(logits, model->config.vocab_size, *token, best, &e->event.logprob, e->top, err);
}

/* Moves what may be shown into the event. */
static qr_status show(struct task *t, struct event *e, qr_error *err)
{
    e->text = qr_strndup(t->shown.data ? t->shown.data : "", t->shown.length);
    if (!e->text)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu bytes of text", t->shown.length);
    e->event.text = e->text;
    e->event.text_length = t->shown.length;
    buffer_clear(&t->shown);
    return QR_OK;
}

/* Text of the token through the stop strings; at the end of the answer also what is held back. */
static qr_status push_text(struct task *t, int32_t token, bool with_text, bool end, bool *hit, qr_error *err)
{
    qr_status st = QR_OK;
    buffer_clear(&t->text);
    if (with_text)
        st = detok_push(&t->detok, token, &t->text, err);
    if (st == QR_OK && end)
        st = detok_flush(&t->detok, &t->text, err);
    if (st == QR_OK)
        st = stop_push(t->stop, t->text.data, t->text.length, ending_hears_strings(&t->r->ending, t->made), &t->shown, hit, err);
    if (st == QR_OK && end && !*hit)
        st = stop_flush(t->stop, &t->shown, err);
    return st;
}

/* Draws a token or takes the one given, makes its event and says how the answer ends, if it does. */
static qr_status advance(struct task *t, int32_t at, const int32_t *given, struct event *e, qr_error *err)
{
    struct request *r = t->r;
    bool hit = false;
    qr_status st = draw(t, at, given, &t->token, e, err);
    if (st != QR_OK)
        return st;
    if (t->counts)
        token_counts_push(t->counts, t->token);
    if (t->constraint)
        TRY(constraint_push(t->constraint, t->token, err));
    r->count++;
    t->usage.output_tokens = ++t->made;
    if (t->made == 1) {
        t->usage.seconds_to_first_token = clock_seconds() - r->submitted;
        t->engine->prompt_latency = t->usage.seconds_prefill;
    }
    e->event.token = t->token;

    const enum ended ended = ending_after(&r->ending, t->token, t->made);
    const bool stopped = ended == ENDED_EOS || ended == ENDED_STOP_TOKEN;
    st = push_text(t, t->token, !stopped, ended != ENDED_NOT, &hit, err);
    if (st == QR_OK)
        st = show(t, e, err);
    t->finish = stopped || hit ? QR_FINISH_STOP : ended == ENDED_LENGTH ? QR_FINISH_LENGTH : QR_FINISH_NONE;
    if (stopped)
        e->event.stop_token = t->token;
    else if (hit)
        e->event.stop_string = stop_found(t->stop);
    return st;
}

/* One event a token; the last one waits in `pending`, for its end to be written. */
static qr_status answer(struct task *t, int32_t at, const int32_t *given, struct sched_result *result)
{
    if (!t->pending)
        t->pending = event_make();
    if (!t->pending)
        return qr_fail(&t->error, QR_NO_MEMORY, "no memory for an event");
    t->usage.cached_tokens = t->sched->cached_tokens;
    qr_status st = advance(t, at, given, t->pending, &t->error);
    if (st != QR_OK)
        return st;
    t->drawn[result->token_count++] = t->token;
    result->tokens = t->drawn;
    result->finish = t->finish == QR_FINISH_STOP     ? FINISH_STOP
                     : t->finish == QR_FINISH_LENGTH ? FINISH_LENGTH
                                                     : FINISH_NONE;
    if (t->finish == QR_FINISH_NONE) {
        engine_deliver(t->engine, t->r, t->pending, &t->usage);
        t->pending = NULL;
    }
    return QR_OK;
}

/* Token i of a span is known before its row is looked at, or NULL. */
static const int32_t *given_token(const struct span_verdict *v, int32_t i) { return i < v->count ? &v->tokens[i] : NULL; }

/* Whether the token just told, the i-th of the span, is the draft that row i + 1 was run on. */
static bool draft_stands(const struct task *t, const struct batch_span *span, const struct span_verdict *v, int32_t i)
{
    if (i == span->drafts)
        return false;
    if (v->status != QR_OK)
        return i < v->count; /* the failure behind it counts as one more */
    if (v->count > 0)
        return i + 1 < v->count;
    return t->token == span->tokens[span->count - span->drafts + i];
}

/* Drafts that are right, of which `right` were seen when the answer ended: the count does not depend on where answers end
 * (speculation.md 4.7). */
static int32_t right_behind_end(struct task *t, const struct span_rows *rows, int32_t right)
{
    const struct batch_span *span = rows->span;
    const int32_t certain = span->count - span->drafts, seen = right;
    int32_t token = t->token;
    constraint_mark(t->constraint);
    while (right < span->drafts && token == span->tokens[certain + right]) {
        qr_error err;
        if (t->constraint && right > seen && constraint_push(t->constraint, token, &err) != QR_OK)
            break;
        if (t->counts && right > seen)
            token_counts_push(t->counts, token);
        right++;
        if (draw_token(t, rows->logits + certain - 1 + right - span->logits_from, t->made + right - seen - 1, &token, &err) !=
            QR_OK)
            break;
    }
    for (int32_t i = right - 1; t->counts && i > seen; i--)
        token_counts_pop(t->counts, span->tokens[certain + i]);
    constraint_rewind(t->constraint);
    return right;
}

/* Of a decode span whose answer got `emitted` tokens. */
static void note_verdict(struct task *t, const struct batch_span *span, int32_t accepted, int32_t emitted)
{
    struct qr_engine *engine = t->engine;
    const struct draft_verdict verdict = {.proposed = t->drafts.proposed,
                                          .verified = span->drafts,
                                          .accepted = accepted,
                                          .emitted = emitted,
                                          .rest = t->drafts.rest,
                                          .survival = t->drafts.rated ? t->drafts.survival : NULL};
    t->usage.draft_steps += span->drafts > 0;
    t->usage.draft_proposed += span->drafts;
    t->usage.draft_accepted += accepted;
    pthread_mutex_lock(&engine->lock);
    draft_counts_verdict(&engine->drafts, &verdict);
    pthread_mutex_unlock(&engine->lock);
    t->drafts = (struct task_drafts){.rest = QR_REST_NO_DRAFTER};
}

/* The last row of what is certain, then those of drafts. Under match each draws the target's own token, and the next one
 * counts only when that is the draft it was run on (speculation.md 4.2, 4.3). */
static qr_status answer_rows(struct task *t, const struct span_rows *rows, struct sched_result *result)
{
    const struct batch_span *span = rows->span;
    const int32_t certain = span->count - span->drafts;
    struct span_verdict verdict;
    int32_t right = 0;
    verdicts_take(t->engine->verdicts, t, rows, &verdict, &t->error);
    for (;; right++) {
        if (verdict.status != QR_OK && right == verdict.count)
            return verdict.status;
        const int32_t row = certain - 1 + right;
        qr_status st = answer(t, rows->logits + row - span->logits_from, given_token(&verdict, right), result);
        if (st != QR_OK)
            return st;
        if (result->finish != FINISH_NONE || !draft_stands(t, span, &verdict, right))
            break;
    }
    result->accepted = certain + right;
    if (result->finish != FINISH_NONE)
        right = verdict.count > 0 ? verdict.count - (verdict.status == QR_OK) : right_behind_end(t, rows, right);
    if (span->drafts > 0)
        speculation_verified(t->engine->speculation, t, span->drafts, right);
    if (!span->rows)
        note_verdict(t, span, right, result->token_count);
    return QR_OK;
}

void generate_discard(struct task *t)
{
    if (t->drafts.proposed == 0)
        return;
    pthread_mutex_lock(&t->engine->lock);
    draft_counts_discard(&t->engine->drafts, t->drafts.proposed);
    pthread_mutex_unlock(&t->engine->lock);
    t->drafts = (struct task_drafts){.rest = QR_REST_LOST};
}

void generate_rows(struct task *t, const struct span_rows *rows, struct sched_result *result)
{
    const struct batch_span *span = rows->span;
    qr_status st = QR_OK;
    if (span->rows) /* of a prompt, or again of what was preempted */
        generate_discard(t);
    if (atomic_load(&t->r->cancelled)) {
        sched_cancel(t->engine->sched, t->sched); /* its output is dropped */
        return;
    }
    if (t->r->prompt_logprobs >= 0 && t->made == 0)
        st = note_prompt(t, rows, &t->error);
    if (st == QR_OK && span->final)
        st = answer_rows(t, rows, result);
    t->status = st;
    result->failed = st != QR_OK;
}

/* ---- begin and end ---- */

static qr_status prepare(struct task *t, qr_error *err)
{
    struct request *r = t->r;
    detok_start(&t->detok, t->engine->model->tokenizer);
    r->answer = qr_calloc((size_t)(r->limit - r->prompt_count), sizeof *r->answer);
    if (!r->answer)
        return qr_fail(err, QR_NO_MEMORY, "no memory for an answer of %d tokens", r->limit - r->prompt_count);
    qr_status st = prepare_prompt_event(t, err);
    if (st == QR_OK && sampling_wants_counts(&r->sampling)) {
        st = token_counts_open(t->engine->model->config.vocab_size, &t->counts, err);
        if (st == QR_OK)
            token_counts_prompt(t->counts, r->tokens, r->prompt_count);
    }
    if (st == QR_OK && r->grammar)
        st = constraint_open(t->engine->model, r, &t->constraint, err);
    if (st == QR_OK)
        st = verdicts_law(t->engine->verdicts, &r->sampling, &t->law, err);
    if (st == QR_OK)
        st = stop_open((const char *const *)r->stop, r->stop_count, r->include_stop, &t->stop, err);
    if (st == QR_OK)
        st = task_add(t, r->tokens, r->prompt_count, r->limit, r->prompt_logprobs >= 0 ? 0 : r->prompt_count - 1, err);
    return st;
}

/* The last event: the one in `pending`, where the answer came to an end; else the one made at submit, because there may
 * be no memory for another. */
static struct event *last_event(struct request *r, struct event *pending, bool ended)
{
    if (ended && pending)
        return pending;
    event_free(pending);
    struct event *e = r->final;
    r->final = NULL;
    return e;
}

static void finish_request(struct qr_engine *engine, struct request *r, struct event *e, qr_status st, qr_finish finish,
                           qr_error *err, const qr_usage *usage)
{
    e->event.finish = finish;
    if (st != QR_OK) {
        if (r->name)
            qr_fail_in(err, st, "request %s", r->name);
        else
            qr_fail_in(err, st, "request %llu", (unsigned long long)r->handle);
        e->error = *err;
        e->event.error = &e->error;
        e->event.finish = QR_FINISH_ERROR;
    }
    engine_deliver(engine, r, e, usage);
}

static void task_free(struct task *t)
{
    stop_close(t->stop);
    token_counts_close(t->counts);
    constraint_close(t->constraint);
    draft_law_close(t->law);
    buffer_free(&t->text);
    buffer_free(&t->shown);
    qr_free(t);
}

void generate_begin(struct qr_engine *engine, struct request *r)
{
    const qr_usage nothing = {.prompt_tokens = r->prompt_count};
    qr_error err = {0};
    struct task *t = qr_calloc(1, sizeof *t);
    qr_status st = QR_OK;
    if (!t) {
        st = qr_fail(&err, QR_NO_MEMORY, "no memory for an answer");
        finish_request(engine, r, last_event(r, NULL, false), st, QR_FINISH_ERROR, &err, &nothing);
        return;
    }
    t->engine = engine;
    t->r = r;
    t->usage = nothing;
    st = atomic_load(&r->cancelled) ? QR_CANCELLED : prepare(t, &err);
    if (st == QR_OK)
        return;
    finish_request(engine, r, last_event(r, t->pending, false), st == QR_CANCELLED ? QR_OK : st, QR_FINISH_CANCELLED, &err,
                   &nothing);
    task_free(t);
}

/* The task is gone before its last event comes: who has that event finds nothing of the answer left. */
void generate_end(struct task *t, enum finish finish)
{
    const bool ended = finish == FINISH_STOP || finish == FINISH_LENGTH;
    const qr_finish how = ended ? t->finish : QR_FINISH_CANCELLED;
    const qr_status st = finish == FINISH_FAILED ? t->status : QR_OK;
    struct event *e = last_event(t->r, t->pending, ended);
    generate_discard(t);
    struct qr_engine *engine = t->engine;
    struct request *r = t->r;
    const qr_usage usage = t->usage;
    qr_error err = t->error;
    task_free(t);
    finish_request(engine, r, e, st, how, &err, &usage);
}
