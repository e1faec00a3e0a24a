/* trace_rows.h: compressed rows of one request read back out of the pool. */
#ifndef QR_TOOLS_TRACE_ROWS_H
#define QR_TOOLS_TRACE_ROWS_H

#include "ops/ops.h"

struct trace_plane {
    struct backend *backend;
    struct row_plane plane;
    const int32_t *blocks; /* of the request */
    int32_t n;             /* values of a row */
    int64_t count;         /* rows */
    /* What is wanted; NULL: not. */
    float *values;        /* [count][n] */
    void *codes, *scales; /* [count][code bytes], [count][scale bytes]; only where those are not 0 */
};

/* Bytes of codes and of scales of a row whose container holds the quantizer's own result; 0: it holds values only. */
int32_t trace_plane_code_bytes(const struct trace_plane *p);
int32_t trace_plane_scale_bytes(const struct trace_plane *p);

/* Downloads and decodes every row. */
qr_status trace_plane_read(const struct trace_plane *p, qr_error *err);

#endif
