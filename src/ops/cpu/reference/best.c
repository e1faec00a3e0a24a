#include "ops/cpu/reference/best.h"

#include <math.h>
#include <stdbool.h>

/* Whether a belongs behind b. */
typedef bool behind(struct scored a, struct scored b);

static bool worse(struct scored a, struct scored b) { return a.score < b.score || (a.score == b.score && a.id > b.id); }

static bool larger_id(struct scored a, struct scored b) { return a.id > b.id; }

/* Restores "no parent is before its children" below i: the root is then the last in the order. */
static void sift_down(struct scored *h, int32_t count, int32_t i, behind *after)
{
    for (;;) {
        int32_t last = i;
        for (int32_t child = 2 * i + 1; child <= 2 * i + 2 && child < count; child++)
            if (after(h[child], h[last]))
                last = child;
        if (last == i)
            return;
        struct scored moved = h[i];
        h[i] = h[last];
        h[last] = moved;
        i = last;
    }
}

static void sift_up(struct scored *h, int32_t i, behind *after)
{
    while (i > 0 && after(h[i], h[(i - 1) / 2])) {
        struct scored moved = h[i];
        h[i] = h[(i - 1) / 2];
        h[(i - 1) / 2] = moved;
        i = (i - 1) / 2;
    }
}

void best_offer(struct best *b, float score, int32_t id)
{
    struct scored offer = {score, id};
    if (!(score > -INFINITY))
        return;
    if (b->count < b->capacity) {
        b->kept[b->count] = offer;
        sift_up(b->kept, b->count++, worse);
    } else if (b->count > 0 && worse(b->kept[0], offer)) {
        b->kept[0] = offer;
        sift_down(b->kept, b->count, 0, worse);
    }
}

static void heap_sort(struct best *b, behind *after)
{
    for (int32_t i = b->count / 2; i-- > 0;)
        sift_down(b->kept, b->count, i, after);
    for (int32_t left = b->count; left-- > 1;) {
        struct scored moved = b->kept[0];
        b->kept[0] = b->kept[left];
        b->kept[left] = moved;
        sift_down(b->kept, left, 0, after);
    }
}

void best_sort_by_score(struct best *b) { heap_sort(b, worse); }

void best_sort_by_id(struct best *b) { heap_sort(b, larger_id); }
