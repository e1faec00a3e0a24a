#include "tools/op_outputs.h"

#include <string.h>

#include "ops/cpu/reference/container.h"

#define EXACT "exact"
#define NEAR "RA(1/128)"
#define NEAR_F32 "AC(1e-3,1e-3)"
#define MIXED "RA(2.5e-5,5e-3)"

/* ---- reading ---- */

static qr_status host_new(const struct op_reader *r, int64_t bytes, void *pointer, qr_error *err)
{
    void *p = arena_alloc(r->arena, (size_t)bytes + 1);
    memcpy(pointer, &p, sizeof p);
    return p ? QR_OK : qr_fail(err, QR_NO_MEMORY, "no memory to look at an operator's arrays");
}

qr_status op_read(const struct op_reader *r, const void *from, int64_t bytes, void *pointer, qr_error *err)
{
    void *p;
    TRY(host_new(r, bytes, &p, err));
    TRY(r->backend->download(r->backend, p, from, bytes, err));
    TRY(r->backend->fence(r->backend, err));
    memcpy(pointer, &p, sizeof p);
    return QR_OK;
}

qr_status op_rows_of(const struct op_reader *r, struct row_list rows, const int32_t **out, qr_error *err)
{
    int32_t *numbers;
    if (rows.index)
        return op_read(r, rows.index, 4LL * rows.count, out, err);
    TRY(host_new(r, 4LL * rows.count, &numbers, err));
    for (int32_t i = 0; i < rows.count; i++)
        numbers[i] = i;
    *out = numbers;
    return QR_OK;
}

/* ---- arrays addressed by row number ---- */

/* The call in hand: its rows, and the arrays told so far. */
struct teller {
    const struct op_reader *r;
    const int32_t *rows;
    int64_t count;
    struct op_output *out;
    int told;
    qr_status status;
    qr_error *err;
};

static struct op_output *tell(struct teller *t, const char *name, const char *tolerance, enum dtype dtype, int64_t cols)
{
    struct op_output *o = &t->out[t->told++];
    *o = (struct op_output){.name = name, .tolerance = tolerance, .dtype = dtype, .rows = t->count, .cols = cols};
    if (t->status == QR_OK)
        t->status = host_new(t->r, t->count * (int64_t)sizeof *o->at, &o->at, t->err);
    return o;
}

/* `data`: [rows][stride] elements, of which the first `cols` of a row are written. NULL: not wanted. */
static struct op_output *tell_array(struct teller *t, const char *name, const char *tolerance, enum dtype dtype,
                                    const void *data, int64_t cols, int64_t stride)
{
    if (!data)
        return NULL;
    struct op_output *o = tell(t, name, tolerance, dtype, cols);
    for (int64_t i = 0; t->status == QR_OK && i < t->count; i++)
        o->at[i] = (uint8_t *)(uintptr_t)data + t->rows[i] * stride * (int64_t)dtype_size(dtype);
    return o;
}

static void tell_floats(struct teller *t, const char *name, const char *tolerance, const float *data, int64_t cols)
{
    tell_array(t, name, tolerance, DTYPE_F32, data, cols, cols);
}

static enum dtype plain_dtype(enum act_format format) { return format == ACT_F32 ? DTYPE_F32 : DTYPE_BF16; }

/* Codes that may come out one step away where a sum was rounded otherwise: the goldens' lines for stored codes. */
static const char *flips(const struct teller *t)
{
    static const char *const lines[] = {[QR_FAMILY_V41] = "RA(0,0,.015)", [QR_FAMILY_V4] = "RA(0,0,.01)"};
    return lines[t->r->family];
}
/* The same for values on the grid of such codes. */
static const char *grid_flips(const struct teller *t)
{
    static const char *const lines[] = {[QR_FAMILY_V41] = "RA(1e-4,1/128,.015)", [QR_FAMILY_V4] = "RA(1e-4,1/128,.01)"};
    return lines[t->r->family];
}
static int64_t spare(const struct teller *t)
{
    static const int64_t counts[] = {[QR_FAMILY_V41] = 2, [QR_FAMILY_V4] = 8};
    return counts[t->r->family];
}

