/* bench_cache.h: what decoding reads of the cache. Pure. */
#ifndef QR_TOOLS_BENCH_CACHE_H
#define QR_TOOLS_BENCH_CACHE_H

#include "cache/geometry.h"

/* Bytes of what was cached before `position` that a layer must read for one request that goes on there: the window, index
 * keys where they are scored (runtime.md 3.6), and compressed rows: every visible one, or as many as one row chooses, for
 * several rows of a request may choose the same. */
int64_t bench_cache_bytes(const struct model_plan *plan, const struct geometry *g, int32_t layer, int32_t position);

#endif
