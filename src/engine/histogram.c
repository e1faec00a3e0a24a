#include "engine/histogram.h"

#include <math.h>

static const double bounds[QR_HISTOGRAM_BUCKETS] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                    0.5,   1,      2.5,   5,    10,    30,   60,  INFINITY};

double qr_histogram_bound(int bucket)
{
    return bucket < 0 ? 0 : bounds[bucket < QR_HISTOGRAM_BUCKETS ? bucket : QR_HISTOGRAM_BUCKETS - 1];
}

void histogram_add(qr_histogram *h, double seconds)
{
    int bucket = 0;
    while (seconds > bounds[bucket])
        bucket++;
    h->count[bucket]++;
    h->sum += seconds;
}
