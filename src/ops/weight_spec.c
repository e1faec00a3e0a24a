#include "ops/weight_spec.h"

int64_t weight_spec_bytes(const struct weight_spec *s)
{
    const int64_t n = s->n, k = s->k, tile = s->tile ? s->tile : 1;
    switch (s->format) {
    case WEIGHT_BF16:
        return 2 * n * k;
    case WEIGHT_F32:
        return 4 * n * k;
    case WEIGHT_FP8:
        return n * k + (n + tile - 1) / tile * ((k + tile - 1) / tile);
    case WEIGHT_FP4:
        return n * k / 2 + n * (k / 32);
    default: /* INT8, a scale for each row */
        return n * k + 4 * n;
    }
}
