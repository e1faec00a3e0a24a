/* tensors.h: where the forward pass finds the tensors of a folder, by their official names (v41-model.md 2.3,
 * v4-model.md 2.1): as the folder holds them, or in the forms of the INT8 deployment (w8a8.h). */
#ifndef QR_MODEL_TENSORS_H
#define QR_MODEL_TENSORS_H

#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "ops/ops.h"
#include "plan/plan.h"

struct tensors;

/* The profile of the plan decides the forms. `ck` and `plan` must outlive it; `pool` (or NULL) helps with conversions
 * and must live until the last tensor is asked for. */
qr_status tensors_open(const struct checkpoint *ck, const struct model_plan *plan, struct worker_pool *pool,
                       struct tensors **out, qr_error *err);
void tensors_close(struct tensors *t);

/* The folder, for messages. */
const char *tensors_path(const struct tensors *t);

/* Matrix `name` ("layers.3.attn.wq_a.weight") as prepare_weight takes it, with its scales where its format has any, not
 * cut (k_splits 1). Its data lives as long as `t`. Refuses, naming the tensor: one that is missing, of another rank, or
 * of a dtype that no matrix has. */
qr_status tensors_matrix(struct tensors *t, const char *name, struct weight_spec *out, qr_error *err);

/* Vector or table `name`: `rows` is 1 for a vector. */
struct tensor_values {
    enum dtype dtype;
    int64_t rows, cols;
    const void *data;
};
qr_status tensors_values(struct tensors *t, const char *name, struct tensor_values *out, qr_error *err);

#endif
