#include "tools/op_check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* An output as numbers, beside those of the file. */
struct pair {
    const struct op_slot *slot;
    int64_t points, rows, cols;     /* rows of the last dimension */
    double *found, *want;
};

static qr_status numbers_of(struct op_run *r, const struct tensor_view *view, double **out, qr_error *err)
{
    int64_t n = tensor_elements(view->rank, view->shape);
    TRY(op_host_new(r, 8 * n, out, err));
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = tensor_number(view, i);
    return QR_OK;
}

static qr_status found_numbers(struct op_run *r, const struct op_slot *slot, double **out, qr_error *err)
{
    const struct tensor_view view = {.name = slot->array->name, .dtype = op_slot_dtype(r, slot), .rank = slot->rank,
                                     .shape = slot->shape, .data = slot->host};
    return numbers_of(r, &view, out, err);
}

/* `want` NULL: the caller has those. */
static qr_status make_pair(struct op_run *r, const struct op_slot *slot, const struct tensor_view *want, struct pair *out,
                           qr_error *err)
{
    *out = (struct pair){.slot = slot, .points = tensor_elements(slot->rank, slot->shape)};
    out->cols = slot->rank ? slot->shape[slot->rank - 1] : 1;
    out->rows = out->cols ? out->points / out->cols : 0;
    TRY(found_numbers(r, slot, &out->found, err));
    return want ? numbers_of(r, want, &out->want, err) : QR_OK;
}

/* ---- which tolerance ---- */

static qr_status tolerance_of(struct op_run *r, const struct op_slot *slot, struct tolerance *out, qr_error *err)
{
    const char *text = op_file_metadata(r->file, "tolerance");
    const struct op_array *a = slot->array;
    char names[128];
    bool found = false;
    snprintf(names, sizeof names, "%s%s%s", a->name, a->also ? "|" : "", a->also ? a->also : "");
    *out = (struct tolerance){.kind = COMPARE_EXACT};
    if (text && *text)
        TRY(tolerance_find(text, names, out, &found, err));
    if (!found && a->tolerance)
        TRY(tolerance_find(a->tolerance, names, out, &found, err));
    return QR_OK;
}

/* ---- points ---- */

/* Whether point i is compared. Points behind a row's count or the live rows are not: `behind` says which of the two. */
enum place { COMPARED, BEHIND_COUNT, BEHIND_LIVE };
static enum place place_of(const struct pair *p, int64_t i)
{
    const struct op_slot *s = p->slot;
    if (s->live >= 0 && i >= s->live * (s->shape[0] ? p->points / s->shape[0] : 0))
        return BEHIND_LIVE;
    if (s->counts && i % p->cols >= s->counts[i / p->cols])
        return BEHIND_COUNT;
    return COMPARED;
}

/* Rows that are not live are exactly zero, columns behind a count are exactly those of the file. */
static void check_behind(const struct pair *p, struct op_verdict *v)
{
    for (int64_t i = 0; i < p->points; i++) {
        enum place place = place_of(p, i);
        double want = place == BEHIND_LIVE ? 0 : p->want[i];
        if (place == COMPARED || (place == BEHIND_COUNT && p->slot->open) || p->found[i] == want)
            continue;
        snprintf(v->why, sizeof v->why, "point %lld, behind the %s, is %g, wanted %g", (long long)i,
                 place == BEHIND_LIVE ? "active rows" : "rows that are visible", p->found[i], want);
        v->result.passed = false;
        return;
    }
}

