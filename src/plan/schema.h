/* schema.h: every tensor of a family: name, shape, format (v41-model.md 2.3, v4-model.md 2.1). Pure. */
#ifndef QR_PLAN_SCHEMA_H
#define QR_PLAN_SCHEMA_H

#include "checkpoint/tensor_spec.h"
#include "plan/plan.h"

/* A growing list; names are owned by the list's arena. */
struct schema;

/* Every tensor that the folder of this config must hold, backbone, drafter and vision, in the order of the published
 * shards; of an INT8 folder (config.stored_w8a8) those of v4-model.md 7.1. Optional ones are marked. Fails as plan_make
 * does, or without memory. Free with schema_free. */
qr_status schema_make(const struct qr_config *config, struct schema **out, qr_error *err);
void schema_free(struct schema *schema);
int64_t schema_count(const struct schema *schema);
const struct tensor_spec *schema_tensors(const struct schema *schema);
/* Payload bytes of a tensor of the list; 0 where its shape is the writer's choice. */
int64_t schema_tensor_bytes(const struct tensor_spec *spec);
/* Payload bytes of all tensors of a config's list. Fails as schema_make. */
qr_status schema_total(const struct qr_config *config, int64_t *bytes, qr_error *err);
/* The published number of the shard that holds tensor `index` (0-based), for `quire synth`. */
int32_t schema_shard(const struct schema *schema, int64_t index);
int32_t schema_shards(const struct schema *schema);

#endif
