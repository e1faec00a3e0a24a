/* structs.h: the structs of quire.h that begin with their own size. */
#ifndef QR_ENGINE_STRUCTS_H
#define QR_ENGINE_STRUCTS_H

#include "base/status.h"

/* Copies what the caller gave (whose first member is its size) to `out`, `known` bytes. There has been one version of each
 * so far, so another size is a struct that this library does not know: QR_BAD_ARGUMENT, naming it. */
qr_status struct_take(const char *name, const void *given, size_t known, void *out, qr_error *err);

#endif
