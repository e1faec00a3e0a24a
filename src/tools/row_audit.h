/* row_audit.h: which rows the kernels of a step ran, layer by layer (runtime.md 13, A10). The buffers of a layer are marked
 * when it begins; a row that is no mark any more was written by its kernels. A step that is looked at is slower for it. */
#ifndef QR_TOOLS_ROW_AUDIT_H
#define QR_TOOLS_ROW_AUDIT_H

#include "model/model.h"
#include "plan/rows.h"

struct row_audit {
    struct backend *backend;
    const struct model_plan *plan;
    int32_t rows;  /* of the step */
    uint8_t *host; /* the rows of a buffer, for the host to look at */
    /* of the step: rows whose window key was made, rows that passed through the whole layer */
    int32_t keys[QR_MAX_LAYERS], queries[QR_MAX_LAYERS];
};

/* For steps of up to `most` rows. Borrows backend and plan; free with row_audit_close. Fails with QR_NO_MEMORY. */
qr_status row_audit_open(struct backend *backend, const struct model_plan *plan, int32_t most, struct row_audit *out,
                         qr_error *err);
void row_audit_close(struct row_audit *a);

/* Begins to count: for the next step, of `rows` rows. */
struct model_observer row_audit_of_step(struct row_audit *a, int32_t rows);
/* Rows times layers of that step. */
int64_t row_audit_total(const struct row_audit *a);
/* QR_INTERNAL when the kernels of the step, whose first row stands at `from`, ran other rows of a layer than the plan. */
qr_status row_audit_check(const struct row_audit *a, const struct row_plan *rows, int32_t from, qr_error *err);

#endif
