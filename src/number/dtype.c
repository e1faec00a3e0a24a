#include "number/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_BOOL] = {"BOOL", 1},       [DTYPE_U8] = {"U8", 1},           [DTYPE_I8] = {"I8", 1},
    [DTYPE_U16] = {"U16", 2},         [DTYPE_I16] = {"I16", 2},         [DTYPE_U32] = {"U32", 4},
    [DTYPE_I32] = {"I32", 4},         [DTYPE_U64] = {"U64", 8},         [DTYPE_I64] = {"I64", 8},
    [DTYPE_F16] = {"F16", 2},         [DTYPE_BF16] = {"BF16", 2},       [DTYPE_F32] = {"F32", 4},
    [DTYPE_F64] = {"F64", 8},         [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_F8_E5M2] = {"F8_E5M2", 1},
    [DTYPE_F8_E8M0] = {"F8_E8M0", 1}, [DTYPE_F4] = {"F4", 1},
};

size_t dtype_size(enum dtype dtype) { return (unsigned)dtype < DTYPE_COUNT ? dtypes[dtype].size : 0; }

const char *dtype_name(enum dtype dtype) { return (unsigned)dtype < DTYPE_COUNT ? dtypes[dtype].name : "?"; }

bool dtype_parse(const char *name, size_t length, enum dtype *out)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strlen(dtypes[i].name) == length && !memcmp(dtypes[i].name, name, length)) {
            *out = (enum dtype)i;
            return true;
        }
    return false;
}

bool dtype_is_integer(enum dtype dtype) { return dtype <= DTYPE_I64; }

int64_t dtype_integer_at(enum dtype dtype, const void *data, int64_t i)
{
    switch (dtype) {
    case DTYPE_BOOL:
    case DTYPE_U8:
        return ((const uint8_t *)data)[i];
    case DTYPE_I8:
        return ((const int8_t *)data)[i];
    case DTYPE_U16:
        return ((const uint16_t *)data)[i];
    case DTYPE_I16:
        return ((const int16_t *)data)[i];
    case DTYPE_U32:
        return ((const uint32_t *)data)[i];
    case DTYPE_I32:
        return ((const int32_t *)data)[i];
    default:
        return ((const int64_t *)data)[i];
    }
}
