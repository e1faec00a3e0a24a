/* trace_arrays.h: named arrays in memory, filled while a trace runs and saved as one safetensors file. */
#ifndef QR_TOOLS_TRACE_ARRAYS_H
#define QR_TOOLS_TRACE_ARRAYS_H

#include "base/arena.h"
#include "base/status.h"
#include "checkpoint/tensor_table.h"

/* Zero-initialise. */
struct trace_arrays {
    struct arena arena;
    struct tensor_view *items;
    size_t count, capacity;
};

/* A zeroed array of that shape and name; `*data` lives until arrays_free. Shapes may hold zeros. */
qr_status arrays_add(struct trace_arrays *a, void *data_pointer, enum dtype dtype, int32_t rank, const int64_t *shape,
                     qr_error *err, const char *name, ...) __attribute__((format(printf, 7, 8)));
qr_status arrays_save(const struct trace_arrays *a, const char *path, qr_error *err);
void arrays_free(struct trace_arrays *a);

#endif
