/* soak.h: everything at once, at random, for a number of steps (runtime.md 13, A23): requests that share prefixes,
 * forks, groups, cancellations, preemptions, lost caches and images, moved slots, failing steps, reversed queues. */
#ifndef QR_TESTS_SOAK_H
#define QR_TESTS_SOAK_H

#include "support/fake.h"

struct soak_counts {
    int64_t steps, requests, hits, restores, reruns, preemptions, cancelled, failed, rows;
};

/* Fails the test at the first row, page, cursor, token or invariant that is wrong. */
void soak(const struct fake_options *options, int64_t steps, struct soak_counts *out);

/* Worlds with other pools, orders of steps and ways of starting again; each gets its share of the steps. */
enum { SOAK_WORLDS = 14 };
extern const struct fake_options soak_worlds[SOAK_WORLDS];
void soak_all(int64_t steps);

#endif
