#include "ops/cpu/reference/activation.h"

#include <string.h>

#include "number/bf16.h"
#include "number/int8.h"
#include "number/quantize.h"

void bf16_load(const void *from, int64_t n, float *out)
{
    const uint16_t *x = from;
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_decode(x[i]);
}

void bf16_store(const float *x, int64_t n, void *to)
{
    uint16_t *out = to;
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_encode(x[i]);
}

void bf16_round_all(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = bf16_round(x[i]);
}

void act_load(const struct activation *a, int64_t row, int64_t column, int64_t n, float *out)
{
    int64_t first = row * a->cols + column;
    if (a->format == ACT_BF16)
        bf16_load((const uint16_t *)a->codes + first, n, out);
    else
        memcpy(out, (const float *)a->codes + first, (size_t)n * sizeof *out);
}

void act_store(const struct activation *a, int64_t row, int64_t column, const float *x, int64_t n)
{
    int64_t first = row * a->cols + column;
    if (a->format == ACT_BF16)
        bf16_store(x, n, (uint16_t *)a->codes + first);
    else
        memcpy((float *)a->codes + first, x, (size_t)n * sizeof *x);
}

void act_quantize(const struct activation *a, int64_t row, int64_t column, const float *x, int64_t n)
{
    int64_t first = row * a->cols + column;
    if (a->format == ACT_Q8) {
        q8_quantize_f32(x, n, a->block, (uint8_t *)a->codes + first, (uint8_t *)a->scales + first / a->block);
        return;
    }
    for (int64_t i = 0; i < n; i += a->block)
        ((float *)a->scales)[(first + i) / a->block] =
            int8_quantize_row(x + i, a->block, (int8_t *)a->codes + first + i);
}

void stream_load(const struct streams *x, int64_t row, int32_t j, float *out)
{
    int64_t first = (row * x->count + j) * x->hidden;
    if (x->format == ACT_BF16)
        bf16_load((const uint16_t *)x->data + first, x->hidden, out);
    else
        memcpy(out, (const float *)x->data + first, (size_t)x->hidden * sizeof *out);
}

void stream_store(const struct streams *x, int64_t row, int32_t j, const float *values)
{
    int64_t first = (row * x->count + j) * x->hidden;
    if (x->format == ACT_BF16)
        bf16_store(values, x->hidden, (uint16_t *)x->data + first);
    else
        memcpy((float *)x->data + first, values, (size_t)x->hidden * sizeof *values);
}
