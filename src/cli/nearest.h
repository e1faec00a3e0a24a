/* nearest.h: what was probably meant. */
#ifndef QR_CLI_NEAREST_H
#define QR_CLI_NEAREST_H

/* Changes of one letter (put in, left out, replaced, two neighbours swapped) that make `a` into `b`. Looks at the first
 * 63 bytes. */
int edit_distance(const char *a, const char *b);

#endif
