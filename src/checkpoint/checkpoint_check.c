#include "checkpoint/checkpoint_check.h"

#include <string.h>

#include "base/alloc.h"
#include "number/e4m3.h"
#include "number/e8m0.h"

/* "x.scale" of a weight that the folder holds dequantized: not needed then (v4-model.md 2.1 a). */
static bool scale_is_spare(const struct checkpoint *ck, const char *name)
{
    char weight[512];
    size_t n = strlen(name), stem = n - strlen(".scale");
    if (n < strlen(".scale") || strcmp(name + stem, ".scale") != 0 || stem + sizeof ".weight" > sizeof weight)
        return false;
    memcpy(weight, name, stem);
    memcpy(weight + stem, ".weight", sizeof ".weight");
    const struct tensor_view *view = checkpoint_find(ck, weight);
    return view && view->dtype == DTYPE_BF16;
}

/* "mtp.0.emb..." or "mtp.0.head...": copies of the backbone's embedding and head that a repackaged folder may hold;
 * they are passed over (v4-model.md 2.1, v41-model.md 2.4). */
static bool is_spare_copy(const char *name)
{
    if (strncmp(name, "mtp.", 4) != 0)
        return false;
    const char *rest = name + 4 + strspn(name + 4, "0123456789");
    return rest > name + 4 && (!strncmp(rest, ".emb", 4) || !strncmp(rest, ".head", 5));
}

static bool dtype_fits(const struct tensor_spec *spec, enum dtype found)
{
    if (spec->dtype == found || (spec->or_bf16 && found == DTYPE_BF16))
        return true;
    return spec->dtype == DTYPE_I8 && (found == DTYPE_U8 || found == DTYPE_F4);
}

static bool shape_fits(const struct tensor_spec *spec, const struct tensor_view *view)
{
    if (spec->rank != view->rank)
        return false;
    for (int32_t i = 0; i < spec->rank; i++)
        if (spec->shape[i] != view->shape[i] && spec->shape[i] != -1)
            return false;
    return true;
}

struct comparison {
    void (*each)(void *, enum mismatch, const struct tensor_spec *, const struct tensor_view *);
    void *user;
    struct checkpoint_diff *diff;
};

static void note(const struct comparison *c, enum mismatch kind, int64_t index, const struct tensor_spec *spec,
                 const struct tensor_view *view)
{
    if (!c->diff->count[kind]++)
        c->diff->first[kind] = index;
    if (c->each)
        c->each(c->user, kind, spec, view);
}

qr_status checkpoint_compare(const struct checkpoint *ck, const struct tensor_spec *specs, int64_t count,
                             void (*each)(void *user, enum mismatch kind, const struct tensor_spec *spec,
                                          const struct tensor_view *view),
                             void *user, struct checkpoint_diff *out, qr_error *err)
{
    struct comparison c = {each, user, out};
    int64_t held = checkpoint_count(ck);
    bool *wanted = qr_calloc((size_t)held, sizeof *wanted);
    if (!wanted)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory to compare %lld tensors", checkpoint_path(ck),
                       (long long)held);
    *out = (struct checkpoint_diff){{0}, {-1, -1, -1, -1}};
    for (int64_t i = 0; i < count; i++) {
        const struct tensor_spec *spec = &specs[i];
        int64_t at = checkpoint_index_of(ck, spec->name);
        if (at >= 0)
            wanted[at] = true;
        const struct tensor_view *view = at < 0 ? NULL : checkpoint_at(ck, at);
        if (!view || view->dtype == DTYPE_COUNT) {
            if (!spec->optional && !scale_is_spare(ck, spec->name))
                note(&c, MISMATCH_MISSING, i, spec, NULL);
        } else if (!dtype_fits(spec, view->dtype)) {
            note(&c, MISMATCH_DTYPE, i, spec, view);
        } else if (!shape_fits(spec, view)) {
            note(&c, MISMATCH_SHAPE, i, spec, view);
        }
    }
    for (int64_t i = 0; i < held; i++)
        if (!wanted[i] && !is_spare_copy(checkpoint_at(ck, i)->name))
            note(&c, MISMATCH_UNEXPECTED, i, NULL, checkpoint_at(ck, i));
    qr_free(wanted);
    return QR_OK;
}

