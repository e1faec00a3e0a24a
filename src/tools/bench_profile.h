/* bench_profile.h: measures the profile of a drafter and writes its file (speculation.md 6.5). */
#ifndef QR_TOOLS_BENCH_PROFILE_H
#define QR_TOOLS_BENCH_PROFILE_H

#include "quire.h"

/* Answers the requests, all at once, with drafts of every length by turns, and writes what that showed to `path`. `workload`:
 * the hash of what the requests were made from. QR_BAD_REQUEST: too few for steps of every size. */
qr_status bench_profile(qr_model *model, const qr_engine_options *options, const qr_request *const *requests, int32_t count,
                        const char *workload, const char *path, qr_error *err);

#endif
