/* best.h: the k best of a stream of scored numbers, in place: larger score first, equal scores by the smaller id
 * (v41-model.md 6.5, v4-model.md 5.6). -inf and NaN are never kept. */
#ifndef QR_OPS_CPU_REFERENCE_BEST_H
#define QR_OPS_CPU_REFERENCE_BEST_H

#include <stdint.h>

struct scored {
    float score;
    int32_t id;
};

/* A heap whose root is the worst one kept. */
struct best {
    struct scored *kept; /* [capacity], the caller's */
    int32_t count, capacity;
};

void best_offer(struct best *b, float score, int32_t id);
/* Orders what was kept; the heap is used up. */
void best_sort_by_score(struct best *b);
void best_sort_by_id(struct best *b);

#endif
