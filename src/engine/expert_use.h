/* expert_use.h: how often each routed expert was used, kept in a file from run to run, so that those used most lie on the
 * device when not all of them fit (plan/placement.h). */
#ifndef QR_ENGINE_EXPERT_USE_H
#define QR_ENGINE_EXPERT_USE_H

#include "base/log.h"
#include "plan/plan.h"

enum { EXPERT_USE_FORMAT = 1 };

struct expert_use {
    char *path;      /* NULL: nothing is kept */
    int32_t layers, experts;
    uint64_t *visits; /* [layers][experts] of earlier runs; zeros at first */
};

/* Reads the file. One that is not there is begun; one that is none, or of another model, is said in the log and left as it is:
 * then, as with `path` NULL, nothing is kept. Fails for want of memory alone. */
qr_status expert_use_open(const char *path, const struct model_plan *plan, const struct qr_log *log, struct expert_use *out,
                          qr_error *err);
/* Whether any expert has been used. */
bool expert_use_is_known(const struct expert_use *u);
/* Adds visits of this run, if there are any, and writes the file in one piece; a failure leaves the one before. Numbers that grow large are
 * halved, all alike: what was used of late weighs more. */
qr_status expert_use_keep(struct expert_use *u, const uint64_t *visits, qr_error *err);
void expert_use_close(struct expert_use *u);

#endif
