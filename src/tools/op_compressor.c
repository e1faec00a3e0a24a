#include "tools/op_compressor.h"

#include <math.h>
#include <string.h>

#include "number/bf16.h"

int32_t compressor_cols(const struct op_compressor *c) { return c->ratio == 4 ? 2 * c->width : c->width; }

int32_t compressor_members(const struct op_compressor *c) { return c->ratio == 4 ? 2 * c->ratio : c->ratio; }

qr_status compressor_inputs(struct op_run *r, const struct op_compressor *c, const struct step *step, struct row_list rows,
                            struct activation x, struct activation *kv, struct activation *sc, qr_error *err)
{
    int32_t cols = compressor_cols(c);
    TRY(op_rows(r, ACT_F32, step->rows, cols, 0, kv, err));
    TRY(op_rows(r, ACT_F32, step->rows, cols, 0, sc, err));
    CALL(r, linear, .rows = rows, .in = x, .weight = c->wkv, .out = *kv);
    CALL(r, linear, .rows = rows, .in = x, .weight = c->wgate, .out = *sc);
    CALL(r, position_bias, .rows = rows, .step = step, .ape = c->ape, .ratio = c->ratio, .cols = cols, .scores = sc->codes);
    return QR_OK;
}

qr_status compressor_emit(struct op_run *r, const struct op_compressor *c, const struct compressor_rows *e, qr_error *err)
{
    struct activation pooled, normed;
    if (!e->emit.count)
        return QR_OK;
    TRY(op_rows(r, r->w8a8 ? ACT_F32 : ACT_BF16, e->step->rows, c->width, 0, &pooled, err));
    CALL(r, compress, .rows = e->emit, .step = e->step, .from = e->from,
         .kind = c->ratio == 4 ? COMPRESSOR_OVERLAP : COMPRESSOR_PLAIN, .ratio = c->ratio, .width = c->width,
         .values = e->kv.codes, .scores = e->sc.codes, .tail = e->tail, .out = pooled);
    CALL(r, row_write, .rows = e->emit, .step = e->step, .ratio = c->ratio, .in = pooled, .norm = c->norm, .eps = c->eps,
         .rope = c->rope, .hadamard = c->index,
         .grid = !c->index ? (r->w8a8 ? GRID_NONE : GRID_FP8_NOPE) : r->w8a8 ? GRID_INT8 : GRID_FP4_E8M0, .plane = e->plane,
         .values_out = e->values);
    if (!e->turned)
        return QR_OK;
    TRY(op_rows(r, ACT_F32, e->step->rows, c->width, 0, &normed, err));
    CALL(r, norm, .rows = e->emit, .in = pooled, .weight = c->norm, .eps = c->eps, .out = normed);
    CALL(r, query, .rows = e->emit, .step = e->starts, .heads = 1, .head_dim = c->width, .rope = c->rope, .in = normed,
         .out = act_rows(ACT_F32, e->turned, c->width));
    if (e->turned_bf16)
        CALL(r, query, .rows = e->emit, .step = e->starts, .heads = 1, .head_dim = c->width, .rope = c->rope, .in = normed,
             .out = act_rows(ACT_BF16, e->turned_bf16, c->width));
    return QR_OK;
}

qr_status compressor_check_hadamard(const struct op_run *r, const char *name, int32_t n, qr_error *err)
{
    const struct tensor_view *view = NULL;
    double entry = (double)bf16_round((float)(1 / sqrt(n)));
    for (int32_t i = 0; i < r->in_count; i++)
        if (strcmp(r->in[i].array->name, name) == 0)
            view = r->in[i].view;
    for (int64_t i = 0; i < (int64_t)n * n; i++) {
        double wanted = __builtin_parityll((uint64_t)(i / n & i % n)) ? -entry : entry, found = tensor_number(view, i);
        if (found != wanted)
            return op_refuse(err, BAD_CHECKPOINT, "in.%s [%lld][%lld] is %g, wanted %g", name, (long long)(i / n),
                             (long long)(i % n), found, wanted);
    }
    return QR_OK;
}
