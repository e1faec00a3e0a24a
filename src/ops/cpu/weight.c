#include "ops/cpu/cpu.h"

#include <string.h>

#include "base/alloc.h"
#include "number/e8m0.h"

/* Columns that share one scale. */
static int32_t scale_block(const struct weight_spec *s)
{
    return s->format == WEIGHT_FP8 ? s->tile : s->format == WEIGHT_FP4 ? 32 : 0;
}

static qr_status check_shape(const struct weight_spec *s, qr_error *err)
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

/* E8M0 byte 255 is no number (v41-model.md end of 2.3). */
static qr_status check_scales(const struct weight_spec *s, int64_t rows, int64_t cols, qr_error *err)
{
    const uint8_t *found = memchr(s->scales, E8M0_NAN, (size_t)(rows * cols));
    if (!found)
        return QR_OK;
    int64_t index = found - (const uint8_t *)s->scales;
    return qr_fail(err, QR_BAD_FILE, "weight %s: scale [%lld][%lld] is E8M0 255 (NaN), wanted 0 to 254", s->name,
                   (long long)(index / cols), (long long)(index % cols));
}

qr_status cpu_prepare_weight(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err)
{
    (void)b;
    qr_status st = check_shape(spec, err);
    if (st != QR_OK)
        return st;

    int32_t block = scale_block(spec);
    int64_t scale_cols = block ? (spec->k + block - 1) / block : 0;
    if (block) {
        int64_t scale_rows = spec->format == WEIGHT_FP8 ? (spec->n + block - 1) / block : spec->n;
        st = check_scales(spec, scale_rows, scale_cols, err);
        if (st != QR_OK)
            return st;
    }

    size_t name_size = strlen(spec->name) + 1;
    struct weight *w = qr_malloc(sizeof *w + name_size);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "weight %s: no memory for its handle", spec->name);
    *w = (struct weight){.spec = *spec, .scale_cols = scale_cols};
    w->spec.name = memcpy(w + 1, spec->name, name_size);
    w->spec.k_splits = at_least_one(spec->k_splits);
    *out = w;
    return QR_OK;
}

void cpu_release_weight(struct backend *b, struct weight *w)
{
    (void)b;
    qr_free(w);
}
