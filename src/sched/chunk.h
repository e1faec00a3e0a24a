/* chunk.h: where a prefill chunk starts and ends (runtime.md 4.4, 4.6). Pure. */
#ifndef QR_SCHED_CHUNK_H
#define QR_SCHED_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

struct chunk_rule {
    int32_t from, end;    /* P and T_end */
    int32_t below;        /* P - S: rows below P that it must run too (after a bounded hit); 0 */
    int32_t tail;         /* M: rows that the last chunk must hold, so far as there are any (bounded decoder); 0 */
    int32_t rows;         /* rows that the step has left for prefill */
    int32_t cap;          /* most rows of one request and step; 0: none */
    int32_t block;        /* B */
    int32_t cut;          /* an image will be taken at this position, if it lies inside: end there; -1 */
    int32_t first_logits; /* rows from here on want logits, */
    int32_t logits;       /* of which the step has room for so many, at least 1 */
    bool only;            /* no other prefill row is in the step yet: something must go out */
};

struct chunk {
    int32_t first; /* S */
    int32_t end;   /* E, with from < E <= end, or `from`: the request waits for a step with more room */
};

/* A chunk that lack of rows cuts ends on the grid of max(B, 64), where there is a point of it inside. It starts at P, or
 * `below` rows before it, or one whole block below P where fewer than `tail` rows are left: the back-off. A chunk is
 * never cut so that the next one has to back off if that can be helped. */
struct chunk chunk_of(const struct chunk_rule *rule);

#endif
