#include "support/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "number/bf16.h"
#include "support/support.h"
#include "tools/op_file.h"

struct golden {
    struct safetensors *file, *weights;
    struct json_document *weight_names, *params;
    void **owned;
    size_t owned_count;
};

static void *own(struct golden *g, size_t size)
{
    g->owned = realloc(g->owned, (g->owned_count + 1) * sizeof *g->owned);
    void *p = malloc(size ? size : 1);
    assert_non_null(g->owned);
    assert_non_null(p);
    g->owned[g->owned_count++] = p;
    return p;
}

static struct json_document *json_entry(const struct golden *g, const char *key)
{
    const char *text = safetensors_metadata(g->file, key);
    struct json_document *doc = NULL;
    qr_error err = {0};
    if (text && json_parse(text, strlen(text), key, true, &doc, &err) != QR_OK)
        fail_msg("%s: %s", safetensors_path(g->file), err.message);
    return doc;
}

/* "dir/NN-name-profile-SET.safetensors" -> "dir/weights-SET.safetensors" */
static void open_weights(struct golden *g, const char *path)
{
    char weights[4096];
    qr_error err = {0};
    const char *slash = strrchr(path, '/'), *set = strrchr(path, '-');
    assert_true(slash && set && set > slash);
    snprintf(weights, sizeof weights, "%.*s/weights%s", (int)(slash - path), path, set);
    if (safetensors_open(weights, &g->weights, &err) != QR_OK)
        fail_msg("%s", err.message);
}

struct golden *golden_open(const char *relative)
{
    const char *path = relative[0] == '/' ? relative : source_path(relative);
    struct golden *g = calloc(1, sizeof *g);
    qr_error err = {0};
    assert_non_null(g);
    if (safetensors_open(path, &g->file, &err) != QR_OK)
        fail_msg("%s", err.message);
    g->params = json_entry(g, "params");
    g->weight_names = json_entry(g, "weights");
    if (g->weight_names && json_root(g->weight_names)->count)
        open_weights(g, path);
    return g;
}

void golden_close(struct golden *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->owned_count; i++)
        free(g->owned[i]);
    free(g->owned);
    json_close(g->weight_names);
    json_close(g->params);
    safetensors_close(g->weights);
    safetensors_close(g->file);
    free(g);
}

static const struct tensor_view *find(const struct golden *g, const char *name)
{
    const struct tensor_view *view = safetensors_find(g->file, name);
    if (view || !g->weights)
        return view;
    const struct json *there = json_get(json_root(g->weight_names), name);
    return there ? safetensors_find(g->weights, there->text) : NULL;
}

bool golden_has(const struct golden *g, const char *name) { return find(g, name) != NULL; }

const struct tensor_view *golden_view(const struct golden *g, const char *name)
{
    const struct tensor_view *view = find(g, name);
    if (!view)
        fail_msg("%s: no array %s", safetensors_path(g->file), name);
    return view;
}

int64_t golden_count(const struct golden *g, const char *name)
{
    const struct tensor_view *view = golden_view(g, name);
    return tensor_elements(view->rank, view->shape);
}

static int64_t integer_at(const struct tensor_view *v, int64_t i)
{
    if (!dtype_is_integer(v->dtype))
        fail_msg("%s: %s holds no integers", v->name, dtype_name(v->dtype));
    return dtype_integer_at(v->dtype, v->data, i);
}

static float float_at(const struct tensor_view *v, int64_t i)
{
    if (v->dtype == DTYPE_F8_E5M2 || v->dtype == DTYPE_F4)
        fail_msg("%s: %s holds no numbers", v->name, dtype_name(v->dtype));
    return (float)tensor_number(v, i);
}

const float *golden_f32(struct golden *g, const char *name, int64_t *count)
{
    const struct tensor_view *view = golden_view(g, name);
    int64_t n = golden_count(g, name);
    float *out = own(g, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        out[i] = float_at(view, i);
    if (count)
        *count = n;
    return out;
}

const int64_t *golden_i64(struct golden *g, const char *name, int64_t *count)
{
    const struct tensor_view *view = golden_view(g, name);
    int64_t n = golden_count(g, name), *out = own(g, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        out[i] = integer_at(view, i);
    if (count)
        *count = n;
    return out;
}

const int32_t *golden_i32(struct golden *g, const char *name, int64_t *count)
{
    int64_t n;
    const int64_t *wide = golden_i64(g, name, &n);
    int32_t *out = own(g, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        assert_true(wide[i] >= INT32_MIN && wide[i] <= INT32_MAX);
        out[i] = (int32_t)wide[i];
    }
    if (count)
        *count = n;
    return out;
}

const uint16_t *golden_bf16(struct golden *g, const char *name, int64_t *count)
{
    const struct tensor_view *view = golden_view(g, name);
    int64_t n = golden_count(g, name);
    if (count)
        *count = n;
    if (view->dtype == DTYPE_BF16)
        return view->data;
    uint16_t *out = own(g, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        float x = float_at(view, i);
        out[i] = bf16_encode(x);
        if (f32_bits(bf16_decode(out[i])) != f32_bits(x))
            fail_msg("%s: %s: element %lld is %.9g, no bf16 value", safetensors_path(g->file), name, (long long)i, x);
    }
    return out;
}

const uint8_t *golden_bytes(const struct golden *g, const char *name, int64_t *count)
{
    const struct tensor_view *view = golden_view(g, name);
    if (dtype_size(view->dtype) != 1)
        fail_msg("%s: %s is %s, not bytes", safetensors_path(g->file), name, dtype_name(view->dtype));
    if (count)
        *count = golden_count(g, name);
    return view->data;
}

const char *golden_metadata(const struct golden *g, const char *key) { return safetensors_metadata(g->file, key); }

bool golden_has_param(const struct golden *g, const char *name)
{
    return g->params && json_get(json_root(g->params), name);
}

double golden_param(const struct golden *g, const char *name)
{
    double value = 0;
    if (!g->params || !json_double(json_get(json_root(g->params), name), &value))
        fail_msg("%s: params has no number %s", safetensors_path(g->file), name);
    return value;
}

void assert_close(const char *what, const float *found, const float *want, int64_t n, double absolute, double relative,
                  int64_t allowed)
{
    int64_t outside = 0, worst = 0;
    double worst_excess = -1;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)found[i] - want[i]), excess = d - (absolute + relative * fabs((double)want[i]));
        if (found[i] == want[i] || (isnan(found[i]) && isnan(want[i])))
            continue;
        if (!(excess <= 0)) {
            outside++;
            if (!(excess <= worst_excess)) {
                worst = i;
                worst_excess = excess;
            }
        }
    }
    if (outside > allowed)
        fail_msg("%s: %lld of %lld values outside (%lld allowed); worst at %lld: found %.9g, wanted %.9g", what,
                 (long long)outside, (long long)n, (long long)allowed, (long long)worst, found[worst], want[worst]);
}
