/* activation.h: rows of an activation as f32, and back in its format. */
#ifndef QR_OPS_CPU_REFERENCE_ACTIVATION_H
#define QR_OPS_CPU_REFERENCE_ACTIVATION_H

#include "ops/ops.h"

/* bf16 values [n] as f32, and f32 rounded to bf16. */
void bf16_load(const void *from, int64_t n, float *out);
void bf16_store(const float *x, int64_t n, void *to);
/* Rounds in place to bf16 values. */
void bf16_round_all(float *x, int64_t n);

/* Columns [column, column + n) of a row: ACT_BF16 and ACT_F32 only. A store rounds to the format. */
void act_load(const struct activation *a, int64_t row, int64_t column, int64_t n, float *out);
void act_store(const struct activation *a, int64_t row, int64_t column, const float *x, int64_t n);

/* The Q8 or I8 form of the values x, which fill columns [column, column + n): whole blocks. */
void act_quantize(const struct activation *a, int64_t row, int64_t column, const float *x, int64_t n);

/* Stream `j` of a row, [hidden]. */
void stream_load(const struct streams *x, int64_t row, int32_t j, float *out);
void stream_store(const struct streams *x, int64_t row, int32_t j, const float *values);

static inline bool act_is_float(const struct activation *a) { return a->format == ACT_BF16 || a->format == ACT_F32; }

#endif
