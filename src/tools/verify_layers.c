#include "tools/verify_layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "number/bf16.h"

/* golden/v41: of all values; golden/v4: of three quarters of the positions, the median (reference), the tenth (w8a8). */
#define LEAST_EQUAL 0.99
#define MOST_UPPER 1e-2
#define MOST_MEDIAN 1e-3
#define MOST_TENTH 2e-4

struct layers {
    const struct model_plan *plan;
    struct backend *backend;
    int32_t rows, position, count; /* of the request; of the step */
    int64_t width, value, row_bytes, pre_bytes; /* streams of a row: values, bytes of one, of all; of pre */
    uint8_t *streams, *pre, *found; /* [layers][rows] and one layer's rows */
    double *ratios;                 /* [rows] */
    struct layer_report report[QR_MAX_LAYERS];
};

qr_status layers_open(const struct model_plan *plan, int32_t rows, struct layers **out, qr_error *err)
{
    struct layers *l = qr_calloc(1, sizeof *l);
    if (!l)
        return qr_fail(err, QR_NO_MEMORY, "no memory to compare layers");
    l->plan = plan;
    l->rows = rows;
    l->width = (int64_t)plan->config.hc_mult * plan->config.hidden_size;
    l->value = plan->profile == QR_PROFILE_W8A8 ? 4 : 2;
    l->row_bytes = l->width * l->value;
    l->pre_bytes = plan->config.hc_mult * (int64_t)sizeof(float);
    l->streams = qr_calloc((size_t)plan->layers * (size_t)rows, (size_t)l->row_bytes);
    l->pre = qr_calloc((size_t)plan->layers * (size_t)rows, (size_t)l->pre_bytes);
    l->found = qr_calloc((size_t)rows, (size_t)l->row_bytes);
    l->ratios = qr_calloc((size_t)rows, sizeof *l->ratios);
    if (!l->streams || !l->pre || !l->found || !l->ratios) {
        layers_close(l);
        return qr_fail(err, QR_NO_MEMORY, "no memory to compare %d layers at %d positions", plan->layers, rows);
    }
    *out = l;
    return QR_OK;
}

void layers_close(struct layers *l)
{
    if (!l)
        return;
    qr_free(l->streams);
    qr_free(l->pre);
    qr_free(l->found);
    qr_free(l->ratios);
    qr_free(l);
}

/* V4.1 hands a pre to the next layer; V4 makes its own. */
static bool hands_pre(const struct layers *l)
{
    static const bool hands[] = {[QR_FAMILY_V41] = true, [QR_FAMILY_V4] = false};
    return hands[l->plan->config.family];
}

static uint8_t *kept_streams(const struct layers *l, int32_t layer, int32_t row)
{
    return l->streams + ((int64_t)layer * l->rows + row) * l->row_bytes;
}

static uint8_t *kept_pre(const struct layers *l, int32_t layer, int32_t row)
{
    return l->pre + ((int64_t)layer * l->rows + row) * l->pre_bytes;
}

/* ---- the device ---- */

static qr_status keep(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err)
{
    struct layers *l = user;
    struct backend *b = l->backend;
    if (point != POINT_BLOCK_OUTPUT || layer >= l->plan->layers)
        return QR_OK;
    TRY(b->download(b, kept_streams(l, layer, l->position), ws->streams.data, l->count * l->row_bytes, err));
    if (hands_pre(l))
        TRY(b->download(b, kept_pre(l, layer, l->position), ws->pre, l->count * l->pre_bytes, err));
    return b->fence(b, err);
}

struct model_observer layers_keep(struct layers *l, struct backend *device)
{
    l->backend = device;
    return (struct model_observer){.user = l, .at = keep};
}

void layers_step(struct layers *l, int32_t position, int32_t count)
{
    l->position = position;
    l->count = count;
}

/* ---- the reference ---- */

