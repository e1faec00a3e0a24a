/* bench_rows.h: what the row plan saves (runtime.md 7.5): rows and floating-point operations of a prompt, by kind of layer. */
#ifndef QR_TOOLS_BENCH_ROWS_H
#define QR_TOOLS_BENCH_ROWS_H

#include "base/status.h"

/* For prompts of 1,024 tokens and doubled up to `longest`, the last: rows times layers and operations of exact trimming against every
 * layer on every row. Reads the config of the folder `dir` only. */
qr_status bench_rows_run(const char *dir, int longest, bool json, qr_error *err);

#endif
