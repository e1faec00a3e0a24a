/* status.h: how every function of the library fails. Knows only quire.h. */
#ifndef QR_BASE_STATUS_H
#define QR_BASE_STATUS_H

#include "quire.h"

/* Records `status` and a formatted sentence in `err` (may be NULL) and returns `status`, so that a failing function
 * ends in `return qr_fail(err, QR_BAD_FILE, "%s: ...", path)`. A message already there is overwritten. The message is
 * one line of UTF-8 whatever was quoted (sentence.h). */
qr_status qr_fail(qr_error *err, qr_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts "context: " in front of the message already in `err`; returns err's status. For callers that know the file or
 * request when the callee did not. */
qr_status qr_fail_in(qr_error *err, qr_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#ifdef __clang_analyzer__ /* which does not see into another file that the status is the one given */
static inline qr_status qr_failed(qr_status failed, qr_status given)
{
    (void)failed;
    return given;
}
#define qr_fail(err, status, ...) qr_failed(qr_fail(err, status, __VA_ARGS__), status)
#endif

/* For functions without anything to clean up: returns from the caller with the call's status unless it is QR_OK. */
#define TRY(call)                      \
    do {                               \
        qr_status try_status = (call); \
        if (try_status != QR_OK)       \
            return try_status;         \
    } while (0)

#endif
