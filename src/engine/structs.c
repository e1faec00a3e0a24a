#include "engine/structs.h"

#include <string.h>

qr_status struct_take(const char *name, const void *given, size_t known, void *out, qr_error *err)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size != known)
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: size is %zu, this library knows %zu (use its initialiser)", name, size,
                       known);
    memcpy(out, given, known);
    return QR_OK;
}
