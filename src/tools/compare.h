/* compare.h: the comparators of v4-model.md section 10, and the text in which a file states its tolerance. Knows rows of
 * numbers, no operator. */
#ifndef QR_TOOLS_COMPARE_H
#define QR_TOOLS_COMPARE_H

#include "base/status.h"

enum comparator {
    COMPARE_EXACT,  /* the same value and sign, or at most `ulps` f32 steps away */
    COMPARE_RA,     /* bad: |a - e| > absolute + relative |e|; at most round(share N) bad */
    COMPARE_RD,     /* bad: rho > theta; at most round(share N) bad, and the largest bad rho below cap */
    COMPARE_AC,     /* RA with no bad point allowed */
    COMPARE_COSINE, /* of all points as one vector: cosine at least `theta`, relative L2 distance at most `relative` */
    COMPARE_TK,     /* ranks: another id only where the values are still in falling order (compare_ranks) */
    COMPARE_SETS,   /* a row's ids in any order; at most `moved` rows with another set */
    COMPARE_ARGMAX  /* the id is the lowest one of the largest value found */
};

struct tolerance {
    enum comparator kind;
    double absolute, relative; /* RA, AC, COSINE (relative) */
    double theta, cap;         /* RD, COSINE (theta); cap 0: none */
    double share;              /* RA, RD: of the points that may be bad */
    int32_t ulps;              /* EXACT */
    int64_t moved;             /* SETS */
    bool ranks_too;            /* SETS: a different set still passes when its values are those of the other (TK) */
};

/* Reads the clause of a tolerance text that speaks of one array. The text is clauses with `;` between them, each a list of
 * names and a comparator: "post, comb RA(2.5e-5,5e-3,0.005); topk TK(score)". `names`: the array's names, "topk_idxs|topk".
 * A clause that names it wins over one without names or one for "others" or "outputs". *found false: no clause speaks of
 * it. Fails with QR_BAD_FILE on a clause that has no comparator or a malformed one. */
qr_status tolerance_find(const char *text, const char *names, struct tolerance *out, bool *found, qr_error *err);

/* The comparator in its short form, "RA(0.0001,0.0078125,0.005)"; returns `out`. */
const char *tolerance_text(const struct tolerance *t, char *out, size_t size);

/* How a comparison went. `largest` is the largest |found - want|; `worst` the point that is furthest outside (or furthest
 * off, when none is), with its values. */
struct comparison {
    bool passed;
    int64_t points, bad, allowed, worst;
    double found, want, largest;
    const char *why; /* NULL, or what failed beside the count: a NaN, the cap */
};

/* EXACT, RA, RD, AC, COSINE over n points. A NaN or infinity on either side fails whatever the comparator. `slack`, unless NULL:
 * points that may differ by 1 whatever the comparator. */
void compare_points(const struct tolerance *t, const double *found, const double *want, int64_t n, const bool *slack,
                    struct comparison *out);

/* TK and SETS: `count` ids in each of `rows` rows of `stride` (counts[row] of them count); value(user, row, k, id): the
 * found value that belongs to the id in place k of the row. Ids of a row must differ from one another.
 * TK: where an id differs from the wanted one, the values found around that place must be in falling order, and the value
 * wanted there must be met within `values` (NULL: not asked). */
struct ranks {
    const double *found, *want;
    int64_t rows, stride;
    const int64_t *counts;
    double (*value)(void *user, int64_t row, int64_t k, int64_t id);
    double (*wanted_value)(void *user, int64_t row, int64_t k, int64_t id); /* NULL: not asked */
    void *user;
    const struct tolerance *values;
};
void compare_ranks(const struct tolerance *t, const struct ranks *r, struct comparison *out);

#endif
