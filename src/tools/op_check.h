/* op_check.h: the outputs of a run beside the `out.*` of its file, or beside those of a run on another device. */
#ifndef QR_TOOLS_OP_CHECK_H
#define QR_TOOLS_OP_CHECK_H

#include "tools/compare.h"
#include "tools/op_run.h"

struct op_verdict {
    const char *name;            /* of the output */
    struct tolerance tolerance;
    struct comparison result;
    char why[256];               /* what failed beside the points; empty: nothing */
};

/* Compares every out.* of the run's file, by the tolerance in its metadata or, where that says nothing, by the harness's
 * own. verdicts: room for op_file_count of them; *count: how many were made; *passed: all did. Fails only when the
 * tolerance cannot be read or without memory. */
qr_status op_check(struct op_run *run, struct op_verdict *verdicts, int64_t *count, bool *passed, qr_error *err);

/* The largest difference of each output of two runs of one harness. */
struct op_difference {
    const char *name;
    int64_t points, different;
    double largest, relative;    /* relative: of the largest value of the output */
};
/* differences: room for the harness's outputs; *count: how many. */
qr_status op_compare_runs(struct op_run *a, struct op_run *b, struct op_difference *differences, int32_t *count, qr_error *err);

#endif
