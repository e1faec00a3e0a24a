/* bench_pairs.h: what the automatic setting costs where drafts fail: the same answers without drafts and with `auto`, by turns. */
#ifndef QR_TOOLS_BENCH_PAIRS_H
#define QR_TOOLS_BENCH_PAIRS_H

#include "cli/model_options.h"

struct bench_pairs {
    struct model_options model;
    int batch;  /* requests at once */
    int tokens; /* of each answer */
    int pairs;  /* of runs */
    bool json;
};

/* Eight answers to random tokens, first with the drafter's own drafts, then with drafts of any tokens in their place, which are
 * practically never right. A pair of runs has two engines of its own, side by side, each as large as the plan that is printed, which take turns at `batch` requests, in
 * one order and then in the other, so that what else the machine does falls on both. What counts is the processor time of
 * the whole program, which other programs lengthen little. Prints the medians, and the median, quartiles and extremes of
 * the pairs' quotients. */
qr_status bench_pairs_run(const struct bench_pairs *o, qr_error *err);

#endif
