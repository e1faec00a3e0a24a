/* tensor_spec.h: what a tensor of a file must be. */
#ifndef QR_CHECKPOINT_TENSOR_SPEC_H
#define QR_CHECKPOINT_TENSOR_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "number/dtype.h"

enum { TENSOR_MAX_RANK = 8 };

/* A spec of dtype I8 (packed FP4) also accepts U8 and F4. */
struct tensor_spec {
    const char *name; /* owned by whoever made the list */
    enum dtype dtype;
    bool optional;    /* the file may lack it */
    int32_t rank;     /* 0: a scalar */
    int64_t shape[4]; /* row-major, last index fastest; -1 fits any extent */
    bool or_bf16;     /* a repackaged file may hold it dequantized: BF16 of the same shape, its .scale absent
                         (v4-model.md 2.1: wo_a, e_proj, h_proj) */
};

/* Product of the dimensions; -1 when it does not fit an int64 or a dimension is negative. */
int64_t tensor_elements(int32_t rank, const int64_t *shape);

#endif
