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

/* The least and the largest of `n` bytes; 255 and 0 of none. Written so that it runs at the speed of memory. */
static inline void e8m0_range(const uint8_t *bytes, int64_t n, uint8_t *least, uint8_t *most)
{
    enum { LANES = 64 };
    uint8_t low[LANES], high[LANES];
    int64_t i = 0;
    for (int lane = 0; lane < LANES; lane++) {
        low[lane] = 255;
        high[lane] = 0;
    }
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            low[lane] = bytes[i + lane] < low[lane] ? bytes[i + lane] : low[lane];
            high[lane] = bytes[i + lane] > high[lane] ? bytes[i + lane] : high[lane];
        }
    for (; i < n; i++) {
        low[0] = bytes[i] < low[0] ? bytes[i] : low[0];
        high[0] = bytes[i] > high[0] ? bytes[i] : high[0];
    }
    *least = 255;
    *most = 0;
    for (int lane = 0; lane < LANES; lane++) {
        *least = low[lane] < *least ? low[lane] : *least;
        *most = high[lane] > *most ? high[lane] : *most;
    }
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
