/* rejected.h: what rows that did not become true have left in the caches may never be read (speculation.md 5.4). Debug builds
 * put NaN patterns there after every verdict, tests behind any position. */
#ifndef QR_RUN_REJECTED_H
#define QR_RUN_REJECTED_H

#include "cache/pool.h"
#include "ops/ops.h"

/* Positions [from, to) of a request, none of which is true. */
struct rejected_rows {
    int32_t slot;
    const int32_t *blocks; /* its PAGE ids, as far as the positions reach */
    int32_t from, to;
    int32_t write_from; /* compressed rows of groups that end below it are another's */
};

/* Fills with 0xFF bytes, which are NaN in every container, all that is addressed by those positions: rows of compressed groups
 * that end there, rows of compressor tails and of rings as far as they hold nothing that stands below `from` (`draft_width`
 * positions). Fails as the backend does. */
qr_status rejected_fill(struct backend *backend, const struct cache_pool *pool, const struct rejected_rows *rows,
                        qr_error *err);

#endif
