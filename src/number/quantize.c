#include "number/quantize.h"

#include <math.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"

/* c and 1/6 as the reference holds them: multiplications, not divisions. */
#define ONE_448TH 0x1.24924ap-9f /* 0x3B124925 */
#define ONE_SIXTH 0x1.555556p-3f /* 0x3E2AAAAB */

/* A NaN stays one. */
static float at_least(float largest, float floor) { return largest < floor ? floor : largest; }

uint8_t q8_scale(float largest) { return e8m0_encode_up(at_least(largest, 1e-4f) * ONE_448TH); }

uint8_t q4_e8m0_scale(float largest) { return e8m0_encode_up(at_least(largest, 6 * 0x1p-126f) * ONE_SIXTH); }

uint8_t q4_e4m3_scale(float largest) { return e4m3_encode(at_least(largest, 6 * 0x1p-9f) / 6.0f); }

static float widen(const uint16_t *x, int32_t n, float *out)
{
    float largest = 0.0f;
    for (int32_t i = 0; i < n; i++) {
        out[i] = bf16_decode(x[i]);
        largest = larger_magnitude(largest, out[i]);
    }
    return largest;
}

static float largest_of(const float *x, int32_t n)
{
    float largest = 0.0f;
    for (int32_t i = 0; i < n; i++)
        largest = larger_magnitude(largest, x[i]);
    return largest;
}

/* q = f8(clamp(x / s)); the clamp is the encoder's saturation. */
static void q8_codes(const float *x, int32_t n, uint8_t scale, uint8_t *codes)
{
    float s = e8m0_decode(scale);
    for (int32_t i = 0; i < n; i++)
        codes[i] = e4m3_encode(x[i] / s);
}

void q8_quantize(const uint16_t *x, int64_t n, int32_t block, uint8_t *codes, uint8_t *scales)
{
    float values[Q8_MAX_BLOCK];
    for (int64_t b = 0; b < n / block; b++) {
        scales[b] = q8_scale(widen(x + b * block, block, values));
        q8_codes(values, block, scales[b], codes + b * block);
    }
}

void q8_quantize_f32(const float *x, int64_t n, int32_t block, uint8_t *codes, uint8_t *scales)
{
    for (int64_t b = 0; b < n / block; b++) {
        scales[b] = q8_scale(largest_of(x + b * block, block));
        q8_codes(x + b * block, block, scales[b], codes + b * block);
    }
}

void q8_dequantize(const uint8_t *codes, const uint8_t *scales, int64_t n, int32_t block, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_encode(e4m3_decode(codes[i]) * e8m0_decode(scales[i / block]));
}

void q8_round(uint16_t *x, int64_t n, int32_t block)
{
    float values[Q8_MAX_BLOCK];
    uint8_t codes[Q8_MAX_BLOCK];
    for (int64_t b = 0; b < n / block; b++) {
        const uint8_t scale = q8_scale(widen(x + b * block, block, values));
        q8_codes(values, block, scale, codes);
        q8_dequantize(codes, &scale, block, block, x + b * block);
    }
}

/* Codes of one block from x / s with E2M1's saturation as the clamp. */
static void q4_codes(const float *x, int32_t n, float s, uint8_t *codes)
{
    for (int32_t i = 0; i < n; i += 2)
        codes[i / 2] = e2m1_pack(e2m1_encode(x[i] / s), e2m1_encode(x[i + 1] / s));
}

static void q4_values(const uint8_t *codes, int32_t n, float s, uint16_t *out)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = bf16_encode(e2m1_decode(e2m1_at(codes, i)) * s);
}

void q4_e8m0_quantize(const uint16_t *x, int64_t n, uint8_t *codes, uint8_t *scales)
{
    float values[Q4_E8M0_BLOCK];
    for (int64_t b = 0; b < n / Q4_E8M0_BLOCK; b++) {
        scales[b] = q4_e8m0_scale(widen(x + b * Q4_E8M0_BLOCK, Q4_E8M0_BLOCK, values));
        q4_codes(values, Q4_E8M0_BLOCK, e8m0_decode(scales[b]), codes + b * (Q4_E8M0_BLOCK / 2));
    }
}

void q4_e8m0_dequantize(const uint8_t *codes, const uint8_t *scales, int64_t n, uint16_t *out)
{
    for (int64_t b = 0; b < n / Q4_E8M0_BLOCK; b++)
        q4_values(codes + b * (Q4_E8M0_BLOCK / 2), Q4_E8M0_BLOCK, e8m0_decode(scales[b]), out + b * Q4_E8M0_BLOCK);
}

void q4_e8m0_round(uint16_t *x, int64_t n)
{
    uint8_t codes[Q4_E8M0_BLOCK / 2], scale;
    for (int64_t b = 0; b < n / Q4_E8M0_BLOCK; b++) {
        q4_e8m0_quantize(x + b * Q4_E8M0_BLOCK, Q4_E8M0_BLOCK, codes, &scale);
        q4_e8m0_dequantize(codes, &scale, Q4_E8M0_BLOCK, x + b * Q4_E8M0_BLOCK);
    }
}

void q4_e4m3_quantize(const uint16_t *x, int64_t n, uint8_t *codes, uint8_t *scales)
{
    float values[Q4_E4M3_BLOCK];
    for (int64_t b = 0; b < n / Q4_E4M3_BLOCK; b++) {
        scales[b] = q4_e4m3_scale(widen(x + b * Q4_E4M3_BLOCK, Q4_E4M3_BLOCK, values));
        q4_codes(values, Q4_E4M3_BLOCK, e4m3_decode(scales[b]), codes + b * (Q4_E4M3_BLOCK / 2));
    }
}

void q4_e4m3_dequantize(const uint8_t *codes, const uint8_t *scales, int64_t n, uint16_t *out)
{
    for (int64_t b = 0; b < n / Q4_E4M3_BLOCK; b++)
        q4_values(codes + b * (Q4_E4M3_BLOCK / 2), Q4_E4M3_BLOCK, e4m3_decode(scales[b]), out + b * Q4_E4M3_BLOCK);
}

void q4_e4m3_round(uint16_t *x, int64_t n)
{
    uint8_t codes[Q4_E4M3_BLOCK / 2], scale;
    for (int64_t b = 0; b < n / Q4_E4M3_BLOCK; b++) {
        q4_e4m3_quantize(x + b * Q4_E4M3_BLOCK, Q4_E4M3_BLOCK, codes, &scale);
        q4_e4m3_dequantize(codes, &scale, Q4_E4M3_BLOCK, x + b * Q4_E4M3_BLOCK);
    }
}
