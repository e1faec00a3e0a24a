/* e8m0.h: E8M0 scales: byte b is 2^(b - 127); 255 is NaN and refused in files (v41-model.md 2.2, end of 2.3). */
#ifndef QR_NUMBER_E8M0_H
#define QR_NUMBER_E8M0_H

#include "number/bf16.h"

enum { E8M0_NAN = 255, E8M0_BIAS = 127 };

/* Exact; 2^-127 (byte 0) is an f32 subnormal and not flushed. */
static inline float e8m0_decode(uint8_t byte)
{
    if (byte == 0)
        return 0x1p-127f;
    if (byte == E8M0_NAN)
        return f32_from_bits(0x7FC00000);
    return f32_from_bits((uint32_t)byte << 23);
}

/* ceil(log2 t) of a positive normal f32, from its bits: exponent + (mantissa != 0) (v41-model.md 3.1). */
static inline int32_t exponent_up(float t)
{
    uint32_t bits = f32_bits(t);
    return (int32_t)(bits >> 23 & 255) - 127 + ((bits & 0x7FFFFF) != 0);
}

/* The scale byte 2^exponent_up(t), saturating at 255 (which an infinite t gives). */
static inline uint8_t e8m0_encode_up(float t)
{
    int32_t byte = exponent_up(t) + E8M0_BIAS;
    return (uint8_t)(byte > E8M0_NAN ? E8M0_NAN : byte);
}

#endif
