/* kernels_body.h: the inner loops, written once over a handful of vector words that the including file defines:
 *
 *   V            a vector of VN f32 lanes               V_ZERO  V_SET(x)  V_LOAD(p)  V_STORE(p, v)
 *   V_ADD  V_MUL V_FMA(a, b, c) = a b + c  V_ABS        V_SUM(v): lanes added pairwise, low half + high half
 *   V_BF16(p)    VN bf16 values                         E4M3_UNIT: what a decoded E4M3 value is multiplied by below
 *   D            a vector of DN f64 lanes               D_ZERO  D_SET(x)  D_LOAD(p)  D_FMA(a, b, c)
 *   D_ADD  D_F32(p): DN f32 from memory                 D_WIDEN(p, out), D_NARROW(p, v): DN f32 from and to memory
 *   D_SUM(v)     lanes added pairwise
 *   decode32_fp8(p, V out[32 / VN])  32 codes, value * E4M3_UNIT^-1
 *   decode32_fp4(p, V out[32 / VN])  16 bytes, natural order
 *   KERNEL(name) the set's own symbol
 *
 * Included once by each instruction set; defines static functions and nothing else. */

#include <math.h>
#include <string.h>

enum { STEPS = 32 / VN };

/* 2^(b - 127), b = 0 included (a subnormal). */
static inline float e8m0(uint8_t b)
{
    uint32_t bits = b ? (uint32_t)b << 23 : 0x00400000u;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Sum of 32 products in the set's order. */
static inline V dot32(const V w[STEPS], const float *a)
{
#if VN == 16
    return V_FMA(w[1], V_LOAD(a + 16), V_MUL(w[0], V_LOAD(a)));
#else
    V p = V_MUL(w[0], V_LOAD(a));
    V q = V_MUL(w[STEPS / 2], V_LOAD(a + 16));
    for (int i = 1; i < STEPS / 2; i++) {
        p = V_FMA(w[i], V_LOAD(a + i * VN), p);
        q = V_FMA(w[STEPS / 2 + i], V_LOAD(a + 16 + i * VN), q);
    }
    return V_ADD(p, q);
#endif
}

/* One output row of a block-scaled weight against every activation row: for each scale group the plain products are
 * summed, then scaled and added (v41-model.md 3.5, v4-model.md 4.3). */
#define SCALED_PANEL(NAME, DECODE, BYTES32, UNIT)                                                                      \
    static void KERNEL(NAME)(const struct panel *p)                                                                    \
    {                                                                                                                  \
        const int32_t group = p->scale_block < p->a_block ? p->scale_block : p->a_block;                               \
        for (int32_t j = 0; j < p->n; j++) {                                                                           \
            const uint8_t *w = p->w + (p->first + j) * p->w_stride;                                                    \
            const uint8_t *ws = p->w_scale + (p->first + j) / p->scale_rows * p->scale_stride;                         \
            for (int32_t r = 0; r < p->rows; r++)                                                                      \
                p->y[r * p->y_stride + j] = p->size[r * p->size_stride + j] = 0;                                       \
            for (int32_t s = 0; s < p->splits; s++) {                                                                  \
                for (int32_t r = 0; r < p->rows; r++)                                                                  \
                    V_STORE(p->scratch + r * KERNEL_LANES, V_ZERO);                                                    \
                for (int32_t k = p->split[s]; k < p->split[s + 1]; k += group) {                                       \
                    const float unit = e8m0(ws[k / p->scale_block]) * (UNIT);                                          \
                    const int32_t end = k + group < p->split[s + 1] ? k + group : p->split[s + 1];                     \
                    if (end - k == 32) {                                                                               \
                        V d[STEPS];                                                                                    \
                        DECODE(w + k / 32 * (BYTES32), d);                                                             \
                        for (int32_t r = 0; r < p->rows; r++) {                                                        \
                            const float sc = p->a_scale[r * p->a_scale_stride + k / p->a_block] * unit;                \
                            float *acc = p->scratch + r * KERNEL_LANES;                                                \
                            V_STORE(acc, V_FMA(dot32(d, p->a + r * p->a_stride + k), V_SET(sc), V_LOAD(acc)));         \
                        }                                                                                              \
                    } else {                                                                                           \
                        V d[4][STEPS];                                                                                 \
                        for (int32_t i = 0; i < end - k; i += 32)                                                      \
                            DECODE(w + (k + i) / 32 * (BYTES32), d[i / 32]);                                           \
                        for (int32_t r = 0; r < p->rows; r++) {                                                        \
                            const float sc = p->a_scale[r * p->a_scale_stride + k / p->a_block] * unit;                \
                            const float *a = p->a + r * p->a_stride + k;                                               \
                            float *acc = p->scratch + r * KERNEL_LANES;                                                \
                            V sum = dot32(d[0], a);                                                                    \
                            for (int32_t i = 32; i < end - k; i += 32)                                                 \
                                sum = V_ADD(sum, dot32(d[i / 32], a + i));                                             \
                            V_STORE(acc, V_FMA(sum, V_SET(sc), V_LOAD(acc)));                                          \
                        }                                                                                              \
                    }                                                                                                  \
                }                                                                                                      \
                for (int32_t r = 0; r < p->rows; r++) {                                                                \
                    const V acc = V_LOAD(p->scratch + r * KERNEL_LANES);                                               \
                    p->y[r * p->y_stride + j] += V_SUM(acc);                                                           \
                    p->size[r * p->size_stride + j] += V_SUM(V_ABS(acc));                                              \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

SCALED_PANEL(panel_fp8, decode32_fp8, 32, E4M3_UNIT)
SCALED_PANEL(panel_fp4, decode32_fp4, 16, 1.0f)

static inline void load32_bf16(const uint8_t *w, V d[STEPS])
{
    for (int i = 0; i < STEPS; i++)
        d[i] = V_BF16((const uint16_t *)(const void *)w + i * VN);
}

static inline void load32_f32(const uint8_t *w, V d[STEPS])
{
    for (int i = 0; i < STEPS; i++)
        d[i] = V_LOAD((const float *)(const void *)w + i * VN);
}

static inline float tail_bf16(const uint8_t *w, int32_t k)
{
    uint32_t bits = (uint32_t)((const uint16_t *)(const void *)w)[k] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline float tail_f32(const uint8_t *w, int32_t k) { return ((const float *)(const void *)w)[k]; }

/* A weight without scales; a K that is no multiple of 32 ends in scalar products. */
#define PLAIN_PANEL(NAME, LOAD32, TAIL, SIZE)                                                                          \
    static void KERNEL(NAME)(const struct panel *p)                                                                    \
    {                                                                                                                  \
        for (int32_t j = 0; j < p->n; j++) {                                                                           \
            const uint8_t *w = p->w + (p->first + j) * p->w_stride;                                                    \
            for (int32_t r = 0; r < p->rows; r++)                                                                      \
                p->y[r * p->y_stride + j] = p->size[r * p->size_stride + j] = 0;                                       \
            for (int32_t s = 0; s < p->splits; s++) {                                                                  \
                const int32_t end = p->split[s + 1];                                                                   \
                int32_t k = p->split[s];                                                                               \
                for (int32_t r = 0; r < p->rows; r++)                                                                  \
                    V_STORE(p->scratch + r * KERNEL_LANES, V_ZERO);                                                    \
                for (; k + 32 <= end; k += 32) {                                                                       \
                    V d[STEPS];                                                                                        \
                    LOAD32(w + (int64_t)k * (SIZE), d);                                                                \
                    for (int32_t r = 0; r < p->rows; r++) {                                                            \
                        float *acc = p->scratch + r * KERNEL_LANES;                                                    \
                        V_STORE(acc, V_ADD(V_LOAD(acc), dot32(d, p->a + r * p->a_stride + k)));                        \
                    }                                                                                                  \
                }                                                                                                      \
                for (int32_t r = 0; r < p->rows; r++) {                                                                \
                    const V acc = V_LOAD(p->scratch + r * KERNEL_LANES);                                               \
                    float sum = V_SUM(acc), size = V_SUM(V_ABS(acc));                                                  \
                    for (int32_t i = k; i < end; i++) {                                                                \
                        const float x = TAIL(w, i) * p->a[r * p->a_stride + i];                                        \
                        sum += x;                                                                                      \
                        size += fabsf(x);                                                                              \
                    }                                                                                                  \
                    p->y[r * p->y_stride + j] += sum;                                                                  \
                    p->size[r * p->size_stride + j] += size;                                                           \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

PLAIN_PANEL(panel_bf16, load32_bf16, tail_bf16, 2)
PLAIN_PANEL(panel_f32, load32_f32, tail_f32, 4)

/* Adds 32 products to two running sums. */
static inline void exact32(const V d[STEPS], const float *a, D sum[2])
{
    float w[32];
    for (int i = 0; i < STEPS; i++)
        V_STORE(w + i * VN, d[i]);
    for (int i = 0; i < 32; i += 2 * DN) {
        sum[0] = D_FMA(D_F32(w + i), D_F32(a + i), sum[0]);
        sum[1] = D_FMA(D_F32(w + i + DN), D_F32(a + i + DN), sum[1]);
    }
}

#define EXACT_SCALED(NAME, DECODE, BYTES32, UNIT)                                                                      \
    static float KERNEL(NAME)(const struct panel *p, int32_t r, int32_t j)                                             \
    {                                                                                                                  \
        const int32_t group = p->scale_block < p->a_block ? p->scale_block : p->a_block;                               \
        const uint8_t *w = p->w + (p->first + j) * p->w_stride;                                                        \
        const uint8_t *ws = p->w_scale + (p->first + j) / p->scale_rows * p->scale_stride;                             \
        const float *a = p->a + r * p->a_stride;                                                                       \
        float y = 0;                                                                                                   \
        for (int32_t s = 0; s < p->splits; s++) {                                                                      \
            double whole = 0;                                                                                          \
            float scaled = 0;                                                                                          \
            for (int32_t k = p->split[s]; k < p->split[s + 1]; k += group) {                                           \
                const int32_t end = k + group < p->split[s + 1] ? k + group : p->split[s + 1];                         \
                const float unit = e8m0(ws[k / p->scale_block]);                                                       \
                D sum[2] = {D_ZERO, D_ZERO};                                                                           \
                for (int32_t i = k; i < end; i += 32) {                                                                \
                    V d[STEPS];                                                                                        \
                    DECODE(w + i / 32 * (BYTES32), d);                                                                 \
                    exact32(d, a + i, sum);                                                                            \
                }                                                                                                      \
                const double part = D_SUM(D_ADD(sum[0], sum[1])) * (double)(UNIT);                                     \
                if (p->a_block == PANEL_UNSCALED)                                                                      \
                    whole += part * (double)unit;                                                                      \
                else                                                                                                   \
                    scaled += (float)part * p->a_scale[r * p->a_scale_stride + k / p->a_block] * unit;                 \
            }                                                                                                          \
            y += p->a_block == PANEL_UNSCALED ? (float)whole : scaled;                                                 \
        }                                                                                                              \
        return y;                                                                                                      \
    }

EXACT_SCALED(exact_fp8, decode32_fp8, 32, E4M3_UNIT)
EXACT_SCALED(exact_fp4, decode32_fp4, 16, 1.0f)

#define EXACT_PLAIN(NAME, LOAD32, TAIL, SIZE)                                                                          \
    static float KERNEL(NAME)(const struct panel *p, int32_t r, int32_t j)                                             \
    {                                                                                                                  \
        const uint8_t *w = p->w + (p->first + j) * p->w_stride;                                                        \
        const float *a = p->a + r * p->a_stride;                                                                       \
        float y = 0;                                                                                                   \
        for (int32_t s = 0; s < p->splits; s++) {                                                                      \
            D sum[2] = {D_ZERO, D_ZERO};                                                                               \
            int32_t k = p->split[s];                                                                                   \
            for (; k + 32 <= p->split[s + 1]; k += 32) {                                                               \
                V d[STEPS];                                                                                            \
                LOAD32(w + (int64_t)k * (SIZE), d);                                                                    \
                exact32(d, a + k, sum);                                                                                \
            }                                                                                                          \
            double whole = D_SUM(D_ADD(sum[0], sum[1]));                                                               \
            for (; k < p->split[s + 1]; k++)                                                                           \
                whole += (double)TAIL(w, k) * (double)a[k];                                                            \
            y += (float)whole;                                                                                         \
        }                                                                                                              \
        return y;                                                                                                      \
    }

EXACT_PLAIN(exact_bf16, load32_bf16, tail_bf16, 2)
EXACT_PLAIN(exact_f32, load32_f32, tail_f32, 4)

static float KERNEL(dot)(const float *a, const float *b, int32_t n)
{
    D even = D_ZERO, odd = D_ZERO;
    int32_t i = 0;
    for (; i + 2 * DN <= n; i += 2 * DN) {
        even = D_FMA(D_F32(a + i), D_F32(b + i), even);
        odd = D_FMA(D_F32(a + i + DN), D_F32(b + i + DN), odd);
    }
    double sum = D_SUM(D_ADD(even, odd));
    for (; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

/* Two heads by four keys at a time, so that a value loaded is used more than once. */
static void KERNEL(scores_2x4)(const double *q, const double *keys, int64_t stride, int32_t n, float *s, int64_t s_stride)
{
    D a0 = D_ZERO, a1 = D_ZERO, a2 = D_ZERO, a3 = D_ZERO, b0 = D_ZERO, b1 = D_ZERO, b2 = D_ZERO, b3 = D_ZERO;
    for (int32_t c = 0; c < n; c += DN) {
        const D x = D_LOAD(q + c), y = D_LOAD(q + n + c);
        const D k0 = D_LOAD(keys + c), k1 = D_LOAD(keys + stride + c);
        const D k2 = D_LOAD(keys + 2 * stride + c), k3 = D_LOAD(keys + 3 * stride + c);
        a0 = D_FMA(x, k0, a0);
        a1 = D_FMA(x, k1, a1);
        a2 = D_FMA(x, k2, a2);
        a3 = D_FMA(x, k3, a3);
        b0 = D_FMA(y, k0, b0);
        b1 = D_FMA(y, k1, b1);
        b2 = D_FMA(y, k2, b2);
        b3 = D_FMA(y, k3, b3);
    }
    s[0] = (float)D_SUM(a0);
    s[1] = (float)D_SUM(a1);
    s[2] = (float)D_SUM(a2);
    s[3] = (float)D_SUM(a3);
    s[s_stride] = (float)D_SUM(b0);
    s[s_stride + 1] = (float)D_SUM(b1);
    s[s_stride + 2] = (float)D_SUM(b2);
    s[s_stride + 3] = (float)D_SUM(b3);
}

/* The same sum of one head and one key. */
static float KERNEL(score)(const double *q, const double *key, int32_t n)
{
    D a = D_ZERO;
    int32_t c = 0;
    for (; c + DN <= n; c += DN)
        a = D_FMA(D_LOAD(q + c), D_LOAD(key + c), a);
    double sum = D_SUM(a);
    for (; c < n; c++)
        sum += q[c] * key[c];
    return (float)sum;
}

static void KERNEL(scores)(const double *q, int32_t heads, const double *keys, int32_t count, int64_t stride, int32_t n,
                           float *s, int64_t s_stride)
{
    const int32_t paired = n % DN ? 0 : heads / 2 * 2, whole = n % DN ? 0 : count / 4 * 4;
    for (int32_t h = 0; h < paired; h += 2)
        for (int32_t i = 0; i < whole; i += 4)
            KERNEL(scores_2x4)(q + (int64_t)h * n, keys + i * stride, stride, n, s + h * s_stride + i, s_stride);
    for (int32_t h = 0; h < heads; h++)
        for (int32_t i = h < paired ? whole : 0; i < count; i++)
            s[h * s_stride + i] = KERNEL(score)(q + (int64_t)h * n, keys + i * stride, n);
}

/* Two vectors of columns for four heads. */
static void KERNEL(weigh_4)(const double *p, int64_t p_stride, const double *keys, int32_t count, int64_t stride, float *o,
                            int32_t n)
{
    D a0 = D_ZERO, a1 = D_ZERO, a2 = D_ZERO, a3 = D_ZERO, b0 = D_ZERO, b1 = D_ZERO, b2 = D_ZERO, b3 = D_ZERO;
    for (int32_t i = 0; i < count; i++, keys += stride) {
        const D x = D_LOAD(keys), y = D_LOAD(keys + DN);
        const D p0 = D_SET(p[i]), p1 = D_SET(p[p_stride + i]);
        const D p2 = D_SET(p[2 * p_stride + i]), p3 = D_SET(p[3 * p_stride + i]);
        a0 = D_FMA(p0, x, a0);
        a1 = D_FMA(p1, x, a1);
        a2 = D_FMA(p2, x, a2);
        a3 = D_FMA(p3, x, a3);
        b0 = D_FMA(p0, y, b0);
        b1 = D_FMA(p1, y, b1);
        b2 = D_FMA(p2, y, b2);
        b3 = D_FMA(p3, y, b3);
    }
    D_NARROW(o, a0);
    D_NARROW(o + n, a1);
    D_NARROW(o + 2 * n, a2);
    D_NARROW(o + 3 * n, a3);
    D_NARROW(o + DN, b0);
    D_NARROW(o + n + DN, b1);
    D_NARROW(o + 2 * n + DN, b2);
    D_NARROW(o + 3 * n + DN, b3);
}

static void KERNEL(weigh)(const double *p, int64_t p_stride, int32_t heads, const double *keys, int32_t count, int64_t stride,
                          int32_t n, float *o)
{
    const int32_t grouped = heads / 4 * 4, whole = n / (2 * DN) * (2 * DN);
    for (int32_t c = 0; c < whole; c += 2 * DN)
        for (int32_t h = 0; h < grouped; h += 4)
            KERNEL(weigh_4)(p + h * p_stride, p_stride, keys + c, count, stride, o + (int64_t)h * n + c, n);
    for (int32_t h = 0; h < heads; h++)
        for (int32_t c = h < grouped ? whole : 0; c < n; c++) {
            double sum = 0;
            for (int32_t i = 0; i < count; i++)
                sum += p[h * p_stride + i] * keys[i * stride + c];
            o[(int64_t)h * n + c] = (float)sum;
        }
}

static void KERNEL(widen)(const float *x, double *y, int32_t n)
{
    int32_t i = 0;
    for (; i + DN <= n; i += DN)
        D_WIDEN(x + i, y + i);
    for (; i < n; i++)
        y[i] = x[i];
}

static void KERNEL(scale)(float *y, float s, int32_t n)
{
    const V v = V_SET(s);
    int32_t i = 0;
    for (; i + VN <= n; i += VN)
        V_STORE(y + i, V_MUL(v, V_LOAD(y + i)));
    for (; i < n; i++)
        y[i] *= s;
}

static void KERNEL(decode_bf16)(const uint16_t *x, float *y, int32_t n)
{
    int32_t i = 0;
    for (; i + VN <= n; i += VN)
        V_STORE(y + i, V_BF16(x + i));
    for (; i < n; i++)
        y[i] = tail_bf16((const uint8_t *)x, i);
}

static void KERNEL(decode_fp8)(const uint8_t *x, float *y, int32_t n)
{
    for (int32_t i = 0; i < n; i += 32) {
        V d[STEPS];
        decode32_fp8(x + i, d);
        for (int s = 0; s < STEPS; s++)
            V_STORE(y + i + s * VN, V_MUL(d[s], V_SET(E4M3_UNIT)));
    }
}

static void KERNEL(decode_fp4)(const uint8_t *x, float *y, int32_t n)
{
    for (int32_t i = 0; i < n; i += 32) {
        V d[STEPS];
        decode32_fp4(x + i / 2, d);
        for (int s = 0; s < STEPS; s++)
            V_STORE(y + i + s * VN, d[s]);
    }
}

#define KERNEL_TABLE(TEXT)                                                                                             \
    {                                                                                                                  \
        .name = TEXT, .panel_fp8 = KERNEL(panel_fp8), .panel_fp4 = KERNEL(panel_fp4), .panel_bf16 = KERNEL(panel_bf16), \
        .panel_f32 = KERNEL(panel_f32), .exact_fp8 = KERNEL(exact_fp8), .exact_fp4 = KERNEL(exact_fp4),                \
        .exact_bf16 = KERNEL(exact_bf16), .exact_f32 = KERNEL(exact_f32), .dot_i8 = KERNEL(dot_i8),                    \
        .dot = KERNEL(dot), .scale = KERNEL(scale), .scores = KERNEL(scores), .weigh = KERNEL(weigh),                  \
        .widen = KERNEL(widen), .decode_bf16 = KERNEL(decode_bf16), .decode_fp8 = KERNEL(decode_fp8),                  \
        .decode_fp4 = KERNEL(decode_fp4),                                                                              \
    }
