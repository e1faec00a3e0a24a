/* verify_choices.h: choices of two backends: they may differ only where what they were chosen by nearly ties. */
#ifndef QR_TOOLS_VERIFY_CHOICES_H
#define QR_TOOLS_VERIFY_CHOICES_H

#include <stdbool.h>
#include <stdint.h>

/* One row's choice of the best of `n` by value: ids of either side. `slack`: how far from the last one chosen a value may be
 * that only one side took, and how far apart the values of ids that stand in another order. */
struct choice {
    const int32_t *found, *want;
    int32_t found_count, want_count;
    const float *values; /* [n]; of the reference */
    int32_t n;
    double slack;
    enum { CHOICE_SET, CHOICE_BY_VALUE, CHOICE_ASCENDING } order;
};

/* NULL, or what is wrong with it. *differs: another set than wanted, allowed or not. */
const char *choice_fault(const struct choice *c, bool *differs);

#endif
