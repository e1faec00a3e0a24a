#include "tools/open_device.h"

#include "ops/device.h"

qr_status open_device(const char *device, int threads, const struct qr_log *log, struct backend **out, qr_error *err)
{
    return backend_open(device, threads, log, out, err);
}
