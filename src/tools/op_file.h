/* op_file.h: a file of operator arrays, as golden/ops4: `in.*` and `out.*`, `params` and tolerance in its metadata, inputs
 * that several files share in weights-SET.safetensors beside it. */
#ifndef QR_TOOLS_OP_FILE_H
#define QR_TOOLS_OP_FILE_H

#include "base/arena.h"
#include "base/status.h"
#include "checkpoint/tensor_table.h"

struct op_file;

/* Opens DIR/...-SET.safetensors and, when its metadata entry `weights` places an input there, DIR/weights-SET.safetensors.
 * Free with op_file_close. */
qr_status op_file_open(const char *path, struct op_file **out, qr_error *err);
void op_file_close(struct op_file *file);

const char *op_file_path(const struct op_file *file);
/* A metadata entry ("op", "profile", "tolerance"), or NULL. */
const char *op_file_metadata(const struct op_file *file, const char *key);
/* Arrays of the file itself, in its order. */
int64_t op_file_count(const struct op_file *file);
const struct tensor_view *op_file_at(const struct op_file *file, int64_t index);
/* The array "in.x", wherever it lies, or NULL. */
const struct tensor_view *op_file_find(const struct op_file *file, const char *name);
/* A number of `params`; "rope_scaling.factor" for a member of a member. */
bool op_file_param(const struct op_file *file, const char *name, double *out);

/* Values of an array as one type, in the arena (or where they lie). They fail with QR_BAD_REQUEST, naming the array, when
 * its dtype holds other things or a value does not fit. */
qr_status op_file_i32(const struct tensor_view *view, struct arena *arena, const int32_t **out, qr_error *err);
qr_status op_file_f32(const struct tensor_view *view, struct arena *arena, const float **out, qr_error *err);
/* BF16, or floats all of which are bf16. */
qr_status op_file_bf16(const struct tensor_view *view, struct arena *arena, const uint16_t **out, qr_error *err);
/* Any one-byte dtype, as it lies. */
qr_status op_file_bytes(const struct tensor_view *view, const uint8_t **out, qr_error *err);

/* Element i of any numeric array; codes of a one-byte float format decoded. */
double tensor_number(const struct tensor_view *view, int64_t i);

#endif
