#include "tools/trace_arrays.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "checkpoint/safetensors_write.h"

qr_status arrays_add(struct trace_arrays *a, void *data_pointer, enum dtype dtype, int32_t rank, const int64_t *shape,
                     qr_error *err, const char *name, ...)
{
    char text[96];
    va_list ap;
    va_start(ap, name);
    vsnprintf(text, sizeof text, name, ap);
    va_end(ap);

    int64_t elements = tensor_elements(rank, shape), bytes = 0;
    if (elements < 0 || __builtin_mul_overflow(elements, (int64_t)dtype_size(dtype), &bytes))
        return qr_fail(err, QR_NO_MEMORY, "array %s is too large", text);
    char *own_name = arena_strndup(&a->arena, text, strlen(text));
    int64_t *own_shape = arena_alloc(&a->arena, (size_t)(rank + 1) * sizeof *own_shape);
    void *data = arena_alloc(&a->arena, (size_t)bytes + 1);
    if (!own_name || !own_shape || !data || !array_grow(&a->items, &a->capacity, a->count, sizeof *a->items))
        return qr_fail(err, QR_NO_MEMORY, "no memory for array %s of %lld bytes", text, (long long)bytes);

    memcpy(own_shape, shape, (size_t)rank * sizeof *shape);
    a->items[a->count++] = (struct tensor_view){
        .name = own_name, .dtype = dtype, .rank = rank, .shape = own_shape, .data = data, .bytes = (uint64_t)bytes};
    memcpy(data_pointer, &data, sizeof data);
    return QR_OK;
}

qr_status arrays_save(const struct trace_arrays *a, const char *path, qr_error *err)
{
    return safetensors_save(path, a->items, (int64_t)a->count, NULL, 0, err);
}

void arrays_free(struct trace_arrays *a)
{
    arena_free(&a->arena);
    qr_free(a->items);
    memset(a, 0, sizeof *a);
}
