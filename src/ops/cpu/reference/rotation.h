/* rotation.h: rotary positions and the Hadamard transform of one vector (v41-model.md 4.3, v4-model.md 5.1, 5.6). */
#ifndef QR_OPS_CPU_REFERENCE_ROTATION_H
#define QR_OPS_CPU_REFERENCE_ROTATION_H

#include "ops/ops.h"

/* Cosine and sine of every pair at one position: table[0 .. dim/2) and table[dim/2 .. dim). */
void rope_table(const struct rope_spec *rope, int32_t position, float *table);
/* The same for a row of the step that stands at `position`: its own turns where the spec gives them. */
void rope_table_of(const struct rope_spec *rope, int64_t row, int32_t position, float *table);

/* Turns the last `dim` of x's n values by the table's angles, or back; f32, not rounded. */
void rope_turn(const struct rope_spec *rope, const float *table, float *x, int64_t n);
void rope_turn_back(const struct rope_spec *rope, const float *table, float *x, int64_t n);

/* x <- H x with H the Sylvester matrix of n = 2^m rows times n^-0.5; f32, not rounded. bf16_matrix: entries
 * +-bf16(n^-0.5) (w8a8); else the sum is multiplied by f32(n^-0.5). `sums` has room for n. */
void hadamard(float *x, int64_t n, bool bf16_matrix, double *sums);

#endif
