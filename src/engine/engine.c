#define _GNU_SOURCE
#include "engine/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"

const char *qr_finish_name(qr_finish finish)
{
    static const char *const names[] = {"running", "stop", "length", "cancelled", "error"};
    return (unsigned)finish < sizeof names / sizeof *names ? names[finish] : "unknown";
}

/* ---- the engine's thread ---- */

/* Takes a request out of the list; the lock is held. */
static void unlink_request(struct qr_engine *engine, const struct request *r)
{
    for (struct request **at = &engine->requests; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            return;
        }
}

static struct request *find(const struct qr_engine *engine, qr_handle handle)
{
    for (struct request *r = engine->requests; r; r = r->next)
        if (r->handle == handle)
            return r->released ? NULL : r;
    return NULL;
}

void engine_deliver(struct qr_engine *engine, struct request *r, struct event *e)
{
    const bool last = e->event.finish != QR_FINISH_NONE;
    e->event.handle = r->handle;
    if (r->callback)
        r->callback(r->user, &e->event);
    pthread_mutex_lock(&engine->lock);
    if (e->event.token >= 0) {
        engine->metrics.output_tokens++;
        r->usage.output_tokens++;
    }
    if (r->callback || r->released) {
        event_free(e);
    } else {
        *(r->last ? &r->last->next : &r->first) = e;
        r->last = e;
    }
    if (last) {
        r->finished = true;
        r->running = false;
        r->ended = clock_seconds();
        if (r->callback || r->released) {
            unlink_request(engine, r);
            request_free(r);
        }
    }
    pthread_cond_broadcast(&engine->event);
    pthread_mutex_unlock(&engine->lock);
}

static struct request *next_request(const struct qr_engine *engine)
{
    for (struct request *r = engine->requests; r; r = r->next)
        if (!r->running && !r->finished)
            return r;
    return NULL;
}

