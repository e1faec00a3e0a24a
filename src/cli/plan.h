/* plan.h: the byte plan, made and said before anything is loaded (runtime.md 11). */
#ifndef QR_CLI_PLAN_H
#define QR_CLI_PLAN_H

#include "cli/model_options.h"

/* Sizes the model and an engine by qr_plan, says at info what they take, and ties `engine` to it (its context and pools),
 * so that what is reserved later is what was printed. QR_REFUSED: it does not fit, or a rule is violated. */
qr_status plan_before_loading(const struct model_options *options, qr_engine_options *engine, qr_error *err);
/* The same, and the plan. */
qr_status plan_made(const struct model_options *options, qr_engine_options *engine, qr_plan_bytes *out, qr_error *err);

#endif