static qr_status wrong_tensor(const struct checkpoint *ck, const struct tensor_spec *spec, qr_error *err)
{
    const struct tensor_view *view = checkpoint_find(ck, spec->name);
    char found[160], wanted[160];
    return qr_fail(err, QR_BAD_FILE, "%s: tensor %s: found %s of shape %s, wanted %s of shape %s",
                   checkpoint_shard_path(ck, view->shard), spec->name, dtype_name(view->dtype),
                   shape_text(view->rank, view->shape, found, sizeof found), dtype_name(spec->dtype),
                   shape_text(spec->rank, spec->shape, wanted, sizeof wanted));
}

qr_status checkpoint_expect(const struct checkpoint *ck, const struct tensor_spec *specs, int64_t count, qr_error *err)
{
    struct checkpoint_diff d;
    const char *path = checkpoint_path(ck);
    qr_status st = checkpoint_compare(ck, specs, count, NULL, NULL, &d, err);
    if (st != QR_OK)
        return st;
    long long missing = d.count[MISMATCH_MISSING], unexpected = d.count[MISMATCH_UNEXPECTED];
    const char *first_missing = missing ? specs[d.first[MISMATCH_MISSING]].name : "";
    const char *first_unexpected = unexpected ? checkpoint_at(ck, d.first[MISMATCH_UNEXPECTED])->name : "";
    if (missing && unexpected)
        return qr_fail(err, QR_BAD_FILE,
                       "%s: tensor %s is missing (first of %lld) and tensor %s is not expected (first of %lld)", path,
                       first_missing, missing, first_unexpected, unexpected);
    if (missing)
        return qr_fail(err, QR_BAD_FILE, "%s: tensor %s is missing (first of %lld)", path, first_missing, missing);
    if (unexpected)
        return qr_fail(err, QR_BAD_FILE, "%s: tensor %s is not expected (first of %lld)", path, first_unexpected,
                       unexpected);
    if (d.count[MISMATCH_DTYPE])
        return wrong_tensor(ck, &specs[d.first[MISMATCH_DTYPE]], err);
    if (d.count[MISMATCH_SHAPE])
        return wrong_tensor(ck, &specs[d.first[MISMATCH_SHAPE]], err);
    return QR_OK;
}

int64_t tensor_first_bad(const struct tensor_view *view, int64_t first, int64_t count)
{
    const uint8_t *bytes = view->data, *hit;
    const uint16_t *halves = view->data;
    const uint32_t *words = view->data;
    int64_t end = first + count;
    switch (view->dtype) {
    case DTYPE_F8_E8M0:
        hit = memchr(bytes + first, E8M0_NAN, (size_t)count);
        return hit ? hit - bytes : -1;
    case DTYPE_F8_E4M3:
        return e4m3_first_nan(bytes, first, end);
    case DTYPE_BF16:
        for (int64_t i = first; i < end; i++)
            if ((halves[i] & 0x7F80) == 0x7F80)
                return i;
        return -1;
    case DTYPE_F32:
        for (int64_t i = first; i < end; i++)
            if ((words[i] & 0x7F800000) == 0x7F800000)
                return i;
        return -1;
    default:
        return -1;
    }
}

/* A value that is not finite, from the bits of its mantissa and sign. */
static const char *not_finite(bool mantissa, bool sign) { return mantissa ? "NaN" : sign ? "-infinity" : "infinity"; }

qr_status tensor_bad_value(const char *path, const struct tensor_view *view, int64_t at, qr_error *err)
{
    uint32_t bits = view->dtype == DTYPE_F32    ? ((const uint32_t *)view->data)[at]
                    : view->dtype == DTYPE_BF16 ? (uint32_t)((const uint16_t *)view->data)[at] << 16
                                                : ((const uint8_t *)view->data)[at];
    if (view->dtype == DTYPE_F8_E8M0)
        return qr_fail(err, QR_NUMERIC, "%s: tensor %s: scale byte %u (NaN) at index %lld, wanted 0 to 254", path, view->name,
                       bits, (long long)at);
    if (view->dtype == DTYPE_F8_E4M3)
        return qr_fail(err, QR_NUMERIC, "%s: tensor %s: E4M3 code 0x%02x (NaN) at index %lld, wanted a number", path, view->name,
                       bits, (long long)at);
    return qr_fail(err, QR_NUMERIC, "%s: tensor %s: %s %s at index %lld, wanted a finite number", path, view->name,
                   dtype_name(view->dtype), not_finite(bits & 0x7FFFFF, bits >> 31), (long long)at);
}

qr_status tensor_check_values(const char *path, const struct tensor_view *view, int64_t first, int64_t count,
                              qr_error *err)
{
    int64_t at = tensor_first_bad(view, first, count);
    return at < 0 ? QR_OK : tensor_bad_value(path, view, at, err);
}
