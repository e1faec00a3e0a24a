#include "ops/cpu/reference/product.h"

#include <string.h>

#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "ops/cpu/reference/activation.h"

enum { SMALLEST_BLOCK = 32 };

int64_t lanes_bytes(int64_t k)
{
    return piece_bytes(k * LANES, sizeof(double)) + piece_bytes(k, sizeof(double)) +
           piece_bytes((k / SMALLEST_BLOCK + 1) * LANES, sizeof(float));
}

void lanes_place(struct lanes *l, int64_t k, struct pieces *scratch)
{
    l->x = take(scratch, k * LANES * (int64_t)sizeof(double));
    l->row = take(scratch, k * (int64_t)sizeof(double));
    l->scale = take_floats(scratch, (k / SMALLEST_BLOCK + 1) * LANES);
}

static double act_value(const struct activation *a, int64_t i)
{
    switch (a->format) {
    case ACT_BF16:
        return bf16_decode(((const uint16_t *)a->codes)[i]);
    case ACT_F32:
        return ((const float *)a->codes)[i];
    case ACT_Q8:
        return e4m3_decode(((const uint8_t *)a->codes)[i]);
    case ACT_I8:
        return ((const int8_t *)a->codes)[i];
    }
    return 0;
}

static float act_scale(const struct activation *a, int64_t i)
{
    return a->format == ACT_Q8 ? e8m0_decode(((const uint8_t *)a->scales)[i]) : ((const float *)a->scales)[i];
}

void lanes_load(struct lanes *l, const struct activation *a, const int64_t *rows, int32_t count, int64_t column,
                int64_t k)
{
    l->count = count;
    l->k = (int32_t)k;
    l->block = act_is_float(a) ? 0 : a->block;
    l->integer = a->format == ACT_I8;
    memset(l->x, 0, (size_t)(k * LANES) * sizeof *l->x);
    for (int32_t lane = 0; lane < count; lane++) {
        int64_t first = rows[lane] * a->cols + column;
        for (int64_t i = 0; i < k; i++)
            l->x[i * LANES + lane] = act_value(a, first + i);
        for (int64_t i = 0; l->block && i < k / l->block; i++)
            l->scale[i * LANES + lane] = act_scale(a, first / l->block + i);
    }
}

/* The scale of element (n, k) of an FP8 or FP4 weight. */
static float weight_scale(const struct weight *w, int64_t n, int64_t k)
{
    const uint8_t *scales = w->spec.scales;
    if (w->spec.format == WEIGHT_FP8)
        return e8m0_decode(scales[n / w->spec.tile * w->scale_cols + k / w->spec.tile]);
    return e8m0_decode(scales[n * w->scale_cols + k / 32]);
}

/* Row n without its scales. */
static void weight_codes(const struct weight *w, int64_t n, double *out)
{
    int64_t k = w->spec.k, first = n * k;
    switch (w->spec.format) {
    case WEIGHT_BF16:
        for (int64_t i = 0; i < k; i++)
            out[i] = bf16_decode(((const uint16_t *)w->spec.values)[first + i]);
        break;
    case WEIGHT_F32:
        for (int64_t i = 0; i < k; i++)
            out[i] = ((const float *)w->spec.values)[first + i];
        break;
    case WEIGHT_FP8:
        for (int64_t i = 0; i < k; i++)
            out[i] = e4m3_decode(((const uint8_t *)w->spec.values)[first + i]);
        break;
    case WEIGHT_FP4:
        for (int64_t i = 0; i < k; i++)
            out[i] = e2m1_decode(e2m1_at((const uint8_t *)w->spec.values + first / 2, i));
        break;
    case WEIGHT_INT8:
        for (int64_t i = 0; i < k; i++)
            out[i] = ((const int8_t *)w->spec.values)[first + i];
        break;
    }
}

void weight_row_f32(const struct weight *w, int64_t n, float *out)
{
    int64_t k = w->spec.k, first = n * k;
    if (w->spec.format == WEIGHT_BF16)
        bf16_load((const uint16_t *)w->spec.values + first, k, out);
    else
        memcpy(out, (const float *)w->spec.values + first, (size_t)k * sizeof *out);
}

/* sum over columns [from, to), ascending, binary64. */
static void add_columns(const struct lanes *l, int64_t from, int64_t to, double out[LANES])
{
    const double *x = l->x, *row = l->row;
    double sum[LANES] = {0};
    for (int64_t k = from; k < to; k++)
        for (int lane = 0; lane < LANES; lane++)
            sum[lane] += x[k * LANES + lane] * row[k];
    memcpy(out, sum, sizeof sum);
}