static void with_spare(struct teller *t, struct op_output *o)
{
    if (o)
        o->spare = spare(t);
}

/* Rows in their format; `codes`, `scales`: the tolerances of a quantized form. */
static void tell_coded(struct teller *t, const struct activation *a, const char *codes, const char *scales)
{
    bool q8 = a->format == ACT_Q8;
    int64_t scale_cols = a->cols / a->block;
    with_spare(t, tell_array(t, "codes", codes, q8 ? DTYPE_F8_E4M3 : DTYPE_I8, a->codes, a->cols, a->cols));
    with_spare(t, tell_array(t, "scales", scales, q8 ? DTYPE_F8_E8M0 : DTYPE_F32, a->scales, scale_cols, scale_cols));
}

static void tell_act(struct teller *t, const char *name, const struct activation *a, const char *plain)
{
    if (!a->codes)
        return;
    if (a->format == ACT_BF16 || a->format == ACT_F32)
        tell_array(t, name, plain, plain_dtype(a->format), a->codes, a->cols, a->cols);
    else if (a->format == ACT_Q8)
        tell_coded(t, a, flips(t), flips(t));
    else
        tell_coded(t, a, "RA(1,0,.001)", MIXED);
}

static void tell_streams(struct teller *t, const struct streams *x, const char *bf16, const char *f32)
{
    int64_t cols = (int64_t)x->count * x->hidden;
    tell_array(t, "streams", x->format == ACT_F32 ? f32 : bf16, plain_dtype(x->format), x->data, cols, cols);
}

/* ---- rows of pools ---- */

/* Where each row of the call stands, and whose it is. */
struct places {
    const int32_t *positions, *batch, *slot, *table;
};

static qr_status read_places(const struct op_reader *r, const struct step *s, struct places *out, qr_error *err)
{
    *out = (struct places){0};
    TRY(op_read(r, s->positions, 4LL * s->rows, &out->positions, err));
    TRY(op_read(r, s->batch_id, 4LL * s->rows, &out->batch, err));
    TRY(op_read(r, s->slot, 4LL * s->requests, &out->slot, err));
    return s->block_table ? op_read(r, s->block_table, 4LL * s->requests * s->block_stride, &out->table, err) : QR_OK;
}

/* Slots of a ring, `base` its values or its scales. */
static void tell_ring(struct teller *t, const struct places *p, const struct ring_plane *ring, const char *name, uint8_t *base,
                      int64_t stride, enum dtype dtype, int64_t cols)
{
    if (!base)
        return;
    struct op_output *o = tell(t, name, EXACT, dtype, cols);
    for (int64_t i = 0; t->status == QR_OK && i < t->count; i++) {
        int32_t row = t->rows[i];
        o->at[i] = base + p->slot[p->batch[row]] * ring->slot_stride + p->positions[row] % ring->rows * stride;
    }
}

static void tell_window(struct teller *t, const struct places *p, const struct op_window_write *op)
{
    bool bf16 = op->ring.format == ROW_BF16;
    tell_ring(t, p, &op->ring, "values", op->ring.values, op->ring.value_row_stride, bf16 ? DTYPE_BF16 : DTYPE_F8_E4M3, op->head_dim);
    if (!bf16)
        tell_ring(t, p, &op->ring, "scales", op->ring.scales, op->ring.scale_row_stride, DTYPE_F8_E8M0, op->head_dim / 32);
}

static void tell_tail(struct teller *t, const struct places *p, const struct op_tail_write *op)
{
    tell_ring(t, p, &op->tail, "values", op->tail.values, op->tail.value_row_stride, DTYPE_F32, op->cols);
    tell_ring(t, p, &op->tail, "scores", op->tail.scales, op->tail.scale_row_stride, DTYPE_F32, op->cols);
}

/* How a container's row is looked at, and its scales. */
struct container_view {
    enum dtype values, scales;
    int64_t value_cols, scale_cols;
    const char *value_tolerance, *scale_tolerance;
};

