/* quire.h: the public interface of libquire, the one installed header.
 *
 * Threads: every function may be called from any thread unless its comment says otherwise. An object belongs to the
 * caller until it is closed; closing an object that another thread still uses is a programming error.
 * Errors: a function that can fail returns qr_status and, when `err` is not NULL, leaves one sentence in it. The
 * library prints nothing, never exits and never aborts on input. */
#ifndef QUIRE_H
#define QUIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QR_VERSION_MAJOR 0
#define QR_VERSION_MINOR 1
#define QR_VERSION_PATCH 0

#if defined(__GNUC__)
#define QR_API __attribute__((visibility("default")))
#else
#define QR_API
#endif

/* How a call ended. */
typedef enum qr_status {
    QR_OK = 0,
    QR_NO_MEMORY,     /* an allocation failed, or the byte plan does not fit */
    QR_BAD_ARGUMENT,  /* the caller's argument is outside its documented range */
    QR_BAD_FILE,      /* a file is missing, unreadable or malformed */
    QR_BAD_CONFIG,    /* config.json (or a cross-field rule of it) is refused */
    QR_BAD_REQUEST,   /* a request (prompt, sampling field, message) is refused */
    QR_UNSUPPORTED,   /* a feature that this build or model does not have */
    QR_REFUSED,       /* an admission rule (runtime.md 11) is violated; nothing was loaded */
    QR_NUMERIC,       /* a NaN or infinity appeared where the model cannot have one */
    QR_CANCELLED,     /* the caller's callback or qr_cancel asked to stop */
    QR_BUSY,          /* a queue or pool is full; try again later */
    QR_IO,            /* the operating system refused a read or write */
    QR_INTERNAL       /* an invariant of the library is broken; a bug */
} qr_status;

/* One sentence naming what was found and what was wanted. Zero-initialise it. */
typedef struct qr_error {
    qr_status status;
    char message[1000];
} qr_error;

/* "0.1.0" */
QR_API const char *qr_version(void);
/* A short name of a status, such as "bad file". Never NULL. */
QR_API const char *qr_status_name(qr_status status);

#ifdef __cplusplus
}
#endif
#endif
