/* choice.h: what the events of one answer come to. */
#ifndef QR_SERVE_CHOICE_H
#define QR_SERVE_CHOICE_H

#include "serve/job.h"

/* Takes an event of a choice that is not done yet: its parser, what is said so far, the dialect. QR_OK, or what failed (the
 * job fails with it). */
qr_status choice_take(struct choice *c, const qr_event *event, qr_error *err);
void choice_free(struct choice *c);

/* "stop", "length", "tool_calls" as chats say it. */
const char *choice_reason(const struct choice *c);

#endif
