/* chat_turns.h: messages become turns: systems find their place, neighbours merge, tool results follow the order of
 * their calls (protocol.md 2.4 steps 1 to 3, 2.11). */
#ifndef QR_TEXT_CHAT_TURNS_H
#define QR_TEXT_CHAT_TURNS_H

#include "text/chat_message.h"

/* Rearranges `messages` in place. On V4 the leading system texts become one and later ones user text; on V4.1 they stay.
 * With `needs_system` (tools or a response format want a place) message 0 is a system message afterwards, an empty one
 * when there was none. No message has the role CHAT_TOOL any more. */
qr_status chat_turns_arrange(struct chat_messages *messages, enum chat_profile profile, bool needs_system,
                             qr_error *err);

/* The index of the last message that speaks to the model: a user's, on V4.1 also a system's behind the first. -1 when
 * there is none. */
int64_t chat_turns_last_user(const struct chat_messages *messages, enum chat_profile profile);

#endif
