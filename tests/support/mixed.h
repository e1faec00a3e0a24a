/* mixed.h: many requests at once, with shared beginnings, cancelled, preempted, moved and robbed of their cache, against
 * each alone and cold. */
#ifndef QR_TESTS_MIXED_H
#define QR_TESTS_MIXED_H

/* `requests` of them, at most 500, 16 at once, on the folder `dir` of the source tree; `method` drafts (quire.h), NULL:
 * nothing. Those alone have no drafts. Returns how many drafts were right. */
int mixed(const char *dir, int requests, const char *method);

#endif
