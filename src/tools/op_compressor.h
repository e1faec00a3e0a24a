/* op_compressor.h: the compressor of v4-model.md 5.7 out of operators, for harnesses 7 to 9 and 29 to 32. */
#ifndef QR_TOOLS_OP_COMPRESSOR_H
#define QR_TOOLS_OP_COMPRESSOR_H

#include "tools/op_adapters.h"

struct op_compressor {
    int32_t ratio, width;     /* channels of a compressed row */
    bool index;               /* the indexer's: Hadamard, FP4 or INT8 */
    const struct weight *wkv, *wgate;
    const float *ape;         /* [ratio][cols] */
    const void *norm;         /* bf16 [width] */
    float eps;
    struct rope_spec rope;
};

/* Columns of its inputs: twice the width where groups overlap. */
int32_t compressor_cols(const struct op_compressor *c);
/* Members of one compressed row. */
int32_t compressor_members(const struct op_compressor *c);

/* The compressor inputs of all rows: kv and sc (with the bias of each row's place), f32 [rows][cols]. */
qr_status compressor_inputs(struct op_run *run, const struct op_compressor *c, const struct step *step, struct row_list rows,
                            struct activation x, struct activation *kv, struct activation *sc, qr_error *err);

/* Pools, norms, turns and stores the rows of `emit` in `plane`. Members at or behind from[request] are this forward's, the
 * others those of `tail`. `turned`, unless NULL: the row after rotation, f32 [rows][width], not rounded; made at the
 * positions of `starts`, where each row stands at the first token of its group (any step when turns are given). */
struct compressor_rows {
    const struct step *step, *starts;
    struct row_list emit;
    const int32_t *from;
    struct activation kv, sc;
    struct ring_plane tail;
    struct row_plane plane;
    float *turned;
    uint16_t *turned_bf16;    /* the same, rounded once; only beside `turned` */
    uint16_t *values;         /* bf16 [rows][width]: the row as stored; NULL: not wanted */
};
qr_status compressor_emit(struct op_run *run, const struct op_compressor *c, const struct compressor_rows *rows, qr_error *err);

/* Refuses a matrix that is not Sylvester's times bf16(n^-0.5) (7.1). */
qr_status compressor_check_hadamard(const struct op_run *run, const char *name, int32_t n, qr_error *err);

#endif
