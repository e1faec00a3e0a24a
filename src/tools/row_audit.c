#include "tools/row_audit.h"

#include <string.h>

#include "base/alloc.h"

enum { MARK = 0xFF };

/* Bytes of a row: both buffers hold bf16 in every profile. */
static int64_t key_bytes(const struct row_audit *a) { return 2 * (int64_t)a->plan->config.head_dim; }
static int64_t output_bytes(const struct row_audit *a) { return 2 * (int64_t)a->plan->config.hidden_size; }

qr_status row_audit_open(struct backend *backend, const struct model_plan *plan, int32_t most, struct row_audit *out,
                         qr_error *err)
{
    *out = (struct row_audit){.backend = backend, .plan = plan};
    const int64_t key = key_bytes(out), output = output_bytes(out), bytes = most * (key > output ? key : output);
    out->host = qr_malloc((size_t)bytes);
    return out->host ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory for %lld bytes", (long long)bytes);
}

void row_audit_close(struct row_audit *a)
{
    qr_free(a->host);
    a->host = NULL;
}

/* ---- inside a step ---- */

static qr_status mark(struct row_audit *a, void *buffer, int64_t row_bytes, qr_error *err)
{
    const int64_t bytes = a->rows * row_bytes;
    memset(a->host, MARK, (size_t)bytes);
    TRY(a->backend->upload(a->backend, buffer, a->host, bytes, err));
    return a->backend->fence(a->backend, err);
}

static qr_status count_written(struct row_audit *a, const void *buffer, int64_t row_bytes, int32_t *out, qr_error *err)
{
    TRY(a->backend->download(a->backend, a->host, buffer, a->rows * row_bytes, err));
    TRY(a->backend->fence(a->backend, err));
    *out = 0;
    for (int32_t row = 0; row < a->rows; row++) {
        bool written = false;
        for (int64_t i = 0; i < row_bytes; i++)
            written |= a->host[row * row_bytes + i] != MARK;
        *out += written;
    }
    return QR_OK;
}

static qr_status look(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err)
{
    struct row_audit *a = user;
    if (point == POINT_BLOCK_INPUT) {
        TRY(mark(a, ws->keys, key_bytes(a), err));
        return mark(a, ws->y, output_bytes(a), err);
    }
    if (point == POINT_KEYS)
        return count_written(a, ws->keys, key_bytes(a), &a->keys[layer], err);
    return point == POINT_BLOCK_OUTPUT ? count_written(a, ws->y, output_bytes(a), &a->queries[layer], err) : QR_OK;
}

struct model_observer row_audit_of_step(struct row_audit *a, int32_t rows)
{
    a->rows = rows;
    memset(a->keys, 0, sizeof a->keys);
    memset(a->queries, 0, sizeof a->queries);
    return (struct model_observer){.user = a, .at = look};
}

/* ---- behind it ---- */

int64_t row_audit_total(const struct row_audit *a)
{
    int64_t total = 0;
    for (int32_t layer = 0; layer < a->plan->layers; layer++)
        total += a->queries[layer];
    return total;
}

/* Of rows [from, end), those at `first` or behind. */
static int32_t behind(int32_t first, int32_t from, int32_t end)
{
    if (first < from)
        first = from;
    return first < end ? end - first : 0;
}

qr_status row_audit_check(const struct row_audit *a, const struct row_plan *rows, int32_t from, qr_error *err)
{
    const int32_t end = from + a->rows;
    for (int32_t layer = 0; layer < a->plan->layers; layer++) {
        const int32_t keys = behind(rows->layer[layer].key, from, end), queries = behind(rows->layer[layer].query, from, end);
        if (a->keys[layer] != keys || a->queries[layer] != queries)
            return qr_fail(err, QR_INTERNAL,
                           "layer %d of a chunk of rows %d to %d: %d window keys and %d rows, the plan has %d and %d",
                           layer, from, end - 1, a->keys[layer], a->queries[layer], keys, queries);
    }
    return QR_OK;
}
