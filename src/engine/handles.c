/* handles.c: the public calls on requests, and how events travel from the engine's thread to whoever asked. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/histogram.h"

const char *qr_rest_name(qr_rest rest)
{
    static const char *const names[] = {"no drafter", "cost", "times", "end", "confidence", "lost", "grammar"};
    return (unsigned)rest < QR_REST_REASONS ? names[rest] : "unknown";
}

const char *qr_finish_name(qr_finish finish)
{
    static const char *const names[] = {"running", "stop", "length", "cancelled", "error"};
    return (unsigned)finish < sizeof names / sizeof *names ? names[finish] : "unknown";
}

/* ---- the list of requests; the lock is held ---- */

static void append(struct qr_engine *engine, struct request *r)
{
    r->previous = engine->newest;
    *(engine->newest ? &engine->newest->next : &engine->oldest) = r;
    engine->newest = r;
}

/* Takes a request out of the list and frees it. */
static void forget(struct qr_engine *engine, struct request *r)
{
    *(r->previous ? &r->previous->next : &engine->oldest) = r->next;
    *(r->next ? &r->next->previous : &engine->newest) = r->previous;
    request_free(r);
}

struct request *engine_find(const struct qr_engine *engine, qr_handle handle)
{
    for (struct request *r = engine->oldest; r; r = r->next)
        if (r->handle == handle)
            return r->released ? NULL : r;
    return NULL;
}

static struct request *first_cancelled(const struct qr_engine *engine)
{
    for (struct request *r = engine->oldest; r; r = r->next)
        if (r->state == REQUEST_WAITING && atomic_load(&r->cancelled))
            return r;
    return NULL;
}

/* A request that shares its beginning with one that waits itself comes behind that one, whatever its priority. */
static bool has_turn(const struct qr_engine *engine, const struct request *r)
{
    const struct request *parent = r->after ? engine_find(engine, r->after) : NULL;
    return r->state == REQUEST_WAITING && !(parent && parent != r && parent->state == REQUEST_WAITING);
}

struct request *engine_next_waiting(const struct qr_engine *engine)
{
    struct request *best = NULL;
    for (struct request *r = engine->oldest; r; r = r->next)
        if ((!best || r->priority > best->priority) && has_turn(engine, r))
            best = r;
    return best;
}

static void start(struct qr_engine *engine, struct request *r)
{
    r->state = REQUEST_RUNNING;
    engine->waiting--;
    engine->waiting_cancelled -= atomic_load(&r->cancelled);
}

struct request *engine_take_waiting(struct qr_engine *engine)
{
    struct request *r = engine_next_waiting(engine);
    if (r)
        start(engine, r);
    return r;
}

/* ---- events, on the engine's thread ---- */

static void note_usage(struct qr_engine *engine, struct request *r, const qr_usage *usage)
{
    engine->metrics.output_tokens += (uint64_t)(usage->output_tokens - r->usage.output_tokens);
    r->usage = *usage;
}

/* A token is out, whoever hears it. */
static void note_token(struct qr_engine *engine, struct request *r, int32_t token)
{
    const double now = clock_seconds();
    qr_metrics *m = &engine->metrics;
    histogram_add(r->told == 0 ? &m->time_to_first_token : &m->inter_token,
                  now - (r->told == 0 ? r->submitted : r->last_token));
    r->answer[r->told++] = token;
    r->last_token = now;
}

/* The answer has its length: what it might have grown to is given back. A finished request may be forked as long as its
 * caller keeps it. */
static void keep_answer(struct request *r)
{
    int32_t *kept = r->answer ? qr_realloc_array(r->answer, r->told > 0 ? (size_t)r->told : 1, sizeof *kept) : NULL;
    if (kept)
        r->answer = kept;
}

static void note_end(struct qr_engine *engine, struct request *r, qr_finish finish)
{
    qr_metrics *m = &engine->metrics;
    r->state = REQUEST_FINISHED;
    keep_answer(r);
    r->usage.seconds = clock_seconds() - r->submitted;
    (*(finish == QR_FINISH_ERROR       ? &m->requests_failed
       : finish == QR_FINISH_CANCELLED ? &m->requests_cancelled
                                       : &m->requests_finished))++;
}

/* Outside the lock, so that a callback may cancel. */
static void call_back(struct qr_engine *engine, const struct request *r, const struct event *e)
{
    engine->calling = r->handle;
    pthread_mutex_unlock(&engine->lock);
    r->callback(r->user, &e->event);
    pthread_mutex_lock(&engine->lock);
    engine->calling = 0;
}

static void enqueue(struct request *r, struct event *e)
{
    *(r->last ? &r->last->next : &r->first) = e;
    r->last = e;
}

