#define _GNU_SOURCE
#include "serve/keeper.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "serve/job.h"

/* How often jobs are looked at; a client that has shut down its side may still read: it is gone after GONE_AFTER. */
enum { TICK_MS = 200, MOST_EVENTS = 64 };
static const double GONE_AFTER = 1.0;

struct kept {
    struct kept *next, *previous;
    struct job *job;
    uint64_t number; /* of an event: sockets are used again */
    int socket;
    double half_closed; /* when it was seen to be; 0: it is not */
};

struct keeper {
    pthread_t thread;
    pthread_mutex_t lock;
    struct kept *first;
    size_t count;
    uint64_t next;
    int epoll, wake;
    bool ending;
    void (*tick)(void *user, double now);
    void *user;
};

enum { WAKE = 0 }; /* the number that no job has */

static struct kept *find_number(struct keeper *k, uint64_t number)
{
    struct kept *e = k->first;
    while (e && e->number != number)
        e = e->next;
    return e;
}

static void take_event(struct keeper *k, const struct epoll_event *event)
{
    struct kept *e = find_number(k, event->data.u64);
    if (!e)
        return;
    if (event->events & (EPOLLHUP | EPOLLERR))
        job_gone(e->job);
    else if (event->events & EPOLLRDHUP)
        e->half_closed = clock_seconds();
}

static void tick(struct keeper *k)
{
    const double now = clock_seconds();
    k->tick(k->user, now);
    for (struct kept *e = k->first; e; e = e->next) {
        if (e->half_closed > 0 && now - e->half_closed > GONE_AFTER)
            job_gone(e->job);
        else
            job_tick(e->job, now);
    }
}

static void *run(void *user)
{
    struct keeper *k = user;
    struct epoll_event events[MOST_EVENTS];
    double last = 0;
    for (;;) {
        const int n = epoll_wait(k->epoll, events, MOST_EVENTS, TICK_MS);
        pthread_mutex_lock(&k->lock);
        if (k->ending) {
            pthread_mutex_unlock(&k->lock);
            return NULL;
        }
        for (int i = 0; i < n; i++)
            take_event(k, &events[i]);
        if (clock_seconds() - last >= TICK_MS / 1000.0) {
            tick(k);
            last = clock_seconds();
        }
        pthread_mutex_unlock(&k->lock);
    }
}

qr_status keeper_open(void (*tick)(void *user, double now), void *user, struct keeper **out, qr_error *err)
{
    *out = NULL;
    struct keeper *k = qr_calloc(1, sizeof *k);
    if (!k)
        return qr_fail(err, QR_NO_MEMORY, "no memory for the server's keeper");
    k->epoll = epoll_create1(EPOLL_CLOEXEC);
    k->wake = eventfd(0, EFD_CLOEXEC);
    k->next = WAKE + 1;
    k->tick = tick;
    k->user = user;
    pthread_mutex_init(&k->lock, NULL);
    struct epoll_event event = {.events = EPOLLIN, .data = {.u64 = WAKE}};
    if (k->epoll < 0 || k->wake < 0 || epoll_ctl(k->epoll, EPOLL_CTL_ADD, k->wake, &event) != 0 ||
        pthread_create(&k->thread, NULL, run, k) != 0) {
        const int why = errno;
        close(k->epoll);
        close(k->wake);
        pthread_mutex_destroy(&k->lock);
        qr_free(k);
        return qr_fail(err, QR_IO, "cannot start the server's keeper: %s", strerror(why));
    }
    *out = k;
    return QR_OK;
}

void keeper_close(struct keeper *k)
{
    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->ending = true;
    pthread_mutex_unlock(&k->lock);
    const uint64_t one = 1;
    (void)!write(k->wake, &one, sizeof one);
    pthread_join(k->thread, NULL);
    close(k->epoll);
    close(k->wake);
    pthread_mutex_destroy(&k->lock);
    qr_free(k);
}

bool keeper_add(struct keeper *k, struct job *job, int socket)
{
    struct kept *e = qr_calloc(1, sizeof *e);
    if (!e)
        return false;
    pthread_mutex_lock(&k->lock);
    *e = (struct kept){.next = k->first, .job = job, .number = k->next++, .socket = socket};
    if (e->next)
        e->next->previous = e;
    k->first = e;
    k->count++;
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data = {.u64 = e->number}};
    (void)epoll_ctl(k->epoll, EPOLL_CTL_ADD, socket, &event); /* without it the failed write tells */
    pthread_mutex_unlock(&k->lock);
    return true;
}

void keeper_remove(struct keeper *k, struct job *job)
{
    pthread_mutex_lock(&k->lock);
    struct kept *e = k->first;
    while (e && e->job != job)
        e = e->next;
    if (e) {
        (void)epoll_ctl(k->epoll, EPOLL_CTL_DEL, e->socket, NULL);
        *(e->previous ? &e->previous->next : &k->first) = e->next;
        if (e->next)
            e->next->previous = e->previous;
        k->count--;
        qr_free(e);
    }
    pthread_mutex_unlock(&k->lock);
}

size_t keeper_jobs(struct keeper *k)
{
    pthread_mutex_lock(&k->lock);
    const size_t count = k->count;
    pthread_mutex_unlock(&k->lock);
    return count;
}

void keeper_abort_all(struct keeper *k, const char *why)
{
    pthread_mutex_lock(&k->lock);
    for (struct kept *e = k->first; e; e = e->next)
        job_abort(e->job, why);
    pthread_mutex_unlock(&k->lock);
}
