#include "ops/cpu/cpu.h"

#include <string.h>

#include "base/alloc.h"
#include "number/e8m0.h"
#include "ops/weight_spec.h"

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
    qr_status st = weight_spec_check(spec, err);
    if (st != QR_OK)
        return st;

    int32_t block = weight_spec_block(spec);
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