void engine_deliver(struct qr_engine *engine, struct request *r, struct event *e, const qr_usage *usage)
{
    const bool last = e->event.finish != QR_FINISH_NONE;
    pthread_mutex_lock(&engine->lock);
    const bool cancelled = atomic_load(&r->cancelled);
    e->event.handle = r->handle;
    note_usage(engine, r, usage);
    if (e->event.token >= 0 && !cancelled)
        note_token(engine, r, e->event.token);
    if (last && cancelled && e->event.finish != QR_FINISH_ERROR)
        event_cut(e);
    if (last)
        note_end(engine, r, e->event.finish);

    const bool wanted = !r->released && (last || !cancelled);
    if (wanted && !r->callback) {
        enqueue(r, e);
    } else {
        if (wanted)
            call_back(engine, r, e);
        event_free(e);
    }
    if (last && (r->callback || r->released))
        forget(engine, r);
    pthread_cond_broadcast(&engine->event);
    pthread_mutex_unlock(&engine->lock);
}

void engine_sweep(struct qr_engine *engine)
{
    for (;;) {
        pthread_mutex_lock(&engine->lock);
        struct request *r = engine->waiting_cancelled ? first_cancelled(engine) : NULL;
        if (r)
            start(engine, r);
        pthread_mutex_unlock(&engine->lock);
        if (!r)
            return;
        struct event *e = r->final;
        r->final = NULL;
        e->event.finish = QR_FINISH_CANCELLED;
        engine_deliver(engine, r, e, &(qr_usage){.prompt_tokens = r->prompt_count});
    }
}

/* ---- submit ---- */

qr_status qr_submit(qr_engine *engine, const qr_request *request, void (*callback)(void *user, const qr_event *event),
                    void *user, qr_handle *out, qr_error *err)
{
    struct request *r;
    const struct request_bounds bounds = {.max_model_len = engine->max_model_len, .last_row_only = engine->bounded,
                                          .judged = engine->verdicts != NULL};
    qr_status st = request_make(engine->model, request, &bounds, &r, err);
    if (st != QR_OK)
        return st;
    r->callback = callback;
    r->user = user;
    pthread_mutex_lock(&engine->lock);
    const bool full = engine->waiting >= ENGINE_QUEUE;
    if (!full) {
        r->handle = *out = engine->next_handle++;
        append(engine, r);
        engine->waiting++;
        engine->metrics.requests_submitted++;
        engine->stirred = true;
        pthread_cond_signal(&engine->work);
    }
    pthread_mutex_unlock(&engine->lock);
    if (!full)
        return QR_OK;
    request_free(r);
    return qr_fail(err, QR_BUSY, "%d requests are waiting, the queue holds no more", ENGINE_QUEUE);
}

/* ---- poll ---- */

static struct timespec deadline(int timeout_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += timeout_ms % 1000 * 1000000L;
    t.tv_sec += t.tv_nsec / 1000000000L;
    t.tv_nsec %= 1000000000L;
    return t;
}

/* Frees the event that the last call handed out, and its request when that was the end. */
static void take_back(struct qr_engine *engine, qr_handle handle)
{
    struct request *r = engine_find(engine, handle);
    if (!r || !r->handed)
        return;
    const bool last = r->handed->event.finish != QR_FINISH_NONE;
    event_free(r->handed);
    r->handed = NULL;
    if (last)
        forget(engine, r);
}

/* The request once it has an event, or when time is up; NULL when there is none of that handle any more. */
static struct request *await(struct qr_engine *engine, qr_handle handle, int timeout_ms)
{
    const struct timespec until = timeout_ms < 0 ? (struct timespec){0} : deadline(timeout_ms);
    for (bool late = false;;) {
        struct request *r = engine_find(engine, handle); /* again each time: another thread may release it */
        if (!r || r->first || r->callback || late)
            return r;
        if (timeout_ms < 0)
            pthread_cond_wait(&engine->event, &engine->lock);
        else
            late = pthread_cond_timedwait(&engine->event, &engine->lock, &until) == ETIMEDOUT;
    }
}

static void hand_out(struct request *r, qr_event *out)
{
    r->handed = r->first;
    r->first = r->first->next;
    r->handed->next = NULL;
    if (!r->first)
        r->last = NULL;
    *out = r->handed->event;
}

