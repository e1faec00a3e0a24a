#include "ops/cpu/product.h"

#include <string.h>

#include "number/bf16.h"
#include "number/e8m0.h"

int64_t decoded_bytes(int32_t max_k)
{
    return (int64_t)PRODUCT_ROWS * ((int64_t)max_k + (max_k + 31) / 32) * (int64_t)sizeof(float);
}

void decoded_place(struct decoded *d, void *memory, int32_t max_k)
{
    d->values = memory;
    d->scales = d->values + (int64_t)PRODUCT_ROWS * max_k;
}

void decoded_set(const struct cpu_kernels *kernels, struct decoded *d, int32_t i, const struct activation *in, int64_t row)
{
    const int32_t k = in->cols;
    float *values = d->values + (int64_t)i * k;
    switch (in->format) {
    case ACT_BF16:
        kernels->decode_bf16((const uint16_t *)in->codes + row * k, values, k);
        break;
    case ACT_F32:
        memcpy(values, (const float *)in->codes + row * k, (size_t)k * sizeof(float));
        break;
    case ACT_Q8: {
        const int32_t blocks = k / in->block;
        const uint8_t *scales = (const uint8_t *)in->scales + row * blocks;
        kernels->decode_fp8((const uint8_t *)in->codes + row * k, values, k);
        for (int32_t b = 0; b < blocks; b++)
            d->scales[(int64_t)i * blocks + b] = e8m0_decode(scales[b]);
        break;
    }
    case ACT_I8:
        d->codes[i] = (const int8_t *)in->codes + row * k;
        d->code_scales[i] = (const float *)in->scales + row * (k / in->block);
        break;
    }
}

/* INT8 x INT8 (v4-model.md 7.3, 7.4): per block of one activation scale an exact integer sum, f32 of it times the block's
 * scale, blocks ascending, then the output row's scale. */
static void int8_tile(const struct cpu_kernels *kernels, const struct decoded *d, const struct weight *w, int32_t column,
                      int32_t first, int32_t n, float *y, int64_t y_stride)
{
    const int32_t k = w->spec.k;
    const int32_t block = d->block < k ? d->block : k;
    const float *column_scale = w->spec.scales;
    for (int32_t j = 0; j < n; j++) {
        const int8_t *row = (const int8_t *)w->spec.values + (int64_t)(first + j) * k;
        for (int32_t r = 0; r < d->rows; r++) {
            float sum = 0;
            for (int32_t at = 0; at < k; at += block) {
                const float part = (float)kernels->dot_i8(d->codes[r] + column + at, row + at, block) *
                                   d->code_scales[r][(column + at) / d->block];
                sum = at ? sum + part : part;
            }
            y[r * y_stride + j] = sum * column_scale[first + j];
        }
    }
}

/* The inner loops of a weight's format. */
struct loops {
    void (*panel)(const struct panel *);
    float (*exact)(const struct panel *, int32_t r, int32_t j);
};

static struct loops loops_of(const struct cpu_kernels *kernels, enum weight_format format)
{
    switch (format) {
    case WEIGHT_FP8:
        return (struct loops){kernels->panel_fp8, kernels->exact_fp8};
    case WEIGHT_FP4:
        return (struct loops){kernels->panel_fp4, kernels->exact_fp4};
    case WEIGHT_BF16:
        return (struct loops){kernels->panel_bf16, kernels->exact_bf16};
    default:
        return (struct loops){kernels->panel_f32, kernels->exact_f32};
    }
}

/* A f32 sum and the reference's differ by a random walk of roundings, about one 2^-24 of `size` wide; eight are never
 * seen. One sum in a thousand is that near to a tie of bf16. */
static bool near_tie(float y, float size)
{
    const float reach = size * 0x1p-21f;
    return bf16_encode(y - reach) != bf16_encode(y + reach);
}

static struct panel panel_of(const struct decoded *d, const struct weight *w, int32_t column)
{
    static const float one = 1;
    const struct weight_spec *spec = &w->spec;
    const int32_t block = spec->format == WEIGHT_FP8 ? spec->tile : 32;
    const int32_t blocks = (spec->k + block - 1) / block;
    struct panel p = {.rows = d->rows,
                      .k = spec->k,
                      .a = d->values + column,
                      .a_stride = d->k,
                      .a_scale = &one,
                      .a_block = PANEL_UNSCALED,
                      .w = spec->values,
                      .w_scale = spec->scales,
                      .scale_rows = spec->format == WEIGHT_FP8 ? spec->tile : 1,
                      .scale_block = block,
                      .scale_stride = blocks,
                      .splits = spec->k_splits > 1 ? spec->k_splits : 1};
    for (int32_t s = 0; s < p.splits; s++)
        p.split[s] = (int32_t)((int64_t)s * blocks / p.splits) * block;
    p.split[p.splits] = spec->k;
    if (d->format == ACT_Q8) {
        p.a_scale = d->scales + column / d->block;
        p.a_scale_stride = d->k / d->block;
        p.a_block = d->block;
    }
    switch (spec->format) {
    case WEIGHT_FP8:
        p.w_stride = spec->k;
        break;
    case WEIGHT_FP4:
        p.w_stride = spec->k / 2;
        break;
    case WEIGHT_BF16:
        p.w_stride = (int64_t)spec->k * 2;
        break;
    default:
        p.w_stride = (int64_t)spec->k * 4;
        break;
    }
    return p;
}

void product_tile(const struct cpu_kernels *kernels, const struct decoded *d, const struct weight *w, int32_t column,
                  int32_t first, int32_t n, enum product_use use, float *y, int64_t y_stride, float *scratch)
{
    if (w->spec.format == WEIGHT_INT8) {
        int8_tile(kernels, d, w, column, first, n, y, y_stride);
        return;
    }
    const struct loops loops = loops_of(kernels, w->spec.format);
    struct panel p = panel_of(d, w, column);
    p.first = first;
    p.n = n;
    p.y = y;
    p.y_stride = y_stride;
    p.scratch = scratch;
    p.size = scratch + PRODUCT_ROWS * KERNEL_LANES;
    p.size_stride = PRODUCT_TILE;
    if (use == PRODUCT_TO_BF16)
        loops.panel(&p);
    for (int32_t j = 0; j < n; j++)
        for (int32_t r = 0; r < p.rows; r++)
            if (use == PRODUCT_TO_F32 || near_tie(y[r * y_stride + j], p.size[r * p.size_stride + j]))
                y[r * y_stride + j] = loops.exact(&p, r, j);
}
