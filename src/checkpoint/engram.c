#include "checkpoint/engram.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "number/e8m0.h"
#include "number/quantize.h"

enum { BLOCK = 32 };

static qr_status find_part(const struct checkpoint *ck, int32_t layer, const char *part, enum dtype dtype, int64_t rows,
                           int64_t columns, const struct tensor_view **out, qr_error *err)
{
    char name[80], found[160];
    snprintf(name, sizeof name, "layers.%d.engram.embed.%s", layer, part);
    qr_status st = checkpoint_get(ck, name, out, err);
    if (st != QR_OK)
        return st;
    const struct tensor_view *v = *out;
    if (v->dtype != dtype || v->rank != 2 || v->shape[0] != rows || v->shape[1] != columns)
        return qr_fail(err, QR_BAD_FILE, "%s: tensor %s: found %s of shape %s, wanted %s of shape [%lld, %lld]",
                       checkpoint_shard_path(ck, v->shard), name, dtype_name(v->dtype),
                       shape_text(v->rank, v->shape, found, sizeof found), dtype_name(dtype), (long long)rows,
                       (long long)columns);
    return QR_OK;
}

qr_status engram_open(const struct checkpoint *ck, const struct qr_config *config, int32_t ordinal,
                      struct engram_table *out, qr_error *err)
{
    const struct tensor_view *codes, *scales;
    int32_t layer = config->engram_layers[ordinal];
    int64_t rows = config->engram_num_embeddings[ordinal];
    qr_status st = find_part(ck, layer, "weight", DTYPE_F8_E4M3, rows, config->engram_head_dim, &codes, err);
    if (st == QR_OK)
        st = find_part(ck, layer, "scale", DTYPE_F8_E8M0, rows, config->engram_head_dim / BLOCK, &scales, err);
    if (st != QR_OK)
        return st;
    file_advise(codes->data, codes->bytes, FILE_RANDOM);
    file_advise(scales->data, scales->bytes, FILE_RANDOM);
    *out = (struct engram_table){.path = checkpoint_shard_path(ck, codes->shard),
                                 .scale_name = scales->name,
                                 .codes = codes->data,
                                 .scales = scales->data,
                                 .rows = rows,
                                 .width = config->engram_head_dim};
    return QR_OK;
}

void engram_prefetch(const struct engram_table *t, const int64_t *rows, int64_t count)
{
    int32_t blocks = t->width / BLOCK;
    for (int64_t i = 0; i < count; i++) {
        if (rows[i] < 0 || rows[i] >= t->rows)
            continue;
        file_advise(t->codes + rows[i] * t->width, (uint64_t)t->width, FILE_WILL_NEED);
        file_advise(t->scales + rows[i] * blocks, (uint64_t)blocks, FILE_WILL_NEED);
    }
}

static qr_status check_row(const struct engram_table *t, int64_t row, qr_error *err)
{
    int32_t blocks = t->width / BLOCK;
    if (row < 0 || row >= t->rows)
        return qr_fail(err, QR_INTERNAL, "%s: tensor %s: row %lld of %lld", t->path, t->scale_name, (long long)row,
                       (long long)t->rows);
    const uint8_t *hit = memchr(t->scales + row * blocks, E8M0_NAN, (size_t)blocks);
    if (hit)
        return qr_fail(err, QR_NUMERIC, "%s: tensor %s: scale byte 255 (NaN) at index %lld", t->path, t->scale_name,
                       (long long)(hit - t->scales));
    return QR_OK;
}

qr_status engram_gather(const struct engram_table *t, const int64_t *rows, int64_t count, uint16_t *out, qr_error *err)
{
    int32_t blocks = t->width / BLOCK;
    for (int64_t i = 0; i < count; i++) {
        qr_status st = check_row(t, rows[i], err);
        if (st != QR_OK)
            return st;
        q8_dequantize(t->codes + rows[i] * t->width, t->scales + rows[i] * blocks, t->width, BLOCK, out + i * t->width);
    }
    return QR_OK;
}

qr_status engram_gather_codes(const struct engram_table *t, const int64_t *rows, int64_t count, uint8_t *codes,
                              uint8_t *scales, qr_error *err)
{
    size_t width = (size_t)t->width, blocks = width / BLOCK;
    for (int64_t i = 0; i < count; i++) {
        qr_status st = check_row(t, rows[i], err);
        if (st != QR_OK)
            return st;
        memcpy(codes + (size_t)i * width, t->codes + (size_t)rows[i] * width, width);
        memcpy(scales + (size_t)i * blocks, t->scales + (size_t)rows[i] * blocks, blocks);
    }
    return QR_OK;
}
