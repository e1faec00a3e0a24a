/* op_cost.h: the bytes that a run's operators cannot do without moving: weights used, rows read and written, keys. */
#ifndef QR_TOOLS_OP_COST_H
#define QR_TOOLS_OP_COST_H

#include "tools/op_run.h"

/* Bytes of all calls of a run. What two calls both read counts twice; what a cache would keep is not guessed. */
qr_status op_run_bytes(struct op_run *run, int64_t *out, qr_error *err);

#endif
