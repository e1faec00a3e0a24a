/* op_outputs.h: what a call of an operator writes, row by row, and how near it must come to the reference. The tolerances are
 * those of v4-model.md section 10 for the operator that is made of it, and the pass lines of the goldens for codes and
 * stored rows; "exact" where the arithmetic names every rounding and every order. */
#ifndef QR_TOOLS_OP_OUTPUTS_H
#define QR_TOOLS_OP_OUTPUTS_H

#include "tools/op_run.h"

/* One array of a call: row i of those written lies at at[i], in the memory of the call's backend. */
struct op_output {
    const char *name, *tolerance; /* compare.h */
    int64_t spare;                /* so many points may be bad in any case: an array may be smaller than 1 / share */
    enum dtype dtype;
    int64_t rows, cols;
    uint8_t **at;
};
enum { OP_MOST_OUTPUTS = 8 };

/* Whose call it is, and memory for what is told of it. */
struct op_reader {
    struct backend *backend;
    struct arena *arena;
    enum qr_family family;
};

/* Host copies of memory of the backend. */
qr_status op_read(const struct op_reader *r, const void *from, int64_t bytes, void *pointer, qr_error *err);
/* The numbers of a row list, on the host. */
qr_status op_rows_of(const struct op_reader *r, struct row_list rows, const int32_t **out, qr_error *err);

/* Fills out[0 .. *count). Choices are not among them: those of index_select and of route (its idx) are judged by what they
 * were chosen from. */
qr_status op_outputs(const struct op_reader *r, enum op_kind kind, const void *op, struct op_output *out, int *count,
                     qr_error *err);

#endif
