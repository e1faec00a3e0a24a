#include "number/int8.h"

#include <math.h>

#include "number/bf16.h"

/* m = 127 / max(largest, 1e-4); a NaN stays one. */
static float multiplier(float largest) { return 127.0f / (largest < 1e-4f ? 1e-4f : largest); }

static int8_t nearest(float product)
{
    float q = rintf(product);
    return (int8_t)(q > 127.0f ? 127.0f : q > -127.0f ? q : -127.0f); /* a NaN, whose scale is one too, is any code */
}

float int8_quantize_row(const float *x, int64_t n, int8_t *codes) { return int8_quantize_channel(x, n, 1, codes); }

float int8_quantize_row_bf16(const uint16_t *x, int64_t n, int8_t *codes)
{
    float largest = 0.0f;
    for (int64_t i = 0; i < n; i++)
        largest = larger_magnitude(largest, bf16_decode(x[i]));
    float m = multiplier(largest);
    for (int64_t i = 0; i < n; i++)
        codes[i] = nearest(bf16_decode(x[i]) * m);
    return 1.0f / m;
}

/* An activation needs no clamp (|x*m| rounds to at most 127), so row and channel are one function. */
float int8_quantize_channel(const float *w, int64_t n, int64_t stride, int8_t *codes)
{
    float largest = 0.0f;
    for (int64_t i = 0; i < n; i++)
        largest = larger_magnitude(largest, w[i * stride]);
    float m = multiplier(largest);
    for (int64_t i = 0; i < n; i++)
        codes[i * stride] = nearest(w[i * stride] * m);
    return 1.0f / m;
}
