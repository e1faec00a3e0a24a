/* trace_download.h: rows of the backend's buffers on their way into a trace's arrays, and back. */
#ifndef QR_TOOLS_TRACE_DOWNLOAD_H
#define QR_TOOLS_TRACE_DOWNLOAD_H

#include "ops/ops.h"

/* Set `backend`; zero the rest. */
struct trace_download {
    struct backend *backend;
    uint8_t *scratch;
    size_t scratch_bytes;
};

void trace_download_free(struct trace_download *d);
/* Room for at least `bytes` in d->scratch. */
qr_status trace_room(struct trace_download *d, size_t bytes, qr_error *err);

qr_status trace_bytes(struct trace_download *d, void *to, const void *from, int64_t bytes, qr_error *err);
/* Rows [row, row + count) of a buffer of `cols` 4-byte values. */
qr_status trace_words(struct trace_download *d, const void *buffer, int64_t cols, int64_t row, int64_t count, void *out,
                      qr_error *err);
/* The same of a bf16 buffer, widened. */
qr_status trace_halves(struct trace_download *d, const void *buffer, int64_t cols, int64_t row, int64_t count,
                       float *out, qr_error *err);
/* Either, as `format` says (ACT_BF16 or ACT_F32). */
qr_status trace_values(struct trace_download *d, enum act_format format, const void *buffer, int64_t cols, int64_t row,
                       int64_t count, float *out, qr_error *err);

/* The index of the largest; the first of equal ones. */
int32_t trace_best(const float *logits, int32_t n);

/* Writes `count` values, rounded to `format`, behind the first `at` values of a buffer. */
qr_status trace_write_values(struct trace_download *d, enum act_format format, void *buffer, int64_t at,
                             const float *values, int64_t count, qr_error *err);

#endif
