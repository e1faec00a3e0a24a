/* grammar_store.h: the states of a run (grammar_run.h): fixed memory, in which equal stacks and equal states are one. */
#ifndef QR_TEXT_GRAMMAR_STORE_H
#define QR_TEXT_GRAMMAR_STORE_H

#include "text/grammar.h"

enum { STORE_STATES = 2048, STORE_PLACES = 32768, STORE_FRAMES = 8192 };

/* Where a rule goes on when the one it called has ended. Frame 0: nowhere, the answer is complete. */
struct frame {
    grammar_node_id node;
    uint32_t parent;
    uint32_t depth; /* recursive rules below */
    uint32_t next;  /* of the same hash */
};

/* A node that eats something, or GRAMMAR_RETURN with frame 0: complete. */
struct place {
    grammar_node_id node;
    uint32_t frame;
};

/* State 0 has no place: nothing fits. */
struct state {
    uint32_t first, count; /* places */
    uint32_t next;
};

struct store {
    struct frame frames[STORE_FRAMES];
    struct place places[STORE_PLACES];
    struct state states[STORE_STATES];
    uint32_t frame_heads[STORE_FRAMES], state_heads[STORE_STATES];
    uint32_t frame_count, place_count, state_count;
};

enum { STORE_FULL = UINT32_MAX }; /* no frame or state */

void store_clear(struct store *s);
/* The frame of these, or STORE_FULL. */
uint32_t store_frame(struct store *s, grammar_node_id node, uint32_t parent, uint32_t depth);
/* The state of these places, which are sorted and differ; or STORE_FULL. */
uint32_t store_state(struct store *s, const struct place *places, uint32_t count);
/* The same frame or state in another store, or STORE_FULL. */
uint32_t store_copy_frame(struct store *to, const struct store *from, uint32_t frame);
void store_sort(struct place *places, uint32_t count);

#endif
