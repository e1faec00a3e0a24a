#include "tools/trace_download.h"

#include <string.h>

#include "base/alloc.h"
#include "number/bf16.h"

void trace_download_free(struct trace_download *d)
{
    qr_free(d->scratch);
    d->scratch = NULL;
    d->scratch_bytes = 0;
}

qr_status trace_room(struct trace_download *d, size_t bytes, qr_error *err)
{
    if (bytes <= d->scratch_bytes)
        return QR_OK;
    void *larger = qr_realloc(d->scratch, bytes);
    if (!larger)
        return qr_fail(err, QR_NO_MEMORY, "no memory for %zu bytes of a trace", bytes);
    d->scratch = larger;
    d->scratch_bytes = bytes;
    return QR_OK;
}

qr_status trace_bytes(struct trace_download *d, void *to, const void *from, int64_t bytes, qr_error *err)
{
    struct backend *b = d->backend;
    qr_status st = b->download(b, to, from, bytes, err);
    return st == QR_OK ? b->fence(b, err) : st;
}

qr_status trace_words(struct trace_download *d, const void *buffer, int64_t cols, int64_t row, int64_t count, void *out,
                      qr_error *err)
{
    return trace_bytes(d, out, (const uint8_t *)buffer + row * cols * 4, count * cols * 4, err);
}

qr_status trace_halves(struct trace_download *d, const void *buffer, int64_t cols, int64_t row, int64_t count,
                       float *out, qr_error *err)
{
    qr_status st = trace_room(d, (size_t)(count * cols) * 2, err);
    if (st == QR_OK)
        st = trace_bytes(d, d->scratch, (const uint8_t *)buffer + row * cols * 2, count * cols * 2, err);
    const uint16_t *values = (const uint16_t *)(const void *)d->scratch;
    for (int64_t i = 0; st == QR_OK && i < count * cols; i++)
        out[i] = bf16_decode(values[i]);
    return st;
}

qr_status trace_values(struct trace_download *d, enum act_format format, const void *buffer, int64_t cols, int64_t row,
                       int64_t count, float *out, qr_error *err)
{
    return format == ACT_F32 ? trace_words(d, buffer, cols, row, count, out, err)
                             : trace_halves(d, buffer, cols, row, count, out, err);
}

int32_t trace_best(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

qr_status trace_write_values(struct trace_download *d, enum act_format format, void *buffer, int64_t at,
                             const float *values, int64_t count, qr_error *err)
{
    struct backend *b = d->backend;
    int64_t size = format == ACT_F32 ? 4 : 2;
    qr_status st = trace_room(d, (size_t)(count * size), err);
    if (st != QR_OK)
        return st;
    if (format == ACT_F32)
        memcpy(d->scratch, values, (size_t)count * sizeof *values);
    else
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)(void *)d->scratch)[i] = bf16_encode(values[i]);
    st = b->upload(b, (uint8_t *)buffer + at * size, d->scratch, count * size, err);
    return st == QR_OK ? b->fence(b, err) : st;
}
