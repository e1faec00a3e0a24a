/* weight_spec.h: what a weight is before a backend has prepared it. */
#ifndef QR_OPS_WEIGHT_SPEC_H
#define QR_OPS_WEIGHT_SPEC_H

#include "ops/ops.h"

/* Bytes of its values and scales. */
int64_t weight_spec_bytes(const struct weight_spec *spec);

/* Columns that share one E8M0 scale; 0 where the format has none. */
int32_t weight_spec_block(const struct weight_spec *spec);

/* QR_BAD_ARGUMENT, naming the weight: sizes, tiles or splits that no backend takes, or an array that is missing. */
qr_status weight_spec_check(const struct weight_spec *spec, qr_error *err);

#endif
