/* chat_part.h: the content of one message, a string or a list of parts, as blocks (protocol.md 2.4, vision.md 2.1). */
#ifndef QR_TEXT_CHAT_PART_H
#define QR_TEXT_CHAT_PART_H

#include "text/chat_message.h"

/* Reads `content` (NULL or null: empty) of a message of `role`, whose JSON path is `path`, into a chain of at least one
 * block; *last is its end. */
qr_status chat_content_read(const struct json *content, enum chat_role role, const char *role_name, const char *path,
                            const struct chat_message_rules *rules, struct arena *arena, struct chat_block **first,
                            struct chat_block **last, struct chat_issue *issue, qr_error *err);

#endif
