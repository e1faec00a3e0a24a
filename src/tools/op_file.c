#include "tools/op_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "number/bf16.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/f16.h"

struct op_file {
    struct safetensors *file, *weights;
    struct json_document *params, *places; /* of the metadata entries `params` and `weights`; NULL: none */
};

/* ---- opening ---- */

static qr_status read_entry(const struct op_file *f, const char *key, struct json_document **out, qr_error *err)
{
    const char *text = safetensors_metadata(f->file, key);
    if (!text)
        return QR_OK;
    qr_status st = json_parse(text, strlen(text), key, true, out, err);
    return st == QR_OK ? st : qr_fail_in(err, st, "%s: metadata", safetensors_path(f->file));
}

/* "dir/07-name-w8a8-a.safetensors" -> "dir/weights-a.safetensors" */
static qr_status open_weights(struct op_file *f, const char *path, qr_error *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *set = strrchr(name, '-');
    char beside[4096];
    if (!set)
        return qr_fail(err, QR_BAD_FILE,
                       "%s: the metadata places inputs in a weights file, but the name ends in no -SET", path);
    if (snprintf(beside, sizeof beside, "%.*sweights%s", (int)(name - path), path, set) >= (int)sizeof beside)
        return qr_fail(err, QR_BAD_FILE, "%s: the name is too long", path);
    return safetensors_open(beside, &f->weights, err);
}

qr_status op_file_open(const char *path, struct op_file **out, qr_error *err)
{
    struct op_file *f = qr_calloc(1, sizeof *f);
    if (!f)
        return qr_fail(err, QR_NO_MEMORY, "%s: no memory for its description", path);
    qr_status st = safetensors_open(path, &f->file, err);
    if (st == QR_OK)
        st = read_entry(f, "params", &f->params, err);
    if (st == QR_OK)
        st = read_entry(f, "weights", &f->places, err);
    if (st == QR_OK && f->places && json_root(f->places)->count)
        st = open_weights(f, path, err);
    if (st != QR_OK) {
        op_file_close(f);
        return st;
    }
    *out = f;
    return QR_OK;
}

void op_file_close(struct op_file *f)
{
    if (!f)
        return;
    json_close(f->places);
    json_close(f->params);
    safetensors_close(f->weights);
    safetensors_close(f->file);
    qr_free(f);
}

const char *op_file_path(const struct op_file *f) { return safetensors_path(f->file); }

const char *op_file_metadata(const struct op_file *f, const char *key) { return safetensors_metadata(f->file, key); }

int64_t op_file_count(const struct op_file *f) { return safetensors_count(f->file); }

const struct tensor_view *op_file_at(const struct op_file *f, int64_t index) { return safetensors_at(f->file, index); }

const struct tensor_view *op_file_find(const struct op_file *f, const char *name)
{
    const struct tensor_view *view = safetensors_find(f->file, name);
    if (view || !f->weights)
        return view;
    const struct json *place = json_get(json_root(f->places), name);
    return place && place->kind == JSON_STRING ? safetensors_find(f->weights, place->text) : NULL;
}

bool op_file_param(const struct op_file *f, const char *name, double *out)
{
    const struct json *at = f->params ? json_root(f->params) : NULL;
    const char *dot = strchr(name, '.');
    char first[64];
    if (dot) {
        snprintf(first, sizeof first, "%.*s", (int)(dot - name), name);
        at = json_get(at, first);
        name = dot + 1;
    }
    return json_double(json_get(at, name), out);
}

/* ---- values ---- */

static bool is_wide_float(enum dtype d)
{
    return d == DTYPE_F32 || d == DTYPE_F64 || d == DTYPE_BF16 || d == DTYPE_F16;
}

