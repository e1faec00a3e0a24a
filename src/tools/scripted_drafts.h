/* scripted_drafts.h: drafts whose worth is known beforehand, in the place of a drafter's: every number of right ones, at every
 * step parity, for cases that must not depend on luck (speculation.md 12: T1, T6, T14; runtime.md 13, A16). */
#ifndef QR_TOOLS_SCRIPTED_DRAFTS_H
#define QR_TOOLS_SCRIPTED_DRAFTS_H

#include "quire.h"
#include "engine/speculate.h"

enum script_mode {
    SCRIPT_EVERY,   /* at each parity every number of right drafts in turn, then any */
    SCRIPT_RIGHT,   /* all are right */
    SCRIPT_WRONG_AT, /* all but one */
    SCRIPT_RANDOM,  /* any tokens, whatever the prompt */
    SCRIPT_OWN      /* what the drafter itself said */
};

/* A prompt and the whole answer that it has without drafts. */
struct script_line {
    const int32_t *tokens;
    int32_t count;
    int32_t asked, right; /* tokens that were known when drafts were last asked for, and how many of them were right; -1 */
};

enum { SCRIPT_LINES = 16, SCRIPT_PERIOD = 8 };

struct scripted_drafts {
    enum script_mode mode;
    int32_t wrong_at;                  /* of SCRIPT_WRONG_AT */
    bool ragged;                       /* any number of drafts at a time */
    int32_t vocab, limit, period;      /* limit: drafts of a step; period: positions are told apart modulo this */
    struct script_line line[SCRIPT_LINES];
    int32_t lines;
    uint64_t random;
    bool seen[SCRIPT_PERIOD][SCHED_MAX_WIDTH]; /* by the first position of the verify step, and how many were right */
    int64_t steps;                             /* that came out as they were meant to */
};

/* From now on, before any request, the engine verifies these drafts. It must have been opened with a drafter, and be destroyed
 * before `s` is. */
void script_install(struct scripted_drafts *s, qr_engine *engine);
/* A prompt with its answer; borrowed. */
void script_tell(struct scripted_drafts *s, const int32_t *tokens, int32_t count);
/* Pairs of parity and number of right drafts that did not come up. */
int32_t script_missing(const struct scripted_drafts *s);

#endif
