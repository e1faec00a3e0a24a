#include "run/verify.h"

#include <math.h>
#include <string.h>

#include "number/philox.h"

/* A residual with no more mass than this is rounding, not a distribution. */
static const double least_residual = 1e-8;

int32_t verify_match(const int32_t *drafts, int32_t n, const int32_t *row_tokens)
{
    int32_t a = 0;
    while (a < n && drafts[a] == row_tokens[a])
        a++;
    return a;
}

void verify_uniforms(uint64_t seed, int64_t cursor, int32_t n, double *u)
{
    for (int32_t k = 1; k <= n; k++) {
        const struct keyed_stream stream = {.seed = seed, .position = cursor + k, .tag = STREAM_ACCEPT};
        u[k - 1] = stream_uniform(stream_word(&stream, 0));
    }
}

/* p_k(d_k) and q_k(d_k). */
static double target_of_draft(const struct verify_rows *rows, int32_t k) { return rows->p[k - 1][rows->drafts[k - 1]]; }

static double draft_of_draft(const struct verify_rows *rows, int32_t k)
{
    const double *q = rows->q[k - 1];
    return q ? q[rows->drafts[k - 1]] : 1.0;
}

int32_t verify_ratio(const struct verify_rows *rows, const double *u)
{
    int32_t a = 0;
    while (a < rows->n && target_of_draft(rows, a + 1) > u[a] * draft_of_draft(rows, a + 1))
        a++;
    return a;
}

double verify_ratio_chance(const struct verify_rows *rows, int32_t k)
{
    double p = target_of_draft(rows, k), q = draft_of_draft(rows, k);
    return p == 0 ? 0 : p >= q ? 1 : p / q;
}

/* max(scale * p(v) - q(v), 0), where p and q are those of the slot after `a` accepted drafts. */
static double residual(const struct verify_rows *rows, int32_t a, double scale, int32_t v)
{
    const double *q = rows->q[a];
    double draft = q ? q[v] : v == rows->drafts[a] ? 1.0 : 0.0;
    return fmax(scale * rows->p[a][v] - draft, 0.0);
}

static double residual_mass(const struct verify_rows *rows, int32_t a, double scale)
{
    double sum = 0;
    for (int32_t v = 0; v < rows->vocab; v++)
        sum += residual(rows, a, scale, v);
    return sum;
}

/* S / (S + 1 - P): the chance that the block stands up to here, given that it does not stand further. */
static double level(double mass, double P)
{
    double denominator = mass + 1.0 - P;
    return denominator > 0 ? fmin(mass / denominator, 1.0) : 1.0;
}

void verify_block_levels(const struct verify_rows *rows, double *P, double *h)
{
    P[0] = h[0] = 1.0;
    for (int32_t k = 1; k <= rows->n; k++) {
        double p = target_of_draft(rows, k), q = draft_of_draft(rows, k);
        P[k] = P[k - 1] * p >= q ? (P[k - 1] * p > 0 ? 1.0 : 0.0) : P[k - 1] * p / q;
    }
    for (int32_t k = 1; k < rows->n; k++)
        h[k] = level(residual_mass(rows, k, P[k]), P[k]);
    if (rows->n > 0)
        h[rows->n] = P[rows->n];
}

int32_t verify_block(const double *h, int32_t n, const double *u)
{
    int32_t a = n;
    while (a > 0 && !(u[a - 1] <= h[a]))
        a--;
    return a;
}

void verify_next(const struct verify_rows *rows, int32_t a, double scale, double *out)
{
    size_t row_bytes = (size_t)rows->vocab * sizeof *out;
    double mass = a < rows->n ? residual_mass(rows, a, scale) : 0;
    if (mass <= least_residual) {
        memcpy(out, rows->p[a], row_bytes);
        return;
    }
    for (int32_t v = 0; v < rows->vocab; v++)
        out[v] = residual(rows, a, scale, v) / mass;
}
