/* safetensors_write.h: writes one safetensors file: traces, operator outputs, synthetic and quantized checkpoints.
 * Declare every tensor, begin, put bytes in any order, end. What is never put reads as zeros (and stays a hole in the
 * file where the file system can). */
#ifndef QR_CHECKPOINT_SAFETENSORS_WRITE_H
#define QR_CHECKPOINT_SAFETENSORS_WRITE_H

#include "base/status.h"
#include "checkpoint/tensor_table.h"

struct safetensors_writer;

/* Writes towards `path` through a temporary file beside it, which becomes `path` in safetensors_end. */
qr_status safetensors_create(const char *path, struct safetensors_writer **out, qr_error *err);
/* Frees; removes the temporary file unless ended. NULL is fine. */
void safetensors_discard(struct safetensors_writer *w);

/* One entry of `__metadata__`, before begin. Strings are copied. */
qr_status safetensors_declare_metadata(struct safetensors_writer *w, const char *key, const char *value, qr_error *err);
/* Declares a tensor, before begin; `*index` (may be NULL) gets its number, counted from 0. Refuses a name twice and a
 * shape that overflows. DTYPE_F4 counts bytes here and nibbles in the file (dtype.h). */
qr_status safetensors_declare(struct safetensors_writer *w, const char *name, enum dtype dtype, int32_t rank,
                              const int64_t *shape, int64_t *index, qr_error *err);

/* Writes the header: tensors by falling element size, in order of declaration among equals, so that each is aligned.
 * The file has its full size from here on. */
qr_status safetensors_begin(struct safetensors_writer *w, qr_error *err);
/* Bytes [at, at + size) of tensor `index`. */
qr_status safetensors_put(struct safetensors_writer *w, int64_t index, uint64_t at, const void *data, uint64_t size,
                          qr_error *err);
/* Moves the file into place. */
qr_status safetensors_end(struct safetensors_writer *w, qr_error *err);

/* Declares, writes and ends `count` tensors that are in memory, with `metadata_count` pairs of key and value. */
qr_status safetensors_save(const char *path, const struct tensor_view *tensors, int64_t count,
                           const char *const (*metadata)[2], int64_t metadata_count, qr_error *err);

#endif
