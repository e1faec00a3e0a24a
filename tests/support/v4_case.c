#include "support/v4_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/commands.h"
#include "support/models.h"
#include "support/scratch.h"
#include "support/support.h"

const struct v4_profile v4_profiles[2] = {{"reference", "ref"}, {"w8a8", "w8a8"}};

int32_t *v4_ints(const struct json *list, int32_t *count)
{
    int32_t *out = malloc(sizeof *out * (list ? list->count + 1 : 1));
    assert_non_null(out);
    *count = 0;
    for (const struct json *e = list ? list->child : NULL; e; e = e->next) {
        int64_t value;
        assert_true(json_int64(e, &value));
        out[(*count)++] = (int32_t)value;
    }
    return out;
}

void v4_folder_open(struct v4_folder *f, const char *name)
{
    char path[256], *text;
    size_t size;

    memset(f, 0, sizeof *f);
    f->name = name;
    snprintf(path, sizeof path, "tests/golden/v4/%s/model/config.json", name);
    f->config = config_of(path);
    snprintf(f->model, sizeof f->model, "%s/%s/model", source_path("tests/golden/v4"), name);
    snprintf(path, sizeof path, "%s/%s/cases.json", source_path("tests/golden/v4"), name);
    assert_int_equal(file_read(path, 1 << 24, &text, &size, NULL), QR_OK);
    assert_int_equal(json_parse(text, size, path, false, &f->document, NULL), QR_OK);
    qr_free(text);
    for (const struct json *e = json_get(json_root(f->document), "cases")->child; e; e = e->next) {
        struct v4_case *c = &f->cases[f->count++];
        const struct json *case_name = json_get(e, "name");
        c->json = e;
        snprintf(c->name, sizeof c->name, "%.*s", (int)case_name->length, case_name->text);
        c->ids = v4_ints(json_get(e, "ids"), &c->count);
        c->rows = v4_ints(json_get(e, "rows"), &c->row_count);
    }
    assert_true(f->count > 0);
}

void v4_folder_close(struct v4_folder *f)
{
    for (int32_t i = 0; i < f->count; i++) {
        free(f->cases[i].ids);
        free(f->cases[i].rows);
    }
    json_close(f->document);
}

struct golden *v4_golden(const struct v4_folder *f, const struct v4_profile *p, const char *stem)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/v4/%s/%s-%s.safetensors", f->name, p->golden, stem);
    return golden_open(path);
}

const struct v4_case *v4_blocks_case(const struct v4_folder *f)
{
    for (int32_t i = 0; i < f->count; i++)
        if (strcmp(f->cases[i].name, "t130") == 0)
            return &f->cases[i];
    assert_int_equal(f->count, 1);
    return &f->cases[0];
}

/* ---- what was measured ---- */

static const struct json *measured(const struct v4_case *c, const struct v4_profile *p, int order, const char *name)
{
    static const char *const orders[2] = {"f32", "f32r"};
    const struct json *m = json_get(json_get(json_get(c->json, "measured"), p->golden), orders[order]);
    assert_non_null(m);
    return json_get(m, name);
}

double v4_largest(const struct v4_case *c, const struct v4_profile *p, const char *name, double missing)
{
    double best = missing, value;
    bool some = false;
    for (int order = 0; order < 2; order++)
        if (json_double(measured(c, p, order, name), &value)) {
            best = some && best > value ? best : value;
            some = true;
        }
    return best;
}

double v4_smallest(const struct v4_case *c, const struct v4_profile *p, const char *name, double missing)
{
    double best = missing, value;
    bool some = false;
    for (int order = 0; order < 2; order++)
        if (json_double(measured(c, p, order, name), &value)) {
            best = some && best < value ? best : value;
            some = true;
        }
    return best;
}

double v4_smallest_of(const struct v4_case *c, const struct v4_profile *p, const char *name, double missing)
{
    double best = missing, value;
    for (int order = 0; order < 2; order++) {
        const struct json *list = measured(c, p, order, name);
        for (const struct json *e = list ? list->child : NULL; e; e = e->next)
            if (json_double(e, &value) && value < best)
                best = value;
    }
    return best;
}

/* ---- runs ---- */

struct golden *v4_trace(const char *scratch, const char *model, const int32_t *ids, int32_t count, const char *device,
                        const struct v4_profile *p, const char *const *extra)
{
    char *line = malloc((size_t)count * 8 + 64), tokens[256], out[256];
    assert_non_null(line);
    size_t used = (size_t)sprintf(line, "{\"tokens\":[");
    for (int32_t i = 0; i < count; i++)
        used += (size_t)sprintf(line + used, "%s%d", i ? "," : "", (int)ids[i]);
    used += (size_t)sprintf(line + used, "]}");
    snprintf(tokens, sizeof tokens, "%s/tokens.json", scratch);
    snprintf(out, sizeof out, "%s/out.safetensors", scratch);
    scratch_write(tokens, line, used);
    free(line);

    char *argv[32] = {"trace",     "--quiet",
                      "--want",    "all",
                      "--model",   (char *)(uintptr_t)model,
                      "--tokens",  tokens,
                      "--out",     out,
                      "--device",  (char *)(uintptr_t)device,
                      "--profile", (char *)(uintptr_t)p->option};
    int argc = 14;
    while (extra && *extra)
        argv[argc++] = (char *)(uintptr_t)*extra++;
    assert_int_equal(tool_trace(argc, argv), 0);
    return golden_open(out);
}

/* ---- numbers ---- */

double relative_l2(const float *a, const float *b, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}

double cosine(const float *a, const float *b, int64_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return ab / sqrt(aa * bb);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double quantile(double *x, int32_t n, double share)
{
    assert_true(n > 0);
    qsort(x, (size_t)n, sizeof *x, by_size);
    return x[(int32_t)(share * (n - 1))];
}

static bool holds(const int32_t *a, int32_t n, int32_t value)
{
    for (int32_t i = 0; i < n; i++)
        if (a[i] == value)
            return true;
    return false;
}

bool same_set(const int32_t *a, const int32_t *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (!holds(b, n, a[i]) || !holds(a, n, b[i]))
            return false;
    return true;
}

int32_t best_of(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}
