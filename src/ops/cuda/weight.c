#include <string.h>

#include "base/alloc.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/record.h"
#include "ops/cuda/seats.h"
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
    uint8_t least, most;
    e8m0_range(scales, rows * cols, &least, &most);
    if (least >= range.lowest && most <= range.highest) { /* nearly always, and then no scale is looked at alone */
        *large |= most > range.one_factor;
        return QR_OK;
    }
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

/* E8M0 scales; those of INT8 go behind the codes as they come. */
static int64_t scale_bytes(const struct weight_spec *s, int64_t *rows, int64_t *cols)
{
    int32_t block = weight_spec_block(s);
    if (!block)
        return 0;
    *cols = (s->k + block - 1) / block;
    *rows = s->format == WEIGHT_FP8 ? (s->n + block - 1) / block : s->n;
    return *rows * *cols;
}

static int64_t pitch_of(const struct weight_spec *s) { return (row_bytes(s) + PIECE_BYTES - 1) / PIECE_BYTES * PIECE_BYTES; }

static bool is_packed(const struct weight_spec *s) { return s->format != WEIGHT_F32; }

static int64_t up_to_alignment(int64_t bytes) { return (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT; }

int64_t cuda_weight_bytes(const struct weight_spec *s)
{
    int64_t tile;
    return up_to_alignment(is_packed(s) ? cuda_packed_bytes(s, &tile) : pitch_of(s) * s->n);
}

/* Rows of a weight that are laid out at once: BF16 and INT8 are staged in bands of whole tiles. */
static int32_t band_rows(const struct weight_spec *s)
{
    const int64_t rows = STAGING_BYTES / row_bytes(s) / 32 * 32;
    const bool banded = s->format == WEIGHT_BF16 || s->format == WEIGHT_INT8;
    return !banded || rows >= s->n || rows < 32 ? s->n : (int32_t)rows;
}

int64_t cuda_staged_bytes(const struct weight_spec *s)
{
    int64_t rows, cols;
    return is_packed(s) ? row_bytes(s) * band_rows(s) + scale_bytes(s, &rows, &cols) : 0;
}

/* Values at a pitch, zeros behind each row. */
static qr_status send_rows(struct cuda_backend *cuda, struct weight *w, qr_error *err)
{
    const struct weight_spec *s = &w->spec;
    const int64_t bytes = row_bytes(s), pitch = pitch_of(s);
    uint8_t *at = w->memory;
    cudaError_t status = cudaSuccess;
    if (pitch != bytes)
        status = cudaMemsetAsync(at, 0, (size_t)(pitch * s->n), cuda->stream);
    if (status == cudaSuccess)
        status = cudaMemcpy2DAsync(at, (size_t)pitch, s->values, (size_t)bytes, (size_t)bytes, (size_t)s->n,
                                   cudaMemcpyHostToDevice, cuda->stream);
    w->view.values = at;
    w->view.pitch = pitch;
    return cuda_check(status, s->name, err);
}

/* Room for `bytes` of a weight as the file has it. */
static qr_status make_staging(struct cuda_backend *cuda, int64_t bytes, qr_error *err)
{
    struct backend *b = &cuda->base;
    void *p;
    if (bytes <= cuda->staging_bytes)
        return QR_OK;
    b->release(b, cuda->staging);
    cuda->staging = NULL;
    cuda->staging_bytes = 0;
    const int64_t room = bytes > STAGING_BYTES ? bytes : STAGING_BYTES;
    TRY(b->allocate(b, room, &p, err));
    cuda->staging = p;
    cuda->staging_bytes = room;
    return QR_OK;
}

/* A band of rows, `first` being its first: the file's bytes go to the device as they are and are laid out there. */
static qr_status send_band(struct cuda_backend *cuda, const struct weight *w, int32_t first, int32_t rows, int64_t scales,
                           qr_error *err)
{
    struct backend *b = &cuda->base;
    struct weight band = *w;
    const int64_t bytes = row_bytes(&w->spec) * rows;
    band.spec.n = band.view.n = rows;
    TRY(b->upload(b, cuda->staging, (const uint8_t *)w->spec.values + row_bytes(&w->spec) * first, bytes, err));
    if (scales)
        TRY(b->upload(b, cuda->staging + bytes, w->spec.scales, scales, err));
    return cuda_pack(b, &band, cuda->staging, cuda->staging + bytes, (uint8_t *)w->memory + first / 32 * w->view.pitch, err);
}

/* The device lays out what the host keeps, too. */
static qr_status send_to_host(struct cuda_backend *cuda, struct weight *w, int64_t scales, qr_error *err)
{
    struct backend *b = &cuda->base;
    const int64_t bytes = row_bytes(&w->spec) * w->spec.n, laid = up_to_alignment(bytes + scales);
    TRY(make_staging(cuda, laid + w->bytes, err));
    TRY(b->upload(b, cuda->staging, w->spec.values, bytes, err));
    if (scales)
        TRY(b->upload(b, cuda->staging + bytes, w->spec.scales, scales, err));
    TRY(cuda_pack(b, w, cuda->staging, cuda->staging + bytes, cuda->staging + laid, err));
    return b->download(b, w->memory, cuda->staging + laid, w->bytes, err);
}

static qr_status send_packed(struct cuda_backend *cuda, struct weight *w, qr_error *err)
{
    const struct weight_spec *s = &w->spec;
    const int32_t rows = band_rows(s);
    int64_t across, down;
    const int64_t scales = scale_bytes(s, &down, &across);
    (void)cuda_packed_bytes(s, &w->view.pitch);
    w->view.scale_cols = (s->k + 31) / 32;
    TRY(w->on_host ? send_to_host(cuda, w, scales, err) : make_staging(cuda, cuda_staged_bytes(s), err));
    for (int32_t first = 0; !w->on_host && first < s->n; first += rows)
        TRY(send_band(cuda, w, first, s->n - first < rows ? s->n - first : rows, scales, err));
    w->view.values = w->memory;
    w->view.scales = w->view.values + (s->n + 31) / 32 * w->view.pitch;
    if (s->format == WEIGHT_INT8)
        TRY(cuda_check(cudaMemcpyAsync((uint8_t *)w->memory + (w->view.scales - w->view.values), s->scales, 4 * (size_t)s->n,
                                       cudaMemcpyDefault, cuda->stream),
                       s->name, err));
    /* products read weights before they wait for earlier kernels */
    return cuda_check(cudaStreamSynchronize(cuda->stream), s->name, err);
}

static qr_status send(struct cuda_backend *cuda, struct weight *w, qr_error *err)
{
    qr_status st = is_packed(&w->spec) ? send_packed(cuda, w, err) : send_rows(cuda, w, err);
    if (st != QR_OK)
        return qr_fail_in(err, st, "weight %s", w->spec.name);
    w->laid = cuda->rests;
    cuda->weights_laid++;
    return QR_OK;
}

/* What every layout needs of the file: scales that fold and codes that are numbers. */
static qr_status check_values(const struct weight_spec *spec, int32_t *cols, bool *large, qr_error *err)
{
    int64_t rows = 0, across = 0;
    TRY(weight_spec_check(spec, err));
    (void)scale_bytes(spec, &rows, &across);
    *cols = (int32_t)across;
    if (across > 0)
        TRY(check_scales(spec, rows, across, large, err));
    return check_codes(spec, err);
}

/* Memory of the weights' range, or of the host. */
static qr_status take_memory(struct cuda_backend *cuda, struct weight *w, qr_error *err)
{
    const int64_t bytes = cuda_weight_bytes(&w->spec);
    const qr_status st = w->on_host ? seats_take(cuda, bytes, &w->memory, err)
                                    : cuda_take(cuda, cuda->weights, bytes, &w->memory, err);
    if (st != QR_OK)
        return qr_fail_in(err, st, "weight %s", w->spec.name);
    w->bytes = bytes;
    return QR_OK;
}

qr_status cuda_prepare_weight(struct backend *b, const struct weight_spec *spec, struct weight **out, qr_error *err)
{
    int32_t cols;
    bool large = false;
    TRY(check_values(spec, &cols, &large, err));

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
    w->view.scale_cols = cols;
    w->view.large_scales = large;
    w->on_host = spec->on_host && is_packed(spec) && cuda_of(b)->seats;
    qr_status st = take_memory(cuda_of(b), w, err);
    if (st == QR_OK)
        st = send(cuda_of(b), w, err);
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
    if (w->bytes && w->on_host) {
        (void)seats_clear(cuda_of(b), NULL); /* another may get its place */
        seats_give(cuda_of(b));
    } else if (w->bytes) {
        arena_give(cuda_of(b)->weights, w->memory, w->bytes);
    }
    qr_free(w);
}

/* ---- rest ---- */

void cuda_rest_weights(struct backend *b)
{
    struct cuda_backend *cuda = cuda_of(b);
    cuda_rest(cuda, cuda->weights);
    if (cuda->seats)
        (void)seats_clear(cuda, NULL);
    cuda->rests++;
}

qr_status cuda_renew_weight(struct backend *b, struct weight *w, const struct weight_spec *spec, qr_error *err)
{
    struct cuda_backend *cuda = cuda_of(b);
    int32_t cols;
    bool large = false;
    if (w->laid == cuda->rests || spec->format != w->spec.format || spec->n != w->spec.n || spec->k != w->spec.k ||
        spec->tile != w->spec.tile || spec->k_splits != w->spec.k_splits)
        return qr_fail(err, QR_INTERNAL, "weight %s: %s", w->spec.name,
                       w->laid == cuda->rests ? "it is laid out already" : "it comes back in another form");
    TRY(check_values(spec, &cols, &large, err));
    TRY(cuda_rise(cuda, cuda->weights, err)); /* the first weight brings the memory of all back */
    if (large != w->view.large_scales) { /* recorded products know of it, and tables of experts */
        record_forget(cuda);
        cuda_expert_forget(cuda, w);
        w->view.large_scales = large;
    }
    w->spec.values = spec->values;
    w->spec.scales = spec->scales;
    return send(cuda, w, err);
}
