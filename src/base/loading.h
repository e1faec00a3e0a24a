/* loading.h: how far the loading of something large is, told to whoever asked for it. */
#ifndef QR_BASE_LOADING_H
#define QR_BASE_LOADING_H

#include "base/status.h"

struct loading {
    bool (*say)(void *user, uint64_t done, uint64_t total); /* false: stop */
    void *user;
    uint64_t done, total; /* bytes */
};

/* Adds to what is done (never beyond the total) and says it. QR_CANCELLED when the answer is to stop. A NULL `loading` is
 * told to nobody. */
qr_status loading_add(struct loading *loading, uint64_t bytes, qr_error *err);

#endif
