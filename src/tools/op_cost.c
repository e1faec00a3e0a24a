#include "tools/op_cost.h"

#include <string.h>

/* Bytes of one row. */
static int64_t act_bytes(const struct activation *a)
{
    int64_t size = a->format == ACT_BF16 ? 2 : a->format == ACT_F32 ? 4 : 1;
    int64_t scales = a->block && a->scales ? a->cols / a->block * (a->format == ACT_Q8 ? 1 : 4) : 0;
    return a->codes ? a->cols * size + scales : 0;
}

static int64_t stream_bytes(const struct streams *s)
{
    return (int64_t)s->count * s->hidden * (s->format == ACT_BF16 ? 2 : 4);
}

static int64_t weight_bytes(const struct op_meter *m, const struct weight *w) { return m->weight_bytes(m->user, w); }

static qr_status host_new(const struct op_meter *m, int64_t bytes, void *pointer, qr_error *err)
{
    void *p = arena_alloc(m->arena, (size_t)bytes + 1);
    memcpy(pointer, &p, sizeof p);
    return p ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory to count the bytes of an operator");
}

static qr_status host_copy(const struct op_meter *m, const void *from, int64_t bytes, void *pointer, qr_error *err)
{
    void *p;
    TRY(host_new(m, bytes, &p, err));
    TRY(m->backend->download(m->backend, p, from, bytes, err));
    TRY(m->backend->fence(m->backend, err));
    memcpy(pointer, &p, sizeof p);
    return QR_OK;
}

/* The listed rows of a device array of int32, by row number. */
static qr_status row_ints(const struct op_meter *m, struct row_list rows, const int32_t *array, int32_t *out, qr_error *err)
{
    const int32_t *index = NULL;
    int32_t *all, most = rows.count;
    if (rows.index && rows.count) {
        TRY(host_copy(m, rows.index, 4LL * rows.count, &index, err));
        most = index[rows.count - 1] + 1;
    }
    TRY(host_copy(m, array, 4LL * most, &all, err));
    for (int32_t i = 0; i < rows.count; i++)
        out[i] = all[index ? index[i] : i];
    return QR_OK;
}

/* Keys of every query: its window and its compressed rows. */
static qr_status attend_bytes(const struct op_meter *m, const struct op_attend *op, int64_t *out, qr_error *err)
{
    int32_t *positions, *low, *counts;
    int64_t keys = 0;
    TRY(host_new(m, 4LL * op->rows.count, &positions, err));
    TRY(host_new(m, 4LL * op->rows.count, &low, err));
    TRY(host_new(m, 4LL * op->rows.count, &counts, err));
    TRY(row_ints(m, op->rows, op->step->positions, positions, err));
    if (op->window_low)
        TRY(row_ints(m, op->rows, op->window_low, low, err));
    if (op->selected_count)
        TRY(row_ints(m, op->rows, op->selected_count, counts, err));
    for (int32_t i = 0; i < op->rows.count; i++) {
        int32_t first = positions[i] - op->window_size + 1 > low[i] ? positions[i] - op->window_size + 1 : low[i];
        int32_t visible = plan_visible(op->ratio, positions[i]);
        keys += positions[i] + 1 - first;
        keys += !op->has_plane ? 0 : op->selected_count && counts[i] < visible ? counts[i] : visible;
    }
    *out = keys * op->head_dim * 2 + op->rows.count * (2LL * op->heads * op->head_dim + act_bytes(&op->out));
    return QR_OK;
}

static qr_status select_bytes(const struct op_meter *m, const struct op_index_select *op, int64_t *out, qr_error *err)
{
    int64_t row = op->plane.format == ROW_INDEX_FP4 ? op->dim / 2 + op->dim / 32 : op->plane.format == ROW_BF16 ? 2 * op->dim : op->dim + 4;
    int32_t *positions;
    TRY(host_new(m, 4LL * op->rows.count, &positions, err));
    TRY(row_ints(m, op->rows, op->step->positions, positions, err));
    *out = op->rows.count * (act_bytes(&op->query) + 4LL * op->heads + 4LL * op->topk);
    for (int32_t i = 0; i < op->rows.count; i++)
        *out += row * plan_visible(op->ratio, positions[i]);
    return QR_OK;
}

/* The weights of every expert that some row takes. */
static qr_status expert_bytes(const struct op_meter *m, const struct op_expert *op, int64_t *out, qr_error *err)
{
    int32_t *one, *idx;
    bool *used;
    *out = op->rows.count * (act_bytes(&op->x) * (op->idx ? op->active : 1) + 2LL * op->x.cols * (op->idx ? op->active : 1));
    TRY(host_new(m, op->experts, &used, err));
    if (!op->idx)
        used[0] = op->rows.count > 0;
    else {
        TRY(host_new(m, 4LL * op->rows.count, &one, err));
        int32_t most = op->rows.count;
        if (op->rows.index && most) {
            TRY(host_copy(m, op->rows.index, 4LL * most, &one, err));
            most = one[op->rows.count - 1] + 1;
        } else {
            for (int32_t i = 0; i < most; i++)
                one[i] = i;
        }
        TRY(host_copy(m, op->idx, 4LL * most * op->active, &idx, err));
        for (int32_t i = 0; i < op->rows.count; i++)
            for (int32_t k = 0; k < op->active; k++)
                used[idx[one[i] * op->active + k]] = true;
    }
    for (int32_t e = 0; e < op->experts; e++)
        if (used[e])
            *out += weight_bytes(m, op->w1[e]) + weight_bytes(m, op->w2[e]) + weight_bytes(m, op->w3[e]);
    return QR_OK;
}

