#include "serve/aside.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "serve/routes.h"

/* Bytes from which on a body is large: its text takes a fifth of a second. */
enum { LARGE = 1 << 20 };

struct aside {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct exchange *first, **last; /* that wait */
    size_t count;                   /* of all that are not over */
    bool ending;
};

static void refuse_at_end(struct exchange *x)
{
    struct refusal refusal = {0};
    refuse_ending(&refusal);
    x->handled = exchange_refuse(x, &refusal);
}

/* Under the lock, which is let go meanwhile. The connection is no longer this thread's behind it. */
static void read_one(struct aside *a)
{
    struct exchange *x = a->first;
    const bool ending = a->ending;
    a->first = x->next;
    if (!a->first)
        a->last = &a->first;
    pthread_mutex_unlock(&a->lock);
    if (ending)
        refuse_at_end(x);
    else
        x->handled = x->route->handle(x);
    pthread_mutex_lock(&a->lock);
    MHD_resume_connection(x->connection);
}

static void *run(void *user)
{
    struct aside *a = user;
    pthread_mutex_lock(&a->lock);
    while (a->first || !a->ending) {
        if (a->first)
            read_one(a);
        else
            pthread_cond_wait(&a->work, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* ---- life ---- */

qr_status aside_open(struct aside **out, qr_error *err)
{
    *out = NULL;
    struct aside *a = qr_calloc(1, sizeof *a);
    if (!a)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the thread that reads large requests");
    a->last = &a->first;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->work, NULL);
    const int why = pthread_create(&a->thread, NULL, run, a);
    if (why != 0) {
        aside_close(a);
        return qr_fail(err, QR_IO, "cannot start the thread that reads large requests: %s", strerror(why));
    }
    *out = a;
    return QR_OK;
}

void aside_end(struct aside *a)
{
    pthread_mutex_lock(&a->lock);
    a->ending = true;
    pthread_cond_signal(&a->work);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
}

void aside_close(struct aside *a)
{
    if (!a)
        return;
    pthread_cond_destroy(&a->work);
    pthread_mutex_destroy(&a->lock);
    qr_free(a);
}

size_t aside_exchanges(struct aside *a)
{
    pthread_mutex_lock(&a->lock);
    const size_t count = a->count;
    pthread_mutex_unlock(&a->lock);
    return count;
}

/* ---- of exchanges ---- */

bool aside_takes(const struct exchange *x) { return x->body.length > LARGE && x->route->door == DOOR_KEY; }

enum MHD_Result aside_handle(struct aside *a, struct exchange *x)
{
    pthread_mutex_lock(&a->lock);
    x->aside = a;
    a->count++;
    x->away = !a->ending;
    if (x->away) {
        *a->last = x;
        a->last = &x->next;
        MHD_suspend_connection(x->connection);
        pthread_cond_signal(&a->work);
    }
    const bool taken = x->away;
    pthread_mutex_unlock(&a->lock);
    if (taken)
        return MHD_YES;
    refuse_at_end(x);
    return x->handled;
}

enum MHD_Result aside_resume(struct exchange *x)
{
    struct MHD_Response *answer = x->answer;
    x->away = false;
    x->answer = NULL;
    if (answer)
        return exchange_send(x, x->status, answer);
    return x->handled == MHD_YES ? x->route->resume(x) : MHD_NO;
}

void aside_leave(struct exchange *x)
{
    if (x->answer)
        MHD_destroy_response(x->answer);
    if (!x->aside)
        return;
    pthread_mutex_lock(&x->aside->lock);
    x->aside->count--;
    pthread_mutex_unlock(&x->aside->lock);
}
