#define _GNU_SOURCE
#include "engine/engine.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"

/* ---- the engine's thread ---- */

/* Scores and requests in the order they came, one at a time; a score goes before the requests that wait. */
static void *engine_main(void *argument)
{
    struct qr_engine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        struct score_job *job = engine->scores;
        if (job) {
            engine->scores = job->next;
            pthread_mutex_unlock(&engine->lock);
            score_run(engine, job);
            pthread_mutex_lock(&engine->lock);
            job->done = true;
            pthread_cond_broadcast(&engine->event);
            continue;
        }
        struct request *r = engine_take_waiting(engine);
        if (r) {
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

/* ---- create ---- */

static qr_status open_backend(struct qr_engine *engine, qr_error *err)
{
    const qr_model *model = engine->model;
    return backend_cpu_open(model_cpu_path(model->device), model->threads, &model->log, &engine->backend, err);
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
        st = blocks_open(size->blocks, engine->geometry.options.block_tokens, &engine->blocks, err);
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
    for (struct request *r = engine->oldest, *next; r; r = next) {
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

/* Without memory allocations of its own: nothing here fails. */
static void make_locks(struct qr_engine *engine)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->work, NULL);
    pthread_cond_init(&engine->event, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

qr_status qr_engine_create(qr_model *model, const qr_engine_options *options, qr_engine **out, qr_error *err)
{
    struct engine_size size;
    *out = NULL;
    qr_status st = engine_size(&model->plan, (int64_t)checkpoint_bytes(model->checkpoint), options, &size, err);
    if (st != QR_OK)
        return st;
    struct qr_engine *engine = qr_calloc(1, sizeof *engine);
    if (!engine)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the engine");
    make_locks(engine);
    engine->model = model;
    engine->geometry = size.geometry;
    engine->plan = size.bytes;
    engine->max_model_len = size.bytes.max_model_len;
    engine->max_rows = size.limits.max_rows;
    engine->max_logits = size.limits.max_logits;
    engine->next_handle = 1;
    engine->metrics.blocks_total = engine->metrics.blocks_free = (uint64_t)size.blocks - 1;
    engine->metrics.slots_total = engine->metrics.slots_free = (uint64_t)size.slots;
    st = open_parts(engine, &size, err);
    if (st == QR_OK && pthread_create(&engine->thread, NULL, engine_main, engine))
        st = qr_fail(err, QR_NO_MEMORY, "the engine's thread cannot be started");
    if (st != QR_OK) {
        engine_free(engine);
        return st;
    }
    *out = engine;
    return QR_OK;
}

/* ---- destroy ---- */

void qr_engine_destroy(qr_engine *engine)
{
    if (!engine)
        return;
    pthread_mutex_lock(&engine->lock);
    engine->stopping = true;
    for (struct request *r = engine->oldest; r; r = r->next)
        engine_cancel(engine, r);
    pthread_cond_signal(&engine->work);
    pthread_mutex_unlock(&engine->lock);
    pthread_join(engine->thread, NULL);
    engine_free(engine);
}

void qr_engine_get_plan(const qr_engine *engine, qr_plan_bytes *out) { *out = engine->plan; }
