/* bounded.h: prompts under bounded replay, as the scheduler runs them, against a control that is put together by hand
 * (runtime.md 13, A09, A11, A12): the same starts S and C, but every layer on every row, windows cut by hand, and the rows
 * that a back-off runs again in a slot of their own. */
#ifndef QR_TESTS_BOUNDED_H
#define QR_TESTS_BOUNDED_H

#include "sched/sched.h"

struct bounded_world {
    const char *model; /* folder of the source tree */
    int32_t block;
    enum replay decoder, encoder;
    int32_t rows; /* of a step */
    int32_t cap;  /* of a chunk; 0: none */
    bool images;
};

struct bounded_counts {
    int64_t prompts, hits, backed_off, restored, drifted; /* drifted: their logits are not those of an exact run */
};

/* For each number of cached tokens, whole blocks, and each length of what follows: the prompt's last logits and those of
 * some decoded tokens are, bit for bit, the control's. */
void bounded_all(const struct bounded_world *w, const int32_t *hits, int hit_count, const int32_t *suffixes,
                 int suffix_count, struct bounded_counts *out);

#endif
