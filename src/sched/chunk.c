#include "sched/chunk.h"

enum { LEAST_GRID = 64 };

static int32_t min(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max(int32_t a, int32_t b) { return a > b ? a : b; }

/* Where it ends that may run `rows` rows from P on. */
static int32_t end_within(const struct chunk_rule *r, int32_t rows)
{
    const int32_t grid = max(r->block, LEAST_GRID);
    int32_t want = r->end - r->from;
    if (r->cap > 0)
        want = min(want, r->cap);
    if (rows < 1)
        return r->from;

    int32_t end = r->from + want;
    if (rows < want) {
        const int32_t cut = r->from + rows, floored = cut / grid * grid;
        if (floored <= r->from && !r->only)
            return r->from;
        end = floored > r->from ? floored : cut;
    }
    if (r->from < r->cut)
        end = min(end, r->cut);
    return min(end, max(r->from, r->first_logits) + r->logits);
}

/* A chunk that leaves fewer rows than the tail: one that leaves enough, where there is one. */
static int32_t leave_tail(const struct chunk_rule *r, int32_t end)
{
    const int32_t grid = max(r->block, LEAST_GRID), lower = max(0, r->end - r->tail) / grid * grid;
    return r->end - end < r->tail && lower > r->from ? lower : end;
}

static struct chunk back_off(const struct chunk_rule *r)
{
    const int32_t first = max(0, (r->from - r->block) / r->block * r->block);
    if (r->end - first <= r->rows)
        return (struct chunk){first, r->end};
    /* What fits beyond P is not the prompt's end: it needs no tail, and brings the next one nearer to it. */
    return (struct chunk){r->from, end_within(r, r->rows - (r->from - first))};
}

struct chunk chunk_of(const struct chunk_rule *r)
{
    const struct chunk c = {r->from - r->below, end_within(r, r->rows - r->below)};
    if (c.end == r->from || r->tail == 0)
        return c;
    if (c.end < r->end)
        return (struct chunk){c.first, leave_tail(r, c.end)};
    return c.first > 0 && r->end - c.first < r->tail ? back_off(r) : c;
}
