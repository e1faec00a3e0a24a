#include "ops/cpu/reference/rotation.h"

#include <math.h>
#include <string.h>

#include "number/bf16.h"

void rope_table(const struct rope_spec *rope, int32_t position, float *table)
{
    int32_t pairs = rope->dim / 2;
    for (int32_t i = 0; i < pairs; i++) {
        float angle = (float)position * rope->frequencies[i]; /* the f32 rounding is part of the model */
        float c = (float)cos((double)angle), s = (float)sin((double)angle);
        table[i] = rope->bf16_tables ? bf16_round(c) : c;
        table[pairs + i] = rope->bf16_tables ? bf16_round(s) : s;
    }
}

void rope_table_of(const struct rope_spec *rope, int64_t row, int32_t position, float *table)
{
    if (rope->turns)
        memcpy(table, rope->turns + row * rope->dim, (size_t)rope->dim * sizeof *table);
    else
        rope_table(rope, position, table);
}

/* y[2i] = x[2i] c - x[2i+1] s, y[2i+1] = x[2i] s + x[2i+1] c */
void rope_turn(const struct rope_spec *rope, const float *table, float *x, int64_t n)
{
    int32_t pairs = rope->dim / 2;
    x += n - rope->dim;
    for (int32_t i = 0; i < pairs; i++) {
        float c = table[i], s = table[pairs + i], even = x[2 * i], odd = x[2 * i + 1];
        x[2 * i] = even * c - odd * s;
        x[2 * i + 1] = even * s + odd * c;
    }
}

void rope_turn_back(const struct rope_spec *rope, const float *table, float *x, int64_t n)
{
    int32_t pairs = rope->dim / 2;
    x += n - rope->dim;
    for (int32_t i = 0; i < pairs; i++) {
        float c = table[i], s = -table[pairs + i], even = x[2 * i], odd = x[2 * i + 1];
        x[2 * i] = even * c - odd * s;
        x[2 * i + 1] = even * s + odd * c;
    }
}

/* H_2n = [[H, H], [H, -H]]: one butterfly for each factor of two, in binary64. */
void hadamard(float *x, int64_t n, bool bf16_matrix, double *sums)
{
    float entry = (float)(1.0 / sqrt((double)n));
    if (bf16_matrix)
        entry = bf16_round(entry);
    for (int64_t i = 0; i < n; i++)
        sums[i] = x[i];
    for (int64_t half = 1; half < n; half *= 2)
        for (int64_t i = 0; i < n; i++) {
            if (i & half)
                continue;
            double a = sums[i], b = sums[i + half];
            sums[i] = a + b;
            sums[i + half] = a - b;
        }
    for (int64_t i = 0; i < n; i++)
        x[i] = bf16_matrix ? (float)(sums[i] * (double)entry) : (float)sums[i] * entry;
}
