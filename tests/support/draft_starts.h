/* draft_starts.h: wherever a prompt starts from and however it is cut, its drafter finds the rows that a cold run leaves, and
 * says the same (speculation.md 3, 12: T12, T13). */
#ifndef QR_TESTS_DRAFT_STARTS_H
#define QR_TESTS_DRAFT_STARTS_H

#include <stdbool.h>
#include <stdint.h>

struct draft_starts_world {
    const char *model, *method; /* folder of the source tree, or an absolute path */
    const char *decoder, *encoder; /* replay */
    int32_t hit;                /* tokens that the prompt shares with one before it; 0: none */
    int32_t rows;               /* of a step; 0: any number */
    int32_t block;              /* tokens of a page; 0: as the engine has it */
    bool disturbed;             /* it is preempted, and then its state moved, while it decodes */
};
struct draft_starts_counts {
    int32_t prompts, hits, drafts, preemptions; /* drafts: passes that were compared */
};
/* For each length of what follows behind the hit. Exact replay and none are compared with a cold run. Bounded replay is compared
 * with itself: without drafts; drafts included with an engine that starts at the same place and cuts the prompt otherwise; and
 * where the decoder alone is bounded and need not go back, with a cold run too. */
void draft_starts(const struct draft_starts_world *w, const int32_t *suffixes, int32_t count, struct draft_starts_counts *out);

/* Conversations: an answer with drafts, all of them right, that ends on or just behind a block boundary leaves an image there; the
 * next turn starts from it and drafts what it drafts cold. `block`: tokens a page; every `answer` of [from, to) tokens. */
void draft_turns(const char *model, const char *method, int32_t block, int32_t prompt, int32_t from, int32_t to);

#endif
