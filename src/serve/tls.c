#include "serve/tls.h"

#include <microhttpd.h>
#include <stdbool.h>
#include <string.h>

#include "base/file.h"
#include "base/status.h"

enum { MOST_PEM = 1 << 20 };

/* A line "-----BEGIN ...-----" whose words end in these, and its END. */
static bool holds(const char *pem, const char *words)
{
    static const char begin[] = "-----BEGIN ", dashes[] = "-----";
    const size_t length = strlen(words);
    for (const char *line = pem; (line = strstr(line, begin)); line += sizeof begin - 1) {
        const char *name = line + sizeof begin - 1, *close = strstr(name, dashes);
        const size_t named = close ? (size_t)(close - name) : 0;
        if (named >= length && memcmp(close - length, words, length) == 0 && !memchr(name, '\n', named))
            return strstr(close, "-----END ") != NULL;
    }
    return false;
}

static qr_status read_pem(const char *file, const char *words, const char *what, char **out, qr_error *err)
{
    size_t size;
    TRY(file_read(file, MOST_PEM, out, &size, err));
    if (!holds(*out, words))
        return qr_fail(err, QR_BAD_FILE, "%s: no %s in it, wanted PEM: -----BEGIN %s----- to its end", file, what, words);
    return QR_OK;
}

qr_status tls_read(const char *certificate_file, const char *key_file, char **certificate, char **key, qr_error *err)
{
    if (!certificate_file != !key_file)
        return qr_fail(err, QR_BAD_ARGUMENT, "TLS: wanted --tls-certificate and --tls-key, both or none");
    if (!certificate_file)
        return QR_OK;
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        return qr_fail(err, QR_UNSUPPORTED, "TLS: this build of libmicrohttpd has none");
    TRY(read_pem(certificate_file, "CERTIFICATE", "certificate", certificate, err));
    TRY(read_pem(key_file, "PRIVATE KEY", "private key", key, err));
    if (holds(*key, "ENCRYPTED PRIVATE KEY") || strstr(*key, "\nProc-Type: 4,ENCRYPTED"))
        return qr_fail(err, QR_BAD_FILE, "%s: the private key is encrypted, wanted one that needs no password", key_file);
    return QR_OK;
}
