/* bench_drafts.h: what drafts bring on the requests of a file, kind by kind, and on random tokens. */
#ifndef QR_TOOLS_BENCH_DRAFTS_H
#define QR_TOOLS_BENCH_DRAFTS_H

#include "cli/model_options.h"

struct bench_drafts {
    struct model_options model;
    const char *requests; /* lines {"kind", "request": members of a chat request}, or requests themselves; NULL: none */
    int batch;            /* requests at once */
    int tokens;           /* of each answer to random tokens */
    int runs;             /* of each; the fastest counts */
    const char *profile;  /* NULL: nothing; a file: the drafter's profile is measured instead and written to it */
    bool json;
};

/* Answers the first eight requests of each kind, and eight of random tokens, without drafts, always with those of the
 * checkpoint's drafter, and at the automatic setting. Prints for each kind tokens a step, the part of the verified drafts
 * that was accepted, and times. QR_UNSUPPORTED: the checkpoint has no drafter. */
qr_status bench_drafts_run(const struct bench_drafts *o, qr_error *err);

#endif
