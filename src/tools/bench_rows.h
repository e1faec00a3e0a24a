/* bench_rows.h: what the row plan saves (runtime.md 7): rows, floating-point operations and time of a prompt under each
 * mode of decoder replay, by kind of layer. */
#ifndef QR_TOOLS_BENCH_ROWS_H
#define QR_TOOLS_BENCH_ROWS_H

#include "cli/model_options.h"
#include "plan/rows.h"

/* Decoder replay: every layer on every row; the rows that later results need; one window. */
enum bench_mode { BENCH_OFF, BENCH_EXACT, BENCH_BOUNDED, BENCH_MODES };

/* The ranges of a cold prompt. False: the model has no such mode. */
bool bench_mode_rows(const struct model_plan *plan, enum bench_mode mode, int32_t tokens, struct row_plan *out);

/* For prompts of 1,024 tokens and doubled up to `longest`, the last: rows times layers and operations of each mode. Reads
 * the config of the folder `dir` only. */
qr_status bench_rows_run(const char *dir, int longest, bool json, qr_error *err);
/* The same, each prompt run and timed too, in chunks of `chunk` rows; with `audit` run once more, the rows counted that the
 * kernels of each layer run: QR_INTERNAL when they are not those of the row plan. */
qr_status bench_replay_run(const struct model_options *model, int longest, int chunk, bool audit, bool json, qr_error *err);

#endif
