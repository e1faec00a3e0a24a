/* bench_random.h: requests that say nothing: prompts of random tokens, answered at temperature 1. */
#ifndef QR_TOOLS_BENCH_RANDOM_H
#define QR_TOOLS_BENCH_RANDOM_H

#include "cli/sampling_options.h"

enum { BENCH_RANDOM_PROMPT = 32, BENCH_ANSWERS = 8 };

/* Fills `out`[count] with requests of BENCH_RANDOM_PROMPT tokens each and answers of `tokens`; the same ones whenever it is called. After a
 * failure too, free each with request_text_free. */
qr_status bench_random(const qr_model *model, int tokens, struct request_text *out, int count, qr_error *err);

/* Submits `count` requests, at most BENCH_ANSWERS, and waits for all of their answers; the first failure is one. */
qr_status bench_answers(qr_engine *engine, const struct request_text *requests, int count, qr_error *err);

#endif
