/* label: threads */
#define _GNU_SOURCE
#include "support/support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/pool.h"

struct tally {
    atomic_int *runs; /* of each item */
    int threads;
    atomic_int bad_thread;
};

static void count(void *user, int64_t item, int thread)
{
    struct tally *t = user;
    atomic_fetch_add(&t->runs[item], 1);
    if (thread < 0 || thread >= t->threads)
        atomic_store(&t->bad_thread, 1);
}

static void every_item_runs_once_and_is_finished_on_return(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 8};
    static const int64_t items[] = {0, 1, 2, 7, 1000};
    for (size_t t = 0; t < 4; t++) {
        struct worker_pool *pool;
        assert_int_equal(pool_open(threads[t], &pool, NULL), QR_OK);
        assert_int_equal(pool_threads(pool), threads[t]);
        for (int round = 0; round < 200; round++) {
            int64_t n = items[round % 5];
            struct tally tally = {calloc((size_t)n + 1, sizeof(atomic_int)), threads[t], 0};
            pool_run(pool, n, count, &tally);
            for (int64_t i = 0; i < n; i++)
                assert_int_equal(tally.runs[i], 1);
            assert_int_equal(tally.bad_thread, 0);
            free(tally.runs);
        }
        pool_close(pool);
    }
}

static void plain_add(void *user, int64_t item, int thread)
{
    (void)thread;
    ((int64_t *)user)[item] += item;
}

static void what_items_wrote_is_seen_after_the_run(void **state)
{
    (void)state;
    static int64_t cells[64];
    struct worker_pool *pool;
    assert_int_equal(pool_open(4, &pool, NULL), QR_OK);
    memset(cells, 0, sizeof cells);
    for (int round = 0; round < 3000; round++)
        pool_run(pool, 64, plain_add, cells);
    for (int64_t i = 0; i < 64; i++)
        assert_int_equal(cells[i], 3000 * i);
    pool_close(pool);
}

/* Returns only when every item of the job is being run at once, so by as many threads. */
static void meet(void *user, int64_t item, int thread)
{
    (void)item;
    (void)thread;
    atomic_int *missing = user;
    atomic_fetch_sub(missing, 1);
    while (atomic_load(missing) > 0)
        sched_yield();
}

static void all_workers_take_part_also_after_a_sleep(void **state)
{
    (void)state;
    struct worker_pool *pool;
    assert_int_equal(pool_open(4, &pool, NULL), QR_OK);
    for (int round = 0; round < 20; round++) {
        atomic_int missing = 4;
        if (round % 4 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL); /* long beyond the spin: all are asleep */
        pool_run(pool, 4, meet, &missing);
        assert_int_equal(missing, 0);
    }
    pool_close(pool);
}

static void order(void *user, int64_t item, int thread)
{
    (void)thread;
    int64_t *next = user;
    assert_int_equal(item, *next);
    ++*next;
}

static void no_pool_and_one_thread_run_in_order_on_the_caller(void **state)
{
    (void)state;
    int64_t next = 0;
    assert_int_equal(pool_threads(NULL), 1);
    pool_run(NULL, 10, order, &next);
    assert_int_equal(next, 10);
    struct worker_pool *pool;
    assert_int_equal(pool_open(1, &pool, NULL), QR_OK);
    next = 0;
    pool_run(pool, 10, order, &next);
    assert_int_equal(next, 10);
    pool_close(pool);
    pool_close(NULL);
}

static void zero_threads_means_every_core(void **state)
{
    (void)state;
    struct worker_pool *pool;
    qr_error err = {0};
    assert_int_equal(pool_open(0, &pool, &err), QR_OK);
    assert_true(pool_threads(pool) >= 1);
    pool_close(pool);
    assert_int_equal(pool_open(-1, &pool, &err), QR_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "-1"));
    assert_null(pool);
}

enum { MOST = 8 };

struct places {
    pthread_barrier_t all; /* holds every thread until each has an item */
    cpu_set_t of[MOST];    /* where each may run */
};

static void note_place(void *user, int64_t item, int thread)
{
    struct places *p = user;
    (void)item;
    pthread_barrier_wait(&p->all);
    pthread_getaffinity_np(pthread_self(), sizeof p->of[0], &p->of[thread]);
}

static void find_places(int threads, struct places *out)
{
    struct worker_pool *pool;
    assert_int_equal(pool_open(threads, &pool, NULL), QR_OK);
    assert_int_equal(pthread_barrier_init(&out->all, NULL, (unsigned)threads), 0);
    pool_run(pool, threads, note_place, out);
    pthread_barrier_destroy(&out->all);
    pool_close(pool);
}

static void each_worker_has_a_processor_of_its_own_where_there_are_enough(void **state)
{
    (void)state;
    cpu_set_t allowed, taken, one;
    struct places places;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    const int threads = CPU_COUNT(&allowed) < MOST ? CPU_COUNT(&allowed) : MOST;
    find_places(threads, &places);
    CPU_ZERO(&taken);
    for (int i = 1; i < threads; i++) {
        assert_int_equal(CPU_COUNT(&places.of[i]), 1);
        CPU_AND(&one, &places.of[i], &allowed);
        assert_true(CPU_EQUAL(&one, &places.of[i]));
        CPU_AND(&one, &places.of[i], &taken);
        assert_int_equal(CPU_COUNT(&one), 0);
        CPU_OR(&taken, &taken, &places.of[i]);
    }
    assert_true(CPU_EQUAL(&places.of[0], &allowed)); /* the caller stays free */
}

static void with_fewer_processors_than_threads_nobody_is_pinned(void **state)
{
    (void)state;
    cpu_set_t allowed, one, after;
    struct places places;
    int first = 0;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    while (!CPU_ISSET(first, &allowed))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    find_places(4, &places);
    for (int i = 0; i < 4; i++)
        assert_true(CPU_EQUAL(&places.of[i], &one));
    assert_int_equal(sched_setaffinity(0, sizeof allowed, &allowed), 0);
    find_places(MOST, &places);
    for (int i = 0; i < MOST && CPU_COUNT(&allowed) < MOST; i++)
        assert_true(CPU_EQUAL(&places.of[i], &allowed));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&after, &allowed));
}

static void no_memory_is_a_status(void **state)
{
    (void)state;
    struct worker_pool *pool;
    alloc_fault_at(1, 0);
    assert_int_equal(pool_open(2, &pool, NULL), QR_NO_MEMORY);
    alloc_fault_at(0, 0);
    assert_null(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_runs_once_and_is_finished_on_return),
        cmocka_unit_test(what_items_wrote_is_seen_after_the_run),
        cmocka_unit_test(all_workers_take_part_also_after_a_sleep),
        cmocka_unit_test(no_pool_and_one_thread_run_in_order_on_the_caller),
        cmocka_unit_test(zero_threads_means_every_core),
        cmocka_unit_test(each_worker_has_a_processor_of_its_own_where_there_are_enough),
        cmocka_unit_test(with_fewer_processors_than_threads_nobody_is_pinned),
        fault_test(no_memory_is_a_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
