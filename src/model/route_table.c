#include "model/route_table.h"

static int64_t expert_at(enum dtype dtype, const void *data, int64_t i)
{
    return dtype == DTYPE_I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
}

qr_status route_table_row(const char *path, const char *name, enum dtype dtype, const void *data, int64_t row, int64_t cols,
                          int32_t experts, int32_t *out, qr_error *err)
{
    if (dtype != DTYPE_I64 && dtype != DTYPE_I32)
        return qr_fail(err, QR_BAD_FILE, "%s: %s has dtype %s, wanted I64 or I32", path, name, dtype_name(dtype));
    for (int64_t k = 0; k < cols; k++) {
        int64_t e = expert_at(dtype, data, row * cols + k);
        if (e < 0 || e >= experts)
            return qr_fail(err, QR_BAD_FILE, "%s: %s: token %lld goes to expert %lld, wanted 0 to %d", path, name,
                           (long long)row, (long long)e, experts - 1);
        for (int64_t before = 0; before < k; before++)
            if (out[before] == e)
                return qr_fail(err, QR_BAD_FILE, "%s: %s: token %lld goes to expert %lld twice", path, name,
                               (long long)row, (long long)e);
        out[k] = (int32_t)e;
    }
    return QR_OK;
}

qr_status route_table_read(const char *path, const char *name, enum dtype dtype, const void *data, int64_t rows,
                           int64_t cols, int32_t experts, int32_t *out, qr_error *err)
{
    for (int64_t row = 0; row < rows; row++)
        TRY(route_table_row(path, name, dtype, data, row, cols, experts, out + row * cols, err));
    return QR_OK;
}
