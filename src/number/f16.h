/* f16.h: binary16, read only (a file of a tool may hold it; no model tensor does). */
#ifndef QR_NUMBER_F16_H
#define QR_NUMBER_F16_H

#include "number/bf16.h"

/* Exact. */
static inline float f16_decode(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, magnitude = x & 0x7FFF;
    if (magnitude >= 0x7C00)
        return f32_from_bits(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
    if (magnitude < 0x400) {
        float value = (float)magnitude * 0x1p-24f;
        return f32_from_bits(sign | f32_bits(value));
    }
    return f32_from_bits(sign | ((magnitude << 13) + ((127 - 15) << 23)));
}

#endif
