/* op_fields.h: where an operator's struct holds addresses and weights, for whoever hands the same call to another backend. */
#ifndef QR_TOOLS_OP_FIELDS_H
#define QR_TOOLS_OP_FIELDS_H

#include "tools/op_run.h"

/* How a field holds them. */
enum field_kind {
    FIELD_END,
    FIELD_ROWS,    /* struct row_list */
    FIELD_STEP,    /* const struct step * */
    FIELD_ADDRESS, /* a plain pointer */
    FIELD_ACT,     /* struct activation */
    FIELD_STREAMS, /* struct streams */
    FIELD_ROPE,    /* struct rope_spec */
    FIELD_PLANE,   /* struct row_plane */
    FIELD_RING,    /* struct ring_plane */
    FIELD_WEIGHT,  /* const struct weight * */
    FIELD_STACK    /* const struct weight *const *, of op_stack_size weights */
};
struct op_field {
    enum field_kind kind;
    size_t offset;
};

struct op_shape {
    const char *name; /* "mhc_mix" */
    size_t size;
    const struct op_field *fields; /* ended by FIELD_END */
};
/* The struct of an operator; OP_copy has none. */
const struct op_shape *op_shape_of(enum op_kind kind);
/* Weights in each stack of op_expert. */
int32_t op_stack_size(const struct op_expert *op);

/* What becomes of the addresses of a call. Both return NULL for NULL. */
struct op_translation {
    void *(*address)(void *user, const void *p);
    const struct weight *(*weight)(void *user, const struct weight *w);
    void *user;
};
/* Copies the struct `op` into `arena` with every address and weight translated. */
qr_status op_translate(enum op_kind kind, const void *op, const struct op_translation *t, struct arena *arena, void **out,
                       qr_error *err);

/* Calls an operator of the backend. */
qr_status op_call_on(struct backend *b, enum op_kind kind, const void *op, qr_error *err);

#endif
