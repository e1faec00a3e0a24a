/* container.h: a cache row in its bytes and back (runtime.md 2.1). A container changes no value of the model: what goes
 * in is put on its grid once, and what comes out is exact in f32. */
#ifndef QR_OPS_CPU_REFERENCE_CONTAINER_H
#define QR_OPS_CPU_REFERENCE_CONTAINER_H

#include "ops/ops.h"

/* Whether rows of n channels, `nope` of them before the rotated ones, on that grid go into that container. */
bool container_fits(enum row_format format, enum key_grid grid, int64_t n, int64_t nope);

/* Puts n bf16 values on the grid and stores them. x is used up. The codes stored are the ones of the grid's own
 * quantizer, except in ROW_INDEX_FP8, which holds values of any grid: exactly while the scales of FP4 blocks spread by
 * at most 2^14 (v41-model.md 5.2), else to the nearest. */
void container_store(enum row_format format, enum key_grid grid, uint16_t *x, int64_t n, int64_t nope, uint8_t *values,
                     uint8_t *scales);

/* The values of a stored row. ROW_INDEX_INT8 gives its codes: the row's scale is container_scale. */
void container_load(enum row_format format, const uint8_t *values, const uint8_t *scales, int64_t n, float *out);

/* The scale that container_load left out: that of an INT8 row, 1 for the rest. */
float container_scale(enum row_format format, const uint8_t *scales);

/* Bytes of a row's values and of its scales. */
int64_t container_value_bytes(enum row_format format, int64_t n);
int64_t container_scale_bytes(enum row_format format, int64_t n);

/* Puts n bf16 values on ROW_INDEX_FP8's own grid, as a store and a load would (GRID_FP8_ROW). */
void index_fp8_round(uint16_t *x, int64_t n);

struct row_address {
    uint8_t *values, *scales;
};
/* Where row g of a request lies, by its block table; false: the block is not mapped. */
bool plane_find(const struct row_plane *plane, const struct step *step, int32_t request, int64_t g,
                struct row_address *out);
/* Where position p of a request lies in its slot's ring; false: the request has no slot. */
bool ring_find(const struct ring_plane *ring, const struct step *step, int32_t request, int64_t p,
               struct row_address *out);

#endif