static qr_status check_points(struct op_run *r, const struct pair *p, struct op_verdict *v, qr_error *err)
{
    double *found, *want;
    int64_t n = 0, *number;
    bool *slack;
    TRY(op_host_new(r, 8 * p->points, &found, err));
    TRY(op_host_new(r, 8 * p->points, &want, err));
    TRY(op_host_new(r, 8 * p->points, &number, err));
    TRY(op_host_new(r, p->points, &slack, err));
    for (int64_t i = 0; i < p->points; i++) {
        if (place_of(p, i) != COMPARED)
            continue;
        found[n] = p->found[i];
        want[n] = p->want[i];
        slack[n] = p->slot->slack && p->slot->slack[i];
        number[n++] = i;
    }
    compare_points(&v->tolerance, found, want, n, slack, &v->result);
    v->result.worst = n ? number[v->result.worst] : 0;
    return QR_OK;
}

/* ---- ids ---- */

/* The values that ids stand for, found and wanted. */
struct id_values {
    const double *found, *want;
    int64_t cols;
    bool by_id;
};

static double value_in(const struct id_values *v, const double *values, int64_t row, int64_t k, int64_t id)
{
    int64_t column = v->by_id ? id : k;
    return column >= 0 && column < v->cols ? values[row * v->cols + column] : -INFINITY;
}

static double value_found(void *user, int64_t row, int64_t k, int64_t id)
{
    const struct id_values *v = user;
    return value_in(v, v->found, row, k, id);
}

static double value_wanted(void *user, int64_t row, int64_t k, int64_t id)
{
    const struct id_values *v = user;
    return value_in(v, v->want, row, k, id);
}

static qr_status check_ranks(struct op_run *r, const struct pair *p, struct op_verdict *v, qr_error *err)
{
    const struct op_slot *values = p->slot->values ? op_run_output(r, p->slot->values) : NULL;
    char full[128];
    struct tolerance value_tolerance;
    struct id_values id = {.by_id = p->slot->values_by_id};
    int64_t *counts;
    struct ranks ranks = {.found = p->found, .want = p->want, .rows = p->rows, .stride = p->cols, .user = &id, .value = value_found};

    TRY(op_host_new(r, 8 * p->rows, &counts, err));
    for (int64_t i = 0; i < p->points; i++)
        counts[i / p->cols] += place_of(p, i) == COMPARED;
    ranks.counts = counts;
    if (!values) {
        v->result = (struct comparison){.why = "ids without values"};
        return QR_OK;
    }
    id.cols = values->shape[values->rank - 1];
    TRY(found_numbers(r, values, (double **)(uintptr_t)&id.found, err));
    snprintf(full, sizeof full, "out.%s", p->slot->values);
    const struct tensor_view *want = op_file_find(r->file, full);
    if (want && tensor_elements(want->rank, want->shape) == tensor_elements(values->rank, values->shape)) {
        TRY(numbers_of(r, want, (double **)(uintptr_t)&id.want, err));
        TRY(tolerance_of(r, values, &value_tolerance, err));
        ranks.wanted_value = value_wanted;
        ranks.values = &value_tolerance;
    }
    compare_ranks(&v->tolerance, &ranks, &v->result);
    return QR_OK;
}

/* The first id of a row is the lowest of the largest value; the others are 0. */
static qr_status check_arg_max(struct op_run *r, const struct pair *p, struct op_verdict *v, qr_error *err)
{
    const struct op_slot *values = op_run_output(r, p->slot->values);
    int64_t cols = values->shape[values->rank - 1];
    double *value;
    TRY(found_numbers(r, values, &value, err));
    v->result = (struct comparison){.points = p->points};
    for (int64_t i = 0; i < p->points; i++) {
        int64_t row = i / p->cols, best = 0;
        for (int64_t c = 1; i % p->cols == 0 && c < cols; c++)
            if (value[row * cols + c] > value[row * cols + best])
                best = c;
        double want = i % p->cols ? 0 : (double)best;
        if (p->found[i] != want && !v->result.bad++) {
            v->result.worst = i;
            v->result.found = p->found[i];
            v->result.want = want;
        }
    }
    v->result.passed = v->result.bad == 0;
    return QR_OK;
}

/* ---- all of a file ---- */

