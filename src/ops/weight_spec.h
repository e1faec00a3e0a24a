/* weight_spec.h: what a weight is before a backend has prepared it. */
#ifndef QR_OPS_WEIGHT_SPEC_H
#define QR_OPS_WEIGHT_SPEC_H

#include "ops/ops.h"

/* Bytes of its values and scales. */
int64_t weight_spec_bytes(const struct weight_spec *spec);

#endif
