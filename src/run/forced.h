/* forced.h: forced acceptance (speculation.md 7, E09): how many drafts of a step are taken to be right, whatever they are,
 * so that steps emit `length` tokens on average. For benchmarks; the answer is no answer of the model. */
#ifndef QR_RUN_FORCED_H
#define QR_RUN_FORCED_H

#include <stdint.h>

/* Drafts that are taken of a step at most. `length` is 1 or more. */
int32_t forced_most(double length);
/* Drafts taken of the step whose first draft has position `first`: the whole ones of length - 1, and one more with the
 * chance of the rest, by the request's acceptance uniform of that draft. */
int32_t forced_accepted(double length, uint64_t seed, int64_t first);

#endif
