#include "comm/dispatch.h"

#include <string.h>

qr_status dispatch_check_world(const struct dispatch_world *w, qr_error *err)
{
    if (w->ranks != 1 && w->ranks != 2 && w->ranks != 4 && w->ranks != 8)
        return qr_fail(err, QR_BAD_ARGUMENT, "bad world: %d ranks, wanted 1, 2, 4 or 8", w->ranks);
    if (w->experts < 1 || w->experts % w->ranks)
        return qr_fail(err, QR_BAD_ARGUMENT, "bad world: %d experts over %d ranks, wanted a multiple", w->experts, w->ranks);
    if (w->active < 1 || w->active > w->experts || w->rows < 0)
        return qr_fail(err, QR_BAD_ARGUMENT, "bad world: %d of %d experts for each of %d rows", w->active, w->experts, w->rows);
    return QR_OK;
}

qr_status dispatch_check_routes(const struct dispatch_world *w, const int32_t *idx, int32_t rows, qr_error *err)
{
    for (int64_t t = 0; t < rows; t++)
        for (int32_t k = 0; k < w->active; k++) {
            int32_t e = idx[t * w->active + k];
            if (e < 0 || e >= w->experts)
                return qr_fail(err, QR_BAD_ARGUMENT, "bad table: row %lld goes to expert %d, wanted 0 to %d", (long long)t, e,
                               w->experts - 1);
            for (int32_t i = 0; i < k; i++)
                if (idx[t * w->active + i] == e)
                    return qr_fail(err, QR_BAD_ARGUMENT, "bad table: row %lld goes to expert %d twice", (long long)t, e);
        }
    return QR_OK;
}

void dispatch_count(const struct dispatch_world *w, const int32_t *idx, int32_t rows, int32_t *counts, int32_t *ordinal)
{
    memset(counts, 0, (size_t)w->experts * sizeof *counts);
    for (int64_t i = 0; i < (int64_t)rows * w->active; i++)
        ordinal[i] = counts[idx[i]]++;
}

void dispatch_lanes(const struct dispatch_world *w, int32_t *first)
{
    for (int32_t e = 0; e < dispatch_local(w); e++)
        for (int32_t source = 0; source < w->ranks; source++)
            first[e * w->ranks + source] = e * dispatch_lane_rows(w) + source * w->rows;
}

int32_t dispatch_pack(const struct dispatch_world *w, const int32_t *counts, int32_t align, int32_t *first)
{
    int32_t next = 0;
    for (int32_t e = 0; e < dispatch_local(w); e++) {
        for (int32_t source = 0; source < w->ranks; source++) {
            first[e * w->ranks + source] = next;
            next += counts[source * dispatch_local(w) + e];
        }
        next = (next + align - 1) / align * align;
    }
    return next;
}
