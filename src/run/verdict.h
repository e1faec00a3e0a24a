/* verdict.h: the ratio test and block verification of one step (speculation.md 4.4, 4.5), from the target's distributions
 * of its rows and the law of its drafts. What follows has the target's law, not its bits: another number of drafts is
 * another draw. */
#ifndef QR_RUN_VERDICT_H
#define QR_RUN_VERDICT_H

#include "run/draft_law.h"

enum verifier {
    VERIFIER_MATCH, /* 4.3; 4.2 at temperature 0: no business of this module */
    VERIFIER_RATIO,
    VERIFIER_BLOCK
};

/* Memory for one step at a time: 16 * (limit + 1) bytes an id. */
struct verdict_scratch;
qr_status verdict_open(int32_t vocab, int32_t limit, struct verdict_scratch **out, qr_error *err);
void verdict_close(struct verdict_scratch *s); /* NULL is fine */
int64_t verdict_bytes(int32_t vocab, int32_t limit);

/* Where the caller writes the target's distribution [vocab] behind the first `row` drafts, row 0 to n. */
double *verdict_target(struct verdict_scratch *s, int32_t row);

struct verdict {
    int32_t accepted; /* drafts that stand */
    int32_t next;     /* the token behind them; -1: its row is missing */
};
/* Of n drafts that `law` holds. `last_missing`: row n is not there. */
struct verdict verdict_take(struct verdict_scratch *s, enum verifier verifier, const struct draft_law *law,
                            const int32_t *drafts, int32_t n, bool last_missing, uint64_t seed, int64_t first);

#endif
