/* product.h: y = x W^T for a list of rows through the inner loops of one instruction set; what linear, expert, route and
 * mhc_mix have in common. Host memory, worker pool, no allocation. */
#ifndef QR_OPS_CPU_PRODUCT_H
#define QR_OPS_CPU_PRODUCT_H

#include "base/pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/cpu.h"
#include "ops/ops.h"

/* Rows decoded at once: a weight is decoded once for that many rows. */
enum { PRODUCT_ROWS = 64 };

/* Decoded activations of up to PRODUCT_ROWS rows: f32 values without their scales. */
struct decoded {
    float *values;  /* [PRODUCT_ROWS][k] */
    float *scales;  /* [PRODUCT_ROWS][k / 32]; used for Q8 */
    const int8_t *codes[PRODUCT_ROWS];      /* I8: where the row lies */
    const float *code_scales[PRODUCT_ROWS];
    int32_t rows, k, block;
    enum act_format format;
};

/* Bytes that `decoded` needs for a largest k. */
int64_t decoded_bytes(int32_t max_k);
void decoded_place(struct decoded *d, void *memory, int32_t max_k);

/* Decodes row `row` of `in` into place i. Columns [0, cols) of the activation, whatever the weight's k (groups). */
void decoded_set(const struct cpu_kernels *kernels, struct decoded *d, int32_t i, const struct activation *in, int64_t row);

/* Outputs of one tile: enough work for a thread, few enough that y stays in its cache. And floats of scratch for it. */
enum { PRODUCT_TILE = 32, PRODUCT_SCRATCH = PRODUCT_ROWS * (KERNEL_LANES + PRODUCT_TILE) };

/* What becomes of a product, and so how near to the reference's it must be. */
enum product_use {
    PRODUCT_TO_BF16, /* rounded to bf16: f32 sums, formed again as the reference does where they are near a tie */
    PRODUCT_TO_F32,  /* kept: every sum as the reference forms it */
};

/* Outputs [first, first + n) of the weight for all decoded rows, n at most PRODUCT_TILE: y[i][j], f32, scales applied.
 * `column`: first input column used (groups). `scratch`: PRODUCT_SCRATCH floats of the calling thread. */
void product_tile(const struct cpu_kernels *kernels, const struct decoded *d, const struct weight *w, int32_t column,
                  int32_t first, int32_t n, enum product_use use, float *y, int64_t y_stride, float *scratch);

#endif
