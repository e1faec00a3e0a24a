#include "checkpoint/prompt_profile.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

/* Words that only the later encoder has. */
static const char later_text[] = "Beyond maximum";
enum { ENCODER_LIMIT = 1 << 20 };

qr_status prompt_profile_of(const char *dir, const struct qr_config *config, const struct qr_log *log,
                            enum chat_profile *out, qr_error *err)
{
    char *path, *text = NULL;
    size_t size;
    *out = CHAT_V41;
    if (config->family == QR_FAMILY_V41)
        return QR_OK;
    *out = CHAT_V4B;
    path = path_join(dir, "encoding/encoding_dsv4.py");
    if (!path)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for a path", dir);
    if (file_read(path, ENCODER_LIMIT, &text, &size, NULL) != QR_OK)
        qr_logf(log, QR_LOG_INFO, "%s: no encoder file beside the weights, prompt profile v4b assumed", dir);
    else if (!strstr(text, later_text))
        *out = CHAT_V4A;
    qr_free(text);
    qr_free(path);
    return QR_OK;
}
