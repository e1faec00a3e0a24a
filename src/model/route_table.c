#include "model/route_table.h"

static int64_t expert_at(enum dtype dtype, const void *data, int64_t i)
{
    return dtype == DTYPE_I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
}

qr_status route_table_read(const char *path, const char *name, enum dtype dtype, const void *data, int64_t rows,
                           int64_t cols, int32_t experts, int32_t *out, qr_error *err)
{
    if (dtype != DTYPE_I64 && dtype != DTYPE_I32)
        return qr_fail(err, QR_BAD_FILE, "%s: %s has dtype %s, wanted I64 or I32", path, name, dtype_name(dtype));
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t e = expert_at(dtype, data, i), token = i / cols;
        if (e < 0 || e >= experts)
            return qr_fail(err, QR_BAD_FILE, "%s: %s: token %lld goes to expert %lld, wanted 0 to %d", path, name,
                           (long long)token, (long long)e, experts - 1);
        for (int64_t before = token * cols; before < i; before++)
            if (out[before] == e)
                return qr_fail(err, QR_BAD_FILE, "%s: %s: token %lld goes to expert %lld twice", path, name,
                               (long long)token, (long long)e);
        out[i] = (int32_t)e;
    }
    return QR_OK;
}
