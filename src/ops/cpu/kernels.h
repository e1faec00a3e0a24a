/* kernels.h: the inner loops that every instruction set has in its own words. The operators around them (linear.c,
 * expert.c, attend.c, index.c) are written once.
 *
 * One dot-product rule per set, for every number of rows: K in vectors of the set's width, 32 values at a time in
 * ascending order, lanes added pairwise at the end (kernels_body.h). So a row's bits depend on the row alone.
 *
 * A panel's sums are f32 and say how far they may be from the reference's; the few that this could round to another bf16
 * are formed again by `exact`, as the reference does (product.h). So a code, a route or a selection behind a product is
 * the reference's, at the speed of f32. */
#ifndef QR_OPS_CPU_KERNELS_H
#define QR_OPS_CPU_KERNELS_H

#include <stdint.h>

/* y[r][j] = sum over k of a[r][k] w[j][k], f32. The weight's outputs are first .. first+n-1 of its matrix; `w` is the
 * address of output 0 of the matrix, so that scale tiles are found by absolute row. K is cut at split[0..splits] (in
 * values); each range is summed by itself and the sums are added in ascending order. */
struct panel {
    int32_t rows, first, n, k;
    const float *a;            /* [rows][a_stride] decoded, unscaled activations */
    int64_t a_stride;
    const float *a_scale;      /* [rows][a_scale_stride] one per a_block columns; NULL: none */
    int64_t a_scale_stride;
    int32_t a_block;           /* PANEL_UNSCALED: a holds the values themselves; a_scale is one 1 */
    const uint8_t *w;          /* output j at w + j * w_stride bytes */
    int64_t w_stride;
    const uint8_t *w_scale;    /* E8M0; output j, columns of block b at w_scale[(j / scale_rows) * scale_stride + b] */
    int64_t scale_stride;
    int32_t scale_rows, scale_block;
    int32_t splits, split[9];
    float *y;                  /* [rows][y_stride], output first+j at y[r][j] */
    int64_t y_stride;
    float *size;               /* [rows][size_stride] sum of the absolute values of the vectors' lanes that y adds up */
    int64_t size_stride;
    float *scratch;            /* [rows][KERNEL_LANES]: running sums */
};

enum { KERNEL_LANES = 32, /* at least the widest vector, in f32 */ PANEL_UNSCALED = INT32_MAX };

struct cpu_kernels {
    const char *name;
    void (*panel_fp8)(const struct panel *);
    void (*panel_fp4)(const struct panel *);
    void (*panel_bf16)(const struct panel *);
    void (*panel_f32)(const struct panel *);
    /* y[r][j] of the panel by the reference's rule: sums in f64, of a block of one scale (rounded to f32, scaled and added
     * in ascending order) or, for unscaled activations, of a split. */
    float (*exact_fp8)(const struct panel *, int32_t r, int32_t j);
    float (*exact_fp4)(const struct panel *, int32_t r, int32_t j);
    float (*exact_bf16)(const struct panel *, int32_t r, int32_t j);
    float (*exact_f32)(const struct panel *, int32_t r, int32_t j);
    /* int32 sum of a[k] w[k]; exact, so the same in every set. k a multiple of 32 or not. */
    int32_t (*dot_i8)(const int8_t *a, const int8_t *w, int32_t k);
    /* Dot product of n values, summed in f64. */
    float (*dot)(const float *a, const float *b, int32_t n);
    /* y[i] *= s */
    void (*scale)(float *y, float s, int32_t n);
    /* The two products of attention, in f64. Keys are [count][stride], n values each; heads share them. What goes in is
     * bf16, so that every product is exact and a sum, rounded to f32, is that of any other order but for one in millions:
     * all sets and the reference agree.
     * scores: s[h * s_stride + i] = f32(q[h] . key[i]). weigh: o[h][c] = f32(sum_i p[h * p_stride + i] key[i][c]). */
    void (*scores)(const double *q, int32_t heads, const double *keys, int32_t count, int64_t stride, int32_t n, float *s,
                   int64_t s_stride);
    void (*weigh)(const double *p, int64_t p_stride, int32_t heads, const double *keys, int32_t count, int64_t stride,
                  int32_t n, float *o);
    /* y[i] = x[i] */
    void (*widen)(const float *x, double *y, int32_t n);
    /* decoders: n values (a multiple of 32) to f32, unscaled */
    void (*decode_bf16)(const uint16_t *x, float *y, int32_t n);
    void (*decode_fp8)(const uint8_t *x, float *y, int32_t n);
    void (*decode_fp4)(const uint8_t *x, float *y, int32_t n);
};

/* NULL where the build or the processor does not have the set. */
const struct cpu_kernels *kernels_portable(void);
const struct cpu_kernels *kernels_avx2(void);
const struct cpu_kernels *kernels_avx512(void);

#endif
