/* bench_random.h: requests that say nothing: prompts of random tokens, answered at temperature 1. */
#ifndef QR_TOOLS_BENCH_RANDOM_H
#define QR_TOOLS_BENCH_RANDOM_H

#include "cli/sampling_options.h"

/* Fills `out`[count] with requests of 32 tokens each and answers of `tokens`; the same ones whenever it is called. After a
 * failure too, free each with request_text_free. */
qr_status bench_random(const qr_model *model, int tokens, struct request_text *out, int count, qr_error *err);

/* Waits for the end of an answer, whose failure is one, and releases it. */
qr_status bench_finish(qr_engine *engine, qr_handle handle, qr_error *err);

#endif
