#include "checkpoint/tensor_spec.h"

int64_t tensor_elements(int32_t rank, const int64_t *shape)
{
    int64_t n = 1;
    for (int32_t i = 0; i < rank; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n))
            return -1;
    return n;
}
