#define _GNU_SOURCE
#include "engine/engine.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/loading.h"
#include "base/thread.h"
#include "engine/draft_check.h"
#include "engine/draft_schedule.h"
#include "engine/identity.h"
#include "engine/rules.h"
#include "ops/device.h"

/* ---- the engine's thread ---- */

/* A new prompt is held while others run and it has not waited for long (runtime.md 4.3, delay factor). */
static bool is_held(const struct qr_engine *engine)
{
    const struct request *next = engine_next_waiting(engine);
    return engine->delay_factor > 0 && engine->tasks && next && !atomic_load(&next->cancelled) &&
           clock_seconds() - next->submitted < engine->delay_factor * engine->prompt_latency;
}

static bool has_room(const struct qr_engine *engine)
{
    const struct sched_metrics m = sched_metrics(engine->sched);
    return m.running + m.waiting < engine->max_requests;
}

/* Takes up what came: every score, and as many requests as may run at once. The lock is held, and let go meanwhile. */
static void take_up(struct qr_engine *engine)
{
    for (;;) {
        struct score_job *job = engine->scores;
        struct request *r = NULL;
        if (job)
            engine->scores = job->next;
        else if (has_room(engine) && !is_held(engine))
            r = engine_take_waiting(engine);
        if (!job && !r)
            return;
        pthread_mutex_unlock(&engine->lock);
        if (job)
            score_begin(engine, job);
        else
            generate_begin(engine, r);
        pthread_mutex_lock(&engine->lock);
    }
}

static bool any_paused(const struct qr_engine *engine)
{
    const struct task *t = engine->tasks;
    while (t && !(t->r && atomic_load(&t->r->paused)))
        t = t->next;
    return t != NULL;
}

/* A step, and what ends with it. False: nothing is left to run, or nothing that may. */
static bool work(struct qr_engine *engine)
{
    engine_sweep(engine);
    engine_inject(engine);
    engine_pass_cancels(engine);
    const bool stepped = engine_step(engine);
    engine_finish_tasks(engine);
    return stepped || (engine->tasks && !any_paused(engine));
}

/* What can be done without a step: requests end that were cancelled. */
static void work_asleep(struct qr_engine *engine)
{
    engine_sweep(engine);
    engine_pass_cancels(engine);
    engine_finish_tasks(engine);
}

/* A turn of the engine's thread; the lock is held, and let go meanwhile. False: there is nothing to do but to wait. Who waits
 * behind paused requests waits for what stirs the engine. */
static bool turn(struct qr_engine *engine)
{
    bool busy = false;
    engine->stirred = false;
    if (engine->sleep_wanted != engine->asleep)
        engine_change_sleep(engine);
    if (engine->asleep) {
        pthread_mutex_unlock(&engine->lock);
        work_asleep(engine);
        pthread_mutex_lock(&engine->lock);
        return engine->stirred || engine->sleep_wanted != engine->asleep;
    }
    take_up(engine);
    pthread_mutex_unlock(&engine->lock);
    busy = work(engine);
    pthread_mutex_lock(&engine->lock);
    busy |= engine->waiting > 0 && (has_room(engine) || !any_paused(engine));
    return busy || engine->stirred || engine->scores || engine->sleep_wanted != engine->asleep;
}

