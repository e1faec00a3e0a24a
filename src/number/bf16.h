/* bf16.h: bfloat16 and binary32. A bf16 travels as its 16 bits. */
#ifndef QR_NUMBER_BF16_H
#define QR_NUMBER_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The larger of `largest` and |x|; a NaN is larger than every number, so that it is not lost on the way to a scale. */
static inline float larger_magnitude(float largest, float x)
{
    uint32_t bits = f32_bits(x) & 0x7FFFFFFF;
    return bits > f32_bits(largest) ? f32_from_bits(bits) : largest;
}

/* Exact. */
static inline float bf16_decode(uint16_t x) { return f32_from_bits((uint32_t)x << 16); }

/* Round to nearest, ties to even; beyond the largest finite value to infinity. A NaN stays a NaN of its sign. */
static inline uint16_t bf16_encode(float x)
{
    uint32_t bits = f32_bits(x);
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* The f32 value rounded to bf16, still as f32: bf(x) of the specifications. */
static inline float bf16_round(float x) { return bf16_decode(bf16_encode(x)); }

#endif
