/* keys.h: who may ask. API keys stand in a file, one a line; empty lines and lines that begin with # are none. */
#ifndef QR_SERVE_KEYS_H
#define QR_SERVE_KEYS_H

#include <stddef.h>

#include "quire.h"

/* Zero-initialise: everybody may ask. */
struct keys {
    char *text;
    const char **items;
    size_t count;
};

/* QR_BAD_FILE: unreadable, or without a key. */
qr_status keys_read(const char *path, struct keys *out, qr_error *err);
void keys_free(struct keys *keys);

/* Whether `key` (may be NULL) is one of them, in a time that tells nothing of how much of it is right. True where there are
 * none. */
bool keys_allow(const struct keys *keys, const char *key);

#endif
