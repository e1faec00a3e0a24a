/* quantize.h: block quantizers of activations and cache rows, scalar and exact: the reference that faster forms equal
 * bit for bit (v41-model.md 3.2, 3.3; v4-model.md 4.1, 4.2). Everywhere n is a multiple of the block, blocks are
 * consecutive, and bf16 is its 16 bits. A NaN in the input is a NaN in the output: by its code (E4M3) or by its scale. */
#ifndef QR_NUMBER_QUANTIZE_H
#define QR_NUMBER_QUANTIZE_H

#include <stdint.h>

/* Q8_MAX_BLOCK bounds the block argument of q8_*: 32 (V4.1), 64 and 128 (V4) are in use. */
enum { Q8_MAX_BLOCK = 128, Q4_E8M0_BLOCK = 32, Q4_E4M3_BLOCK = 16 };

/* Q8 (3.2): codes[n] E4M3, scales[n / block] E8M0 bytes. */
void q8_quantize(const uint16_t *x, int64_t n, int32_t block, uint8_t *codes, uint8_t *scales);
void q8_quantize_f32(const float *x, int64_t n, int32_t block, uint8_t *codes, uint8_t *scales);
/* out[n] bf16 = bf(code * scale), which is exact for what q8_quantize made. */
void q8_dequantize(const uint8_t *codes, const uint8_t *scales, int64_t n, int32_t block, uint16_t *out);
/* In place: x becomes what q8_dequantize gives back (window rows; aqd of v4-model.md 4.1). A second rounding changes no
 * value, but quantizing x again may give other codes and scales of the same values: store the codes of the first time.
 */
void q8_round(uint16_t *x, int64_t n, int32_t block);

/* Q4-E8M0 (3.3a; fq of v4-model.md 4.2), blocks of 32: codes[n / 2] E2M1 pairs, low nibble first, scales[n / 32] E8M0
 * bytes. Index queries and keys. */
void q4_e8m0_quantize(const uint16_t *x, int64_t n, uint8_t *codes, uint8_t *scales);
void q4_e8m0_dequantize(const uint8_t *codes, const uint8_t *scales, int64_t n, uint16_t *out);
void q4_e8m0_round(uint16_t *x, int64_t n);

/* Q4-E4M3 (3.3b), blocks of 16: codes[n / 2] E2M1 pairs, scales[n / 16] E4M3 codes. Main compressed rows. Not
 * idempotent for tiny blocks: never requantize a row. */
void q4_e4m3_quantize(const uint16_t *x, int64_t n, uint8_t *codes, uint8_t *scales);
void q4_e4m3_dequantize(const uint8_t *codes, const uint8_t *scales, int64_t n, uint16_t *out);
void q4_e4m3_round(uint16_t *x, int64_t n);

/* The scale of a block whose largest magnitude is `largest`, for fast paths that find it their own way. */
uint8_t q8_scale(float largest);
uint8_t q4_e8m0_scale(float largest);
uint8_t q4_e4m3_scale(float largest);

#endif