static qr_status check_output(struct op_run *r, const struct tensor_view *want, struct op_verdict *v, qr_error *err)
{
    const struct op_slot *slot = op_run_output(r, v->name);
    struct pair p;
    if (!slot) {
        snprintf(v->why, sizeof v->why, "this harness makes no output of that name");
        return QR_OK;
    }
    if (slot->rank != want->rank || memcmp(slot->shape, want->shape, (size_t)slot->rank * sizeof *slot->shape) != 0) {
        char found[96], wanted[96];
        snprintf(v->why, sizeof v->why, "shape %s, the file has %s", shape_text(slot->rank, slot->shape, found, sizeof found),
                 shape_text(want->rank, want->shape, wanted, sizeof wanted));
        return QR_OK;
    }
    TRY(tolerance_of(r, slot, &v->tolerance, err));
    TRY(make_pair(r, slot, want, &p, err));
    if (v->tolerance.kind == COMPARE_TK || v->tolerance.kind == COMPARE_SETS)
        TRY(check_ranks(r, &p, v, err));
    else if (v->tolerance.kind == COMPARE_ARGMAX)
        TRY(check_arg_max(r, &p, v, err));
    else
        TRY(check_points(r, &p, v, err));
    check_behind(&p, v);
    if (v->result.why)
        snprintf(v->why, sizeof v->why, "%s", v->result.why);
    return QR_OK;
}

qr_status op_check(struct op_run *r, struct op_verdict *verdicts, int64_t *count, bool *passed, qr_error *err)
{
    *count = 0;
    *passed = true;
    for (int64_t i = 0; i < op_file_count(r->file); i++) {
        const struct tensor_view *want = op_file_at(r->file, i);
        if (strncmp(want->name, "out.", 4) != 0)
            continue;
        struct op_verdict *v = &verdicts[(*count)++];
        *v = (struct op_verdict){.name = want->name + 4};
        TRY(check_output(r, want, v, err));
        *passed &= v->result.passed;
    }
    if (!*count)
        return qr_fail(err, QR_BAD_REQUEST, "%s: holds no out.* to check with", op_file_path(r->file));
    return QR_OK;
}

/* A NaN is no difference of a size: it fails, wherever the point counts. */
static qr_status refuse_nan(const struct op_run *a, const struct op_run *b, const struct pair *p, qr_error *err)
{
    for (int64_t i = 0; i < p->points; i++)
        if ((isnan(p->found[i]) || isnan(p->want[i])) && !(place_of(p, i) == BEHIND_COUNT && p->slot->open))
            return qr_fail(err, QR_NUMERIC, "out.%s: point %lld is %g on %s and %g on %s, wanted no NaN", p->slot->array->name,
                           (long long)i, p->found[i], a->backend->name, p->want[i], b->backend->name);
    return QR_OK;
}

qr_status op_compare_runs(struct op_run *a, struct op_run *b, struct op_difference *differences, int32_t *count, qr_error *err)
{
    *count = 0;
    for (int32_t i = 0; i < a->out_count; i++) {
        double *x, *y, most = 0;
        struct pair pair;
        if (!a->out[i].host || !b->out[i].host)
            continue;
        struct op_difference *d = &differences[(*count)++];
        *d = (struct op_difference){.name = a->out[i].array->name, .points = tensor_elements(a->out[i].rank, a->out[i].shape)};
        TRY(found_numbers(b, &b->out[i], &y, err));
        TRY(make_pair(a, &a->out[i], NULL, &pair, err));
        pair.want = y;
        x = pair.found;
        TRY(refuse_nan(a, b, &pair, err));
        for (int64_t k = 0; k < d->points; k++) {
            d->different += !(x[k] == y[k] && signbit(x[k]) == signbit(y[k]));
            d->largest = fmax(d->largest, fabs(x[k] - y[k]));
            most = fmax(most, fabs(y[k]));
        }
        d->relative = most > 0 ? d->largest / most : 0;
    }
    return QR_OK;
}
