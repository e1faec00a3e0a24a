/* candidates.h: the ids of a row that may still be drawn, and the cut that top-k and top-p make among them. */
#ifndef QR_RUN_CANDIDATES_H
#define QR_RUN_CANDIDATES_H

#include <stdbool.h>
#include <stdint.h>

/* Parallel arrays in ascending order of id: processed logit and probability mass (in any unit) of each id. Filters
 * keep that order. */
struct candidates {
    int32_t count;
    int32_t *ids;
    double *logits;
    double *mass;
};

/* Of the candidates by (logit descending, id ascending), keeps the shortest beginning whose amount reaches `target`,
 * at least one; the amount is their number, or their mass when `by_mass`. Equal logits have equal mass. Linear in
 * `count` and without a sort: the logits' bits are narrowed down digit by digit. `work`: [count] indices.
 * Amounts are added in one order, fixed by the row alone. */
void candidates_cut(struct candidates *c, bool by_mass, double target, int32_t *work);

/* Keeps those whose mass is at least `floor`. */
void candidates_drop_light(struct candidates *c, double floor);

#endif
