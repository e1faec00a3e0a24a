#include "engine/engine.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "run/logprobs.h"
#include "text/detokenizer.h"
#include "text/stop.h"

/* One request's answer, from its prompt to its last event. */
struct generation {
    struct qr_engine *engine;
    struct request *r;
    struct sequence sequence;
    struct detokenizer detok;
    struct stop_matcher *stop;
    struct buffer text, shown;      /* text of the token, and what of it may be shown */
    struct event *pending;          /* prompt logprobs wait here for the first token */
    int32_t made;                   /* tokens of the answer */
    qr_usage usage;
};

/* ---- log probabilities ---- */

/* How many best tokens a row can have of the number that was asked for. */
static int32_t top_count(const struct generation *g, int32_t wanted)
{
    const int32_t vocab = g->engine->model->config.vocab_size;
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

/* The rows [first, end) of the last forward predict prompt tokens first + 1 .. end. */
static qr_status note_prompt(struct generation *g, int32_t first, int32_t end, qr_error *err)
{
    const int32_t n = top_count(g, g->r->prompt_logprobs), vocab = g->engine->model->config.vocab_size;
    qr_status st = QR_OK;
    for (int32_t i = first; st == QR_OK && i < end && i + 1 < g->r->prompt_count; i++) {
        const float *logits;
        st = sequence_logits(&g->sequence, i - first, &logits, err);
        if (st == QR_OK)
            st = top_of_row(logits, vocab, g->r->tokens[i + 1], n, &g->pending->prompt[i + 1],
                            g->pending->prompt_top + (int64_t)(i + 1) * n, err);
    }
    return st;
}

static qr_status prepare_prompt_event(struct generation *g, qr_error *err)
{
    struct request *r = g->r;
    const size_t n = (size_t)top_count(g, r->prompt_logprobs), count = (size_t)r->prompt_count;
    if (r->prompt_logprobs < 0)
        return QR_OK;
    g->pending = event_make();
    if (g->pending) {
        g->pending->prompt = qr_calloc(count, sizeof *g->pending->prompt);
        g->pending->prompt_top = qr_calloc(count * n + 1, sizeof *g->pending->prompt_top);
    }
    if (!g->pending || !g->pending->prompt || !g->pending->prompt_top)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu prompt log probabilities", count);
    g->pending->event.prompt = g->pending->prompt;
    g->pending->event.prompt_count = count;
    g->pending->event.prompt_top = g->pending->prompt_top;
    g->pending->event.prompt_top_count = n;
    return QR_OK;
}

/* ---- prompt ---- */

static bool cancelled(const struct generation *g) { return atomic_load(&g->r->cancelled); }

static qr_status prefill(struct generation *g, qr_error *err)
{
    struct qr_engine *engine = g->engine;
    struct request *r = g->r;
    const bool every_row = r->prompt_logprobs >= 0;
    const int32_t room = every_row ? engine->max_logits : engine->max_rows;
    qr_status st = prepare_prompt_event(g, err);
    sequence_plan(&g->sequence, r->prompt_count, every_row ? 0 : r->prompt_count - 1);
    while (st == QR_OK && g->sequence.position < r->prompt_count && !cancelled(g)) {
        const int32_t first = g->sequence.position, left = r->prompt_count - first;
        const int32_t end = first + (left < room ? left : room);
        const int32_t wanted = every_row ? first : end < r->prompt_count ? end : end - 1;
        st = sequence_forward(&g->sequence, end, wanted, err);
        if (st == QR_OK && every_row)
            st = note_prompt(g, first, end, err);
        engine_sweep(engine);
    }
    g->usage.seconds_prefill = g->sequence.seconds;
    return st;
}

/* ---- one token ---- */

static qr_status draw(struct generation *g, int32_t *token, struct event *e, qr_error *err)
{
    struct qr_engine *engine = g->engine;
    struct request *r = g->r;
    const struct qr_model *model = engine->model;
    const bool penalties = sampling_wants_counts(&r->sampling);
    const int32_t last = r->prompt_logprobs >= 0 && g->made == 0
                             ? (r->prompt_count - 1) % engine->max_logits : 0;
    const float *logits;
    struct id_list banned[3];
    int32_t lists = 0;
    banned[lists++] = (struct id_list){r->banned, r->banned_count};
    if (!r->allow_special)
        banned[lists++] = (struct id_list){model->banned.data, (int32_t)model->banned.count};
    if (ending_bans_stops(&r->ending, g->made))
        banned[lists++] = (struct id_list){r->ends, r->end_count};

    qr_status st = sequence_logits(&g->sequence, last, &logits, err);
    if (st != QR_OK)
        return st;
    const struct sampling_row row = {.logits = logits, .counts = penalties ? engine->counts : NULL, .banned = banned,
                                     .banned_lists = lists};
    st = sampling_draw(&r->sampling, &row, r->count, engine->sampler, token, err);
    if (st != QR_OK || r->logprobs < 0)
        return st;
    const int32_t best = top_count(g, r->logprobs);
    e->top = qr_calloc((size_t)best + 1, sizeof *e->top);
    if (!e->top)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d log probabilities", best);
    e->event.top = e->top;
    e->event.top_count = (size_t)best;
    return top_of_row(logits, model->config.vocab_size, *token, best, &e->event.logprob, e->top, err);
}

/* Moves what may be shown into the event. */
static qr_status show(struct generation *g, struct event *e, qr_error *err)
{
    e->text = qr_strndup(g->shown.data ? g->shown.data : "", g->shown.length);
    if (!e->text)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu bytes of text", g->shown.length);
    e->event.text = e->text;
    e->event.text_length = g->shown.length;
    buffer_clear(&g->shown);
    return QR_OK;
}

/* Text of the token through the stop strings; at the end of the answer also what is held back. */
static qr_status push_text(struct generation *g, int32_t token, bool with_text, bool end, bool *hit, qr_error *err)
{
    qr_status st = QR_OK;
    buffer_clear(&g->text);
    if (with_text)
        st = detok_push(&g->detok, token, &g->text, err);
    if (st == QR_OK && end)
        st = detok_flush(&g->detok, &g->text, err);
    if (st == QR_OK)
        st = stop_push(g->stop, g->text.data, g->text.length, ending_hears_strings(&g->r->ending, g->made), &g->shown, hit, err);
    if (st == QR_OK && end && !*hit)
        st = stop_flush(g->stop, &g->shown, err);
    return st;
}

/* Draws a token, makes its event and says how the answer ends, if it does. */
static qr_status advance(struct generation *g, struct event *e, qr_finish *finish, qr_error *err)
{
    struct request *r = g->r;
    int32_t token;
    bool hit = false;
    qr_status st = draw(g, &token, e, err);
    if (st != QR_OK)
        return st;
    if (sampling_wants_counts(&r->sampling))
        token_counts_push(g->engine->counts, token);
    r->tokens[r->count++] = token;
    g->usage.output_tokens = ++g->made;
    if (g->made == 1)
        g->usage.seconds_to_first_token = clock_seconds() - r->submitted;
    e->event.token = token;

    const enum ended ended = ending_after(&r->ending, token, g->made);
    const bool stopped = ended == ENDED_EOS || ended == ENDED_STOP_TOKEN;
    st = push_text(g, token, !stopped, ended != ENDED_NOT, &hit, err);
    if (st == QR_OK)
        st = show(g, e, err);
    *finish = stopped || hit ? QR_FINISH_STOP : ended == ENDED_LENGTH ? QR_FINISH_LENGTH : QR_FINISH_NONE;
    if (stopped)
        e->event.stop_token = token;
    else if (hit)
        e->event.stop_string = stop_found(g->stop);
    return st;
}

/* One event a token; the last one waits in `pending`, for its end to be written. */
static qr_status answer(struct generation *g, qr_finish *finish, qr_error *err)
{
    struct request *r = g->r;
    while (!cancelled(g)) {
        if (g->sequence.position < r->count) {
            qr_status st = sequence_forward(&g->sequence, r->count, r->count - 1, err);
            if (st != QR_OK)
                return st;
            g->usage.seconds_decode = g->sequence.seconds - g->usage.seconds_prefill;
        }
        if (!g->pending)
            g->pending = event_make();
        if (!g->pending)
            return qr_fail(err, QR_NO_MEMORY, "no memory for an event");
        qr_status st = advance(g, g->pending, finish, err);
        if (st != QR_OK || *finish != QR_FINISH_NONE)
            return st;
        engine_deliver(g->engine, r, g->pending, &g->usage);
        g->pending = NULL;
        engine_sweep(g->engine);
    }
    *finish = QR_FINISH_CANCELLED;
    return QR_OK;
}

/* ---- begin and end ---- */

static qr_status begin(struct generation *g, qr_error *err)
{
    struct request *r = g->r;
    const bool penalties = sampling_wants_counts(&r->sampling);
    qr_status st = sequence_open(g->engine, 0, &g->sequence, err);
    if (st != QR_OK)
        return st;
    int32_t *tokens = qr_realloc_array(r->tokens, (size_t)r->limit + 1, sizeof *tokens);
    if (!tokens)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d tokens", r->limit);
    g->sequence.tokens = r->tokens = tokens;
    detok_start(&g->detok, g->engine->model->tokenizer);
    token_counts_clear(g->engine->counts);
    if (penalties)
        token_counts_prompt(g->engine->counts, r->tokens, r->prompt_count);
    return stop_open((const char *const *)r->stop, r->stop_count, r->include_stop, &g->stop, err);
}

static void note_prompt_tokens(struct generation *g)
{
    const int32_t run = g->sequence.position < g->r->prompt_count ? g->sequence.position : g->r->prompt_count;
    pthread_mutex_lock(&g->engine->lock);
    g->engine->metrics.prompt_tokens += (uint64_t)run;
    pthread_mutex_unlock(&g->engine->lock);
}

/* The last event: the one in `pending`, where the answer came to an end; else the one made at submit, because there may
 * be no memory for another. */
static struct event *last_event(struct generation *g, qr_status st, qr_finish finish)
{
    struct event *e = g->pending;
    if (st != QR_OK || !e || finish == QR_FINISH_CANCELLED) {
        event_free(e);
        e = g->r->final;
        g->r->final = NULL;
    }
    return e;
}

static void finish_request(struct generation *g, qr_status st, qr_finish finish, qr_error *err)
{
    struct request *r = g->r;
    struct event *e = last_event(g, st, finish);
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
    engine_deliver(g->engine, r, e, &g->usage);
}

void generate(struct qr_engine *engine, struct request *r)
{
    struct generation g = {.engine = engine, .r = r, .usage = {.prompt_tokens = r->prompt_count}};
    qr_error err = {0};
    qr_finish finish = QR_FINISH_CANCELLED;
    qr_status st = QR_OK;
    if (!cancelled(&g)) {
        finish = QR_FINISH_NONE;
        st = begin(&g, &err);
        if (st == QR_OK)
            st = prefill(&g, &err);
        if (st == QR_OK)
            st = answer(&g, &finish, &err);
        note_prompt_tokens(&g);
    }
    sequence_close(&g.sequence);
    stop_close(g.stop);
    buffer_free(&g.text);
    buffer_free(&g.shown);
    finish_request(&g, st, finish, &err);
}
