/* scalar.h: the f32 functions that the specifications name. */
#ifndef QR_OPS_CPU_REFERENCE_SCALAR_H
#define QR_OPS_CPU_REFERENCE_SCALAR_H

#include <math.h>
#include <stdint.h>

static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

static inline float rsqrt(float x) { return 1.0f / sqrtf(x); }

/* softplus(z) = max(z, 0) + log1p(exp(-|z|)), z itself above 20; keeps its digits far below zero (v41-model.md 7.1). */
static inline float softplus(float z) { return fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))); }

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
