/* batch_check.h: everything that must hold before a step may write (runtime.md 3.9). */
#ifndef QR_RUN_BATCH_CHECK_H
#define QR_RUN_BATCH_CHECK_H

#include "run/assemble.h"

struct batch_check;

qr_status batch_check_open(const struct assembly_limits *limits, struct batch_check **out, qr_error *err);
/* Bytes that it takes. */
int64_t batch_check_bytes_for(const struct assembly_limits *limits);
void batch_check_close(struct batch_check *c);
/* See assembly_check. */
qr_status batch_check(struct batch_check *c, const struct batch *batch, qr_error *err);

#endif
