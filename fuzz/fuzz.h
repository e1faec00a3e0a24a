/* fuzz.h: what the fuzz targets share. */
#ifndef QR_FUZZ_H
#define QR_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A law that no input may break. */
static inline void must(bool truth)
{
    if (!truth)
        abort();
}

#endif