static struct container_view view_of(const struct teller *t, enum row_format format, int64_t n)
{
    struct container_view v = {DTYPE_U8, DTYPE_U8, container_value_bytes(format, n), container_scale_bytes(format, n), flips(t), flips(t)};
    if (format == ROW_BF16) {
        v.values = DTYPE_BF16;
        v.value_cols = n;
        v.value_tolerance = grid_flips(t);
    }
    if (format == ROW_INDEX_INT8) {
        v.values = DTYPE_I8;
        v.value_tolerance = "RA(1,0,.01)";
    }
    if (format == ROW_INDEX_INT8 || format == ROW_INDEX_FP8) {
        v.scales = DTYPE_F32;
        v.scale_cols = 1;
        v.scale_tolerance = "RA(1e-4,1/128,.01)";
    }
    return v;
}

/* Rows of a plane: compressed row position div ratio of the request. Rows of unmapped blocks are not stored. */
static void tell_plane(struct teller *t, const struct places *p, const struct op_row_write *op)
{
    const struct row_plane *plane = &op->plane;
    struct container_view v = view_of(t, plane->format, op->in.cols);
    struct op_output *values = tell(t, "values", v.value_tolerance, v.values, v.value_cols);
    struct op_output *scales = plane->scales ? tell(t, "scales", v.scale_tolerance, v.scales, v.scale_cols) : NULL;
    int64_t stored = 0;
    for (int64_t i = 0; t->status == QR_OK && i < t->count; i++) {
        int32_t row = t->rows[i], g = p->positions[row] / op->ratio;
        int32_t block = p->table[(int64_t)p->batch[row] * op->step->block_stride + g / plane->rows_per_block];
        if (block < 0)
            continue;
        values->at[stored] = plane->values + plane_value_offset(plane, block, g % plane->rows_per_block);
        if (scales)
            scales->at[stored] = plane->scales + plane_scale_offset(plane, block, g % plane->rows_per_block);
        stored++;
    }
    values->rows = stored;
    with_spare(t, values);
    with_spare(t, scales);
    if (scales)
        scales->rows = stored;
}

/* ---- every operator ---- */

static void tell_mix(struct teller *t, const struct op_mhc_mix *op)
{
    int64_t m = op->x.count;
    tell_floats(t, "pre", MIXED, op->pre, m);
    tell_floats(t, "post", MIXED, op->head_only ? NULL : op->post, m);
    tell_floats(t, "comb", MIXED, op->head_only ? NULL : op->comb, m * m);
}

static void tell_collapse(struct teller *t, const struct op_collapse *op)
{
    tell_act(t, "collapsed", &op->collapsed, NEAR);
    tell_act(t, "normed", &op->normed, NEAR);
    tell_floats(t, "inverse", MIXED, op->inverse, 1);
    tell_act(t, "quantized", &op->quantized, NEAR);
}

static void tell_window_key(struct teller *t, const struct op_window_key *op)
{
    const char *tolerance = op->grid == GRID_NONE ? NEAR : grid_flips(t);
    with_spare(t, tell_array(t, "keys", tolerance, DTYPE_BF16, op->out, op->in.cols, op->in.cols));
    if (op->packed.codes)
        tell_act(t, "packed", &op->packed, NEAR);
}

static void tell_index_query(struct teller *t, const struct op_index_query *op)
{
    if (op->out.format == ACT_I8)
        tell_coded(t, &op->out, "RA(1,0,.01)", "RA(1e-4,1/128,.01)");
    else
        with_spare(t, tell_array(t, "queries", grid_flips(t), plain_dtype(op->out.format), op->out.codes, op->out.cols, op->out.cols));
    tell_floats(t, "weights", NEAR, op->weights, op->heads);
}

static qr_status tell_stored(struct teller *t, enum op_kind kind, const void *op, const struct step *step, qr_error *err)
{
    struct places p;
    TRY(read_places(t->r, step, &p, err));
    if (kind == OP_window_write)
        tell_window(t, &p, op);
    else if (kind == OP_tail_write)
        tell_tail(t, &p, op);
    else
        tell_plane(t, &p, op);
    return QR_OK;
}

