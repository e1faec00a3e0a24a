/* The inner loops in AVX-512 (F, BW, VL, DQ, VNNI): vectors of 16. All sixteen E2M1 codes are one table in a register. */
#include "ops/cpu/kernels.h"

#include <immintrin.h>

#define VN 16
typedef __m512 V;
#define V_ZERO _mm512_setzero_ps()
#define V_SET(x) _mm512_set1_ps(x)
#define V_LOAD(p) _mm512_loadu_ps(p)
#define V_STORE(p, v) _mm512_storeu_ps(p, v)
#define V_ADD(a, b) _mm512_add_ps(a, b)
#define V_MUL(a, b) _mm512_mul_ps(a, b)
#define V_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define V_ABS(v) _mm512_abs_ps(v)
#define V_BF16(p)                                                                                                      \
    _mm512_castsi512_ps(                                                                                               \
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(p))), 16))
#define E4M3_UNIT 256.0f
#define KERNEL(name) avx512_##name

#define DN 8
typedef __m512d D;
#define D_ZERO _mm512_setzero_pd()
#define D_SET(x) _mm512_set1_pd(x)
#define D_LOAD(p) _mm512_loadu_pd(p)
#define D_ADD(a, b) _mm512_add_pd(a, b)
#define D_FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#define D_F32(p) _mm512_cvtps_pd(_mm256_loadu_ps(p))
#define D_WIDEN(p, out) _mm512_storeu_pd(out, _mm512_cvtps_pd(_mm256_loadu_ps(p)))
#define D_NARROW(p, v) _mm256_storeu_ps(p, _mm512_cvtpd_ps(v))

static inline double D_SUM(D v)
{
    __m256d h = _mm256_add_pd(_mm512_castpd512_pd256(v), _mm512_extractf64x4_pd(v, 1));
    __m128d x = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    return _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)));
}

static inline float V_SUM(V v)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    x = _mm_add_ss(x, _mm_shuffle_ps(x, x, 1));
    return _mm_cvtss_f32(x);
}

static inline void decode32_fp8(const uint8_t *p, V d[2])
{
    __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
    const __m512i magnitude = _mm512_set1_epi16(0x7f), sign = _mm512_set1_epi16(0x80), no_number = _mm512_set1_epi16(0x7c00);
    __m512i m = _mm512_and_si512(x, magnitude);
    __m512i h = _mm512_or_si512(_mm512_slli_epi16(m, 7), _mm512_slli_epi16(_mm512_and_si512(x, sign), 8));
    h = _mm512_or_si512(h, _mm512_maskz_mov_epi16(_mm512_cmpeq_epi16_mask(m, magnitude), no_number));
    d[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
    d[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
}

static inline void decode32_fp4(const uint8_t *p, V d[2])
{
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i low = _mm_set1_epi8(15);
    __m128i even = _mm_and_si128(x, low), odd = _mm_and_si128(_mm_srli_epi16(x, 4), low);
    d[0] = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(even, odd)), table);
    d[1] = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpackhi_epi8(even, odd)), table);
}

/* VNNI multiplies unsigned by signed bytes: a + 128 is unsigned, and 128 times the sum of w is taken off again. */
static int32_t avx512_dot_i8(const int8_t *a, const int8_t *w, int32_t k)
{
    const __m512i bias = _mm512_set1_epi8((char)0x80), one = _mm512_set1_epi8(1);
    __m512i acc = _mm512_setzero_si512(), sums = _mm512_setzero_si512();
    int32_t i = 0;
    for (; i + 64 <= k; i += 64) {
        __m512i x = _mm512_loadu_si512(a + i), y = _mm512_loadu_si512(w + i);
        acc = _mm512_dpbusd_epi32(acc, _mm512_xor_si512(x, bias), y);
        sums = _mm512_dpbusd_epi32(sums, one, y);
    }
    int32_t sum = _mm512_reduce_add_epi32(acc) - 128 * _mm512_reduce_add_epi32(sums);
    for (; i < k; i++)
        sum += a[i] * w[i];
    return sum;
}

#include "ops/cpu/kernels_body.h"

const struct cpu_kernels *kernels_avx512(void)
{
    static const struct cpu_kernels table = KERNEL_TABLE("avx512");
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                   __builtin_cpu_supports("avx512vnni")
               ? &table
               : 0;
}
