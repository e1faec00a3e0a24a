/* ahead.h: brings parts of mapped files into memory before whoever goes through them gets there, so that a disk reads while
 * something else is done with what it has read. */
#ifndef QR_BASE_AHEAD_H
#define QR_BASE_AHEAD_H

#include "base/status.h"

struct read_ahead;

struct ahead_part {
    const void *data;
    uint64_t bytes;
};
enum { AHEAD_PIECE = 8 << 20 };

/* Starts to bring `parts`, copied, in their order, a piece of at most AHEAD_PIECE bytes at once on each of some threads,
 * none that begins `distance` bytes or more beyond what has been passed. `bring` NULL: has the system read the piece. Close
 * with ahead_close. Without a thread nothing is brought, which is no failure. */
qr_status ahead_open(const struct ahead_part *parts, size_t count, uint64_t distance, void (*bring)(const void *data, uint64_t bytes),
                     struct read_ahead **out, qr_error *err);
/* So many bytes more are done with. NULL: nothing. */
void ahead_passed(struct read_ahead *a, uint64_t bytes);
/* Stops behind the pieces under way. */
void ahead_close(struct read_ahead *a);

#endif
