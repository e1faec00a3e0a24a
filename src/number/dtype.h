/* dtype.h: the element formats of safetensors files. */
#ifndef QR_NUMBER_DTYPE_H
#define QR_NUMBER_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* DTYPE_F4 is, here, one byte of two E2M1 codes: a shape counts bytes along the last dimension. */
enum dtype {
    DTYPE_BOOL,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_U16,
    DTYPE_I16,
    DTYPE_U32,
    DTYPE_I32,
    DTYPE_U64,
    DTYPE_I64,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_F8_E4M3,
    DTYPE_F8_E5M2,
    DTYPE_F8_E8M0,
    DTYPE_F4,
    DTYPE_COUNT
};

/* Bytes of one element (1 for DTYPE_F4, see above). */
size_t dtype_size(enum dtype dtype);
/* The name in a safetensors header, such as "BF16"; "?" for a number that is no dtype. */
const char *dtype_name(enum dtype dtype);
/* Finds the dtype of a name of `length` bytes; false when there is none. */
bool dtype_parse(const char *name, size_t length, enum dtype *out);

bool dtype_is_integer(enum dtype dtype);
/* Element i of `data`, an array of integers (DTYPE_U64: as two's complement). */
int64_t dtype_integer_at(enum dtype dtype, const void *data, int64_t i);

#endif
