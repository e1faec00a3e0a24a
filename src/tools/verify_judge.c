#include "tools/verify_judge.h"

#include <math.h>
#include <string.h>

#include "tools/op_file.h"
#include "tools/verify_choices.h"

/* Router choices may differ where score + bias is nearer than this to the last one chosen (golden/v41, "Pass lines"), and so
 * may V4.1's selections; those of V4 by two steps of bf16 or a thousandth (golden/v4, "Whole model"). */
#define NEAR_TIE 1e-4
#define NEAR_TIE_INT8 1e-3
/* Stands for a score of minus infinity, which both sides must give. */
#define NO_SCORE (-1e30)

static qr_status host_new(struct judge *j, int64_t bytes, void *pointer, qr_error *err)
{
    void *p = arena_alloc(j->device.arena, (size_t)bytes + 1);
    memcpy(pointer, &p, sizeof p);
    return p ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory to compare operator %s", j->label);
}

static qr_status row_of(struct judge *j, const char *array, const char *tolerance, struct verify_row **out, qr_error *err)
{
    *out = verify_table_row(j->table, j->label, array, tolerance);
    if (!*out)
        return qr_fail(err, QR_NO_MEMORY, "no memory for a row of operator %s", j->label);
    if (!j->first)
        j->first = *out;
    return QR_OK;
}

/* ---- arrays ---- */

/* `bytes` of the device, on the host. */
static qr_status fetch(struct judge *j, void *to, const void *from, int64_t bytes, qr_error *err)
{
    TRY(j->device.backend->download(j->device.backend, to, from, bytes, err));
    return j->device.backend->fence(j->device.backend, err);
}

/* Both sides of an array, packed; afterwards the reference has the device's. */
static qr_status both_sides(struct judge *j, const struct op_output *o, uint8_t **found, uint8_t **want, qr_error *err)
{
    int64_t bytes = o->cols * (int64_t)dtype_size(o->dtype);
    TRY(host_new(j, o->rows * bytes, found, err));
    TRY(host_new(j, o->rows * bytes, want, err));
    for (int64_t i = 0; i < o->rows; i++) {
        uint8_t *there = j->mirror(j->user, o->at[i]);
        TRY(fetch(j, *found + i * bytes, o->at[i], bytes, err));
        memcpy(*want + i * bytes, there, (size_t)bytes);
        memcpy(there, *found + i * bytes, (size_t)bytes);
    }
    return QR_OK;
}

static qr_status numbers(struct judge *j, enum dtype dtype, const void *data, int64_t n, double **out, qr_error *err)
{
    struct tensor_view view = {.name = j->label, .dtype = dtype, .rank = 1, .shape = &n, .data = data};
    TRY(host_new(j, n * (int64_t)sizeof **out, out, err));
    for (int64_t i = 0; i < n; i++)
        (*out)[i] = tensor_number(&view, i);
    return QR_OK;
}

static qr_status book(struct judge *j, const char *array, const char *tolerance, const double *found, const double *want, int64_t n,
                      int64_t spare, qr_error *err)
{
    struct tolerance t;
    struct verify_row *row;
    bool stated;
    TRY(tolerance_find(tolerance, array, &t, &stated, err));
    TRY(row_of(j, array, tolerance, &row, err));
    verify_row_points(row, &t, found, want, n, spare, j->findings);
    return QR_OK;
}

static qr_status judge_array(struct judge *j, const struct op_output *o, qr_error *err)
{
    uint8_t *found_bytes, *want_bytes;
    double *found, *want;
    int64_t n = o->rows * o->cols;
    if (!n)
        return QR_OK;
    TRY(both_sides(j, o, &found_bytes, &want_bytes, err));
    TRY(numbers(j, o->dtype, found_bytes, n, &found, err));
    TRY(numbers(j, o->dtype, want_bytes, n, &want, err));
    return book(j, o->name, o->tolerance, found, want, n, o->spare, err);
}

/* ---- choices ---- */

