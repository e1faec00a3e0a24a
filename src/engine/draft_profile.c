#include "engine/draft_profile.h"

#include <math.h>
#include <string.h>

#include "quire.h"

/* ---- costs ---- */

double draft_cost_ms(const struct draft_cost *c, int32_t size)
{
    if (size <= 0 || c->count == 0)
        return 0;
    for (int32_t i = 0; i < c->count; i++)
        if (c->size[i] >= size)
            return c->ms[i];
    return c->ms[c->count - 1] * size / c->size[c->count - 1];
}

bool draft_cost_add(struct draft_cost *c, int32_t size, double ms)
{
    int32_t at = 0;
    while (at < c->count && c->size[at] < size)
        at++;
    if (c->count == DRAFT_PROFILE_POINTS || (at < c->count && c->size[at] == size))
        return false;
    for (int32_t i = c->count++; i > at; i--) {
        c->size[i] = c->size[i - 1];
        c->ms[i] = c->ms[i - 1];
    }
    c->size[at] = size;
    c->ms[at] = ms;
    return true;
}

void draft_cost_settle(struct draft_cost *c)
{
    for (int32_t i = 1; i < c->count; i++)
        if (c->ms[i] < c->ms[i - 1])
            c->ms[i] = c->ms[i - 1];
}

/* ---- reading ---- */

static qr_status refuse(const char *name, const char *member, qr_error *err)
{
    return qr_fail(err, QR_REFUSED, "E10 speculation profile %s: %s is missing or no value of its kind", name, member);
}

static qr_status read_word(const struct json *root, const char *member, const char *name, char *out, size_t size, qr_error *err)
{
    const struct json *value = json_get(root, member);
    if (!value || value->kind != JSON_STRING || value->length >= size || strlen(value->text) != value->length)
        return refuse(name, member, err);
    memcpy(out, value->text, value->length + 1);
    return QR_OK;
}

static qr_status same_word(const struct json *root, const char *member, const char *name, const char *wanted, char *out,
                           size_t size, qr_error *err)
{
    TRY(read_word(root, member, name, out, size, err));
    if (*wanted && strcmp(out, wanted) != 0)
        return qr_fail(err, QR_REFUSED, "E10 speculation profile %s: %s is \"%s\", here it is \"%s\"", name, member, out, wanted);
    return QR_OK;
}

static qr_status read_number(const struct json *root, const char *member, const char *name, int64_t most, int32_t *out,
                             qr_error *err)
{
    int64_t value;
    if (!json_int64(json_get(root, member), &value) || value < 0 || value > most)
        return refuse(name, member, err);
    *out = (int32_t)value;
    return QR_OK;
}

static qr_status same_number(const struct json *root, const char *member, const char *name, int32_t wanted, int32_t *out,
                             qr_error *err)
{
    TRY(read_number(root, member, name, INT32_MAX, out, err));
    if (*out != wanted)
        return qr_fail(err, QR_REFUSED, "E10 speculation profile %s: %s is %d, here it is %d", name, member, *out, wanted);
    return QR_OK;
}

static qr_status covers(const struct json *root, const char *member, const char *name, int32_t wanted, int32_t *out, qr_error *err)
{
    TRY(read_number(root, member, name, INT32_MAX, out, err));
    if (*out < wanted)
        return qr_fail(err, QR_REFUSED, "E10 speculation profile %s: %s is %d, an engine with %d is not covered", name, member,
                       *out, wanted);
    return QR_OK;
}

static qr_status read_taus(const struct json *root, const char *name, int32_t width, double *out, qr_error *err)
{
    const struct json *taus = json_get(root, "taus");
    if (!taus || taus->kind != JSON_ARRAY || taus->count != (size_t)width || width > QR_MAX_DRAFTS)
        return refuse(name, "taus", err);
    for (int32_t k = 0; k < width; k++) {
        const struct json *tau = json_at(taus, (size_t)k);
        if (!json_double(tau, &out[k]) || !isfinite(out[k]) || !(out[k] > 0))
            return qr_fail(err, QR_REFUSED, "E10 speculation profile %s: tau %d is %.*s, wanted a finite number above 0", name,
                           k + 1, tau->kind == JSON_NUMBER ? (int)tau->length : 9,
                           tau->kind == JSON_NUMBER ? tau->text : "no number");
    }
    return QR_OK;
}

static qr_status read_point(const struct json *point, struct draft_cost *out, const char *member, const char *name, qr_error *err)
{
    int64_t size;
    double ms;
    const int32_t n = out->count;
    if (!point || point->kind != JSON_ARRAY || point->count != 2 || !json_int64(json_at(point, 0), &size) ||
        !json_double(json_at(point, 1), &ms) || size < 1 || size > INT32_MAX || !(ms > 0) || n == DRAFT_PROFILE_POINTS)
        return refuse(name, member, err);
    if (n > 0 && size <= out->size[n - 1])
        return qr_fail(err, QR_REFUSED, "E10 speculation profile %s: %s has %lld behind %d, wanted rising sizes", name, member,
                       (long long)size, out->size[n - 1]);
    if (n > 0 && ms < out->ms[n - 1])
        return qr_fail(err, QR_REFUSED, "E10 speculation profile %s: %s says %g ms of %lld and %g ms of %d: a rate that rises",
                       name, member, ms, (long long)size, out->ms[n - 1], out->size[n - 1]);
    out->size[n] = (int32_t)size;
    out->ms[n] = ms;
    out->count++;
    return QR_OK;
}

