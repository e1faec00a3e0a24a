/* e4m3.h: E4M3FN, one byte: sign, 4 exponent bits (bias 7), 3 mantissa bits; +-448 the largest, 0x7F and 0xFF NaN, no
 * infinity, subnormals of 2^-9 (v41-model.md 2.2). */
#ifndef QR_NUMBER_E4M3_H
#define QR_NUMBER_E4M3_H

#include "number/bf16.h"

#define E4M3_MAX 448.0f

/* The value of every code; NaN at 0x7F and 0xFF. */
extern const float e4m3_values[256];

static inline float e4m3_decode(uint8_t code) { return e4m3_values[code]; }

/* f8(x): round to nearest, ties to even, saturating at +-448 (infinities too). A NaN gives the NaN code of its sign. */
static inline uint8_t e4m3_encode(float x)
{
    uint32_t bits = f32_bits(x), magnitude = bits & 0x7FFFFFFF;
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (magnitude > 0x7F800000)
        return sign | 0x7F;
    if (magnitude >= 0x43E00000) /* 448 */
        return sign | 0x7E;
    if (magnitude < 0x3C800000) { /* below 2^-6: the sum's last bit is 2^-9, so the addition rounds as wanted */
        float sum = f32_from_bits(magnitude) + 0x1p14f;
        return sign | (uint8_t)(f32_bits(sum) - 0x46800000);
    }
    magnitude += 0x7FFFF + (magnitude >> 20 & 1);
    return sign | (uint8_t)((magnitude >> 20) - ((127 - 7) << 3));
}

/* The place of the first NaN among codes [first, end), or -1. */
int64_t e4m3_first_nan(const uint8_t *codes, int64_t first, int64_t end);

#endif
