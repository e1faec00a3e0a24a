/* sleep.c: memory is given back and taken again, on the engine's thread between two steps. */
#include "engine/engine.h"
#include "engine/identity.h"

enum { ALL_TAGS = QR_SLEEP_WEIGHTS | QR_SLEEP_KV_CACHE };

/* ---- on the engine's thread ---- */

static void lie_down(struct qr_engine *engine, unsigned tags)
{
    sched_vacate(engine->sched);
    if (tags & QR_SLEEP_KV_CACHE)
        runner_release_pools(engine->runner);
    page_watch_forget(engine->watch);
    if (tags & QR_SLEEP_WEIGHTS)
        runner_release_weights(engine->runner);
}

/* Other weights by now: what the cache held, or will hold, is another computation. */
static void look_at_weights(struct qr_engine *engine)
{
    char identity[ENGINE_IDENTITY];
    const uint64_t before[2] = {engine->weights[0], engine->weights[1]};
    model_fingerprint(engine->model->checkpoint, engine->weights);
    if (engine->weights[0] == before[0] && engine->weights[1] == before[1])
        return;
    engine_identity(engine, identity);
    sched_identify(engine->sched, identity);
}

/* Whether nobody has told it to sleep on meanwhile. */
static bool goes_on(void *user, uint64_t done, uint64_t total)
{
    struct qr_engine *engine = user;
    (void)done;
    (void)total;
    pthread_mutex_lock(&engine->lock);
    const bool wanted = !(engine->sleep_wanted & engine->rising);
    pthread_mutex_unlock(&engine->lock);
    return wanted;
}

static qr_status get_up(struct qr_engine *engine, unsigned tags, qr_error *err)
{
    struct loading loading = {.say = goes_on, .user = engine, .total = engine->plan.weights};
    qr_status st = tags & QR_SLEEP_KV_CACHE ? runner_renew_pools(engine->runner, err) : QR_OK;
    if (st != QR_OK || !(tags & QR_SLEEP_WEIGHTS))
        return st;
    st = runner_renew_weights(engine->runner, engine->model->checkpoint, &loading, err);
    if (st == QR_OK)
        look_at_weights(engine);
    else if (tags & QR_SLEEP_KV_CACHE)
        runner_release_pools(engine->runner);
    return st;
}

void engine_change_sleep(struct qr_engine *engine)
{
    const unsigned down = engine->sleep_wanted & ~engine->asleep, up = engine->asleep & ~engine->sleep_wanted;
    qr_error err = {0};
    engine->rising = up;
    pthread_mutex_unlock(&engine->lock);
    if (down)
        lie_down(engine, down);
    const qr_status st = up ? get_up(engine, up, &err) : QR_OK;
    pthread_mutex_lock(&engine->lock);
    engine->rising = 0;
    engine->asleep |= down;
    if (st == QR_OK)
        engine->asleep &= ~up;
    else
        engine->sleep_wanted |= up;
    engine->sleep_failed = st != QR_OK;
    engine->sleep_error = err;
    pthread_cond_broadcast(&engine->event);
}

/* ---- on the caller's ---- */

static qr_status check_tags(const char *call, unsigned tags, qr_error *err)
{
    if (tags == 0 || tags & ~(unsigned)ALL_TAGS)
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: tags are %u, wanted QR_SLEEP_WEIGHTS, QR_SLEEP_KV_CACHE or both", call, tags);
    return QR_OK;
}

/* Callers of both may meet: each waits until it is as it wants it, or is no longer to be so. */

qr_status qr_engine_sleep(qr_engine *engine, unsigned tags, qr_error *err)
{
    const qr_status st = check_tags("qr_engine_sleep", tags, err);
    if (st != QR_OK)
        return st;
    pthread_mutex_lock(&engine->lock);
    engine->sleep_wanted |= tags;
    pthread_cond_broadcast(&engine->event);
    pthread_cond_signal(&engine->work);
    while ((engine->asleep & ~engine->rising & tags) != tags && (engine->sleep_wanted & tags) == tags)
        pthread_cond_wait(&engine->event, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
    return QR_OK;
}

qr_status qr_engine_wake(qr_engine *engine, unsigned tags, qr_error *err)
{
    qr_status st = check_tags("qr_engine_wake", tags, err);
    if (st != QR_OK)
        return st;
    pthread_mutex_lock(&engine->lock);
    engine->sleep_wanted &= ~tags;
    engine->sleep_failed = false;
    pthread_cond_broadcast(&engine->event);
    pthread_cond_signal(&engine->work);
    while (engine->asleep & tags && !(engine->sleep_wanted & tags))
        pthread_cond_wait(&engine->event, &engine->lock);
    if (engine->asleep & tags)
        st = engine->sleep_failed && engine->sleep_error.status != QR_CANCELLED
                 ? qr_fail(err, engine->sleep_error.status, "%s", engine->sleep_error.message)
                 : qr_fail(err, QR_CANCELLED, "the engine was told to sleep on while it was woken");
    pthread_mutex_unlock(&engine->lock);
    return st;
}
