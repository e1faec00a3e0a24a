#include "support/host_backend.h"

#include <string.h>

#include "base/alloc.h"

static qr_status allocate(struct backend *b, int64_t bytes, void **out, qr_error *err)
{
    (void)b;
    *out = qr_malloc((size_t)bytes);
    return *out ? QR_OK : qr_fail(err, QR_NO_MEMORY, "host: %lld bytes", (long long)bytes);
}

static void release(struct backend *b, void *p)
{
    (void)b;
    qr_free(p);
}

static qr_status copy(struct backend *b, void *to, const void *from, int64_t bytes, qr_error *err)
{
    (void)b;
    (void)err;
    memcpy(to, from, (size_t)bytes);
    return QR_OK;
}

static qr_status fence(struct backend *b, qr_error *err)
{
    (void)b;
    (void)err;
    return QR_OK;
}

struct backend host_backend(void)
{
    return (struct backend){.name = "host",
                            .allocate = allocate,
                            .release = release,
                            .upload = copy,
                            .download = copy,
                            .copy = copy,
                            .fence = fence};
}
