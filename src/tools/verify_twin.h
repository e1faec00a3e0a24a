/* verify_twin.h: two backends as one. A model that is opened on the twin runs on the device; where it is watched, every call
 * of an operator is made again on the reference, with the same inputs, and what both wrote is compared. The reference then
 * goes on from the device's results, so that nothing accumulates. */
#ifndef QR_TOOLS_VERIFY_TWIN_H
#define QR_TOOLS_VERIFY_TWIN_H

#include "model/model.h"
#include "tools/verify_table.h"

struct twin;

/* Both backends stay the caller's and must outlive the twin, as `plan`, `table` and `findings` must. The reference's memory
 * is host memory. Calls are not watched to begin with. */
qr_status twin_open(struct backend *device, struct backend *reference, const struct model_plan *plan, struct verify_table *table,
                    struct findings *findings, struct twin **out, qr_error *err);
void twin_close(struct twin *t);
/* The twin as a backend; closing it is twin_close's. */
struct backend *twin_backend(struct twin *t);

/* Layers that run at all, [layers + draft layers]; the others let their input pass. NULL: every one. They are known by the
 * observer, which every pass must have. */
void twin_layers(struct twin *t, const bool *wanted);
struct model_observer twin_observer(struct twin *t);

/* Whether calls are watched. When that begins the reference's memory is made equal to the device's. */
qr_status twin_watch(struct twin *t, bool watched, qr_error *err);
/* Whether all memory is still equal: an operator that wrote where it should not is a finding. */
qr_status twin_compare_memory(struct twin *t, qr_error *err);

#endif