qr_status qr_poll(qr_engine *engine, qr_handle handle, int timeout_ms, qr_event *out, qr_error *err)
{
    const unsigned long long number = handle;
    qr_status st = QR_OK;
    pthread_mutex_lock(&engine->lock);
    take_back(engine, handle);
    struct request *r = await(engine, handle, timeout_ms);
    if (!r)
        st = qr_fail(err, QR_BAD_ARGUMENT, "handle %llu: no request with events left", number);
    else if (r->callback)
        st = qr_fail(err, QR_BAD_ARGUMENT, "handle %llu: its events go to a callback", number);
    else if (!r->first)
        st = qr_fail(err, QR_BUSY, "handle %llu: no event within %d ms", number, timeout_ms);
    else
        hand_out(r, out);
    pthread_mutex_unlock(&engine->lock);
    return st;
}

/* ---- cancel and release ---- */

void engine_cancel(struct qr_engine *engine, struct request *r)
{
    if (atomic_exchange(&r->cancelled, true))
        return;
    engine->waiting_cancelled += r->state == REQUEST_WAITING;
    engine->stirred = true;
    pthread_cond_signal(&engine->work); /* it may be asleep */
    struct event *kept = NULL;
    for (struct event *e = r->first, *next; e; e = next) {
        next = e->next;
        if (e->event.finish == QR_FINISH_NONE) {
            event_free(e);
            continue;
        }
        if (e->event.finish != QR_FINISH_ERROR)
            event_cut(e);
        kept = e;
    }
    r->first = r->last = kept;
}

void qr_cancel(qr_engine *engine, qr_handle handle)
{
    pthread_mutex_lock(&engine->lock);
    struct request *r = engine_find(engine, handle);
    if (r)
        engine_cancel(engine, r);
    pthread_mutex_unlock(&engine->lock);
}

void qr_pause(qr_engine *engine, qr_handle handle, bool paused)
{
    pthread_mutex_lock(&engine->lock);
    struct request *r = engine_find(engine, handle);
    if (r && atomic_exchange(&r->paused, paused) != paused) {
        engine->stirred = true;
        pthread_cond_signal(&engine->work);
    }
    pthread_mutex_unlock(&engine->lock);
}

void qr_release(qr_engine *engine, qr_handle handle)
{
    pthread_mutex_lock(&engine->lock);
    struct request *r = engine_find(engine, handle);
    if (r && r->state == REQUEST_FINISHED && engine->calling != handle) {
        forget(engine, r);
    } else if (r) {
        engine_cancel(engine, r);
        r->released = true; /* the engine's thread frees it with its last event */
        while (engine->calling == handle && !pthread_equal(pthread_self(), engine->thread))
            pthread_cond_wait(&engine->event, &engine->lock);
    }
    pthread_cond_broadcast(&engine->event); /* a poll of the same handle has nothing to wait for any more */
    pthread_mutex_unlock(&engine->lock);
}

/* ---- counts ---- */

qr_status qr_get_usage(qr_engine *engine, qr_handle handle, qr_usage *out, qr_error *err)
{
    qr_status st = QR_OK;
    pthread_mutex_lock(&engine->lock);
    const struct request *r = engine_find(engine, handle);
    if (r) {
        *out = r->usage;
        out->begun = r->state != REQUEST_WAITING;
        if (r->state != REQUEST_FINISHED)
            out->seconds = clock_seconds() - r->submitted;
    } else {
        st = qr_fail(err, QR_BAD_ARGUMENT, "handle %llu: no live request", (unsigned long long)handle);
    }
    pthread_mutex_unlock(&engine->lock);
    return st;
}

void qr_get_metrics(const qr_engine *given, qr_metrics *out)
{
    struct qr_engine *engine = (struct qr_engine *)given; /* the lock is not part of what the caller sees as const */
    pthread_mutex_lock(&engine->lock);
    qr_metrics m = engine->metrics;
    draft_counts_told(&engine->drafts, &m.drafts);
    m.requests_waiting = (uint64_t)engine->waiting;
    m.requests_running = m.requests_prefilling = m.requests_paused = 0;
    const double now = clock_seconds();
    m.last_step_age = engine->last_step > 0 ? now - engine->last_step : -1;
    m.longest_silence = 0;
    for (const struct request *r = engine->oldest; r; r = r->next) {
        const double silence = r->state == REQUEST_RUNNING && r->told > 0 ? now - r->last_token : 0;
        m.requests_running += r->state == REQUEST_RUNNING;
        m.requests_prefilling += r->state == REQUEST_RUNNING && r->told == 0;
        m.requests_paused += r->state == REQUEST_RUNNING && atomic_load(&r->paused);
        m.longest_silence = silence > m.longest_silence ? silence : m.longest_silence;
    }
    pthread_mutex_unlock(&engine->lock);
    m.size = out->size < sizeof m ? out->size : sizeof m;
    memcpy(out, &m, m.size);
}