double tensor_number(const struct tensor_view *v, int64_t i)
{
    switch (v->dtype) {
    case DTYPE_F32:
        return ((const float *)v->data)[i];
    case DTYPE_F64:
        return ((const double *)v->data)[i];
    case DTYPE_BF16:
        return bf16_decode(((const uint16_t *)v->data)[i]);
    case DTYPE_F16:
        return f16_decode(((const uint16_t *)v->data)[i]);
    case DTYPE_F8_E4M3:
        return e4m3_decode(((const uint8_t *)v->data)[i]);
    case DTYPE_F8_E8M0:
        return e8m0_decode(((const uint8_t *)v->data)[i]);
    case DTYPE_F8_E5M2:
    case DTYPE_F4:
        return ((const uint8_t *)v->data)[i];
    default:
        return (double)dtype_integer_at(v->dtype, v->data, i);
    }
}

static qr_status wrong_dtype(const struct tensor_view *v, const char *wanted, qr_error *err)
{
    return qr_fail(err, QR_BAD_REQUEST, "bad shape: %s is %s, wanted %s", v->name, dtype_name(v->dtype), wanted);
}

static qr_status room(const struct tensor_view *v, struct arena *arena, size_t size, void *out, int64_t *count,
                      qr_error *err)
{
    *count = tensor_elements(v->rank, v->shape);
    void *p = arena_alloc(arena, (size_t)*count * size + 1);
    memcpy(out, &p, sizeof p);
    return p ? QR_OK : qr_fail(err, QR_NO_MEMORY, "%s: no memory for %lld values", v->name, (long long)*count);
}

qr_status op_file_i32(const struct tensor_view *v, struct arena *arena, const int32_t **out, qr_error *err)
{
    int64_t count;
    int32_t *values;
    if (!dtype_is_integer(v->dtype))
        return wrong_dtype(v, "integers", err);
    if (v->dtype == DTYPE_I32) {
        *out = v->data;
        return QR_OK;
    }
    qr_status st = room(v, arena, sizeof *values, &values, &count, err);
    if (st != QR_OK)
        return st;
    for (int64_t i = 0; i < count; i++) {
        double x = (double)dtype_integer_at(v->dtype, v->data, i);
        if (x < INT32_MIN || x > INT32_MAX)
            return qr_fail(err, QR_BAD_REQUEST, "bad shape: %s element %lld is %.0f, wanted 32 bits", v->name,
                           (long long)i, x);
        values[i] = (int32_t)x;
    }
    *out = values;
    return QR_OK;
}

qr_status op_file_f32(const struct tensor_view *v, struct arena *arena, const float **out, qr_error *err)
{
    int64_t count;
    float *values;
    if (!is_wide_float(v->dtype))
        return wrong_dtype(v, "F32", err);
    if (v->dtype == DTYPE_F32) {
        *out = v->data;
        return QR_OK;
    }
    qr_status st = room(v, arena, sizeof *values, &values, &count, err);
    if (st != QR_OK)
        return st;
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)tensor_number(v, i);
    *out = values;
    return QR_OK;
}

qr_status op_file_bf16(const struct tensor_view *v, struct arena *arena, const uint16_t **out, qr_error *err)
{
    int64_t count;
    uint16_t *values;
    if (!is_wide_float(v->dtype))
        return wrong_dtype(v, "BF16", err);
    if (v->dtype == DTYPE_BF16) {
        *out = v->data;
        return QR_OK;
    }
    qr_status st = room(v, arena, sizeof *values, &values, &count, err);
    if (st != QR_OK)
        return st;
    for (int64_t i = 0; i < count; i++) {
        double x = tensor_number(v, i);
        values[i] = bf16_encode((float)x);
        if ((double)bf16_decode(values[i]) != x && !isnan(x))
            return qr_fail(err, QR_BAD_REQUEST, "bad shape: %s element %lld is %.9g, no bf16 value", v->name,
                           (long long)i, x);
    }
    *out = values;
    return QR_OK;
}

qr_status op_file_bytes(const struct tensor_view *v, const uint8_t **out, qr_error *err)
{
    if (dtype_size(v->dtype) != 1)
        return wrong_dtype(v, "one byte an element", err);
    *out = v->data;
    return QR_OK;
}