/* An int32 array of the device by row number, and its twin; afterwards the reference has the device's. */
struct id_array {
    const int32_t *rows;
    int64_t count, stride;
    int32_t *found, *want; /* [count][stride] */
};

static qr_status read_ids(struct judge *j, struct row_list rows, const int32_t *ids, int64_t stride, struct id_array *out, qr_error *err)
{
    *out = (struct id_array){.count = rows.count, .stride = stride};
    TRY(op_rows_of(&j->device, rows, &out->rows, err));
    TRY(host_new(j, out->count * stride * 4, &out->found, err));
    TRY(host_new(j, out->count * stride * 4, &out->want, err));
    for (int64_t i = 0; i < out->count; i++) {
        const int32_t *from = ids + out->rows[i] * stride;
        int32_t *there = j->mirror(j->user, from);
        TRY(fetch(j, out->found + i * stride, from, stride * 4, err));
        memcpy(out->want + i * stride, there, (size_t)stride * 4);
        memcpy(there, out->found + i * stride, (size_t)stride * 4);
    }
    return QR_OK;
}

static void book_choice(struct judge *j, struct verify_row *row, const struct choice *c, int64_t number)
{
    bool differs;
    const char *fault = choice_fault(c, &differs);
    row->points++;
    row->bad += differs || fault;
    if (fault && !row->failed)
        findings_add(j->findings, "operator %s: %s: row %lld: %s", j->label, row->array, (long long)number, fault);
    row->failed |= fault != NULL;
}

/* ---- the router ---- */

/* The score of every expert, by the reference: its own operator with every expert active. */
static qr_status all_scores(struct judge *j, const struct op_route *want, const struct id_array *idx, float **out, qr_error *err)
{
    struct op_route all = *want;
    int64_t experts = want->experts, most = 0;
    int32_t *order;
    float *weights;
    for (int64_t i = 0; i < idx->count; i++)
        most = idx->rows[i] > most ? idx->rows[i] : most;
    TRY(host_new(j, (most + 1) * experts * 4, &order, err));
    TRY(host_new(j, (most + 1) * experts * 4, &weights, err));
    TRY(host_new(j, idx->count * experts * 4, out, err));
    all.active = want->experts;
    all.normalise = false;
    all.scaling = 1;
    all.idx = order;
    all.weight = weights;
    TRY(j->reference->route(j->reference, &all, err));
    for (int64_t i = 0; i < idx->count; i++)
        for (int64_t k = 0; k < experts; k++) {
            int32_t e = order[idx->rows[i] * experts + k];
            (*out)[i * experts + e] = weights[idx->rows[i] * experts + k] + (want->bias ? want->bias[e] : 0);
        }
    return QR_OK;
}

/* Rows of an array whose experts are the same on both sides: only there are weights comparable. */
static void keep_equal_rows(const struct id_array *idx, struct op_output *o)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < o->rows; i++)
        if (memcmp(idx->found + i * idx->stride, idx->want + i * idx->stride, (size_t)idx->stride * 4) == 0)
            o->at[kept++] = o->at[i];
    o->rows = kept;
}

static qr_status judge_route(struct judge *j, const struct op_route *op, struct id_array *idx, qr_error *err)
{
    const struct op_route *want = j->want;
    struct verify_row *row;
    double *found, *wanted;
    float *scores;
    TRY(read_ids(j, op->rows, op->idx, op->active, idx, err));
    if (op->table) {
        TRY(numbers(j, DTYPE_I32, idx->found, idx->count * idx->stride, &found, err));
        TRY(numbers(j, DTYPE_I32, idx->want, idx->count * idx->stride, &wanted, err));
        return book(j, "choices", "exact", found, wanted, idx->count * idx->stride, 0, err);
    }
    TRY(row_of(j, "choices", "sets, ties 1e-4", &row, err));
    TRY(all_scores(j, want, idx, &scores, err));
    row->calls++;
    for (int64_t i = 0; i < idx->count; i++)
        book_choice(j, row, &(struct choice){.found = idx->found + i * idx->stride, .want = idx->want + i * idx->stride,
                                             .found_count = op->active, .want_count = op->active, .values = scores + i * op->experts,
                                             .n = op->experts, .slack = NEAR_TIE, .order = CHOICE_BY_VALUE}, idx->rows[i]);
    return QR_OK;
}

