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

int32_t weight_spec_block(const struct weight_spec *s)
{
    return s->format == WEIGHT_FP8 ? s->tile : s->format == WEIGHT_FP4 ? 32 : 0;
}

qr_status weight_spec_check(const struct weight_spec *s, qr_error *err)
{
    bool scaled = s->format == WEIGHT_FP8 || s->format == WEIGHT_FP4 || s->format == WEIGHT_INT8;
    if (s->n < 1 || s->k < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "weight %s: shape [%d][%d], wanted positive sizes", s->name, s->n, s->k);
    if (!s->values || (scaled && !s->scales))
        return qr_fail(err, QR_BAD_ARGUMENT, "weight %s: %s missing", s->name, s->values ? "scales" : "values");
    if (s->format == WEIGHT_FP8 && s->tile != 32 && s->tile != 128)
        return qr_fail(err, QR_BAD_ARGUMENT, "weight %s: scale tiles of %d, wanted 32 or 128", s->name, s->tile);
    if (s->format == WEIGHT_FP4 && s->k % 32)
        return qr_fail(err, QR_BAD_ARGUMENT, "weight %s: %d columns, wanted a multiple of 32", s->name, s->k);
    if (s->k_splits != 0 && s->k_splits != 1 && s->k_splits != 8)
        return qr_fail(err, QR_BAD_ARGUMENT, "weight %s: %d splits of K, wanted 1 or 8", s->name, s->k_splits);
    return QR_OK;
}
