/* modes.h: how an engine runs its steps: recorded or not, operator by operator or fused (runtime.md 8, E23). */
#ifndef QR_ENGINE_MODES_H
#define QR_ENGINE_MODES_H

#include "engine/rules.h"
#include "ops/ops.h"

/* What --level, --cudagraph-mode and --enforce-eager ask for; without them a device that records runs FULL at level 3, any
 * other eagerly at level 0. What E23 does not allow is added to `broken`, each violation once. `records`:
 * backend_records of the device. */
struct run_mode modes_choose(const qr_engine_options *o, bool records, struct rule_list *broken);

#endif
