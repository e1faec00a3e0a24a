/* op_cost.h: the bytes that a run's operators cannot do without moving: weights used, rows read and written, keys. */
#ifndef QR_TOOLS_OP_COST_H
#define QR_TOOLS_OP_COST_H

#include "tools/op_run.h"

/* Whose call it is: the backend that its addresses belong to, memory to count in, and what a weight of the call weighs. */
struct op_meter {
    struct backend *backend;
    struct arena *arena;
    int64_t (*weight_bytes)(const void *user, const struct weight *w);
    const void *user;
};
/* Bytes of one call. */
qr_status op_call_bytes(const struct op_meter *m, enum op_kind kind, const void *op, int64_t *out, qr_error *err);

/* Bytes of all calls of a run. What two calls both read counts twice; what a cache would keep is not guessed. */
qr_status op_run_bytes(struct op_run *run, int64_t *out, qr_error *err);

#endif
