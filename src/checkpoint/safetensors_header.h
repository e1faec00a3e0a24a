/* safetensors_header.h: the header of one safetensors file, read in one flat pass into a table of tensors. Reads no
 * weight byte, except to move a tensor that lies unaligned. */
#ifndef QR_CHECKPOINT_SAFETENSORS_HEADER_H
#define QR_CHECKPOINT_SAFETENSORS_HEADER_H

#include "base/file.h"
#include "checkpoint/tensor_table.h"

/* One entry of `__metadata__`; both strings live as long as the table. */
struct metadata_entry {
    const char *key, *value;
};

struct metadata_list {
    struct metadata_entry *entries; /* owned */
    size_t count, capacity;
};

struct header_sink {
    struct tensor_table *table;
    int32_t shard; /* number given to the tensors */
    bool listed; /* an index named every tensor and its shard beforehand: another name, or another shard, is refused */
    const char *(*shard_name)(const void *user, int32_t shard); /* for that message; used only when listed */
    const void *user;
    struct metadata_list *metadata; /* NULL: checked, not kept */
};

/* Reads and checks the header of `file` and adds its tensors to the sink. Refused with QR_BAD_FILE, naming file and
 * tensor: a file shorter than it says; a header that is no flat object of {dtype, shape, data_offsets}; an unknown
 * dtype, a shape that overflows or does not fit its bytes; data outside the file, overlapping, or leaving a gap; a name
 * twice. A tensor whose data is not aligned to its element is copied into the table's memory. */
qr_status safetensors_header_read(const struct mapped_file *file, const struct header_sink *sink, qr_error *err);

#endif
