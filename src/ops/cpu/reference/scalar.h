/* scalar.h: the f32 functions that the specifications name. */
#ifndef QR_OPS_CPU_REFERENCE_SCALAR_H
#define QR_OPS_CPU_REFERENCE_SCALAR_H

#include <math.h>
#include <stdint.h>

/* 1 / (1 + exp(-x)), rounded once: three roundings would hang on the machine's expf. */
static inline float sigmoid(float x) { return (float)(1.0 / (1.0 + exp(-(double)x))); }

/* u = clamp(u, -limit, limit); g = min(g, limit); silu(g) u, f32. A limit of 0 clamps nothing. */
static inline float swiglu(float g, float u, float limit)
{
    if (limit > 0) {
        u = u < -limit ? -limit : u > limit ? limit : u; /* a NaN passes */
        g = g > limit ? limit : g;
    }
    return g * sigmoid(g) * u;
}

static inline float rsqrt(float x) { return 1.0f / sqrtf(x); }

/* softplus(z) = max(z, 0) + log1p(exp(-|z|)), z itself above 20; keeps its digits far below zero (v41-model.md 7.1).
 * Rounded once. */
static inline float softplus(float z) { return (float)(fmax((double)z, 0.0) + log1p(exp(-fabs((double)z)))); }

/* sum of x[i]^2 / n, rounded once. */
static inline float mean_square(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return (float)(sum / (double)n);
}

static inline double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

#endif
