/* open_device.h: the backend that --device names. */
#ifndef QR_TOOLS_OPEN_DEVICE_H
#define QR_TOOLS_OPEN_DEVICE_H

#include "ops/ops.h"

/* "cpu" (the best path of this machine) or "cpu-reference"; QR_UNSUPPORTED for a device that this build does not have.
 */
qr_status open_device(const char *device, int threads, const struct qr_log *log, struct backend **out, qr_error *err);

#endif
