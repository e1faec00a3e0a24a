#include "base/status.h"
#undef qr_fail /* the analyzer's */

#include <stdarg.h>
#include <string.h>

#include "base/sentence.h"

#define QR_STRING2(x) #x
#define QR_STRING(x) QR_STRING2(x)

const char *qr_version(void)
{
    return QR_STRING(QR_VERSION_MAJOR) "." QR_STRING(QR_VERSION_MINOR) "." QR_STRING(QR_VERSION_PATCH);
}

const char *qr_status_name(qr_status status)
{
    static const char *const names[] = {
        [QR_OK] = "ok",
        [QR_NO_MEMORY] = "out of memory",
        [QR_BAD_ARGUMENT] = "bad argument",
        [QR_BAD_FILE] = "bad file",
        [QR_BAD_CONFIG] = "bad config",
        [QR_BAD_REQUEST] = "bad request",
        [QR_UNSUPPORTED] = "not supported",
        [QR_REFUSED] = "refused",
        [QR_NUMERIC] = "numeric failure",
        [QR_CANCELLED] = "cancelled",
        [QR_BUSY] = "busy",
        [QR_IO] = "input/output error",
        [QR_INTERNAL] = "internal error",
    };
    if ((unsigned)status >= sizeof names / sizeof *names)
        return "unknown status";
    return names[status];
}

qr_status qr_fail(qr_error *err, qr_status status, const char *format, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, format);
        err->status = status;
        sentence_format(err->message, sizeof err->message, format, ap);
        va_end(ap);
    }
    return status;
}

qr_status qr_fail_in(qr_error *err, qr_status status, const char *format, ...)
{
    if (err) {
        char old[sizeof err->message];
        va_list ap;
        memcpy(old, err->message, sizeof old);
        va_start(ap, format);
        size_t n = sentence_format(err->message, sizeof err->message, format, ap);
        va_end(ap);
        if (n + 2 < sizeof err->message) {
            memcpy(err->message + n, ": ", 2);
            sentence_quote(err->message + n + 2, sizeof err->message - n - 2, old, strlen(old));
        }
        err->status = status;
    }
    return status;
}
