/* capture.h: decode steps that an engine records when it opens, so that no request waits for that (runtime.md 8, E35). */
#ifndef QR_ENGINE_CAPTURE_H
#define QR_ENGINE_CAPTURE_H

#include "engine/rules.h"
#include "ops/ops.h"

enum { CAPTURE_SIZES = 64 };

/* Numbers of requests of a step, ascending. */
struct capture_sizes {
    int32_t count, requests[CAPTURE_SIZES];
};

/* What --cudagraph-capture-sizes asks for; none without it. What E35 does not allow is added to `broken`: a list that is none, a
 * step that is larger than the engine's (each request with `width` rows), a device or a mode that records nothing. */
struct capture_sizes capture_choose(const qr_engine_options *o, const struct run_mode *mode, bool records, int32_t width,
                                    struct rule_list *broken);

struct qr_engine;

/* Runs steps of requests of its own on the empty pools of an engine that has begun nothing, every size often enough to be
 * recorded. Other requests' blocks and slots are taken as they are found afterwards: nothing is there that is read. */
qr_status capture_run(struct qr_engine *engine, const struct capture_sizes *sizes, qr_error *err);

#endif
