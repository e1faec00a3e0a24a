/* int8.h: the INT8 of the W8A8 profile (v4-model.md 7.2, 7.3). Both quotients are IEEE divisions. */
#ifndef QR_NUMBER_INT8_H
#define QR_NUMBER_INT8_H

#include <stdint.h>

/* One activation row, i8(x) of 7.3: a = max(max|x|, 1e-4), m = 127/a, codes[i] = RNE(x[i]*m); returns sigma = 1/m. */
float int8_quantize_row(const float *x, int64_t n, int8_t *codes);
/* The same of a bf16 row. */
float int8_quantize_row_bf16(const uint16_t *x, int64_t n, int8_t *codes);

/* One output channel of a weight (7.2): as a row, clamped to +-127. Elements stand `stride` apart in w and in codes
 * (1: channel = row; out: channel = column of an [in, out] matrix). Returns the channel's scale. */
float int8_quantize_channel(const float *w, int64_t n, int64_t stride, int8_t *codes);

#endif