static qr_status read_cost(const struct json *root, const char *member, const char *name, int32_t largest,
                           struct draft_cost *out, qr_error *err)
{
    const struct json *points = json_get(root, member);
    if (!points || points->kind != JSON_ARRAY || points->count == 0)
        return refuse(name, member, err);
    out->count = 0;
    for (const struct json *point = points->child; point; point = point->next)
        TRY(read_point(point, out, member, name, err));
    if (out->size[out->count - 1] < largest)
        return qr_fail(err, QR_REFUSED, "E10 speculation profile %s: %s go up to %d, %d is not covered", name, member,
                       out->size[out->count - 1], largest);
    return QR_OK;
}

static qr_status read_place(const struct json *root, const char *name, const struct draft_place *here, struct draft_place *out,
                            qr_error *err)
{
    int32_t number;
    const struct {
        const char *member, *wanted;
        char *out;
        size_t size;
    } words[] = {{"config_sha256", here->config, out->config, sizeof out->config},
                 {"index_sha256", here->index, out->index, sizeof out->index},
                 {"model_type", here->model_type, out->model_type, sizeof out->model_type},
                 {"device", here->device, out->device, sizeof out->device},
                 {"profile", here->profile, out->profile, sizeof out->profile},
                 {"kv_cache_dtype", here->kv_cache_dtype, out->kv_cache_dtype, sizeof out->kv_cache_dtype},
                 {"index_cache_dtype", here->index_cache_dtype, out->index_cache_dtype, sizeof out->index_cache_dtype}};
    TRY(same_number(root, "format", name, DRAFT_PROFILE_FORMAT, &number, err));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        TRY(same_word(root, words[i].member, name, words[i].wanted, words[i].out, words[i].size, err));
    TRY(same_number(root, "threads", name, here->threads, &out->threads, err));
    TRY(same_number(root, "tp_size", name, 1, &number, err));
    TRY(same_number(root, "width", name, here->width, &out->width, err));
    TRY(covers(root, "max_requests", name, here->requests, &out->requests, err));
    return covers(root, "max_rows", name, here->rows, &out->rows, err);
}

qr_status draft_profile_read(const char *text, size_t length, const char *name, const struct draft_place *here,
                             struct draft_profile *out, qr_error *err)
{
    struct json_document *doc;
    qr_error bad = {0};
    memset(out, 0, sizeof *out);
    const qr_status parsed = json_parse(text, length, name, true, &doc, &bad);
    if (parsed != QR_OK)
        return parsed == QR_NO_MEMORY ? qr_fail(err, parsed, "%s", bad.message)
                                      : qr_fail(err, QR_REFUSED, "E10 speculation profile %s", bad.message);
    const struct json *root = json_root(doc);
    qr_status st = read_place(root, name, here, &out->place, err);
    if (st == QR_OK)
        st = read_taus(root, name, here->width, out->taus, err);
    if (st == QR_OK)
        st = read_cost(root, "steps", name, here->rows, &out->steps, err);
    if (st == QR_OK)
        st = read_cost(root, "drafts", name, here->requests, &out->drafts, err);
    if (st == QR_OK)
        st = read_word(root, "workload_sha256", name, out->workload, sizeof out->workload, err);
    if (st == QR_OK)
        st = read_word(root, "date", name, out->date, sizeof out->date, err);
    json_close(doc);
    return st;
}

/* ---- writing ---- */

static void write_cost(struct json_writer *w, const char *member, const struct draft_cost *c)
{
    json_w_key(w, member);
    json_w_array(w);
    for (int32_t i = 0; i < c->count; i++) {
        json_w_array(w);
        json_w_int(w, c->size[i]);
        json_w_double(w, c->ms[i]);
        json_w_end_array(w);
    }
    json_w_end_array(w);
}

void draft_profile_write(struct json_writer *w, const struct draft_profile *p)
{
    const struct draft_place *at = &p->place;
    json_w_object(w);
    json_w_member_int(w, "format", DRAFT_PROFILE_FORMAT);
    json_w_member_string(w, "config_sha256", at->config);
    json_w_member_string(w, "index_sha256", at->index);
    json_w_member_string(w, "model_type", at->model_type);
    json_w_member_string(w, "device", at->device);
    json_w_member_int(w, "threads", at->threads);
    json_w_member_string(w, "profile", at->profile);
    json_w_member_string(w, "kv_cache_dtype", at->kv_cache_dtype);
    json_w_member_string(w, "index_cache_dtype", at->index_cache_dtype);
    json_w_member_int(w, "tp_size", 1);
    json_w_member_int(w, "width", at->width);
    json_w_key(w, "taus");
    json_w_array(w);
    for (int32_t k = 0; k < at->width; k++)
        json_w_double(w, p->taus[k]);
    json_w_end_array(w);
    json_w_member_int(w, "max_requests", at->requests);
    json_w_member_int(w, "max_rows", at->rows);
    write_cost(w, "steps", &p->steps);
    write_cost(w, "drafts", &p->drafts);
    json_w_member_string(w, "workload_sha256", p->workload);
    json_w_member_string(w, "date", p->date);
    json_w_end_object(w);
}
