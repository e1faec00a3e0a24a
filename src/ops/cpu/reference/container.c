#include "ops/cpu/reference/container.h"

#include <string.h>

#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/int8.h"
#include "number/quantize.h"
#include "ops/cpu/reference/activation.h"

enum { WINDOW_BLOCK = 32, NOPE_BLOCK = 64 };

static float load_f32(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

bool container_fits(enum row_format format, enum key_grid grid, int64_t n, int64_t nope)
{
    switch (format) {
    case ROW_BF16:
        return (grid == GRID_NONE) || (grid == GRID_FP8_ALL && n % WINDOW_BLOCK == 0) ||
               (grid == GRID_FP8_NOPE && nope % NOPE_BLOCK == 0) || (grid == GRID_FP4_E4M3 && n % Q4_E4M3_BLOCK == 0) ||
               (grid == GRID_FP4_E8M0 && n % Q4_E8M0_BLOCK == 0);
    case ROW_FP4_E4M3:
        return grid == GRID_FP4_E4M3 && n % Q4_E4M3_BLOCK == 0;
    case ROW_FP8_E8M0:
        return grid == GRID_FP8_ALL && n % WINDOW_BLOCK == 0;
    case ROW_INDEX_FP8:
        return grid == GRID_NONE || grid == GRID_FP8_ROW || (grid == GRID_FP4_E8M0 && n % Q4_E8M0_BLOCK == 0);
    case ROW_INDEX_FP4:
        return grid == GRID_FP4_E8M0 && n % Q4_E8M0_BLOCK == 0;
    case ROW_INDEX_INT8:
        return grid == GRID_INT8;
    }
    return false;
}

static void round_to_grid(enum key_grid grid, uint16_t *x, int64_t n, int64_t nope)
{
    if (grid == GRID_FP8_ALL)
        q8_round(x, n, WINDOW_BLOCK);
    else if (grid == GRID_FP8_NOPE)
        q8_round(x, nope, NOPE_BLOCK);
    else if (grid == GRID_FP4_E4M3)
        q4_e4m3_round(x, n);
    else if (grid == GRID_FP4_E8M0)
        q4_e8m0_round(x, n);
}

/* One power-of-two scale for the row: the smallest that keeps every value within E4M3. */
static float index_fp8_scale(const uint16_t *x, int64_t n)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++) {
        float a = bf16_decode(x[i] & 0x7FFF);
        largest = a > largest ? a : largest;
    }
    float t = largest / E4M3_MAX;
    return t >= 0x1p-126f ? e8m0_decode(e8m0_encode_up(t)) : 0x1p-126f;
}

static void store_index_fp8(const uint16_t *x, int64_t n, uint8_t *values, uint8_t *scales)
{
    float scale = index_fp8_scale(x, n);
    for (int64_t i = 0; i < n; i++)
        values[i] = e4m3_encode(bf16_decode(x[i]) / scale);
    memcpy(scales, &scale, sizeof scale);
}

void index_fp8_round(uint16_t *x, int64_t n)
{
    float scale = index_fp8_scale(x, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = bf16_encode(e4m3_decode(e4m3_encode(bf16_decode(x[i]) / scale)) * scale);
}

void container_store(enum row_format format, enum key_grid grid, uint16_t *x, int64_t n, int64_t nope, uint8_t *values,
                     uint8_t *scales)
{
    float sigma;
    switch (format) {
    case ROW_BF16:
        round_to_grid(grid, x, n, nope);
        memcpy(values, x, (size_t)n * sizeof *x);
        break;
    case ROW_FP4_E4M3:
        q4_e4m3_quantize(x, n, values, scales);
        break;
    case ROW_FP8_E8M0:
        q8_quantize(x, n, WINDOW_BLOCK, values, scales);
        break;
    case ROW_INDEX_FP8:
        round_to_grid(grid, x, n, nope);
        store_index_fp8(x, n, values, scales);
        break;
    case ROW_INDEX_FP4:
        q4_e8m0_quantize(x, n, values, scales);
        break;
    case ROW_INDEX_INT8:
        sigma = int8_quantize_row_bf16(x, n, (int8_t *)values);
        memcpy(scales, &sigma, sizeof sigma);
        break;
    }
}

void container_load(enum row_format format, const uint8_t *values, const uint8_t *scales, int64_t n, float *out)
{
    float scale;
    switch (format) {
    case ROW_BF16:
        bf16_load(values, n, out);
        break;
    case ROW_FP4_E4M3:
        for (int64_t i = 0; i < n; i++)
            out[i] = e2m1_decode(e2m1_at(values, i)) * e4m3_decode(scales[i / Q4_E4M3_BLOCK]);
        break;
    case ROW_FP8_E8M0:
        for (int64_t i = 0; i < n; i++)
            out[i] = e4m3_decode(values[i]) * e8m0_decode(scales[i / WINDOW_BLOCK]);
        break;
    case ROW_INDEX_FP8:
        scale = load_f32(scales);
        for (int64_t i = 0; i < n; i++)
            out[i] = e4m3_decode(values[i]) * scale;
        break;
    case ROW_INDEX_FP4:
        for (int64_t i = 0; i < n; i++)
            out[i] = e2m1_decode(e2m1_at(values, i)) * e8m0_decode(scales[i / Q4_E8M0_BLOCK]);
        break;
    case ROW_INDEX_INT8:
        for (int64_t i = 0; i < n; i++)
            out[i] = (int8_t)values[i];
        break;
    }
}

float container_scale(enum row_format format, const uint8_t *scales)
{
    return format == ROW_INDEX_INT8 ? load_f32(scales) : 1.0f;
}

int64_t container_value_bytes(enum row_format format, int64_t n)
{
    switch (format) {
    case ROW_BF16:
        return 2 * n;
    case ROW_FP4_E4M3:
    case ROW_INDEX_FP4:
        return n / 2;
    default:
        return n;
    }
}

int64_t container_scale_bytes(enum row_format format, int64_t n)
{
    switch (format) {
    case ROW_BF16:
        return 0;
    case ROW_FP4_E4M3:
        return n / Q4_E4M3_BLOCK;
    case ROW_FP8_E8M0:
        return n / WINDOW_BLOCK;
    case ROW_INDEX_FP4:
        return n / Q4_E8M0_BLOCK;
    default:
        return sizeof(float);
    }
}

bool plane_find(const struct row_plane *plane, const struct step *step, int32_t request, int64_t g,
                struct row_address *out)
{
    int64_t index = g / plane->rows_per_block;
    if (g < 0 || index >= step->block_stride)
        return false;
    int32_t block = step->block_table[(int64_t)request * step->block_stride + index];
    if (block < 0)
        return false;
    int32_t row = (int32_t)(g % plane->rows_per_block);
    out->values = plane->values + plane_value_offset(plane, block, row);
    out->scales = plane->scales ? plane->scales + plane_scale_offset(plane, block, row) : NULL;
    return true;
}

bool ring_find(const struct ring_plane *ring, const struct step *step, int32_t request, int64_t p,
               struct row_address *out)
{
    int64_t slot = step->slot[request];
    if (slot < 0 || p < 0)
        return false;
    out->values = ring->values + slot * ring->slot_stride + p % ring->rows * ring->value_row_stride;
    out->scales =
        ring->scales ? ring->scales + slot * ring->slot_stride + p % ring->rows * ring->scale_row_stride : NULL;
    return true;
}
