/* bench_timer.h: prompts run and timed on a model under a mode of decoder replay. */
#ifndef QR_TOOLS_BENCH_TIMER_H
#define QR_TOOLS_BENCH_TIMER_H

#include "tools/bench_rows.h"

struct bench_timer;

/* Opens the model for prompts of up to `longest` tokens in chunks of at most `chunk` rows. */
qr_status bench_timer_open(const struct model_options *model, int longest, int chunk, struct bench_timer **out, qr_error *err);
void bench_timer_close(struct bench_timer *t);

const struct model_plan *bench_timer_plan(const struct bench_timer *t);
const char *bench_timer_backend(const struct bench_timer *t);

/* Seconds of a cold prompt of random tokens, cut as the scheduler cuts one that runs alone. */
qr_status bench_timer_run(struct bench_timer *t, enum bench_mode mode, int32_t tokens, double *seconds, qr_error *err);
/* The same prompt, looked at instead of timed (runtime.md 13, A10): rows times layers that its kernels ran, those included
 * that a bounded decoder's last chunk runs again. QR_INTERNAL: a layer of a chunk ran other rows than the row plan's. */
qr_status bench_timer_audit(struct bench_timer *t, enum bench_mode mode, int32_t tokens, int64_t *ran, qr_error *err);

#endif