qr_status op_call_bytes(const struct op_meter *m, enum op_kind kind, const void *p, int64_t *out, qr_error *err)
{
    switch (kind) {
    case OP_embed: {
        const struct op_embed *op = p;
        *out = op->rows.count * (2LL * op->out.hidden + stream_bytes(&op->out));
        break;
    }
    case OP_mhc_mix: {
        const struct op_mhc_mix *op = p;
        int64_t made = op->head_only ? op->x.count : op->x.count * (2 + op->x.count);
        *out = weight_bytes(m, op->fn) + op->rows.count * (stream_bytes(&op->x) + 4 * made);
        break;
    }
    case OP_collapse: {
        const struct op_collapse *op = p;
        *out = op->rows.count * (stream_bytes(&op->x) + act_bytes(&op->collapsed) + act_bytes(&op->normed) + act_bytes(&op->quantized));
        break;
    }
    case OP_expand: {
        const struct op_expand *op = p;
        *out = op->rows.count * (2LL * op->x.hidden + 2 * stream_bytes(&op->x));
        break;
    }
    case OP_norm: {
        const struct op_norm *op = p;
        *out = op->rows.count * (act_bytes(&op->in) + act_bytes(&op->out) + act_bytes(&op->quantized));
        break;
    }
    case OP_quantize: {
        const struct op_quantize *op = p;
        *out = op->rows.count * (act_bytes(&op->in) + act_bytes(&op->out));
        break;
    }
    case OP_linear: {
        const struct op_linear *op = p;
        *out = weight_bytes(m, op->weight) + op->rows.count * (act_bytes(&op->in) + act_bytes(&op->out));
        break;
    }
    case OP_query: {
        const struct op_query *op = p;
        *out = op->rows.count * (act_bytes(&op->in) + act_bytes(&op->out));
        break;
    }
    case OP_window_write: {
        const struct op_window_write *op = p;
        *out = op->rows.count * (2LL * op->head_dim + op->ring.value_row_stride);
        break;
    }
    case OP_engram: {
        const struct op_engram *op = p;
        *out = op->rows.count * (2 * stream_bytes(&op->x) + 2LL * (op->x.count + 1) * op->x.hidden);
        break;
    }
    case OP_stream_mean: {
        const struct op_stream_mean *op = p;
        *out = op->rows.count * (stream_bytes(&op->x) + 2LL * op->x.hidden);
        break;
    }
    case OP_window_key: {
        const struct op_window_key *op = p;
        *out = op->rows.count * (act_bytes(&op->in) + 2LL * op->in.cols);
        break;
    }
    case OP_position_bias: {
        const struct op_position_bias *op = p;
        *out = op->rows.count * 12LL * op->cols;
        break;
    }
    case OP_compress: {
        const struct op_compress *op = p;
        int64_t members = op->kind == COMPRESSOR_OVERLAP ? 2 * op->ratio : op->ratio;
        *out = op->rows.count * (8LL * members * op->width + act_bytes(&op->out));
        break;
    }
    case OP_tail_write: {
        const struct op_tail_write *op = p;
        *out = op->rows.count * 16LL * op->cols;
        break;
    }
    case OP_row_write: {
        const struct op_row_write *op = p;
        *out = op->rows.count * (act_bytes(&op->in) + op->plane.value_row_stride);
        break;
    }
    case OP_index_query: {
        const struct op_index_query *op = p;
        *out = op->rows.count * (act_bytes(&op->in) + act_bytes(&op->out) + 8LL * op->heads);
        break;
    }
    case OP_index_select:
        return select_bytes(m, p, out, err);
    case OP_attend:
        return attend_bytes(m, p, out, err);
    case OP_unrotate: {
        const struct op_unrotate *op = p;
        *out = op->rows.count * (act_bytes(&op->in) + act_bytes(&op->out));
        break;
    }
    case OP_route: {
        const struct op_route *op = p;
        *out = weight_bytes(m, op->gate) + op->rows.count * (act_bytes(&op->x) + 8LL * op->active);
        break;
    }
    case OP_expert:
        return expert_bytes(m, p, out, err);
    case OP_combine: {
        const struct op_combine *op = p;
        *out = op->rows.count * 2LL * op->hidden * (op->active + 2);
        break;
    }
    case OP_stream_add: {
        const struct op_stream_add *op = p;
        *out = op->rows.count * (act_bytes(&op->e) + act_bytes(&op->h) + stream_bytes(&op->out));
        break;
    }
    case OP_gather: {
        const struct op_gather *op = p;
        *out = 2LL * op->rows.count * act_bytes(&op->in);
        break;
    }
    case OP_copy:
        *out = 2 * ((const struct op_copy *)p)->bytes;
        break;
    }
    return QR_OK;
}

static int64_t run_weight_bytes(const void *user, const struct weight *w)
{
    const struct op_run *r = user;
    for (size_t i = 0; i < r->weight_count; i++)
        if (r->weights[i].handle == w)
            return r->weights[i].bytes;
    return 0;
}

qr_status op_run_bytes(struct op_run *r, int64_t *out, qr_error *err)
{
    const struct op_meter meter = {r->backend, &r->arena, run_weight_bytes, r};
    *out = 0;
    for (size_t i = 0; i < r->call_count; i++) {
        int64_t bytes = 0;
        TRY(op_call_bytes(&meter, (enum op_kind)r->calls[i].kind, r->calls[i].op, &bytes, err));
        *out += bytes;
    }
    return QR_OK;
}
