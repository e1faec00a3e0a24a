/* opened.h: a model that a tool runs steps of by itself: sized before it is loaded, opened and closed in one place. */
#ifndef QR_TOOLS_OPENED_H
#define QR_TOOLS_OPENED_H

#include "cli/model_options.h"
#include "run/forward.h"

/* Zero-initialise. The parts stand in the order in which they are opened. */
struct opened {
    struct qr_config config;
    struct model_plan plan;
    struct geometry geometry;
    struct checkpoint *checkpoint;
    struct token_map map;
    struct backend *backend;
    struct runner *runner;
    qr_plan_bytes bytes; /* of opened_plan */
};

/* Config and plan as config.json and the options decide them: no shard is opened. */
qr_status opened_config(const struct model_options *m, struct opened *out, qr_error *err);

/* Its planes; without `drafts` they have no rows for tokens that are not sure. */
qr_status opened_geometry(const struct model_options *m, bool drafts, struct opened *o, qr_error *err);

/* Holds what `steps` asks for to the options and to the model, and says the byte plan (cli/plan.h). QR_BAD_REQUEST: a
 * request longer than --max-model-len or the model's positions; QR_REFUSED: a rule is broken, or pools and workspace do not
 * fit (E31, naming what would). */
qr_status opened_plan(struct opened *o, const struct model_options *m, const struct runner_options *steps,
                      qr_error *err);

/* Opens the folder, the device and a runner for those steps, behind all of the above. */
qr_status opened_load(struct opened *o, const struct model_options *m, const struct runner_options *steps, qr_error *err);

/* Whatever of it is open. */
void opened_close(struct opened *o);

#endif
