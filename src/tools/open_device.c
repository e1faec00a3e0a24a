#include "tools/open_device.h"

#include <string.h>

qr_status open_device(const char *device, int threads, const struct qr_log *log, struct backend **out, qr_error *err)
{
    if (strcmp(device, "cpu") == 0)
        return backend_cpu_open(NULL, threads, log, out, err);
    if (strncmp(device, "cpu-", 4) == 0)
        return backend_cpu_open(device + 4, threads, log, out, err);
    return qr_fail(err, QR_UNSUPPORTED, "device %s is not one of this build, which has cpu and cpu-reference", device);
}
