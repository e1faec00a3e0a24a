/* inject.c: events of the acceptance suite: they reach the engine's thread like requests, and happen between two steps. */
#include "base/alloc.h"
#include "engine/engine.h"

struct injection {
    struct injection *next;
    qr_injection what;
    qr_handle handle;
    uint64_t at_step;
};

qr_status qr_inject(qr_engine *engine, qr_injection what, qr_handle handle, uint64_t at_step, qr_error *err)
{
    if ((int)what < QR_INJECT_CANCEL || (int)what > QR_INJECT_REVERSE)
        return qr_fail(err, QR_BAD_ARGUMENT, "qr_inject: event %d, wanted 0 to %d", (int)what, QR_INJECT_REVERSE);
    struct injection *in = qr_calloc(1, sizeof *in);
    if (!in)
        return qr_fail(err, QR_NO_MEMORY, "no memory for an event");
    *in = (struct injection){.what = what, .handle = handle, .at_step = at_step};
    pthread_mutex_lock(&engine->lock);
    struct injection **end = &engine->injections;
    while (*end)
        end = &(*end)->next;
    *end = in;
    pthread_cond_signal(&engine->work);
    pthread_mutex_unlock(&engine->lock);
    return QR_OK;
}

void injections_free(struct injection *list)
{
    for (struct injection *next; list; list = next) {
        next = list->next;
        qr_free(list);
    }
}

/* Takes the first one that is due out of the list; NULL: none. */
static struct injection *take_due(struct qr_engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    struct injection **at = &engine->injections;
    while (*at && (*at)->at_step > engine->metrics.steps + 1)
        at = &(*at)->next;
    struct injection *due = *at;
    if (due)
        *at = due->next;
    pthread_mutex_unlock(&engine->lock);
    return due;
}

static void cancel(struct qr_engine *engine, qr_handle handle)
{
    pthread_mutex_lock(&engine->lock);
    struct request *r = engine_find(engine, handle);
    if (r)
        engine_cancel(engine, r);
    pthread_mutex_unlock(&engine->lock);
}

static struct sched_request *running(const struct qr_engine *engine, qr_handle handle)
{
    for (const struct task *t = engine->tasks; t; t = t->next)
        if (t->r && t->r->handle == handle)
            return sched_request_running(t->sched) ? t->sched : NULL;
    return NULL;
}

/* To the first slot that is free. */
static void relocate(struct qr_engine *engine, struct sched_request *r)
{
    for (int32_t slot = 0; slot < engine->pool.slots && !sched_relocate(engine->sched, r, slot); slot++)
        continue;
}

static void happen(struct qr_engine *engine, const struct injection *in)
{
    struct sched_request *r = running(engine, in->handle);
    switch (in->what) {
    case QR_INJECT_CANCEL:
        cancel(engine, in->handle);
        break;
    case QR_INJECT_PREEMPT:
        if (r)
            sched_preempt(engine->sched, r);
        break;
    case QR_INJECT_DROP_IMAGES:
        sched_drop_images(engine->sched);
        break;
    case QR_INJECT_DROP_CACHE:
        sched_drop_cache(engine->sched);
        break;
    case QR_INJECT_RELOCATE:
        if (r)
            relocate(engine, r);
        break;
    case QR_INJECT_REVERSE:
        sched_reverse(engine->sched);
    }
}

void engine_inject(struct qr_engine *engine)
{
    for (struct injection *due; (due = take_due(engine)); qr_free(due))
        happen(engine, due);
}