/* Plain values: one sum, rounded to f32. */
static void add_plain(const struct lanes *l, int64_t from, int64_t to, float acc[LANES])
{
    double sum[LANES];
    add_columns(l, from, to, sum);
    for (int lane = 0; lane < LANES; lane++)
        acc[lane] = (float)sum[lane];
}

/* Q8 x FP8|FP4: acc += part sa sw, blocks ascending; a block's part is exact before it is rounded to f32. The scales
 * are powers of two. */
static void add_q8(const struct lanes *l, const struct weight *w, int64_t n, int64_t from, int64_t to, float acc[LANES])
{
    int32_t weight_block = w->spec.format == WEIGHT_FP4 ? 32 : w->spec.tile;
    int32_t block = weight_block < l->block ? weight_block : l->block;

    memset(acc, 0, LANES * sizeof *acc);
    for (int64_t k = from; k < to; k += block) {
        double part[LANES];
        add_columns(l, k, k + block < to ? k + block : to, part);
        const float *sa = l->scale + k / l->block * LANES;
        float sw = weight_scale(w, n, k);
        for (int lane = 0; lane < l->count; lane++)
            acc[lane] += (float)part[lane] * sa[lane] * sw;
    }
}

/* INT8: acc += f32(int32 sum of an activation block) sigma; exact sums (v4-model.md 7.3, 7.4 output projection). */
static void add_integer(const struct lanes *l, int64_t from, int64_t to, float acc[LANES])
{
    memset(acc, 0, LANES * sizeof *acc);
    for (int64_t k = from; k < to; k += l->block) {
        double part[LANES];
        add_columns(l, k, k + l->block, part);
        for (int lane = 0; lane < l->count; lane++)
            acc[lane] += (float)part[lane] * l->scale[k / l->block * LANES + lane];
    }
}

/* Columns that a split may not cut: those of one scale. */
static int64_t split_block(const struct lanes *l, const struct weight *w)
{
    switch (w->spec.format) {
    case WEIGHT_FP8:
        return w->spec.tile;
    case WEIGHT_FP4:
        return 32;
    case WEIGHT_INT8:
        return l->block;
    default:
        return 1;
    }
}

void lanes_product(const struct lanes *l, const struct weight *w, int64_t n, float out[LANES])
{
    int64_t k = w->spec.k, block = split_block(l, w), blocks = (k + block - 1) / block, splits = w->spec.k_splits;

    weight_codes(w, n, l->row);
    if (!l->block && w->spec.format == WEIGHT_FP8) /* widened: exact in bf16, so in binary64 */
        for (int64_t i = 0; i < k; i++)
            l->row[i] *= (double)weight_scale(w, n, i);

    for (int64_t s = 0; s < splits; s++) {
        int64_t from = s * blocks / splits * block, to = (s + 1) * blocks / splits * block;
        float acc[LANES];
        if (to > k)
            to = k;
        if (!l->block)
            add_plain(l, from, to, acc);
        else if (l->integer)
            add_integer(l, from, to, acc);
        else
            add_q8(l, w, n, from, to, acc);
        for (int lane = 0; lane < LANES; lane++)
            out[lane] = s == 0 ? acc[lane] : out[lane] + acc[lane];
    }
    if (l->integer)
        for (int lane = 0; lane < LANES; lane++)
            out[lane] *= ((const float *)w->spec.scales)[n];
}

qr_status product_check(const char *operator, const struct activation * a, const struct weight *w, qr_error *err)
{
    static const char *const act_name[] = {"bf16", "f32", "Q8", "I8"};
    static const char *const weight_name[] = {"BF16", "F32", "FP8", "FP4", "INT8"};
    enum weight_format f = w->spec.format;
    bool plain = act_is_float(a) && (f == WEIGHT_BF16 || f == WEIGHT_F32 || f == WEIGHT_FP8);
    bool q8 = a->format == ACT_Q8 && (f == WEIGHT_FP8 || f == WEIGHT_FP4);
    bool i8 = a->format == ACT_I8 && f == WEIGHT_INT8;

    if (!plain && !q8 && !i8)
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: weight %s: no product of %s with %s", operator, w->spec.name,
                       act_name[a->format], weight_name[f]);
    if (!plain && (a->block < 1 || a->cols % a->block || w->spec.k % a->block))
        return qr_fail(err, QR_BAD_ARGUMENT, "%s: weight %s: blocks of %d do not divide %d columns", operator,
                       w->spec.name, a->block, w->spec.k);
    return QR_OK;
}
