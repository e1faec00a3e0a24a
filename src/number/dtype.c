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
