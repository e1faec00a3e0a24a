/* weight_bytes.h: what the weights of a plan will take on a device with layouts of its own: exactly the tensors that weights_open
 * prepares, counted from the schema before a shard is opened. */
#ifndef QR_MODEL_WEIGHT_BYTES_H
#define QR_MODEL_WEIGHT_BYTES_H

#include <stdbool.h>

#include "checkpoint/checkpoint.h"
#include "ops/ops.h"
#include "plan/plan.h"

/* Whether an engine brings a tensor of an official folder to its device: no rows of tables, which come one by one, and
 * nothing that no engine uses. `drafter`: it drafts. */
bool weight_is_loaded(const char *name, bool drafter);

/* Bytes of a weight, by its format and shape; its values are not looked at. */
typedef int64_t weight_size(const struct weight_spec *spec);

struct weight_bytes {
    int64_t matrices;  /* all of them */
    int64_t vectors;   /* short tensors, with their blocks' alignment: not less than what they take */
    int64_t staged;    /* the most that one of them must be staged with */
    int64_t experts, expert; /* of the matrices: routed experts of the backbone, and one of them, all being alike */
};

/* `drafter`: its tensors too. `ck` (or NULL): a folder may hold some FP8 matrices as BF16. Fails as schema_make. */
qr_status weight_bytes_count(const struct model_plan *plan, const struct checkpoint *ck, bool drafter, weight_size *size,
                             weight_size *staged, struct weight_bytes *out, qr_error *err);

#endif
