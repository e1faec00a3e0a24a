/* schema_builder.h: how the lists of schema_v41.c, schema_v4.c and schema_w8a8.c are written. A builder remembers that
 * memory ran out; it is asked once at the end. */
#ifndef QR_PLAN_SCHEMA_BUILDER_H
#define QR_PLAN_SCHEMA_BUILDER_H

#include "base/arena.h"
#include "plan/schema.h"

struct schema {
    struct arena names;
    struct tensor_spec *tensors;
    int32_t *shard;
    size_t count, tensor_room, shard_room;
    int32_t shards;
};

struct schema_builder {
    struct schema *schema;
    const struct qr_config *config;
    char prefix[64]; /* "layers.3." */
    int32_t shard;   /* of the tensors added from now on, 0-based */
    bool optional;   /* the tensors added from now on may be absent */
    bool failed;
};

void builder_prefix(struct schema_builder *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The following tensors stand in the next shard. */
void builder_next_shard(struct schema_builder *b);

void builder_vector(struct schema_builder *b, const char *name, enum dtype dtype, int64_t n);
void builder_matrix(struct schema_builder *b, const char *name, enum dtype dtype, int64_t rows, int64_t cols);
/* Up to four dimensions; -1: the writer's choice. */
void builder_tensor(struct schema_builder *b, const char *name, enum dtype dtype, int32_t rank, const int64_t *shape);
/* name.weight [rows, cols] in FP8 and name.scale by tiles of the family; `or_bf16` as tensor_spec has it. */
void builder_fp8(struct schema_builder *b, const char *name, int64_t rows, int64_t cols, bool or_bf16);
/* name.weight [rows, cols / 2] of packed FP4 and name.scale [rows, cols / 32]. */
void builder_fp4(struct schema_builder *b, const char *name, int64_t rows, int64_t cols);

/* What both families have in every layer: norms, mHC, attention projections, sink, shared expert and routed experts in
 * the format of the config. The router's own tensors are the family's. */
void builder_layer(struct schema_builder *b, int32_t experts);

void schema_v41(struct schema_builder *b, const struct model_plan *plan);
void schema_v4(struct schema_builder *b, const struct model_plan *plan);
/* The INT8 deployment folder (v4-model.md 7.1). */
void schema_w8a8(struct schema_builder *b, const struct model_plan *plan);

#endif
