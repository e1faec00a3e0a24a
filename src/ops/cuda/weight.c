#include <string.h>

#include "base/alloc.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/record.h"
#include "ops/weight_spec.h"

/* Rows start on pieces that four lanes read at once, 16 bytes each. */
enum { PIECE_BYTES = 64 };

/* Scales that fold into bf16 operands exactly: every code times the scale is a normal number of bf16. Those above
 * `one_factor` take two factors (product.cuh). */
struct scale_range {
    uint8_t lowest, one_factor, highest;
};
static const struct scale_range fp8_range = {10, 134, 246}, fp4_range = {4, 128, 252};

static int64_t row_bytes(const struct weight_spec *s)
{
    switch (s->format) {
    case WEIGHT_BF16:
        return 2 * (int64_t)s->k;
    case WEIGHT_F32:
        return 4 * (int64_t)s->k;
    case WEIGHT_FP4:
        return s->k / 2;
    case WEIGHT_FP8:
    case WEIGHT_INT8:
        break;
    }
    return s->k;
}

/* Whether every code under one scale is a zero, of either sign. */
static bool block_is_zero(const struct weight_spec *s, int64_t row, int64_t col)
{
    const uint8_t *values = s->values;
    int64_t bytes = row_bytes(s), block = weight_spec_block(s), first = col * block, width = block;
    int64_t top = s->format == WEIGHT_FP8 ? row * block : row, rows = s->format == WEIGHT_FP8 ? block : 1;
    uint8_t magnitude = s->format == WEIGHT_FP8 ? 0x7F : 0x77;

    if (s->format == WEIGHT_FP4) {
        first /= 2;
        width /= 2;
    }
    for (int64_t r = top; r < top + rows && r < s->n; r++)
        for (int64_t i = first; i < first + width && i < bytes; i++)
            if (values[r * bytes + i] & magnitude)
                return false;
    return true;
}

static qr_status check_scales(const struct weight_spec *s, int64_t rows, int64_t cols, bool *large, qr_error *err)
{
    const uint8_t *scales = s->scales;
    struct scale_range range = s->format == WEIGHT_FP8 ? fp8_range : fp4_range;
    for (int64_t i = 0; i < rows * cols; i++) {
        if (scales[i] >= range.lowest && scales[i] <= range.highest) {
            *large |= scales[i] > range.one_factor;
            continue;
        }
        if (scales[i] == E8M0_NAN)
            return qr_fail(err, QR_BAD_FILE, "weight %s: scale [%lld][%lld] is E8M0 255 (NaN), wanted 0 to 254",
                           s->name, (long long)(i / cols), (long long)(i % cols));
        if (!block_is_zero(s, i / cols, i % cols))
            return qr_fail(err, QR_UNSUPPORTED,
                           "weight %s: scale [%lld][%lld] is E8M0 %d, the CUDA backend multiplies %d to %d exactly",
                           s->name, (long long)(i / cols), (long long)(i % cols), scales[i], range.lowest,
                           range.highest);
    }
    return QR_OK;
}

/* The matrix unit takes an E4M3 NaN for a number. */
static qr_status check_codes(const struct weight_spec *s, qr_error *err)
{
    int64_t at = s->format == WEIGHT_FP8 ? e4m3_first_nan(s->values, 0, (int64_t)s->n * s->k) : -1;
    if (at < 0)
        return QR_OK;
    return qr_fail(err, QR_BAD_FILE, "weight %s: value [%lld][%lld] is the E4M3 code 0x%02X (NaN), wanted a number", s->name,
                   (long long)(at / s->k), (long long)(at % s->k), ((const uint8_t *)s->values)[at]);
}

static int64_t scale_bytes(const struct weight_spec *s, int64_t *rows, int64_t *cols)
{
    int32_t block = weight_spec_block(s);
    if (s->format == WEIGHT_INT8)
        return 4 * (int64_t)s->n;
    if (!block)
        return 0;
    *cols = (s->k + block - 1) / block;
    *rows = s->format == WEIGHT_FP8 ? (s->n + block - 1) / block : s->n;
    return *rows * *cols;
}

