#include "tools/trace_rows.h"

#include <string.h>

#include "base/alloc.h"
#include "number/e4m3.h"
#include "number/quantize.h"

static bool is_fp4(const struct trace_plane *p)
{
    return p->plane.format == ROW_FP4_E4M3 || p->plane.format == ROW_INDEX_FP4;
}

static bool is_int8(const struct trace_plane *p) { return p->plane.format == ROW_INDEX_INT8; }

int32_t trace_plane_code_bytes(const struct trace_plane *p) { return is_fp4(p) ? p->n / 2 : is_int8(p) ? p->n : 0; }

int32_t trace_plane_scale_bytes(const struct trace_plane *p)
{
    switch (p->plane.format) {
    case ROW_FP4_E4M3:
        return p->n / Q4_E4M3_BLOCK;
    case ROW_INDEX_FP4:
        return p->n / Q4_E8M0_BLOCK;
    case ROW_INDEX_INT8:
        return sizeof(float);
    default:
        return 0;
    }
}

/* Bytes of a row's values, and of its scales, in the pool. */
static int32_t value_bytes(const struct trace_plane *p)
{
    return is_fp4(p) ? p->n / 2 : p->plane.format == ROW_BF16 ? 2 * p->n : p->n;
}

static int32_t scale_bytes(const struct trace_plane *p)
{
    return p->plane.format == ROW_INDEX_FP8 ? (int32_t)sizeof(float) : trace_plane_scale_bytes(p);
}

static void decode(const struct trace_plane *p, const uint8_t *values, const uint8_t *scales, uint16_t *wide,
                   float *out)
{
    float scale = 1.0f;
    switch (p->plane.format) {
    case ROW_FP4_E4M3:
        q4_e4m3_dequantize(values, scales, p->n, wide);
        break;
    case ROW_INDEX_FP4:
        q4_e8m0_dequantize(values, scales, p->n, wide);
        break;
    case ROW_BF16:
        memcpy(wide, values, (size_t)p->n * sizeof *wide);
        break;
    default: /* ROW_INDEX_FP8, ROW_INDEX_INT8 */
        memcpy(&scale, scales, sizeof scale);
        for (int32_t i = 0; i < p->n; i++)
            out[i] = (is_int8(p) ? (float)(int8_t)values[i] : e4m3_decode(values[i])) * scale;
        return;
    }
    for (int32_t i = 0; i < p->n; i++)
        out[i] = bf16_decode(wide[i]);
}

static qr_status read_row(const struct trace_plane *p, int64_t row, uint8_t *values, uint8_t *scales, qr_error *err)
{
    struct backend *b = p->backend;
    int32_t block = p->blocks[row / p->plane.rows_per_block], in_block = (int32_t)(row % p->plane.rows_per_block);
    const uint8_t *from = p->plane.values + plane_value_offset(&p->plane, block, in_block);
    qr_status st = b->download(b, values, from, value_bytes(p), err);
    if (st == QR_OK && scale_bytes(p) > 0)
        st = b->download(b, scales, p->plane.scales + plane_scale_offset(&p->plane, block, in_block), scale_bytes(p),
                         err);
    return st == QR_OK ? b->fence(b, err) : st;
}

qr_status trace_plane_read(const struct trace_plane *p, qr_error *err)
{
    uint8_t *values = qr_malloc((size_t)p->n * 2), *scales = qr_malloc((size_t)p->n + 4);
    uint16_t *wide = qr_malloc((size_t)p->n * sizeof *wide);
    qr_status st = QR_OK;

    if (!values || !scales || !wide)
        st = qr_fail(err, QR_NO_MEMORY, "no memory for a row of %d values", p->n);
    for (int64_t row = 0; st == QR_OK && row < p->count; row++) {
        st = read_row(p, row, values, scales, err);
        if (st != QR_OK)
            break;
        if (p->values)
            decode(p, values, scales, wide, p->values + row * p->n);
        if (p->codes)
            memcpy((uint8_t *)p->codes + row * trace_plane_code_bytes(p), values, (size_t)trace_plane_code_bytes(p));
        if (p->scales)
            memcpy((uint8_t *)p->scales + row * trace_plane_scale_bytes(p), scales, (size_t)trace_plane_scale_bytes(p));
    }
    qr_free(values);
    qr_free(scales);
    qr_free(wide);
    return st;
}
