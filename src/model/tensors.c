#include "model/tensors.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/w8a8.h"

struct tensors {
    const struct checkpoint *ck;
    const struct model_plan *plan;
    struct w8a8 *w8a8; /* NULL in the reference profile */
};

qr_status tensors_open(const struct checkpoint *ck, const struct model_plan *plan, struct worker_pool *pool,
                       struct tensors **out, qr_error *err)
{
    struct tensors *t = qr_calloc(1, sizeof *t);
    if (!t)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory to read its tensors", checkpoint_path(ck));
    t->ck = ck;
    t->plan = plan;
    qr_status st = plan->profile == QR_PROFILE_W8A8 ? w8a8_open(ck, plan, pool, &t->w8a8, err) : QR_OK;
    if (st != QR_OK) {
        tensors_close(t);
        return st;
    }
    *out = t;
    return QR_OK;
}

void tensors_close(struct tensors *t)
{
    if (!t)
        return;
    w8a8_close(t->w8a8);
    qr_free(t);
}

const char *tensors_path(const struct tensors *t) { return checkpoint_path(t->ck); }

static qr_status format_of(const struct tensors *t, const char *name, enum dtype dtype, enum weight_format *out,
                           qr_error *err)
{
    switch (dtype) {
    case DTYPE_BF16:
        *out = WEIGHT_BF16;
        return QR_OK;
    case DTYPE_F32:
        *out = WEIGHT_F32;
        return QR_OK;
    case DTYPE_F8_E4M3:
        *out = WEIGHT_FP8;
        return QR_OK;
    case DTYPE_I8:
    case DTYPE_U8:
    case DTYPE_F4:
        *out = t->w8a8 ? WEIGHT_INT8 : WEIGHT_FP4;
        return QR_OK;
    default:
        return qr_fail(err, QR_BAD_FILE, "%s: %s has dtype %s, which is no format of a matrix", tensors_path(t), name,
                       dtype_name(dtype));
    }
}

/* Fills all but values and scales, from rows and stored columns. */
static qr_status describe(const struct tensors *t, const char *name, enum dtype dtype, int64_t rows, int64_t cols,
                          struct weight_spec *out, qr_error *err)
{
    memset(out, 0, sizeof *out);
    qr_status st = format_of(t, name, dtype, &out->format, err);
    if (st != QR_OK)
        return st;
    int64_t k = cols * (out->format == WEIGHT_FP4 ? 2 : 1);
    if (rows > INT32_MAX || k > INT32_MAX)
        return qr_fail(err, QR_BAD_FILE, "%s: %s has a dimension beyond 2^31 - 1", tensors_path(t), name);
    out->name = name;
    out->n = (int32_t)rows;
    out->k = (int32_t)k;
    out->tile = out->format == WEIGHT_FP8 ? t->plan->config.fp8_block : 0;
    out->k_splits = 1;
    return QR_OK;
}

/* "x.scale" of "x.weight". */
static qr_status scale_of(const struct tensors *t, const char *name, const void **out, qr_error *err)
{
    const struct tensor_view *scale;
    char full[192];
    int stem = (int)(strlen(name) - strlen(".weight"));
    snprintf(full, sizeof full, "%.*s.scale", stem, name);
    qr_status st = checkpoint_get(t->ck, full, &scale, err);
    if (st == QR_OK)
        *out = scale->data;
    return st;
}

static qr_status as_stored(const struct tensors *t, const char *name, struct weight_spec *out, qr_error *err)
{
    const struct tensor_view *view;
    qr_status st = checkpoint_get(t->ck, name, &view, err);
    if (st != QR_OK)
        return st;
    if (view->rank != 2)
        return qr_fail(err, QR_BAD_FILE, "%s: %s has %d dimensions, wanted 2", tensors_path(t), name, view->rank);
    st = describe(t, view->name, view->dtype, view->shape[0], view->shape[1], out, err);
    if (st == QR_OK && (out->format == WEIGHT_FP8 || out->format == WEIGHT_FP4))
        st = scale_of(t, name, &out->scales, err);
    out->values = view->data;
    return st;
}

qr_status tensors_matrix(struct tensors *t, const char *name, struct weight_spec *out, qr_error *err)
{
    struct w8a8_tensor tensor;
    if (!t->w8a8)
        return as_stored(t, name, out, err);
    qr_status st = w8a8_get(t->w8a8, name, &tensor, err);
    if (st == QR_OK)
        st = describe(t, tensor.name, tensor.dtype, tensor.rows, tensor.cols, out, err);
    if (st != QR_OK)
        return st;
    out->values = tensor.values;
    out->scales = tensor.scales;
    return QR_OK;
}

qr_status tensors_values(struct tensors *t, const char *name, struct tensor_values *out, qr_error *err)
{
    struct w8a8_tensor tensor;
    const struct tensor_view *view;
    qr_status st;
    if (t->w8a8) {
        st = w8a8_get(t->w8a8, name, &tensor, err);
        if (st == QR_OK)
            *out = (struct tensor_values){tensor.dtype, tensor.rows, tensor.cols, tensor.values};
        return st;
    }
    st = checkpoint_get(t->ck, name, &view, err);
    if (st != QR_OK)
        return st;
    int64_t cols = view->rank > 0 ? view->shape[view->rank - 1] : 1;
    *out = (struct tensor_values){view->dtype, cols > 0 ? tensor_elements(view->rank, view->shape) / cols : 0, cols,
                                  view->data};
    return QR_OK;
}
