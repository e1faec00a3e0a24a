/* checkpoint.h: a model folder: model.safetensors.index.json and its shards, or a single model.safetensors; a folder of
 * INT8 weights (v4-model.md 7.1) may hold w8a8.safetensors, alone or by its index, instead. All files are
 * mapped read-only; opening reads headers only. */
#ifndef QR_CHECKPOINT_CHECKPOINT_H
#define QR_CHECKPOINT_CHECKPOINT_H

#include "base/status.h"
#include "checkpoint/tensor_table.h"

struct checkpoint;

/* Opens the folder `dir`. Refused, naming file and tensor: what safetensors_header.h lists for any shard; an index that
 * is malformed, names a tensor twice or a file outside the folder; a shard that is missing; a tensor in another shard
 * than mapped, or that the index does not list. A listed tensor that no shard holds is left to checkpoint_expect.
 * Free with checkpoint_close. */
qr_status checkpoint_open(const char *dir, struct checkpoint **out, qr_error *err);
/* The same of tensors that someone else holds: `views` (their names, shapes and data too) must outlive it. `path` stands
 * in messages. Refuses a name that comes twice. */
qr_status checkpoint_over(const char *path, const struct tensor_view *views, int64_t count, struct checkpoint **out,
                          qr_error *err);
void checkpoint_close(struct checkpoint *ck);

/* As checkpoint_open, for a look at a folder that may be broken: a shard that is refused is told to `refused`, and passed
 * over: its tensors count as listed but absent. Fails without an index that can be read, or without memory. */
qr_status checkpoint_survey(const char *dir, void (*refused)(void *user, int32_t shard, const qr_error *why), void *user,
                            struct checkpoint **out, qr_error *err);

const char *checkpoint_path(const struct checkpoint *ck);
int64_t checkpoint_shards(const struct checkpoint *ck);
/* The path of a shard's file (of all, where tensors are someone else's). */
const char *checkpoint_shard_path(const struct checkpoint *ck, int32_t shard);

/* Every name of the index (or the single file), listed-but-absent ones included (dtype DTYPE_COUNT), in its order. */
int64_t checkpoint_count(const struct checkpoint *ck);
const struct tensor_view *checkpoint_at(const struct checkpoint *ck, int64_t index);
/* Payload bytes of all tensors present. */
uint64_t checkpoint_bytes(const struct checkpoint *ck);

/* The index of that name, or -1. */
int64_t checkpoint_index_of(const struct checkpoint *ck, const char *name);
/* The tensor of that name in constant time, or NULL when no shard holds it. */
const struct tensor_view *checkpoint_find(const struct checkpoint *ck, const char *name);
/* The same; QR_BAD_FILE naming folder and tensor when absent. */
qr_status checkpoint_get(const struct checkpoint *ck, const char *name, const struct tensor_view **out, qr_error *err);

#endif
