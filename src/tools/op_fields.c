#include "tools/op_fields.h"

#include <string.h>

#define F(KIND, OP, MEMBER) {FIELD_##KIND, offsetof(struct op_##OP, MEMBER)}
#define FIELDS(OP, ...) static const struct op_field OP##_fields[] = {F(ROWS, OP, rows), __VA_ARGS__, {FIELD_END, 0}}

FIELDS(embed, F(STEP, embed, step), F(WEIGHT, embed, weight), F(STREAMS, embed, out));
FIELDS(mhc_mix, F(STREAMS, mhc_mix, x), F(WEIGHT, mhc_mix, fn), F(ADDRESS, mhc_mix, base), F(ADDRESS, mhc_mix, scale),
       F(ADDRESS, mhc_mix, pre), F(ADDRESS, mhc_mix, post), F(ADDRESS, mhc_mix, comb));
FIELDS(collapse, F(STREAMS, collapse, x), F(ADDRESS, collapse, pre), F(ADDRESS, collapse, norm), F(ACT, collapse, collapsed),
       F(ACT, collapse, normed), F(ACT, collapse, quantized), F(ADDRESS, collapse, inverse));
FIELDS(expand, F(ADDRESS, expand, y), F(ADDRESS, expand, post), F(ADDRESS, expand, comb), F(STREAMS, expand, x));
FIELDS(norm, F(ACT, norm, in), F(ADDRESS, norm, weight), F(ADDRESS, norm, smooth), F(ACT, norm, out), F(ACT, norm, quantized));
FIELDS(quantize, F(ACT, quantize, in), F(ACT, quantize, out));
FIELDS(linear, F(ACT, linear, in), F(WEIGHT, linear, weight), F(ACT, linear, out));
FIELDS(query, F(STEP, query, step), F(ROPE, query, rope), F(ACT, query, in), F(ACT, query, out));
FIELDS(window_key, F(STEP, window_key, step), F(ACT, window_key, in), F(ADDRESS, window_key, norm), F(ROPE, window_key, rope),
       F(ADDRESS, window_key, out), F(ACT, window_key, packed));
FIELDS(window_write, F(STEP, window_write, step), F(ADDRESS, window_write, keys), F(ACT, window_write, packed),
       F(RING, window_write, ring));
FIELDS(position_bias, F(STEP, position_bias, step), F(ADDRESS, position_bias, ape), F(ADDRESS, position_bias, scores));
FIELDS(compress, F(STEP, compress, step), F(ADDRESS, compress, from), F(ADDRESS, compress, values), F(ADDRESS, compress, scores),
       F(RING, compress, tail), F(ACT, compress, out));
FIELDS(tail_write, F(STEP, tail_write, step), F(ADDRESS, tail_write, values), F(ADDRESS, tail_write, scores),
       F(RING, tail_write, tail));
FIELDS(row_write, F(STEP, row_write, step), F(ACT, row_write, in), F(ADDRESS, row_write, norm), F(ROPE, row_write, rope),
       F(PLANE, row_write, plane), F(ADDRESS, row_write, values_out));
FIELDS(index_query, F(STEP, index_query, step), F(ROPE, index_query, rope), F(ACT, index_query, in), F(ACT, index_query, out),
       F(ACT, index_query, weights_in), F(ADDRESS, index_query, weights));
FIELDS(index_select, F(STEP, index_select, step), F(ACT, index_select, query), F(ADDRESS, index_select, weights),
       F(PLANE, index_select, plane), F(ADDRESS, index_select, candidates), F(ADDRESS, index_select, candidate_count),
       F(ADDRESS, index_select, selected), F(ADDRESS, index_select, selected_count), F(ADDRESS, index_select, scores));
FIELDS(attend, F(STEP, attend, step), F(ADDRESS, attend, q), F(ADDRESS, attend, fresh), F(ADDRESS, attend, key_from),
       F(ADDRESS, attend, window_low), F(RING, attend, ring), F(PLANE, attend, plane), F(ADDRESS, attend, selected),
       F(ADDRESS, attend, selected_count), F(ADDRESS, attend, sinks), F(ACT, attend, out));
FIELDS(unrotate, F(STEP, unrotate, step), F(ROPE, unrotate, rope), F(ACT, unrotate, in), F(ACT, unrotate, out));
FIELDS(route, F(STEP, route, step), F(ACT, route, x), F(ADDRESS, route, x_scale), F(WEIGHT, route, gate), F(ADDRESS, route, bias),
       F(ADDRESS, route, bias_image), F(ADDRESS, route, table), F(ADDRESS, route, idx), F(ADDRESS, route, weight));
FIELDS(expert, F(ACT, expert, x), F(ADDRESS, expert, idx), F(ADDRESS, expert, weight), F(STACK, expert, w1), F(STACK, expert, w2),
       F(STACK, expert, w3), F(ADDRESS, expert, out));
FIELDS(combine, F(ADDRESS, combine, idx), F(ADDRESS, combine, routed), F(ADDRESS, combine, shared), F(ADDRESS, combine, out));
FIELDS(engram, F(STEP, engram, step), F(STREAMS, engram, x), F(ADDRESS, engram, kv), F(ADDRESS, engram, q_weight),
       F(ADDRESS, engram, k_weight), F(ADDRESS, engram, gate_out));