/* Everything still waiting ends as cancelled. The lock is not held. */
static void *engine_main(void *argument)
{
    struct qr_engine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        struct score_job *job = engine->scores;
        struct request *r = next_request(engine);
        if (job) {
            engine->scores = job->next;
            pthread_mutex_unlock(&engine->lock);
            score_run(engine, job);
            pthread_mutex_lock(&engine->lock);
            job->done = true;
            pthread_cond_broadcast(&engine->event);
        } else if (r) {
            r->running = true;
            engine->waiting--;
            if (engine->stopping)
                atomic_store(&r->cancelled, true);
            pthread_mutex_unlock(&engine->lock);
            generate(engine, r);
            pthread_mutex_lock(&engine->lock);
        } else if (engine->stopping) {
            break;
        } else {
            pthread_cond_wait(&engine->work, &engine->lock);
        }
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* ---- create and destroy ---- */

static qr_status open_backend(struct qr_engine *engine, qr_error *err)
{
    const qr_model *model = engine->model;
    const char *device = model->device;
    if (strcmp(device, "cpu") == 0)
        return backend_cpu_open(NULL, model->threads, &model->log, &engine->backend, err);
    if (strncmp(device, "cpu-", 4) == 0)
        return backend_cpu_open(device + 4, model->threads, &model->log, &engine->backend, err);
    return qr_fail(err, QR_UNSUPPORTED, "device \"%s\": this build has cpu and cpu-reference", device);
}

static qr_status open_parts(struct qr_engine *engine, const struct engine_size *size, qr_error *err)
{
    qr_model *model = engine->model;
    const int32_t vocab = model->config.vocab_size;
    const struct runner_options options = {.blocks = size->blocks, .slots = size->slots, .model = size->limits};
    const uint64_t total = size->bytes.weights;
    if (model->progress && !model->progress(model->user, 0, total))
        return qr_fail(err, QR_CANCELLED, "%s: cancelled before the weights", model->dir);
    qr_status st = open_backend(engine, err);
    if (st == QR_OK)
        st = runner_open(model->checkpoint, &model->plan, &engine->geometry, engine->backend,
                         model->config.n_engram > 0 ? &model->map : NULL, &options, &engine->runner, err);
    if (st == QR_OK)
        st = blocks_open(size->blocks, &engine->blocks, err);
    if (st == QR_OK)
        st = sampler_scratch_open(vocab, &engine->sampler, err);
    if (st == QR_OK)
        st = token_counts_open(vocab, &engine->counts, err);
    if (st != QR_OK)
        return st;
    engine->logits = qr_calloc((size_t)vocab, sizeof *engine->logits);
    if (!engine->logits)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d logits", vocab);
    if (model->progress && !model->progress(model->user, total, total))
        return qr_fail(err, QR_CANCELLED, "%s: cancelled after the weights", model->dir);
    return QR_OK;
}

static void engine_free(struct qr_engine *engine)
{
    for (struct request *r = engine->requests, *next; r; r = next) {
        next = r->next;
        request_free(r);
    }
    token_counts_close(engine->counts);
    sampler_scratch_close(engine->sampler);
    qr_free(engine->logits);
    blocks_close(engine->blocks);
    runner_close(engine->runner);
    if (engine->backend)
        engine->backend->close(engine->backend);
    pthread_cond_destroy(&engine->event);
    pthread_cond_destroy(&engine->work);
    pthread_mutex_destroy(&engine->lock);
    qr_free(engine);
}

qr_status qr_engine_create(qr_model *model, const qr_engine_options *options, qr_engine **out, qr_error *err)
{
    struct engine_size size;
    *out = NULL;
    qr_status st = engine_size(model, options, &size, err);
    if (st != QR_OK)
        return st;
    struct qr_engine *engine = qr_calloc(1, sizeof *engine);
    if (!engine)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the engine");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->work, NULL);
    pthread_cond_init(&engine->event, &monotonic);
    pthread_condattr_destroy(&monotonic);

    engine->model = model;
    engine->geometry = size.geometry;
    engine->plan = size.bytes;
    engine->max_model_len = size.bytes.max_model_len;
    engine->max_rows = size.limits.max_rows;
    engine->max_logits = size.limits.max_logits;
    engine->next_handle = 1;
    engine->metrics.blocks_total = (uint64_t)size.blocks - 1;
    engine->metrics.slots_total = (uint64_t)size.slots;
    st = open_parts(engine, &size, err);
    if (st == QR_OK && pthread_create(&engine->thread, NULL, engine_main, engine))
        st = qr_fail(err, QR_NO_MEMORY, "the engine's thread cannot be started");
    if (st != QR_OK) {
        engine_free(engine);
        return st;
    }
    engine->thread_started = true;
    *out = engine;
    return QR_OK;
}

void qr_engine_destroy(qr_engine *engine)
{
    if (!engine)
        return;
    pthread_mutex_lock(&engine->lock);
    engine->stopping = true;
    for (struct request *r = engine->requests; r; r = r->next)
        atomic_store(&r->cancelled, true);
    pthread_cond_signal(&engine->work);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    engine_free(engine);
}

void qr_engine_get_plan(const qr_engine *engine, qr_plan_bytes *out) { *out = engine->plan; }

/* ---- requests ---- */

qr_status qr_submit(qr_engine *engine, const qr_request *request, void (*callback)(void *user, const qr_event *event),
                    void *user, qr_handle *out, qr_error *err)
{
    struct request *r;
    qr_status st = request_make(engine->model, request, engine->max_model_len, &r, err);
    if (st != QR_OK)
        return st;
    r->callback = callback;
    r->user = user;
    pthread_mutex_lock(&engine->lock);
    if (engine->waiting >= ENGINE_QUEUE || engine->stopping) {
        st = qr_fail(err, QR_BUSY, "%d requests are waiting, the queue holds %d", engine->waiting, ENGINE_QUEUE);
    } else {
        struct request **end = &engine->requests;
        while (*end)
            end = &(*end)->next;
        *end = r;
        r->handle = *out = engine->next_handle++;
        engine->waiting++;
        engine->metrics.requests_submitted++;
        pthread_cond_signal(&engine->work);
    }
    pthread_mutex_unlock(&engine->lock);
    if (st != QR_OK)
        request_free(r);
    return st;
}

static bool wait_event(struct qr_engine *engine, const struct timespec *until)
{
    if (!until)
        return pthread_cond_wait(&engine->event, &engine->lock) == 0;
    return pthread_cond_timedwait(&engine->event, &engine->lock, until) != ETIMEDOUT;
}

qr_status qr_poll(qr_engine *engine, qr_handle handle, int timeout_ms, qr_event *out, qr_error *err)
{
    struct timespec until = {0};
    qr_status st = QR_OK;
    if (timeout_ms >= 0) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += timeout_ms / 1000;
        until.tv_nsec += timeout_ms % 1000 * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
    }
    pthread_mutex_lock(&engine->lock);
    struct request *r = find(engine, handle);
    if (r && r->handed) {
        const bool was_last = r->handed->event.finish != QR_FINISH_NONE;
        event_free(r->handed);
        r->handed = NULL;
        if (was_last) {
            unlink_request(engine, r);
            request_free(r);
            r = NULL;
        }
    }
    bool waiting = true;
    while (r && !r->first && waiting)
        waiting = wait_event(engine, timeout_ms < 0 ? NULL : &until);
    if (!r) {
        st = qr_fail(err, QR_BAD_ARGUMENT, "handle %llu is not one of a request with events left",
                     (unsigned long long)handle);
    } else if (!r->first) {
        st = qr_fail(err, QR_BUSY, "request %llu: no event within %d ms", (unsigned long long)handle, timeout_ms);
    } else {
        r->handed = r->first;
        r->first = r->first->next;
        r->handed->next = NULL;
        if (!r->first)
            r->last = NULL;
        *out = r->handed->event;
    }
    pthread_mutex_unlock(&engine->lock);
    return st;
}

