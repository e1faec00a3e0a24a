#include "base/loading.h"

qr_status loading_add(struct loading *l, uint64_t bytes, qr_error *err)
{
    if (!l)
        return QR_OK;
    l->done = bytes < l->total - l->done ? l->done + bytes : l->total;
    if (l->say(l->user, l->done, l->total))
        return QR_OK;
    return qr_fail(err, QR_CANCELLED, "cancelled after %llu of %llu bytes", (unsigned long long)l->done,
                   (unsigned long long)l->total);
}
