/* tensor_table.h: tensors by name. What a container fills and everyone else reads. */
#ifndef QR_CHECKPOINT_TENSOR_TABLE_H
#define QR_CHECKPOINT_TENSOR_TABLE_H

#include "base/arena.h"
#include "checkpoint/tensor_spec.h"

/* One tensor of a mapped file; lives as long as its container. */
struct tensor_view {
    const char *name;
    enum dtype dtype; /* DTYPE_COUNT: listed by the index, not (yet) found in its file */
    int32_t rank;
    const int64_t *shape; /* [rank], row-major */
    const void *data;     /* aligned to the size of an element; never NULL once found */
    uint64_t bytes;
    int32_t shard; /* number of the file that holds it */
};

struct tensor_table {
    struct arena arena;
    struct tensor_view *views; /* in order of arrival */
    size_t count, capacity;
    struct tensor_slot *slots; /* open addressing by name */
    size_t slot_count;
};

struct tensor_slot {
    uint32_t hash;
    uint32_t index; /* + 1; 0: empty */
};

void tensor_table_init(struct tensor_table *t);
void tensor_table_free(struct tensor_table *t);

/* The index of the tensor whose name is the `length` bytes at `name`, or -1. */
int64_t tensor_table_find(const struct tensor_table *t, const char *name, size_t length);
/* The same, for names that come in the table's order but for gaps: looks first at the two behind entry `before`. */
int64_t tensor_table_find_after(const struct tensor_table *t, int64_t before, const char *name, size_t length);

/* The same, adding the tensor when it is not there: zeroed but for its name and dtype DTYPE_COUNT. `*fresh`: it was
 * added. -1 without memory. */
int64_t tensor_table_intern(struct tensor_table *t, const char *name, size_t length, bool *fresh);

/* A fresh shape of `rank` dimensions that lives as long as the table; NULL without memory. */
int64_t *tensor_table_shape(struct tensor_table *t, int32_t rank);

/* "[2, 3]" into `out` (always terminated; cut when too long); returns `out`. For messages. */
const char *shape_text(int32_t rank, const int64_t *shape, char *out, size_t size);

#endif
