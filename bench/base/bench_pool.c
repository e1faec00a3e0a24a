/* What a job costs that does nothing: the price of cutting an operator over the workers. */
#include <stdio.h>

#include "base/clock.h"
#include "base/pool.h"

static void nothing(void *user, int64_t item, int thread)
{
    (void)user;
    (void)item;
    (void)thread;
}

int main(void)
{
    struct worker_pool *pool;
    if (pool_open(0, &pool, NULL) != QR_OK)
        return 1;
    static const int64_t items[] = {2, 16, 128, 1024};
    printf("base/pool  %d threads:", pool_threads(pool));
    for (int i = 0; i < 4; i++) {
        const int rounds = 20000;
        double start = clock_seconds();
        for (int k = 0; k < rounds; k++)
            pool_run(pool, items[i], nothing, NULL);
        printf("%s %lld items %.2f us", i ? "," : "", (long long)items[i], (clock_seconds() - start) / rounds * 1e6);
    }
    printf("\n");
    pool_close(pool);
    return 0;
}
