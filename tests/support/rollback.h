/* rollback.h: verify steps of any length, any number of whose drafts is right, leave what one row at a time leaves: every byte
 * that may be read, and the same drafts, with NaN patterns in everything else (speculation.md 5, 12: T6, T8, T11). */
#ifndef QR_TESTS_ROLLBACK_H
#define QR_TESTS_ROLLBACK_H

#include "support/rig.h"

struct rollback_world {
    const char *model; /* folder of the source tree, or an absolute path */
    int32_t width;     /* d */
    int32_t period;    /* positions that steps begin at, modulo this: each with every number of drafts, sent and right */
    int32_t prompt, tokens; /* tokens: of a walk, then the next one begins; at most 300 */
    bool bf16;         /* main rows in bf16 containers, index rows in index_format; else as the family has it */
    enum row_format index_format;
    int32_t short_by;  /* rows that the rings lack: the test must fail then */
};

struct rollback_counts {
    int32_t cases, steps, logits, states, drafts; /* steps; differing logits, states, drafts */
};

/* Counts what differs: nothing may, unless rows are lacking. */
void rollback(const struct rollback_world *w, struct rollback_counts *out);

#endif
