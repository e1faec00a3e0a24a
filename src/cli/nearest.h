/* nearest.h: what was probably meant. */
#ifndef QR_CLI_NEAREST_H
#define QR_CLI_NEAREST_H

#include <stdbool.h>

/* Changes of one letter (put in, left out, replaced, two neighbours swapped) that make `a` into `b`. Looks at the first
 * 63 bytes. */
int edit_distance(const char *a, const char *b);

/* Whether a name at that distance from what was written may be meant: at most one letter in three is another. */
bool near_enough(const char *written, int distance);

/* "; the nearest is NAME" where that may be meant, else nothing. */
struct nearest_hint {
    char text[96];
};
struct nearest_hint nearest_hint(const char *written, const char *name);

#endif
