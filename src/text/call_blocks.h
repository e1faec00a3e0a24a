/* call_blocks.h: blocks of calls as a model spelt them, by the ids that their calls were given. A chat that brings such calls
 * back is written in those bytes, so that it goes on in what is cached (protocol.md 2.13, exact replay). Any thread. */
#ifndef QR_TEXT_CALL_BLOCKS_H
#define QR_TEXT_CALL_BLOCKS_H

#include "quire.h"
#include "text/chat_message.h"
#include "text/prompt.h"


/* Blocks of `most_bytes` altogether; what is older goes. */
qr_status call_blocks_open(size_t most_bytes, struct qr_call_blocks **out, qr_error *err);
void call_blocks_close(struct qr_call_blocks *b);

/* As qr_call_blocks_keep. */
qr_status call_blocks_keep(struct qr_call_blocks *b, const qr_kept_call *calls, size_t count, const char *text, size_t length,
                           qr_error *err);

/* Writes the block of these calls: all of one block's, in its order, with the ids, names and arguments (as JSON values) that it
 * was kept with. False: there is none, and nothing was written. */
bool call_blocks_write(struct qr_call_blocks *b, const struct chat_call *calls, struct prompt *p);

#endif
