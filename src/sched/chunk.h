/* chunk.h: where a prefill chunk ends (runtime.md 4.4, exact modes). Pure. */
#ifndef QR_SCHED_CHUNK_H
#define QR_SCHED_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

struct chunk_rule {
    int32_t from, end;    /* P and T_end */
    int32_t rows;         /* rows that the step has left for prefill */
    int32_t cap;          /* most rows of one request and step; 0: none */
    int32_t block;        /* B */
    int32_t cut;          /* an image will be taken at this position, if it lies inside: end there; -1 */
    int32_t first_logits; /* rows from here on want logits, */
    int32_t logits;       /* of which the step has room for so many, at least 1 */
    bool only;            /* no other prefill row is in the step yet: something must go out */
};

/* E, with from < E <= end, or `from`: the request waits for a step with more room.
 * A chunk that lack of rows cuts ends on the grid of max(B, 64), where there is a point of it inside. */
int32_t chunk_end(const struct chunk_rule *rule);

#endif