static double number(const struct layers *l, const uint8_t *row, int64_t i)
{
    return l->value == 4 ? (double)((const float *)(const void *)row)[i] : (double)bf16_decode(((const uint16_t *)(const void *)row)[i]);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The device's streams against the reference's of one layer. */
static void compare_layer(struct layers *l, int32_t layer)
{
    struct layer_report *r = &l->report[layer];
    int64_t equal = 0;
    double sum = 0;
    *r = (struct layer_report){0};
    for (int32_t row = 0; row < l->rows; row++) {
        const uint8_t *found = kept_streams(l, layer, row), *want = l->found + row * l->row_bytes;
        double off = 0, size = 0;
        for (int64_t i = 0; i < l->width; i++) {
            double y = number(l, want, i), d = fabs(number(l, found, i) - y);
            equal += d == 0;
            sum += d;
            r->largest = d > r->largest || isnan(d) ? d : r->largest;
            off += d * d;
            size += y * y;
        }
        l->ratios[row] = off == 0 ? 0 : isfinite(off) && size > 0 ? sqrt(off / size) : INFINITY;
    }
    qsort(l->ratios, (size_t)l->rows, sizeof *l->ratios, by_value);
    r->equal = (double)equal / (double)(l->rows * l->width);
    r->mean = sum / (double)(l->rows * l->width);
    r->tenth = l->ratios[l->rows / 10];
    r->median = l->ratios[l->rows / 2];
    r->upper = l->ratios[l->rows * 3 / 4];
}

static qr_status force(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err)
{
    struct layers *l = user;
    struct backend *b = l->backend;
    if (point == POINT_BLOCK_INPUT && layer > 0 && layer < l->plan->layers) {
        TRY(b->upload(b, ws->streams.data, kept_streams(l, layer - 1, 0), l->rows * l->row_bytes, err));
        if (hands_pre(l))
            TRY(b->upload(b, ws->pre, kept_pre(l, layer - 1, 0), l->rows * l->pre_bytes, err));
        return b->fence(b, err);
    }
    if (point != POINT_BLOCK_OUTPUT || layer >= l->plan->layers)
        return QR_OK;
    TRY(b->download(b, l->found, ws->streams.data, l->rows * l->row_bytes, err));
    TRY(b->fence(b, err));
    compare_layer(l, layer);
    return QR_OK;
}

struct model_observer layers_compare(struct layers *l, struct backend *reference)
{
    l->backend = reference;
    return (struct model_observer){.user = l, .at = force};
}

const struct layer_report *layers_reports(const struct layers *l) { return l->report; }

/* ---- judging ---- */

static void judge_v41(struct layers *l, struct findings *findings)
{
    double equal = 0;
    for (int32_t i = 0; i < l->plan->layers; i++)
        equal += l->report[i].equal / l->plan->layers;
    if (equal >= LEAST_EQUAL)
        return;
    findings_add(findings, "layers with equal input: %.2f %% of the values that leave them are equal, wanted at least 99 %%", 100 * equal);
    for (int32_t i = 0; i < l->plan->layers; i++)
        l->report[i].failed = !(l->report[i].equal >= LEAST_EQUAL);
}

static void judge_v4(struct layers *l, struct findings *findings)
{
    bool w8a8 = l->plan->profile == QR_PROFILE_W8A8;
    for (int32_t i = 0; i < l->plan->layers; i++) {
        struct layer_report *r = &l->report[i];
        double strict = w8a8 ? r->tenth : r->median, most = w8a8 ? MOST_TENTH : MOST_MEDIAN;
        if (strict <= most && r->upper <= MOST_UPPER)
            continue;
        r->failed = true;
        findings_add(findings, "layer %d with equal input: its output is off by %.3g of its size at %s of the positions and %.3g at three "
                     "quarters, wanted at most %.3g and %.3g", i, strict, w8a8 ? "a tenth" : "half", r->upper, most, MOST_UPPER);
    }
}

void layers_judge(struct layers *l, struct findings *findings)
{
    static void (*const judges[])(struct layers *, struct findings *) = {
        [QR_FAMILY_V41] = judge_v41, [QR_FAMILY_V4] = judge_v4};
    judges[l->plan->config.family](l, findings);
}
