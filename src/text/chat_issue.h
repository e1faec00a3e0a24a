/* chat_issue.h: why a request was refused, in the terms of an HTTP answer (protocol.md 4.10). */
#ifndef QR_TEXT_CHAT_ISSUE_H
#define QR_TEXT_CHAT_ISSUE_H

#include "base/status.h"

/* Zero-initialise. Filled only when a call returns QR_BAD_REQUEST; the sentence itself is in the qr_error. */
struct chat_issue {
    int status;       /* HTTP: 400 */
    const char *code; /* "image_role"; NULL when the protocol names none. Static */
    char param[96];   /* JSON path of what is wrong: "messages[2].content[0]" */
};

/* Fills `issue` (may be NULL) and `err` with "param: sentence" and returns QR_BAD_REQUEST. */
qr_status chat_refuse(struct chat_issue *issue, qr_error *err, const char *code, const char *param, const char *format,
                      ...) __attribute__((format(printf, 5, 6)));

#endif
