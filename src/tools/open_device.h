/* open_device.h: the backend that --device names. */
#ifndef QR_TOOLS_OPEN_DEVICE_H
#define QR_TOOLS_OPEN_DEVICE_H

#include "ops/ops.h"

/* As backend_open of ops/device.h. */
qr_status open_device(const char *device, int threads, const struct qr_log *log, struct backend **out, qr_error *err);

#endif
