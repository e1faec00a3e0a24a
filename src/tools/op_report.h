/* op_report.h: what `quire op` prints: the list, verdicts, differences and times; as text or JSON. */
#ifndef QR_TOOLS_OP_REPORT_H
#define QR_TOOLS_OP_REPORT_H

#include "tools/op_check.h"

/* Every harness, or those of one name, with their arrays. */
void report_list(const struct op_harness *only);
qr_status report_list_json(const struct op_harness *only, qr_error *err);

/* What one call of `quire op` found out; parts that were not asked for are absent. */
struct op_report {
    const struct op_run *run;
    const struct op_verdict *verdicts;       /* --check */
    int64_t verdict_count;
    const struct op_difference *differences; /* --against */
    int32_t difference_count;
    const char *against;
    int32_t calls;                           /* --time: how many; 0: none */
    double median, least, bandwidth;         /* seconds of a call; bytes a second measured */
    int64_t bytes;                           /* of a call */
};
void report_text(const struct op_report *r);
qr_status report_json(const struct op_report *r, qr_error *err);

#endif
