#include "sched/chunk.h"

enum { LEAST_GRID = 64 };

static int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max(int32_t a, int32_t b) { return a > b ? a : b; }

int32_t chunk_end(const struct chunk_rule *r)
{
    const int32_t grid = max(r->block, LEAST_GRID);
    int32_t want = r->end - r->from;
    if (r->cap > 0)
        want = min(want, r->cap);
    if (r->rows < 1)
        return r->from;

    int32_t end = r->from + want;
    if (r->rows < want) {
        const int32_t cut = r->from + r->rows, floored = cut / grid * grid;
        if (floored <= r->from && !r->only)
            return r->from;
        end = floored > r->from ? floored : cut;
    }
    if (r->from < r->cut)
        end = min(end, r->cut);
    return min(end, max(r->from, r->first_logits) + r->logits);
}