void qr_cancel(qr_engine *engine, qr_handle handle)
{
    pthread_mutex_lock(&engine->lock);
    struct request *r = find(engine, handle);
    if (r)
        atomic_store(&r->cancelled, true);
    pthread_mutex_unlock(&engine->lock);
}

void qr_release(qr_engine *engine, qr_handle handle)
{
    pthread_mutex_lock(&engine->lock);
    struct request *r = find(engine, handle);
    if (r && r->finished) {
        unlink_request(engine, r);
        request_free(r);
    } else if (r) {
        atomic_store(&r->cancelled, true);
        r->released = true; /* the engine's thread frees it with its last event */
    }
    pthread_mutex_unlock(&engine->lock);
}

qr_status qr_get_usage(qr_engine *engine, qr_handle handle, qr_usage *out, qr_error *err)
{
    qr_status st = QR_OK;
    pthread_mutex_lock(&engine->lock);
    const struct request *r = find(engine, handle);
    if (r) {
        *out = r->usage;
        out->seconds = (r->finished ? r->ended : clock_seconds()) - r->submitted;
        out->seconds_to_first_token = r->first_token > 0 ? r->first_token - r->submitted : 0;
    } else {
        st = qr_fail(err, QR_BAD_ARGUMENT, "handle %llu is not one of a live request", (unsigned long long)handle);
    }
    pthread_mutex_unlock(&engine->lock);
    return st;
}

void qr_get_metrics(const qr_engine *given, qr_metrics *out)
{
    struct qr_engine *engine = (struct qr_engine *)given; /* the lock is not part of what the caller sees as const */
    const size_t size = out->size && out->size < sizeof *out ? out->size : sizeof *out;
    pthread_mutex_lock(&engine->lock);
    qr_metrics m = engine->metrics;
    m.requests_waiting = (uint64_t)engine->waiting;
    m.requests_running = 0;
    for (const struct request *r = engine->requests; r; r = r->next)
        m.requests_running += r->running;
    pthread_mutex_unlock(&engine->lock);
    m.size = size;
    memcpy(out, &m, size);
}
