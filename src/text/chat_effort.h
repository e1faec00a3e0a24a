/* chat_effort.h: does this request think, and how hard (protocol.md 2.6). */
#ifndef QR_TEXT_CHAT_EFFORT_H
#define QR_TEXT_CHAT_EFFORT_H

#include "base/json.h"
#include "text/chat_issue.h"
#include "text/chat_profile.h"

struct chat_thinking {
    bool on;
    int number;                 /* V4.1: 1..100; 0 on V4 */
    enum chat_effort_text text; /* V4 */
};

/* Looks through the members of a chat request. `by_default` and `effort` (a name or decimal number, NULL: "high") are
 * the server's; an effort of the server that the profile does not know is QR_BAD_ARGUMENT. A value of the request that
 * is of the wrong type or unknown is refused, whether thinking is on or off. */
qr_status chat_thinking_resolve(const struct json *request, enum chat_profile profile, bool by_default,
                                const char *effort, struct chat_thinking *out, struct chat_issue *issue, qr_error *err);

/* True when the profile knows this effort: a name, or a number where it has numbers. "none" is no effort. */
bool chat_effort_known(enum chat_profile profile, const char *effort);

#endif
