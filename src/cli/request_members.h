/* request_members.h: the members that a line of `quire generate` may have (protocol.md 4.2), so that none is passed over in
 * silence. */
#ifndef QR_CLI_REQUEST_MEMBERS_H
#define QR_CLI_REQUEST_MEMBERS_H

#include "base/json.h"

/* QR_BAD_REQUEST: an `n` or `best_of` that is not 1, or a member that would restrict the answer and that nobody obeys. */
qr_status request_members_check(const struct json *line, qr_error *err);

/* Other members are ignored, as by every server (protocol.md 4.1). Says of the first that is none of a request, or says
 * nothing without messages, in one sentence; false: there is none. */
bool request_members_ignored(const struct json *line, char *sentence, size_t size);

#endif
