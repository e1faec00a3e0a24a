#include "text/chat_issue.h"

#include <stdarg.h>
#include <stdio.h>

qr_status chat_refuse(struct chat_issue *issue, qr_error *err, const char *code, const char *param, const char *format,
                      ...)
{
    char sentence[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(sentence, sizeof sentence, format, ap);
    va_end(ap);
    if (issue) {
        issue->status = 400;
        issue->code = code;
        snprintf(issue->param, sizeof issue->param, "%s", param);
    }
    return qr_fail(err, QR_BAD_REQUEST, "%s: %s", param, sentence);
}
