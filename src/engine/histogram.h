/* histogram.h: how long things took, counted in buckets of fixed bounds (runtime.md 12.3). */
#ifndef QR_ENGINE_HISTOGRAM_H
#define QR_ENGINE_HISTOGRAM_H

#include "quire.h"

/* One more that took `seconds`. */
void histogram_add(qr_histogram *h, double seconds);

#endif
