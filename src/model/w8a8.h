/* w8a8.h: the tensors of the INT8 deployment (v4-model.md 7.1, 7.2), derived from an official folder or read from a
 * folder that holds them. Both ways give the same bytes. */
#ifndef QR_MODEL_W8A8_H
#define QR_MODEL_W8A8_H

#include "base/pool.h"
#include "checkpoint/checkpoint.h"
#include "model/w8a8_recipe.h"
#include "plan/byte_plan.h"

struct w8a8;

/* config.stored_w8a8 of the plan says which folder it is. `pool` (or NULL) shares the work of a conversion. */
qr_status w8a8_open(const struct checkpoint *ck, const struct model_plan *plan, struct worker_pool *pool,
                    struct w8a8 **out, qr_error *err);
void w8a8_close(struct w8a8 *w);

/* A tensor as the forward pass wants it: rows of output channels (a vector is one row). */
struct w8a8_tensor {
    const char *name; /* official; as long as `w` */
    enum dtype dtype; /* I8 with `scales` [rows], BF16, F32 or I32 (I64: a table of an official folder) */
    int64_t rows, cols;
    const void *values;
    const float *scales;
};

/* The tensor that stands in the place of the official `name`; also "mtp.0.e_proj.smooth" and "mtp.0.h_proj.smooth".
 * What lies in the mapping as wanted is used there; the rest takes memory until w8a8_close, so ask once. Refuses a
 * tensor that is missing or holds a value that no weight may have (NaN codes or scales), naming it. */
qr_status w8a8_get(struct w8a8 *w, const char *name, struct w8a8_tensor *out, qr_error *err);

/* Memory taken so far. */
int64_t w8a8_bytes(const struct w8a8 *w);

/* One tensor of the deployment's file, as its members: one a layer of its stack, times one a routed expert. */
struct w8a8_output {
    const struct w8a8_recipe *recipe;
    bool mtp;
    char name[64], scale_name[64]; /* scale_name "" but for INT8 */
    int32_t layers, layer[QR_MAX_LAYERS];
    int64_t members;
};

/* Every tensor that the folder's deployment has but the rope tables: number i, or false behind the last. */
bool w8a8_output(const struct model_plan *plan, int32_t i, struct w8a8_output *out);

/* Member `member` (ascending layers, experts within) as the file has it: `values`, and `scales` of an INT8 one; the
 * room is the tensor's bytes (schema.h) divided by the members. Official folders only. Fails as w8a8_get. */
qr_status w8a8_make(struct w8a8 *w, const struct w8a8_output *output, int64_t member, void *values, float *scales,
                    qr_error *err);
/* The member where the official folder has it as the file does, so that nothing need be made; else NULL. */
const struct tensor_view *w8a8_unchanged(const struct w8a8 *w, const struct w8a8_output *output, int64_t member);

/* What w8a8_get allocates for the whole model, into the plan's prepared weights; the drafter's only when `drafter`. (A
 * repackaged folder that holds wo_a in bf16 takes less.) */
qr_status w8a8_plan_bytes(const struct model_plan *plan, bool drafter, struct byte_plan *bytes, qr_error *err);

#endif
