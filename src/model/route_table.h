/* route_table.h: the table of a hash layer, tid2eid (v4-model.md 6.1, 9.5). */
#ifndef QR_MODEL_ROUTE_TABLE_H
#define QR_MODEL_ROUTE_TABLE_H

#include "base/status.h"
#include "number/dtype.h"

/* Copies `rows` x `cols` expert numbers of dtype I64 or I32 to `out`. Refuses, naming `path`, `name` and the token, a
 * number outside [0, experts) and a row that has one twice. */
qr_status route_table_read(const char *path, const char *name, enum dtype dtype, const void *data, int64_t rows,
                           int64_t cols, int32_t experts, int32_t *out, qr_error *err);

/* The same of one row alone: that of token `row`, to out[0 .. cols). */
qr_status route_table_row(const char *path, const char *name, enum dtype dtype, const void *data, int64_t row, int64_t cols,
                          int32_t experts, int32_t *out, qr_error *err);

#endif
