/* The inner loops in AVX2 with FMA and F16C: vectors of 8. E2M1 is an eight-entry table in a register (vpermps); E4M3
 * becomes f16 by a shift and is widened by vcvtph2ps, subnormals included, the factor 2^8 left to the block's scale. */
#include "ops/cpu/kernels.h"

#include <cpuid.h>
#include <immintrin.h>

#define VN 8
typedef __m256 V;
#define V_ZERO _mm256_setzero_ps()
#define V_SET(x) _mm256_set1_ps(x)
#define V_LOAD(p) _mm256_loadu_ps(p)
#define V_STORE(p, v) _mm256_storeu_ps(p, v)
#define V_ADD(a, b) _mm256_add_ps(a, b)
#define V_MUL(a, b) _mm256_mul_ps(a, b)
#define V_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define V_ABS(v) _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v)
#define V_BF16(p)                                                                                                      \
    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))), 16))
#define E4M3_UNIT 256.0f
#define KERNEL(name) avx2_##name

#define DN 4
typedef __m256d D;
#define D_ZERO _mm256_setzero_pd()
#define D_SET(x) _mm256_set1_pd(x)
#define D_LOAD(p) _mm256_loadu_pd(p)
#define D_ADD(a, b) _mm256_add_pd(a, b)
#define D_FMA(a, b, c) _mm256_fmadd_pd(a, b, c)
#define D_F32(p) _mm256_cvtps_pd(_mm_loadu_ps(p))
#define D_WIDEN(p, out) _mm256_storeu_pd(out, _mm256_cvtps_pd(_mm_loadu_ps(p)))
#define D_NARROW(p, v) _mm_storeu_ps(p, _mm256_cvtpd_ps(v))

static inline double D_SUM(D v)
{
    __m128d x = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)));
}

static inline float V_SUM(V v)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    x = _mm_add_ss(x, _mm_shuffle_ps(x, x, 1));
    return _mm_cvtss_f32(x);
}

static inline void decode32_fp8(const uint8_t *p, V d[4])
{
    const __m256i magnitude = _mm256_set1_epi16(0x7f), sign = _mm256_set1_epi16(0x80), no_number = _mm256_set1_epi16(0x7c00);
    for (int i = 0; i < 2; i++) {
        __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)));
        __m256i m = _mm256_and_si256(x, magnitude);
        __m256i h = _mm256_or_si256(_mm256_slli_epi16(m, 7), _mm256_slli_epi16(_mm256_and_si256(x, sign), 8));
        h = _mm256_or_si256(h, _mm256_and_si256(_mm256_cmpeq_epi16(m, magnitude), no_number));
        d[2 * i] = _mm256_cvtph_ps(_mm256_castsi256_si128(h));
        d[2 * i + 1] = _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1));
    }
}

static inline V e2m1(__m128i codes)
{
    const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    __m256i x = _mm256_cvtepu8_epi32(codes);
    __m256i sign = _mm256_and_si256(_mm256_slli_epi32(x, 28), _mm256_set1_epi32((int)0x80000000u));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, x), _mm256_castsi256_ps(sign));
}

static inline void decode32_fp4(const uint8_t *p, V d[4])
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i low = _mm_set1_epi8(15);
    __m128i even = _mm_and_si128(x, low), odd = _mm_and_si128(_mm_srli_epi16(x, 4), low);
    __m128i first = _mm_unpacklo_epi8(even, odd), second = _mm_unpackhi_epi8(even, odd);
    d[0] = e2m1(first);
    d[1] = e2m1(_mm_srli_si128(first, 8));
    d[2] = e2m1(second);
    d[3] = e2m1(_mm_srli_si128(second, 8));
}

static int32_t avx2_dot_i8(const int8_t *a, const int8_t *w, int32_t k)
{
    __m256i acc = _mm256_setzero_si256();
    int32_t i = 0;
    for (; i + 16 <= k; i += 16) {
        __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(a + i)));
        __m256i y = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(w + i)));
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(x, y));
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(acc), _mm256_extracti128_si256(acc, 1));
    s = _mm_add_epi32(s, _mm_srli_si128(s, 8));
    s = _mm_add_epi32(s, _mm_srli_si128(s, 4));
    int32_t sum = _mm_cvtsi128_si32(s);
    for (; i < k; i++)
        sum += a[i] * w[i];
    return sum;
}

#include "ops/cpu/kernels_body.h"

/* Not every compiler knows "f16c" in __builtin_cpu_supports. */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

const struct cpu_kernels *kernels_avx2(void)
{
    static const struct cpu_kernels table = KERNEL_TABLE("avx2");
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() ? &table : 0;
}
