/* product.h: y = x W^T for up to LANES rows at once. Each lane adds by itself, in an order that W alone fixes, so a
 * row's result knows nothing of its neighbours; a weight's row is widened once for all of them.
 *
 * v41-model.md 2.5, 3.5; v4-model.md 4.3, 7.3. */
#ifndef QR_OPS_CPU_REFERENCE_PRODUCT_H
#define QR_OPS_CPU_REFERENCE_PRODUCT_H

#include "ops/cpu/cpu.h"

enum { LANES = 8 };

struct lanes {
    int32_t count, k;
    int32_t block; /* columns of one activation scale; 0: plain values */
    bool integer;  /* INT8 codes: the scale multiplies after the sum, the weight's scale at the end */
    double *x;     /* [k][LANES], zero beyond count */
    float *scale;  /* [k / block][LANES] */
    double *row;   /* [k]: a widened row of the weight */
};

/* Scratch for rows of k columns. */
int64_t lanes_bytes(int64_t k);
void lanes_place(struct lanes *l, int64_t k, struct pieces *scratch);

/* Takes columns [column, column + k) of the rows (count of them). */
void lanes_load(struct lanes *l, const struct activation *a, const int64_t *rows, int32_t count, int64_t column,
                int64_t k);

/* out[lane] = the f32 product with row n of W, not rounded further. */
void lanes_product(const struct lanes *l, const struct weight *w, int64_t n, float out[LANES]);

/* Whether an activation of this format can be multiplied by the weight; says what is wrong in `err`. */
qr_status product_check(const char *operator, const struct activation * a, const struct weight *w, qr_error *err);

/* Row n of a weight as f32 (BF16 and F32 weights). */
void weight_row_f32(const struct weight *w, int64_t n, float *out);

#endif
