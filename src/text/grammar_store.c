#include "text/grammar_store.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { NONE = UINT32_MAX };

void store_clear(struct store *s)
{
    memset(s->frame_heads, 0xff, sizeof s->frame_heads);
    memset(s->state_heads, 0xff, sizeof s->state_heads);
    s->frames[0] = (struct frame){.node = GRAMMAR_RETURN, .next = NONE};
    s->states[0] = (struct state){.next = NONE};
    s->frame_count = s->state_count = 1;
    s->place_count = 0;
}

uint32_t store_frame(struct store *s, grammar_node_id node, uint32_t parent, uint32_t depth)
{
    const uint32_t key[2] = {node, parent};
    uint32_t *head = &s->frame_heads[XXH3_64bits(key, sizeof key) % STORE_FRAMES];
    for (uint32_t f = *head; f != NONE; f = s->frames[f].next)
        if (s->frames[f].node == node && s->frames[f].parent == parent && s->frames[f].depth == depth)
            return f;
    if (s->frame_count == STORE_FRAMES)
        return STORE_FULL;
    s->frames[s->frame_count] = (struct frame){node, parent, depth, *head};
    return *head = s->frame_count++;
}

uint32_t store_state(struct store *s, const struct place *places, uint32_t count)
{
    const size_t bytes = count * sizeof *places;
    if (count == 0)
        return 0;
    uint32_t *head = &s->state_heads[XXH3_64bits(places, bytes) % STORE_STATES];
    for (uint32_t i = *head; i != NONE; i = s->states[i].next)
        if (s->states[i].count == count && memcmp(&s->places[s->states[i].first], places, bytes) == 0)
            return i;
    if (s->state_count == STORE_STATES || count > STORE_PLACES - s->place_count)
        return STORE_FULL;
    memcpy(&s->places[s->place_count], places, bytes);
    s->states[s->state_count] = (struct state){s->place_count, count, *head};
    s->place_count += count;
    return *head = s->state_count++;
}

uint32_t store_copy_frame(struct store *to, const struct store *from, uint32_t frame)
{
    uint32_t path[STORE_FRAMES], n = 0, copy = 0;
    for (; frame; frame = from->frames[frame].parent)
        path[n++] = frame;
    while (n > 0 && copy != STORE_FULL) {
        const struct frame *f = &from->frames[path[--n]];
        copy = store_frame(to, f->node, copy, f->depth);
    }
    return copy;
}

static int by_place(const void *left, const void *right)
{
    const struct place *a = left, *b = right;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    return a->frame < b->frame ? -1 : a->frame > b->frame;
}

void store_sort(struct place *places, uint32_t count)
{
    if (count > 16) {
        qsort(places, count, sizeof *places, by_place);
        return;
    }
    for (uint32_t i = 1; i < count; i++) {
        const struct place p = places[i];
        uint32_t k = i;
        for (; k > 0 && by_place(&p, &places[k - 1]) < 0; k--)
            places[k] = places[k - 1];
        places[k] = p;
    }
}
