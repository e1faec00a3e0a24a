/* pool.h: the CPU workers. One job at a time; the caller works too. */
#ifndef QR_BASE_POOL_H
#define QR_BASE_POOL_H

#include "base/status.h"

struct worker_pool;

/* `threads` counts the caller: 1 means no worker. 0 means every core this process may use. Workers sleep when idle
 * after a short spin. Where there is a CPU for every thread each worker stays on one of its own, among those that the
 * calling thread may use; the caller itself is left where it is. */
qr_status pool_open(int threads, struct worker_pool **out, qr_error *err);
void pool_close(struct worker_pool *pool);
int pool_threads(const struct worker_pool *pool);
/* What pool_open makes of `threads`. */
int pool_threads_wanted(int threads);

/* Runs body(user, item, thread) for every item in [0, items) and returns when all are done. Items are dealt
 * dynamically in ascending order; a result must not depend on which thread ran what. `thread` is in
 * [0, pool_threads). Not reentrant; one caller at a time. A NULL pool runs everything on the caller. */
void pool_run(struct worker_pool *pool, int64_t items, void (*body)(void *user, int64_t item, int thread), void *user);

#endif