static qr_status tell_all(struct teller *t, enum op_kind kind, const void *p, qr_error *err)
{
    switch (kind) {
    case OP_embed:
        tell_streams(t, &((const struct op_embed *)p)->out, EXACT, EXACT);
        return QR_OK;
    case OP_mhc_mix:
        tell_mix(t, p);
        return QR_OK;
    case OP_collapse:
        tell_collapse(t, p);
        return QR_OK;
    case OP_expand:
        tell_streams(t, &((const struct op_expand *)p)->x, NEAR, NEAR_F32);
        return QR_OK;
    case OP_norm:
        tell_act(t, "out", &((const struct op_norm *)p)->out, NEAR);
        tell_act(t, "quantized", &((const struct op_norm *)p)->quantized, NEAR);
        return QR_OK;
    case OP_quantize:
        tell_coded(t, &((const struct op_quantize *)p)->out, EXACT, EXACT);
        return QR_OK;
    case OP_linear: {
        const struct op_linear *op = p;
        tell_act(t, "out", &op->out, op->out.format == ACT_F32 ? NEAR_F32 : NEAR);
        return QR_OK;
    }
    case OP_query:
        tell_act(t, "out", &((const struct op_query *)p)->out, NEAR);
        return QR_OK;
    case OP_window_key:
        tell_window_key(t, p);
        return QR_OK;
    case OP_window_write:
        return tell_stored(t, kind, p, ((const struct op_window_write *)p)->step, err);
    case OP_tail_write:
        return tell_stored(t, kind, p, ((const struct op_tail_write *)p)->step, err);
    case OP_row_write:
        return tell_stored(t, kind, p, ((const struct op_row_write *)p)->step, err);
    case OP_position_bias: {
        const struct op_position_bias *op = p;
        tell_floats(t, "scores", EXACT, op->scores, op->cols);
        return QR_OK;
    }
    case OP_compress:
        tell_act(t, "out", &((const struct op_compress *)p)->out, "RA(1e-4,1/128,0)");
        return QR_OK;
    case OP_index_query:
        tell_index_query(t, p);
        return QR_OK;
    case OP_attend:
        tell_act(t, "out", &((const struct op_attend *)p)->out, NEAR);
        return QR_OK;
    case OP_unrotate:
        tell_act(t, "out", &((const struct op_unrotate *)p)->out, NEAR);
        return QR_OK;
    case OP_route: {
        const struct op_route *op = p;
        tell_floats(t, "weights", NEAR_F32, op->weight, op->active);
        return QR_OK;
    }
    case OP_expert: {
        const struct op_expert *op = p;
        int64_t cols = (int64_t)op->x.cols * (op->idx ? op->active : 1);
        tell_array(t, "out", "RD(2e-3,.01)", DTYPE_BF16, op->out, cols, cols);
        return QR_OK;
    }
    case OP_combine: {
        const struct op_combine *op = p;
        tell_array(t, "out", EXACT, DTYPE_BF16, op->out, op->hidden, op->hidden);
        return QR_OK;
    }
    case OP_engram: {
        const struct op_engram *op = p;
        tell_streams(t, &op->x, NEAR, NEAR_F32);
        tell_floats(t, "gates", MIXED, op->gate_out, op->x.count);
        return QR_OK;
    }
    case OP_stream_mean: {
        const struct op_stream_mean *op = p;
        tell_array(t, "out", NEAR, DTYPE_BF16, (const uint16_t *)op->out.codes + op->column, op->x.hidden, op->out.cols);
        return QR_OK;
    }
    case OP_stream_add:
        tell_streams(t, &((const struct op_stream_add *)p)->out, EXACT, EXACT);
        return QR_OK;
    case OP_gather:
        tell_act(t, "out", &((const struct op_gather *)p)->out, EXACT);
        return QR_OK;
    default: /* index_select: choices alone; a copy is no operator */
        return QR_OK;
    }
}

qr_status op_outputs(const struct op_reader *r, enum op_kind kind, const void *op, struct op_output *out, int *count, qr_error *err)
{
    struct teller t = {.r = r, .out = out, .err = err};
    struct row_list rows = *(const struct row_list *)op; /* the first member of every operator's struct */
    t.count = rows.count;
    if (kind == OP_gather) /* brings rows together: the first ones are written */
        rows.index = NULL;
    TRY(op_rows_of(r, rows, &t.rows, err));
    TRY(tell_all(&t, kind, op, err));
    *count = t.told;
    return t.status;
}