/* Values at a pitch, zeros behind each row, then the scales of INT8. */
static qr_status send_rows(struct cuda_backend *cuda, struct weight *w, int64_t scales, qr_error *err)
{
    const struct weight_spec *s = &w->spec;
    int64_t bytes = row_bytes(s), pitch = (bytes + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES;
    TRY(cuda->base.allocate(&cuda->base, pitch * s->n + scales, &w->memory, err));
    uint8_t *at = w->memory;
    cudaError_t status = cudaSuccess;
    if (pitch != bytes)
        status = cudaMemsetAsync(at, 0, (size_t)(pitch * s->n), cuda->stream);
    if (status == cudaSuccess)
        status = cudaMemcpy2DAsync(at, (size_t)pitch, s->values, (size_t)bytes, (size_t)bytes, (size_t)s->n,
                                   cudaMemcpyHostToDevice, cuda->stream);
    if (status == cudaSuccess && scales)
        status = cudaMemcpyAsync(at + pitch * s->n, s->scales, (size_t)scales, cudaMemcpyHostToDevice, cuda->stream);
    w->view.values = at;
    w->view.scales = at + pitch * s->n;
    w->view.pitch = pitch;
    return cuda_check(status, s->name, err);
}

/* The file's bytes go to the device as they are and are laid out there. */
static qr_status send_packed(struct cuda_backend *cuda, struct weight *w, int64_t scales, qr_error *err)
{
    const struct weight_spec *s = &w->spec;
    struct backend *b = &cuda->base;
    int64_t bytes = row_bytes(s) * s->n, packed = cuda_packed_bytes(s, &w->view.pitch);
    void *raw = NULL;
    w->view.scale_cols = (s->k + 31) / 32;
    TRY(b->allocate(b, packed, &w->memory, err));
    TRY(b->allocate(b, bytes + scales, &raw, err));
    qr_status st = b->upload(b, raw, s->values, bytes, err);
    if (st == QR_OK && scales)
        st = b->upload(b, (uint8_t *)raw + bytes, s->scales, scales, err);
    if (st == QR_OK)
        st = cuda_pack(b, w, raw, (uint8_t *)raw + bytes, w->memory, err);
    if (st == QR_OK) /* products read weights before they wait for earlier kernels */
        st = cuda_check(cudaStreamSynchronize(cuda->stream), s->name, err);
    b->release(b, raw);
    w->view.values = w->memory;
    w->view.scales = w->view.values + (s->n + 31) / 32 * w->view.pitch;
    return st;
}

static qr_status send(struct cuda_backend *cuda, struct weight *w, int64_t scales, qr_error *err)
{
    bool packed = w->spec.format != WEIGHT_F32 && w->spec.format != WEIGHT_INT8;
    qr_status st = packed ? send_packed(cuda, w, scales, err) : send_rows(cuda, w, scales, err);
    return st == QR_OK ? st : qr_fail_in(err, st, "weight %s", w->spec.name);
}

qr_status cuda_prepare_weight(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err)
{
    int64_t rows = 0, cols = 0;
    bool large = false;
    qr_status st = weight_spec_check(spec, err);
    if (st != QR_OK)
        return st;
    int64_t scales = scale_bytes(spec, &rows, &cols);
    if (cols > 0 && (st = check_scales(spec, rows, cols, &large, err)) != QR_OK)
        return st;
    if ((st = check_codes(spec, err)) != QR_OK)
        return st;

    size_t name_size = strlen(spec->name) + 1;
    struct weight *w = qr_malloc(sizeof *w + name_size);
    if (!w)
        return qr_fail(err, QR_NO_MEMORY, "weight %s: no memory for its handle", spec->name);
    memset(w, 0, sizeof *w);
    w->spec = *spec;
    w->spec.name = memcpy(w + 1, spec->name, name_size);
    w->view.n = spec->n;
    w->view.k = spec->k;
    w->view.tile = spec->format == WEIGHT_FP8 ? spec->tile : 32;
    w->view.scale_cols = (int32_t)cols;
    w->view.large_scales = large;
    w->view.row_parallel = spec->k_splits == 8;
    st = send(cuda_of(b), w, scales, err);
    if (st != QR_OK) {
        cuda_release_weight(b, w);
        return st;
    }
    *out = w;
    return QR_OK;
}

void cuda_release_weight(struct backend *b, struct weight *w)
{
    if (!w)
        return;
    (void)record_flush(cuda_of(b), NULL);
    record_forget(cuda_of(b));
    cuda_expert_forget(cuda_of(b), w);
    b->release(b, w->memory);
    qr_free(w);
}
