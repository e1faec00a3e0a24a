#define _GNU_SOURCE
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/thread.h"

/* How often an idle thread looks before it sleeps: some tens of microseconds, the gap between two operators. */
#define SPINS 1000
/* Index of a job that is being written: no worker may take from it. */
#define CLOSED UINT32_MAX

typedef void pool_body(void *user, int64_t item, int thread);

struct worker {
    struct worker_pool *pool;
    pthread_t thread;
    int number; /* 1.. ; the caller is 0 */
};

/* A job is opened and taken from through one word: its turn (which job) above, the next item's index below. A worker
 * reads the job and then moves the index by compare-and-swap, which succeeds only while the turn is still the one it
 * read; so a worker that comes late takes nothing, and the caller waits for items, never for workers. */
struct worker_pool {
    int threads;
    _Atomic uint64_t ticket;   /* turn << 32 | index */
    _Atomic(pool_body *) body; /* these four are written while the index is CLOSED */
    _Atomic(void *) user;
    _Atomic int64_t first;
    _Atomic uint32_t items;
    _Atomic uint32_t done; /* items finished */
    _Atomic int sleepers;  /* workers asleep or about to be */
    _Atomic int caller_sleeps;
    _Atomic bool quit;
    pthread_mutex_t lock;
    pthread_cond_t wake, finished;
    int started;
    struct worker workers[];
};

static void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static uint32_t turn_of(uint64_t ticket) { return (uint32_t)(ticket >> 32); }

static void item_finished(struct worker_pool *p, uint32_t items)
{
    if (atomic_fetch_add(&p->done, 1) + 1 == items && atomic_load(&p->caller_sleeps)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->finished);
        pthread_mutex_unlock(&p->lock);
    }
}

/* Runs items of the open job until none is left; returns the last turn whose items are all taken. */
static uint32_t work(struct worker_pool *p, int thread)
{
    uint64_t ticket = atomic_load(&p->ticket);
    for (;;) {
        uint32_t index = (uint32_t)ticket;
        pool_body *body = atomic_load_explicit(&p->body, memory_order_relaxed);
        void *user = atomic_load_explicit(&p->user, memory_order_relaxed);
        int64_t first = atomic_load_explicit(&p->first, memory_order_relaxed);
        uint32_t items = atomic_load_explicit(&p->items, memory_order_relaxed);
        if (index == CLOSED)
            return turn_of(ticket) - 1;
        if (index >= items)
            return turn_of(ticket);
        if (atomic_compare_exchange_weak(&p->ticket, &ticket, ticket + 1)) {
            body(user, first + index, thread);
            item_finished(p, items);
            ticket = atomic_load(&p->ticket);
        }
    }
}

static bool has_new(struct worker_pool *p, uint32_t seen)
{
    uint64_t ticket = atomic_load(&p->ticket);
    return atomic_load(&p->quit) || (turn_of(ticket) != seen && (uint32_t)ticket != CLOSED);
}

static void wait_for_job(struct worker_pool *p, uint32_t seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (has_new(p, seen))
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (!has_new(p, seen))
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    uint32_t seen = 0;
    while (wait_for_job(w->pool, seen), !atomic_load(&w->pool->quit))
        seen = work(w->pool, w->number);
    return NULL;
}

static int usable_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < 1)
        return 1;
    return CPU_COUNT(&set);
}

/* The n-th CPU of a set that has one. */
static int nth_cpu(const cpu_set_t *set, int n)
{
    int cpu = 0;
    while (!CPU_ISSET(cpu, set) || n-- > 0)
        cpu++;
    return cpu;
}

/* Keeps worker n on the n-th CPU. With fewer CPUs than threads nothing is pinned: the system shares them out better. A
 * refusal costs speed only. */
static void pin_workers(struct worker_pool *p)
{
    cpu_set_t allowed, one;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < p->threads)
        return;
    for (int i = 0; i < p->started; i++) {
        CPU_ZERO(&one);
        CPU_SET(nth_cpu(&allowed, p->workers[i].number), &one);
        pthread_setaffinity_np(p->workers[i].thread, sizeof one, &one);
    }
}

int pool_threads_wanted(int threads) { return threads > 0 ? threads : usable_cores(); }

qr_status pool_open(int threads, struct worker_pool **out, qr_error *err)
{
    *out = NULL;
    if (threads < 0 || threads > 4096)
        return qr_fail(err, QR_BAD_ARGUMENT, "threads is %d, wanted 0 (every core) to 4096", threads);
    threads = pool_threads_wanted(threads);
    struct worker_pool *p = qr_calloc(1, sizeof *p + (size_t)threads * sizeof p->workers[0]);
    if (!p)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a pool of %d threads", threads);
    p->threads = threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->finished, NULL);
    while (p->started < threads - 1) {
        struct worker *w = &p->workers[p->started];
        w->pool = p;
        w->number = p->started + 1;
        int failure = thread_start(&w->thread, worker_main, w);
        if (failure) {
            int number = w->number;
            pool_close(p);
            return qr_fail(err, QR_NO_MEMORY, "thread %d of %d cannot start: %s", number + 1, threads,
                           strerror(failure));
        }
        p->started++;
    }
    pin_workers(p);
    *out = p;
    return QR_OK;
}

void pool_close(struct worker_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->quit, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->finished);
    pthread_mutex_destroy(&pool->lock);
    qr_free(pool);
}

int pool_threads(const struct worker_pool *pool) { return pool ? pool->threads : 1; }

static void open_job(struct worker_pool *p, int64_t first, uint32_t items, pool_body *body, void *user)
{
    uint64_t turn = (uint64_t)turn_of(atomic_load(&p->ticket)) + 1;
    atomic_exchange(&p->ticket, turn << 32 | CLOSED);
    atomic_store_explicit(&p->body, body, memory_order_relaxed);
    atomic_store_explicit(&p->user, user, memory_order_relaxed);
    atomic_store_explicit(&p->first, first, memory_order_relaxed);
    atomic_store_explicit(&p->items, items, memory_order_relaxed);
    atomic_store_explicit(&p->done, 0, memory_order_relaxed);
    atomic_store(&p->ticket, turn << 32);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

static void wait_for_items(struct worker_pool *p, uint32_t items)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&p->done) == items)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, 1);
    while (atomic_load(&p->done) != items)
        pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->caller_sleeps, 0);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(struct worker_pool *pool, int64_t items, void (*body)(void *user, int64_t item, int thread), void *user)
{
    if (!pool || pool->threads == 1 || items == 1) {
        for (int64_t i = 0; i < items; i++)
            body(user, i, 0);
        return;
    }
    const int64_t at_once = CLOSED - 1;
    for (int64_t first = 0; first < items; first += at_once) {
        uint32_t count = (uint32_t)(items - first < at_once ? items - first : at_once);
        open_job(pool, first, count, body, user);
        work(pool, 0);
        wait_for_items(pool, count);
    }
}