/* ---- the indexer ---- */

/* Compressed rows that each listed row sees, and the most of them. */
static qr_status visible_rows(struct judge *j, const struct op_index_select *op, const int32_t **rows, int32_t **out, int32_t *most,
                              qr_error *err)
{
    int32_t *positions;
    TRY(op_rows_of(&j->device, op->rows, rows, err));
    TRY(op_read(&j->device, op->step->positions, 4LL * op->step->rows, &positions, err));
    TRY(host_new(j, 4LL * op->rows.count, out, err));
    *most = 1;
    for (int32_t i = 0; i < op->rows.count; i++) {
        (*out)[i] = plan_visible(op->ratio, positions[(*rows)[i]]);
        *most = (*out)[i] > *most ? (*out)[i] : *most;
    }
    return QR_OK;
}

static double slack_of(const struct op_index_select *op, const float *values, const int32_t *ids, int32_t count)
{
    double last = INFINITY;
    for (int32_t i = 0; i < count; i++)
        last = fmin(last, values[ids[i]]);
    if (op->mode == SCORE_F32 || !isfinite(last) || last == 0)
        return NEAR_TIE;
    return op->mode == SCORE_INT8 ? NEAR_TIE_INT8 * fabs(last) : ldexp(1, ilogb(last) - 6);
}

/* The largest score of each block of rows, the newest block always taken (v41-model.md 6.4). */
static qr_status block_values(struct judge *j, const struct op_index_select *op, const float *scores, int32_t visible, float **out,
                              qr_error *err)
{
    int32_t blocks = (visible + op->block_size - 1) / op->block_size;
    TRY(host_new(j, 4LL * (blocks + 1), out, err));
    for (int32_t b = 0; b < blocks; b++)
        (*out)[b] = -INFINITY;
    for (int32_t t = 0; t < visible; t++)
        (*out)[t / op->block_size] = fmaxf((*out)[t / op->block_size], scores[t]);
    if (blocks)
        (*out)[blocks - 1] = INFINITY;
    return QR_OK;
}

struct selection {
    struct id_array ids, counts;
    struct verify_row *row;
    int order;
};

static qr_status open_selection(struct judge *j, const struct op_index_select *op, const char *name, const int32_t *ids,
                                const int32_t *counts, int64_t stride, int order, struct selection *out, qr_error *err)
{
    out->order = order;
    TRY(read_ids(j, op->rows, ids, stride, &out->ids, err));
    TRY(read_ids(j, op->rows, counts, 1, &out->counts, err));
    TRY(row_of(j, name, "sets, near ties", &out->row, err));
    out->row->calls++;
    return QR_OK;
}

static void judge_selected(struct judge *j, const struct op_index_select *op, const struct selection *s, int64_t i, const float *values,
                           int32_t n)
{
    struct choice c = {.found = s->ids.found + i * s->ids.stride, .want = s->ids.want + i * s->ids.stride,
                       .found_count = s->counts.found[i], .want_count = s->counts.want[i], .values = values, .n = n, .order = s->order};
    c.slack = slack_of(op, values, c.want, c.want_count);
    book_choice(j, s->row, &c, s->ids.rows[i]);
}

/* Scores of the device, by a call that asks for them. */
static qr_status device_scores(struct judge *j, const struct op_index_select *op, int32_t most, int64_t stride, float **out, qr_error *err)
{
    struct op_index_select asking = *op;
    struct backend *b = j->device.backend;
    int64_t bytes = (int64_t)(most + 1) * stride * 4;
    void *scores;
    TRY(b->allocate(b, bytes, &scores, err));
    asking.scores = scores;
    asking.score_stride = stride;
    qr_status st = b->index_select(b, &asking, err);
    if (st == QR_OK)
        st = op_read(&j->device, scores, bytes, out, err);
    b->release(b, scores);
    return st;
}

