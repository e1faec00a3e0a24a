#include "engine/draft_calibration.h"

#include <math.h>

enum { GRID = 49 }; /* temperatures, evenly spaced in their logarithm */

static const double least_confidence = 1e-6;

double calibration_confidence(double logit, double tau)
{
    const double most = log((1 - least_confidence) / least_confidence);
    const double clipped = logit < -most ? -most : logit > most ? most : logit;
    return 1 / (1 + exp(-clipped / tau));
}

static int32_t bin_of(double estimate)
{
    const int32_t bin = (int32_t)(estimate * CALIBRATION_BINS);
    return bin < CALIBRATION_BINS ? bin : CALIBRATION_BINS - 1;
}

double calibration_error(const struct calibration_sample *samples, size_t count, const double *taus, int32_t k)
{
    double gap[CALIBRATION_BINS] = {0}, off = 0;
    size_t seen = 0;
    for (size_t i = 0; i < count; i++) {
        const struct calibration_sample *s = &samples[i];
        double survival = 1;
        if (s->verified <= k)
            continue;
        for (int32_t j = 0; j <= k; j++)
            survival *= calibration_confidence(s->logits[j], taus[j]);
        gap[bin_of(survival)] += survival - (s->accepted > k);
        seen++;
    }
    for (int32_t b = 0; b < CALIBRATION_BINS; b++)
        off += fabs(gap[b]);
    return seen > 0 ? off / (double)seen : 0;
}

/* 1, then ever further from it on both sides up to 1/8 and 8. */
static double grid_at(int32_t i)
{
    const int32_t step = i % 2 ? (i + 1) / 2 : -(i / 2);
    return exp2(3.0 * step / ((GRID - 1) / 2));
}

void calibration_fit(const struct calibration_sample *samples, size_t count, int32_t width, double *taus)
{
    for (int32_t k = 0; k < width; k++) {
        double best = 1, least = INFINITY;
        for (int32_t i = 0; i < GRID; i++) {
            taus[k] = grid_at(i);
            const double error = calibration_error(samples, count, taus, k);
            if (error < least) {
                least = error;
                best = taus[k];
            }
        }
        taus[k] = best;
    }
}
