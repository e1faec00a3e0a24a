/* tls.h: the certificate and the key that a server shows, from PEM files. */
#ifndef QR_SERVE_TLS_H
#define QR_SERVE_TLS_H

#include "quire.h"

/* Reads both (qr_free), which must be given together; neither leaves the outputs alone. Looks whether each file holds what it is
 * to hold; whether they belong together is seen when the server listens. QR_BAD_FILE names the file. */
qr_status tls_read(const char *certificate_file, const char *key_file, char **certificate, char **key, qr_error *err);

#endif