static qr_status judge_scores(struct judge *j, const struct op_index_select *op, const int32_t *rows, const int32_t *visible, qr_error *err)
{
    const struct op_index_select *want = j->want;
    int64_t n = 0, total = 0, stride = want->score_stride;
    float *scores;
    double *found, *wanted;
    TRY(device_scores(j, op, rows[op->rows.count - 1], stride, &scores, err));
    for (int32_t i = 0; i < op->rows.count; i++)
        total += visible[i];
    TRY(host_new(j, total * 8, &found, err));
    TRY(host_new(j, total * 8, &wanted, err));
    for (int32_t i = 0; i < op->rows.count; i++)
        for (int32_t t = 0; t < visible[i]; t++, n++) {
            float a = scores[rows[i] * stride + t], b = want->scores[rows[i] * stride + t];
            found[n] = a == -INFINITY ? NO_SCORE : (double)a;
            wanted[n] = b == -INFINITY ? NO_SCORE : (double)b;
        }
    return total ? book(j, "scores", "RA(1/128)", found, wanted, total, 0, err) : QR_OK;
}

static qr_status judge_select(struct judge *j, const struct op_index_select *op, qr_error *err)
{
    const struct op_index_select *want = j->want;
    struct selection selected, pool;
    const int32_t *rows;
    int32_t *visible, most;
    TRY(visible_rows(j, op, &rows, &visible, &most, err));
    TRY(open_selection(j, op, "selected", op->selected, op->selected_count, op->topk,
                       op->order == SELECTION_ASCENDING ? CHOICE_ASCENDING : CHOICE_BY_VALUE, &selected, err));
    if (op->make_candidates)
        TRY(open_selection(j, op, "candidates", op->candidates, op->candidate_count, op->topk_blocks, CHOICE_ASCENDING, &pool, err));
    for (int32_t i = 0; i < op->rows.count; i++) {
        const float *scores = want->scores + rows[i] * want->score_stride;
        float *blocks;
        judge_selected(j, op, &selected, i, scores, visible[i]);
        if (!op->make_candidates)
            continue;
        TRY(block_values(j, op, scores, visible[i], &blocks, err));
        judge_selected(j, op, &pool, i, blocks, (visible[i] + op->block_size - 1) / op->block_size);
    }
    return judge_scores(j, op, rows, visible, err);
}

qr_status judge_prepare(struct judge *j, qr_error *err)
{
    struct op_index_select *want = j->want;
    const struct op_index_select *op = j->op;
    const int32_t *rows;
    int32_t *visible, most;
    if (j->kind != OP_index_select || want->scores)
        return QR_OK;
    TRY(visible_rows(j, op, &rows, &visible, &most, err));
    want->score_stride = most;
    return host_new(j, (int64_t)(rows[op->rows.count - 1] + 1) * most * 4, &want->scores, err);
}

qr_status judge_call(struct judge *j, qr_error *err)
{
    struct op_output outputs[OP_MOST_OUTPUTS];
    struct id_array idx;
    int count;
    TRY(op_outputs(&j->device, j->kind, j->op, outputs, &count, err));
    if (j->kind == OP_index_select)
        TRY(judge_select(j, j->op, err));
    if (j->kind == OP_route) {
        TRY(judge_route(j, j->op, &idx, err));
        /* The weights of the others become the device's without a look. */
        struct op_output *weights = &outputs[0], whole = *weights;
        uint8_t *found, *want;
        TRY(host_new(j, whole.rows * (int64_t)sizeof *whole.at, &whole.at, err));
        memcpy(whole.at, weights->at, (size_t)whole.rows * sizeof *whole.at);
        keep_equal_rows(&idx, weights);
        TRY(judge_array(j, weights, err));
        return both_sides(j, &whole, &found, &want, err);
    }
    for (int i = 0; i < count; i++)
        TRY(judge_array(j, &outputs[i], err));
    return QR_OK;
}
