/* safetensors.h: one safetensors file, mapped read-only: goldens, the files of `quire op`, a vision tower. A model
 * folder is checkpoint.h. */
#ifndef QR_CHECKPOINT_SAFETENSORS_H
#define QR_CHECKPOINT_SAFETENSORS_H

#include "base/status.h"
#include "checkpoint/tensor_table.h"

struct safetensors;

/* Maps and checks `path` (safetensors_header.h lists what is refused). Free with safetensors_close. */
qr_status safetensors_open(const char *path, struct safetensors **out, qr_error *err);
void safetensors_close(struct safetensors *file);

const char *safetensors_path(const struct safetensors *file);
/* Tensors in header order; views live until close. */
int64_t safetensors_count(const struct safetensors *file);
const struct tensor_view *safetensors_at(const struct safetensors *file, int64_t index);
/* NULL when there is none of that name. */
const struct tensor_view *safetensors_find(const struct safetensors *file, const char *name);
/* The same, failing with QR_BAD_FILE when there is none. */
qr_status safetensors_get(const struct safetensors *file, const char *name, const struct tensor_view **out,
                          qr_error *err);

/* `__metadata__`: the value of a key or NULL; all entries in file order. */
const char *safetensors_metadata(const struct safetensors *file, const char *key);
int64_t safetensors_metadata_count(const struct safetensors *file);
const char *safetensors_metadata_at(const struct safetensors *file, int64_t index, const char **value);

#endif
