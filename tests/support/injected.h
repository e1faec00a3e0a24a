/* injected.h: drafts that are known to be right and wrong, for every place in a block, while requests are preempted, turned around,
 * moved and cancelled, against each request alone and without drafts. */
#ifndef QR_TESTS_INJECTED_H
#define QR_TESTS_INJECTED_H

#include <stdint.h>

/* `folder`: of the source tree, or an absolute path; its drafter (quire.h, method) makes `width` drafts. Beside every number of
 * right drafts and drafts that are anything: all but one right, in the first `places` places. */
void injected(const char *folder, const char *method, int32_t width, int32_t places);

#endif
