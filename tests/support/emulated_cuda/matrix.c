#include "emulated.h"

#include <math.h>
#include <string.h>

/* Sums go along the terms, ascending, in lanes of columns: the compiler's vectors change no bit of them. */

static inline __attribute__((always_inline)) void multiply_bf16(float c[16][8], const uint16_t a[16][16],
                                                                const uint16_t b[8][16])
{
    double column[16][8];
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < 8; j++) {
            const uint32_t bits = (uint32_t)b[j][k] << 16;
            float x;
            memcpy(&x, &bits, 4);
            column[k][j] = (double)x;
        }
    for (int i = 0; i < 16; i++) {
        double sum[8] = {0};
        for (int k = 0; k < 16; k++) {
            const uint32_t bits = (uint32_t)a[i][k] << 16;
            float x;
            memcpy(&x, &bits, 4);
            for (int j = 0; j < 8; j++)
                sum[j] += (double)x * column[k][j]; /* an exact product */
        }
        for (int j = 0; j < 8; j++)
            c[i][j] = (float)((double)c[i][j] + sum[j]);
    }
}

/* In f32, which holds every sum exactly. */
static inline __attribute__((always_inline)) void multiply_int8(int32_t c[16][8], const int8_t a[16][32],
                                                                const int8_t b[8][32])
{
    float column[32][8];
    for (int k = 0; k < 32; k++)
        for (int j = 0; j < 8; j++)
            column[k][j] = (float)b[j][k];
    for (int i = 0; i < 16; i++) {
        float sum[8] = {0};
        for (int k = 0; k < 32; k++)
            for (int j = 0; j < 8; j++)
                sum[j] += (float)a[i][k] * column[k][j];
        for (int j = 0; j < 8; j++)
            c[i][j] = (int32_t)((uint32_t)c[i][j] + (uint32_t)(int32_t)sum[j]);
    }
}

static inline __attribute__((always_inline)) void multiply_f64(double c[16][8], const double a[16][16],
                                                               const double b[8][16])
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < 16; k++)
                c[i][j] = fma(a[i][k], b[j][k], c[i][j]);
}

#if defined(__x86_64__)
#include <immintrin.h>

#define FAST __attribute__((target("avx2,fma")))

/* Sixteen bf16 as binary64. */
FAST static void widen(double out[16], const uint16_t in[16])
{
    for (int i = 0; i < 16; i += 4) {
        const __m128i bits =
            _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(in + i))), 16);
        _mm256_storeu_pd(out + i, _mm256_cvtps_pd(_mm_castsi128_ps(bits)));
    }
}

/* Products are exact, so it is one whether they are fused. */
FAST static void fast_bf16(float c[16][8], const uint16_t a[16][16], const uint16_t b[8][16])
{
    double row[16], column[16][8], all[4][16];
    for (int j = 0; j < 8; j++) {
        widen(row, b[j]);
        for (int k = 0; k < 16; k++)
            column[k][j] = row[k];
    }
    for (int i = 0; i < 16; i += 4) {
        __m256d sum[4][2];
        for (int r = 0; r < 4; r++) {
            widen(all[r], a[i + r]);
            sum[r][0] = sum[r][1] = _mm256_setzero_pd();
        }
        for (int k = 0; k < 16; k++) {
            const __m256d low = _mm256_loadu_pd(column[k]), high = _mm256_loadu_pd(column[k] + 4);
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                const __m256d x = _mm256_broadcast_sd(&all[r][k]);
                sum[r][0] = _mm256_fmadd_pd(x, low, sum[r][0]);
                sum[r][1] = _mm256_fmadd_pd(x, high, sum[r][1]);
            }
        }
        for (int r = 0; r < 4; r++)
            for (int h = 0; h < 2; h++) {
                float *to = c[i + r] + 4 * h;
                _mm_storeu_ps(to, _mm256_cvtpd_ps(_mm256_add_pd(_mm256_cvtps_pd(_mm_loadu_ps(to)), sum[r][h])));
            }
    }
}

/* Terms by pairs, as 16-bit numbers. */
FAST static void fast_int8(int32_t c[16][8], const int8_t a[16][32], const int8_t b[8][32])
{
    int16_t column[16][8][2];
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < 32; k++)
            column[k / 2][j][k % 2] = b[j][k];
    for (int i = 0; i < 16; i++) {
        int16_t row[32];
        for (int h = 0; h < 2; h++)
            _mm256_storeu_si256((__m256i *)(void *)(row + 16 * h),
                                _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(a[i] + 16 * h))));
        __m256i sum = _mm256_loadu_si256((const __m256i *)(const void *)c[i]);
        for (int k = 0; k < 16; k++) {
            int32_t pair;
            memcpy(&pair, row + 2 * k, 4);
            sum =
                _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi32(pair),
                                                        _mm256_loadu_si256((const __m256i *)(const void *)column[k])));
        }
        _mm256_storeu_si256((__m256i *)(void *)c[i], sum);
    }
}
FAST static void fast_f64(double c[16][8], const double a[16][16], const double b[8][16])
{
    double column[16][8];
    for (int k = 0; k < 16; k++)
        for (int j = 0; j < 8; j++)
            column[k][j] = b[j][k];
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < 8; j++)
                c[i][j] = __builtin_fma(a[i][k], column[k][j], c[i][j]);
}
static bool is_fast(void)
{
    static int known; /* 0: not yet, 1: no, 2: yes */
    if (!known)
        known = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 2 : 1;
    return known == 2;
}
#else
#define fast_bf16 multiply_bf16
#define fast_int8 multiply_int8
#define fast_f64 multiply_f64
static bool is_fast(void) { return false; }
#endif

void emulated_mma_bf16(float c[16][8], const uint16_t a[16][16], const uint16_t b[8][16])
{
    if (is_fast())
        fast_bf16(c, a, b);
    else
        multiply_bf16(c, a, b);
}

void emulated_mma_int8(int32_t c[16][8], const int8_t a[16][32], const int8_t b[8][32])
{
    if (is_fast())
        fast_int8(c, a, b);
    else
        multiply_int8(c, a, b);
}

void emulated_mma_f64(double c[16][8], const double a[16][16], const double b[8][16])
{
    if (is_fast())
        fast_f64(c, a, b);
    else
        multiply_f64(c, a, b);
}
