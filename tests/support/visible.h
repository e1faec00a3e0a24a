/* visible.h: what of a request's caches may be read when its cursor stands at a position, byte for byte (speculation.md 5.4), and
 * a model whose drafter makes another number of tokens. */
#ifndef QR_TESTS_VISIBLE_H
#define QR_TESTS_VISIBLE_H

#include "base/buffer.h"
#include "support/rig.h"

/* Appends every byte that a row at `position` or the drafter behind it may read of this request: rings, tails of open groups,
 * closed compressed rows, the cursor. */
void visible_state(const struct rig *r, const struct rig_request *q, int32_t position, struct buffer *out);
/* First row of the ring of `layer` that is read when the cursor stands at `position`. */
int32_t visible_from(const struct rig *r, int32_t layer, int32_t position);
/* Fills everything else that the request holds, and that positions address, with NaN patterns. */
void visible_spoil_rest(const struct rig *r, const struct rig_request *q, int32_t position);

/* The folder `dir` of the source tree (or an absolute path) with blocks of `block` drafts, in `scratch`. */
const char *folder_with_block(const char *scratch, const char *dir, int32_t block);

#endif