static void *engine_main(void *argument)
{
    struct qr_engine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        const bool stopping = engine->stopping; /* before the turn, which then ends what was cancelled */
        if (turn(engine))
            continue;
        if (stopping)
            break;
        if (!engine->stopping)
            pthread_cond_wait(&engine->work, &engine->lock);
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

/* ---- create ---- */

static qr_status open_backend(struct qr_engine *engine, const struct engine_size *size, qr_error *err)
{
    const qr_model *model = engine->model;
    const struct device_plan *d = &size->on_device;
    TRY(backend_open(model->device, model->threads, &model->log, &engine->backend, err));
    if (engine->backend->hold && d->memory.total > 0)
        engine->backend->hold(engine->backend, device_plan_held(d, size->budget.pool.bytes), d->memory.score_band);
    if (engine->backend->run_as)
        engine->backend->run_as(engine->backend, &size->mode);
    return QR_OK;
}

static qr_status open_sched(struct qr_engine *engine, const struct engine_size *size, qr_error *err)
{
    char identity[ENGINE_IDENTITY];
    model_fingerprint(engine->model->checkpoint, engine->weights);
    engine_identity(engine, identity);
    struct sched_options options = engine_sched_options(&engine->model->plan, &engine->geometry, &engine->pool, size);
    options.identity = identity;
    options.costs =
        cost_of_model(cost_rates(engine->model->device), &engine->model->plan, (int64_t)size->bytes.weights);
    engine->results = qr_calloc((size_t)options.max_requests, sizeof *engine->results);
    engine->accepted = qr_calloc((size_t)options.max_requests, sizeof *engine->accepted);
    if (!engine->results || !engine->accepted)
        return qr_fail(err, QR_NO_MEMORY, "no memory for results of %d requests", options.max_requests);
    qr_status st = geometry_pool(&engine->geometry, size->blocks, size->slots, &engine->pool, err);
    if (st == QR_OK && engine_watches_pages(engine->model->device))
        st = page_watch_open(&engine->geometry, &engine->pool, &engine->watch, err);
    if (st == QR_OK)
        st = sched_open(&options, &engine->sched, err);
    return st == QR_OK ? sched_prove_hit(engine->sched, err) : st;
}

static bool say_weights(void *user, uint64_t done, uint64_t total)
{
    return model_say_progress(user, QR_PHASE_WEIGHTS, done, total, NULL) == QR_OK;
}

/* The experts that were used most lie on the device. */
static qr_status place_experts(struct qr_engine *engine, const struct engine_size *size, struct expert_placement *out,
                               qr_error *err)
{
    const qr_model *model = engine->model;
    const struct device_plan *d = &size->on_device;
    *out = (struct expert_placement){.on_host = 0};
    TRY(expert_use_open(size->options.expert_use, &model->plan, &model->log, &engine->use, err));
    if (d->on_host == 0)
        return QR_OK;
    return placement_make(model->plan.layers, model->config.n_routed_experts, d->experts - d->on_host, d->seats,
                          expert_use_is_known(&engine->use) ? engine->use.visits : NULL, out, err);
}

/* What this run knows of them is added to the file. */
static void keep_use(struct qr_engine *engine)
{
    qr_error err = {0};
    struct expert_use *u = &engine->use;
    if (!u->path || !engine->runner)
        return;
    uint64_t *visits = qr_calloc((size_t)u->layers * (size_t)u->experts + 1, sizeof *visits);
    qr_status st = visits ? runner_expert_uses(engine->runner, visits, &err)
                          : qr_fail(&err, QR_NO_MEMORY, "%s: no memory for the visits of experts", u->path);
    if (st == QR_OK)
        st = expert_use_keep(u, visits, &err);
    if (st != QR_OK)
        qr_logf(&engine->model->log, QR_LOG_WARN, "use of experts is not kept: %s", err.message);
    qr_free(visits);
}

static qr_status open_runner(struct qr_engine *engine, const struct engine_size *size, struct loading *loading, qr_error *err)
{
    qr_model *model = engine->model;
    struct expert_placement placement;
    struct runner_options options = {
        .blocks = size->blocks, .slots = size->slots, .model = size->limits, .loading = loading, .pads = size->captures.count > 0};
    TRY(place_experts(engine, size, &placement, err));
    options.model.placement = &placement;
    const qr_status st = runner_open(model->checkpoint, &model->plan, &engine->geometry, engine->backend,
                                     model->config.n_engram > 0 ? &model->map : NULL, &options, &engine->runner, err);
    placement_free(&placement);
    return st;
}

/* What no request draws that does not say so is left out of the lists' sums. */
static qr_status open_lists(struct qr_engine *engine, int32_t rows, qr_error *err)
{
    const struct qr_model *model = engine->model;
    const struct id_list never = {model->banned.data, (int32_t)model->banned.count};
    return shortlists_open(engine->backend, model->config.vocab_size, rows, &never, &engine->lists, err);
}

static qr_status open_parts(struct qr_engine *engine, const struct engine_size *size, qr_error *err)
{
    qr_model *model = engine->model;
    const int32_t vocab = model->config.vocab_size;
    const uint64_t total = size->bytes.weights;
    struct loading loading = {.say = say_weights, .user = model, .total = total};
    qr_status st = model_say_progress(model, QR_PHASE_WEIGHTS, 0, total, err);
    if (st == QR_OK)
        st = open_backend(engine, size, err);
    if (st == QR_OK)
        st = open_runner(engine, size, &loading, err);
    if (st == QR_OK)
        st = open_sched(engine, size, err);
    if (st == QR_OK)
        st = sampler_scratch_open(vocab, &engine->sampler, err);
    if (st == QR_OK)
        st = open_lists(engine, size->limits.max_logits, err);
    if (st == QR_OK)
        st = speculation_open(engine, &size->drafts, &engine->speculation, err);
    if (st == QR_OK)
        st = verdicts_open(&size->drafts, vocab, &engine->verdicts, err);
    if (st != QR_OK)
        return st;
    engine->logits = qr_calloc((size_t)vocab, sizeof *engine->logits);
    if (!engine->logits)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %d logits", vocab);
    TRY(capture_run(engine, &size->captures, err));
    engine_note_backend(engine);
    return model_say_progress(model, QR_PHASE_WEIGHTS, total, total, err); /* with what no engine needs of them */
}

static void engine_free(struct qr_engine *engine)
{
    for (struct request *r = engine->oldest, *next; r; r = next) {
        next = r->next;
        request_free(r);
    }
    injections_free(engine->injections);
    sampler_scratch_close(engine->sampler);
    shortlists_close(engine->lists);
    qr_free(engine->logits);
    qr_free(engine->results);
    qr_free(engine->accepted);
    verdicts_close(engine->verdicts);
    speculation_close(engine->speculation);
    sched_close(engine->sched);
    page_watch_close(engine->watch);
    runner_close(engine->runner);
    expert_use_close(&engine->use);
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
    if (!out || !model)
        return qr_fail(err, QR_BAD_ARGUMENT, "an engine wants a model and a place: %s is NULL", out ? "model" : "out");
    *out = NULL;
    const struct engine_place place = {.device = model->device, .threads = model->threads, .checkpoint = model->checkpoint};
    qr_status st = engine_size(&model->plan, (int64_t)checkpoint_bytes(model->checkpoint), &place, options, &size, err);
    if (st == QR_OK)
        st = draft_schedule_check(model->dir, &size, err);
    if (st == QR_OK && size.bytes.max_model_len < 2)
        st = qr_fail(err, QR_REFUSED, "max_model_len is %d, wanted at least 2: a token of a prompt and one of an answer",
                     size.bytes.max_model_len);
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
    engine->bounded = engine_is_bounded(&size);
    engine->max_requests = size.limits.max_requests;
    engine->max_rows = size.limits.max_rows;
    engine->delay_factor = size.options.scheduler_delay_factor;
    engine->next_handle = 1;
    engine->metrics.blocks_total = engine->metrics.blocks_free = engine->metrics.blocks_vacant = (uint64_t)size.blocks - 1;
    engine->metrics.slots_total = engine->metrics.slots_free = (uint64_t)size.slots;
    st = open_parts(engine, &size, err);
    if (st == QR_OK && thread_start(&engine->thread, engine_main, engine))
        st = qr_fail(err, QR_NO_MEMORY, "the engine's thread cannot be started");
    if (st != QR_OK) {
        engine_free(engine);
        return st;
    }
    if (size.drafts.forced > 0)
        qr_logf(&model->log, QR_LOG_WARN,
                "FORCED ACCEPTANCE: %g tokens a step are taken, right or wrong; answers are none of the model's (E09)",
                size.drafts.forced);
    if (size.drafts.width > model->plan.draft_width)
        draft_check(engine, &model->log, size.drafts.width, model->plan.draft_width);
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
    keep_use(engine);
    engine_free(engine);
}

void qr_engine_get_plan(const qr_engine *engine, qr_plan_bytes *out) { *out = engine->plan; }

const qr_model *engine_model(const qr_engine *engine) { return engine->model; }
