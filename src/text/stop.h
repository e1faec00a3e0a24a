/* stop.h: finds stop strings in text that arrives in pieces (protocol.md 3.6). Text that may be the beginning of one is
 * held back until the next bytes decide. */
#ifndef QR_TEXT_STOP_H
#define QR_TEXT_STOP_H

#include "base/buffer.h"
#include "base/status.h"

struct stop_matcher;

/* Copies the `count` strings (UTF-8). With `include` a found one is shown, else it is cut. QR_BAD_REQUEST: one is
 * empty, or together they have 2^30 bytes or more. Without strings everything is shown at once. */
qr_status stop_open(const char *const *strings, int32_t count, bool include, struct stop_matcher **out, qr_error *err);
void stop_close(struct stop_matcher *stop); /* NULL is fine */

/* Takes the next piece of text and appends what may be shown to `shown`: everything but the longest ending that is a
 * proper beginning of a stop string. *hit becomes true when a stop string was found: the one that ends first, of those
 * the longest; what follows it is dropped, and every later piece too. Strings that end while `counts` is false
 * (min_tokens is not reached) are plain text. Pieces of whole characters give pieces of whole characters.
 * QR_NO_MEMORY is the end of the text; nothing else fails. */
qr_status stop_push(struct stop_matcher *stop, const char *text, size_t length, bool counts, struct buffer *shown,
                    bool *hit, qr_error *err);

/* The text has ended: appends what was held back, nothing after a hit. */
qr_status stop_flush(struct stop_matcher *stop, struct buffer *shown, qr_error *err);

/* Which string was found, -1 before that. */
int32_t stop_found(const struct stop_matcher *stop);

#endif
