/* e2m1.h: E2M1, four bits: bit 3 the sign, magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Two codes share a byte: the low
 * nibble holds the even index (v41-model.md 2.2). */
#ifndef QR_NUMBER_E2M1_H
#define QR_NUMBER_E2M1_H

#include "number/bf16.h"

#define E2M1_MAX 6.0f

/* The value of every code 0..15. */
extern const float e2m1_values[16];

static inline float e2m1_decode(uint8_t code) { return e2m1_values[code & 15]; }

/* f4(x): nearest, ties to the even code (down at 0.25, 1.25, 2.5, 5, up at 0.75, 1.75, 3.5), saturating at +-6; the
 * sign is kept, that of zero too (v41-model.md 3.3). E2M1 has no NaN: a NaN becomes a zero. */
static inline uint8_t e2m1_encode(float x)
{
    uint32_t bits = f32_bits(x);
    float a = f32_from_bits(bits & 0x7FFFFFFF);
    int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)((bits >> 28 & 8) | (uint32_t)code);
}

static inline uint8_t e2m1_pack(uint8_t even, uint8_t odd) { return (uint8_t)((even & 15) | odd << 4); }

/* The code of index i of a packed row. */
static inline uint8_t e2m1_at(const uint8_t *packed, int64_t i) { return packed[i / 2] >> (i % 2 * 4) & 15; }

#endif
