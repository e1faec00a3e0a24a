/* The inner loops in plain C: "vectors" of 4 that the compiler may or may not turn into real ones. No fused
 * multiply-add, so that the bits are the same on every machine without the other sets. */
#include "ops/cpu/kernels.h"

#include <math.h>

#include "number/e2m1.h"
#include "number/e4m3.h"

#define VN 4
typedef struct {
    float lane[VN];
} V;

#define LANES(expression)                                                                                              \
    V r;                                                                                                               \
    for (int i = 0; i < VN; i++)                                                                                       \
        r.lane[i] = (expression);                                                                                      \
    return r

static inline V V_SET(float x) { LANES(x); }
static inline V V_LOAD(const float *p) { LANES(p[i]); }
static inline V V_ADD(V a, V b) { LANES(a.lane[i] + b.lane[i]); }
static inline V V_MUL(V a, V b) { LANES(a.lane[i] * b.lane[i]); }
static inline V V_FMA(V a, V b, V c) { LANES(a.lane[i] * b.lane[i] + c.lane[i]); }
static inline V V_ABS(V v) { LANES(fabsf(v.lane[i])); }
static inline float V_SUM(V v) { return (v.lane[0] + v.lane[2]) + (v.lane[1] + v.lane[3]); }

static inline void V_STORE(float *p, V v)
{
    for (int i = 0; i < VN; i++)
        p[i] = v.lane[i];
}

static inline float widen(uint16_t x) { return f32_from_bits((uint32_t)x << 16); }
static inline V V_BF16(const uint16_t *p) { LANES(widen(p[i])); }

#define V_ZERO V_SET(0)

#define DN 2
typedef struct {
    double lane[DN];
} D;

#define DOUBLE_LANES(expression)                                                                                       \
    D r;                                                                                                               \
    for (int i = 0; i < DN; i++)                                                                                       \
        r.lane[i] = (expression);                                                                                      \
    return r

static inline D D_SET(double x) { DOUBLE_LANES(x); }
static inline D D_LOAD(const double *p) { DOUBLE_LANES(p[i]); }
static inline D D_ADD(D a, D b) { DOUBLE_LANES(a.lane[i] + b.lane[i]); }
static inline D D_F32(const float *p) { DOUBLE_LANES(p[i]); }
static inline D D_FMA(D a, D b, D c) { DOUBLE_LANES(a.lane[i] * b.lane[i] + c.lane[i]); }
static inline double D_SUM(D v) { return v.lane[0] + v.lane[1]; }

static inline void D_WIDEN(const float *p, double *out)
{
    for (int i = 0; i < DN; i++)
        out[i] = p[i];
}

static inline void D_NARROW(float *p, D v)
{
    for (int i = 0; i < DN; i++)
        p[i] = (float)v.lane[i];
}

#define D_ZERO D_SET(0)
#define E4M3_UNIT 1.0f
#define KERNEL(name) portable_##name

static inline void decode32_fp8(const uint8_t *p, V d[32 / VN])
{
    for (int i = 0; i < 32; i++)
        d[i / VN].lane[i % VN] = e4m3_decode(p[i]);
}

static inline void decode32_fp4(const uint8_t *p, V d[32 / VN])
{
    for (int i = 0; i < 32; i++)
        d[i / VN].lane[i % VN] = e2m1_decode(e2m1_at(p, i));
}

static int32_t portable_dot_i8(const int8_t *a, const int8_t *w, int32_t k)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < k; i++)
        sum += a[i] * w[i];
    return sum;
}

#include "ops/cpu/kernels_body.h"

const struct cpu_kernels *kernels_portable(void)
{
    static const struct cpu_kernels table = KERNEL_TABLE("portable");
    return &table;
}
