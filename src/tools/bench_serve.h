/* bench_serve.h: what a long prompt does to the people who are being answered while it enters. */
#ifndef QR_TOOLS_BENCH_SERVE_H
#define QR_TOOLS_BENCH_SERVE_H

#include "cli/model_options.h"

struct bench_serve {
    struct model_options model;
    int streams; /* requests that decode */
    int tokens;  /* of the prompt that enters */
    bool json;
};

/* Inter-token times of the streams while the prompt enters: with its chunks beside their rows in one step, and with steps of
 * its own. Prints a line for each, or one JSON object. */
qr_status bench_serve_run(const struct bench_serve *o, qr_error *err);

#endif
