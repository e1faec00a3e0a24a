#define _GNU_SOURCE
#include "serve/sleeper.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/status.h"
#include "serve/server.h"

struct change {
    struct change *next;
    struct sleeper *sleeper;
    struct MHD_Connection *connection;
    unsigned tags;
    bool sleeps;
    /* when it is done */
    qr_status status;
    qr_error err;
    bool asleep; /* the server, behind it */
};

struct sleeper {
    struct server *server;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, rest;       /* there is something to do; a change has ended */
    struct change *first, **last;    /* that wait */
    struct change *running;
    size_t count;                    /* of all whose exchanges are not over */
    bool ending;
};

/* Under the lock, as all that follows up to run. */

/* Sleeps that wait count already. */
static void tell_server(struct sleeper *s, const struct change *done)
{
    _Atomic unsigned *asleep = &s->server->asleep;
    unsigned tags = atomic_load(asleep);
    if (done->status == QR_OK)
        tags = done->sleeps ? tags | done->tags : tags & ~done->tags;
    for (const struct change *c = s->first; c; c = c->next)
        tags |= c->sleeps ? c->tags : 0;
    atomic_store(asleep, tags);
}

/* Its connection goes on, and the change is the connection's. */
static void end_change(struct change *c, qr_status st)
{
    c->status = st;
    c->asleep = atomic_load(&c->sleeper->server->asleep) != 0;
    MHD_resume_connection(c->connection);
}

static struct change *take(struct sleeper *s)
{
    struct change *c = s->first;
    s->first = c->next;
    if (!s->first)
        s->last = &s->first;
    return c;
}

static void make(struct sleeper *s, struct change *c)
{
    s->running = c;
    pthread_mutex_unlock(&s->lock);
    const qr_status st = (c->sleeps ? qr_engine_sleep : qr_engine_wake)(s->server->engine, c->tags, &c->err);
    pthread_mutex_lock(&s->lock);
    s->running = NULL;
    c->status = st == QR_CANCELLED ? qr_fail(&c->err, st, SHUTS_DOWN) : st;
    tell_server(s, c);
    end_change(c, c->status);
    pthread_cond_broadcast(&s->rest);
}

static void *run(void *user)
{
    struct sleeper *s = user;
    pthread_mutex_lock(&s->lock);
    while (!s->ending) {
        if (s->first)
            make(s, take(s));
        else
            pthread_cond_wait(&s->work, &s->lock);
    }
    while (s->first) {
        struct change *c = take(s);
        end_change(c, qr_fail(&c->err, QR_CANCELLED, SHUTS_DOWN));
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- life ---- */

qr_status sleeper_open(struct server *server, struct sleeper **out, qr_error *err)
{
    *out = NULL;
    struct sleeper *s = qr_calloc(1, sizeof *s);
    if (!s)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the thread that lets the engine sleep");
    s->server = server;
    s->last = &s->first;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->rest, NULL);
    const int why = pthread_create(&s->thread, NULL, run, s);
    if (why != 0) {
        s->ending = true;
        sleeper_close(s);
        return qr_fail(err, QR_IO, "cannot start the thread that lets the engine sleep: %s", strerror(why));
    }
    *out = s;
    return QR_OK;
}

/* A wake of the engine ends when the engine is to sleep; more than once, as its thread may not have called it yet. */
static void cut_wake(struct sleeper *s)
{
    static const long PATIENCE_NS = 50 * 1000 * 1000;
    while (s->running) {
        const struct change cut = *s->running;
        struct timespec until;
        pthread_mutex_unlock(&s->lock);
        if (!cut.sleeps)
            (void)qr_engine_sleep(s->server->engine, cut.tags, NULL);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += PATIENCE_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_mutex_lock(&s->lock);
        if (s->running)
            (void)pthread_cond_timedwait(&s->rest, &s->lock, &until);
    }
}

void sleeper_end(struct sleeper *s)
{
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_signal(&s->work);
    cut_wake(s);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
}

void sleeper_close(struct sleeper *s)
{
    if (!s)
        return;
    pthread_cond_destroy(&s->rest);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    qr_free(s);
}

size_t sleeper_changes(struct sleeper *s)
{
    pthread_mutex_lock(&s->lock);
    const size_t count = s->count;
    pthread_mutex_unlock(&s->lock);
    return count;
}

/* ---- of exchanges ---- */

enum MHD_Result sleeper_change(struct sleeper *s, struct exchange *x, unsigned tags, bool sleeps)
{
    struct refusal refusal = {0};
    struct change *c = qr_calloc(1, sizeof *c);
    if (!c) {
        refuse(&refusal, 500, NULL, NULL, "no memory for the request");
        return exchange_refuse(x, &refusal);
    }
    *c = (struct change){.sleeper = s, .connection = x->connection, .tags = tags, .sleeps = sleeps};
    pthread_mutex_lock(&s->lock);
    const bool taken = !s->ending;
    if (taken) {
        *s->last = c;
        s->last = &c->next;
        s->count++;
        x->change = c;
        if (sleeps)
            atomic_fetch_or(&s->server->asleep, tags);
        MHD_suspend_connection(x->connection);
        pthread_cond_signal(&s->work);
    }
    pthread_mutex_unlock(&s->lock);
    if (taken)
        return MHD_YES;
    qr_free(c);
    refuse_ending(&refusal);
    return exchange_refuse(x, &refusal);
}

bool change_result(const struct exchange *x, bool *asleep, struct refusal *refusal)
{
    struct change *c = x->change;
    pthread_mutex_lock(&c->sleeper->lock);
    *asleep = c->asleep;
    const qr_status st = c->status;
    pthread_mutex_unlock(&c->sleeper->lock);
    if (st == QR_OK)
        return true;
    refuse_for(refusal, st, &c->err, NULL);
    if (st != QR_CANCELLED)
        return false;
    refusal->status = 503;
    refusal->retry_after = 5;
    return false;
}

void change_close(struct change *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->sleeper->lock);
    c->sleeper->count--;
    pthread_mutex_unlock(&c->sleeper->lock);
    qr_free(c);
}
