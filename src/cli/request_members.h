/* request_members.h: the members that a line of `quire generate` may have (protocol.md 4.2), so that none is passed over in
 * silence. */
#ifndef QR_CLI_REQUEST_MEMBERS_H
#define QR_CLI_REQUEST_MEMBERS_H

#include "base/json.h"

/* QR_BAD_REQUEST names a member that is none of them, one that says nothing without messages, or an `n` that is not 1. */
qr_status request_members_check(const struct json *line, qr_error *err);

#endif