FIELDS(stream_mean, F(STREAMS, stream_mean, x), F(ACT, stream_mean, out));
FIELDS(stream_add, F(ACT, stream_add, e), F(ACT, stream_add, h), F(STREAMS, stream_add, out));
FIELDS(gather, F(ACT, gather, in), F(ACT, gather, out));

static const struct op_shape shapes[] = {
#define SHAPE(NAME) [OP_##NAME] = {#NAME, sizeof(struct op_##NAME), NAME##_fields},
    QR_OPERATORS(SHAPE)
#undef SHAPE
};

const struct op_shape *op_shape_of(enum op_kind kind) { return &shapes[kind]; }

int32_t op_stack_size(const struct op_expert *op) { return op->idx ? op->experts : 1; }

/* ---- translation ---- */

/* A pointer of any type at `at` becomes where it leads to elsewhere. */
static void move(const struct op_translation *t, void *at)
{
    void *p;
    memcpy(&p, at, sizeof p);
    p = t->address(t->user, p);
    memcpy(at, &p, sizeof p);
}

static qr_status no_memory(qr_error *err) { return qr_fail(err, QR_NO_MEMORY, "no memory for a copy of an operator's call"); }

static qr_status move_step(const struct op_translation *t, void *at, struct arena *arena, qr_error *err)
{
    const struct step *from;
    memcpy(&from, at, sizeof from);
    if (!from)
        return QR_OK;
    struct step *step = arena_alloc(arena, sizeof *step);
    if (!step)
        return no_memory(err);
    *step = *from;
    move(t, &step->token_ids);
    move(t, &step->positions);
    move(t, &step->batch_id);
    move(t, &step->first_row);
    move(t, &step->first_position);
    move(t, &step->slot);
    move(t, &step->block_table);
    move(t, &step->image_mask);
    memcpy(at, &step, sizeof step);
    return QR_OK;
}

static void move_weight(const struct op_translation *t, void *at)
{
    const struct weight *w;
    memcpy(&w, at, sizeof w);
    w = w ? t->weight(t->user, w) : NULL;
    memcpy(at, &w, sizeof w);
}

static qr_status move_stack(const struct op_translation *t, void *at, int32_t count, struct arena *arena, qr_error *err)
{
    const struct weight *const *from;
    memcpy(&from, at, sizeof from);
    const struct weight **stack = arena_alloc(arena, (size_t)count * sizeof *stack);
    if (!stack)
        return no_memory(err);
    for (int32_t i = 0; i < count; i++)
        stack[i] = t->weight(t->user, from[i]);
    memcpy(at, &stack, sizeof stack);
    return QR_OK;
}

static qr_status move_field(const struct op_translation *t, const struct op_field *f, void *op, struct arena *arena, qr_error *err)
{
    void *at = (uint8_t *)op + f->offset;
    switch (f->kind) {
    case FIELD_ROWS:
        move(t, &((struct row_list *)at)->index);
        return QR_OK;
    case FIELD_STEP:
        return move_step(t, at, arena, err);
    case FIELD_ADDRESS:
        move(t, at);
        return QR_OK;
    case FIELD_ACT:
        move(t, &((struct activation *)at)->codes);
        move(t, &((struct activation *)at)->scales);
        return QR_OK;
    case FIELD_STREAMS:
        move(t, &((struct streams *)at)->data);
        return QR_OK;
    case FIELD_ROPE:
        move(t, &((struct rope_spec *)at)->turns);
        return QR_OK;
    case FIELD_PLANE:
        move(t, &((struct row_plane *)at)->values);
        move(t, &((struct row_plane *)at)->scales);
        return QR_OK;
    case FIELD_RING:
        move(t, &((struct ring_plane *)at)->values);
        move(t, &((struct ring_plane *)at)->scales);
        return QR_OK;
    case FIELD_WEIGHT:
        move_weight(t, at);
        return QR_OK;
    case FIELD_STACK:
        return move_stack(t, at, op_stack_size(op), arena, err);
    default:
        return QR_OK;
    }
}

qr_status op_translate(enum op_kind kind, const void *op, const struct op_translation *t, struct arena *arena, void **out,
                       qr_error *err)
{
    const struct op_shape *shape = op_shape_of(kind);
    void *copy = arena_alloc(arena, shape->size);
    if (!copy)
        return no_memory(err);
    memcpy(copy, op, shape->size);
    for (const struct op_field *f = shape->fields; f->kind != FIELD_END; f++)
        TRY(move_field(t, f, copy, arena, err));
    *out = copy;
    return QR_OK;
}

qr_status op_call_on(struct backend *b, enum op_kind kind, const void *op, qr_error *err)
{
    switch (kind) {
#define CALL_KIND(NAME)                                                                                                \
    case OP_##NAME:                                                                                                    \
        return b->NAME(b, op, err);
        QR_OPERATORS(CALL_KIND)
#undef CALL_KIND
    default: {
        const struct op_copy *copy = op;
        return b->copy(b, copy->to, copy->from, copy->bytes, err);
    }
    }
}
