/* checkpoint_index.h: model.safetensors.index.json: which tensor is in which shard. */
#ifndef QR_CHECKPOINT_CHECKPOINT_INDEX_H
#define QR_CHECKPOINT_CHECKPOINT_INDEX_H

#include "base/status.h"
#include "checkpoint/tensor_table.h"

/* File names, in order of first mention; the strings live in an arena of the caller. */
struct shard_list {
    const char **names;
    size_t count, capacity, latest; /* latest: the one added or found last */
};

/* The number of the name, or -1. */
int32_t shard_list_find(struct shard_list *list, const char *name, size_t length);
/* The number of a name that is not there yet; -1 without memory or room. */
int32_t shard_list_add(struct shard_list *list, struct arena *arena, const char *name, size_t length);
void shard_list_free(struct shard_list *list);

/* Reads the index at `path` in one flat pass: every name of weight_map enters `table` (dtype DTYPE_COUNT, its shard
 * set), every file `shards`. Refused with QR_BAD_FILE: malformed, no weight_map, a name twice, a file that is absolute
 * or leaves the folder. */
qr_status checkpoint_index_read(const char *path, struct tensor_table *table, struct shard_list *shards, qr_error *err);
/* The same of `size` bytes at `data`; `name` is quoted in errors. */
qr_status checkpoint_index_parse(const char *data, size_t size, const char *name, struct tensor_table *table,
                                 struct shard_list *shards, qr_error *err);

#endif
