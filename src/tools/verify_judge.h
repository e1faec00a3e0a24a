/* verify_judge.h: one call of an operator that ran on a device and on the reference: what both wrote is compared and booked,
 * and the reference's memory gets the device's results. */
#ifndef QR_TOOLS_VERIFY_JUDGE_H
#define QR_TOOLS_VERIFY_JUDGE_H

#include "tools/op_outputs.h"
#include "tools/verify_table.h"

/* `op`: the call in the device's addresses and with its weights; `want`: the same in the reference's (host memory).
 * `mirror`: where an address of the device lies there. */
struct judge {
    struct op_reader device; /* its arena lives as long as the call */
    struct backend *reference;
    struct verify_table *table;
    struct findings *findings;
    void *(*mirror)(void *user, const void *p);
    void *user;
    enum op_kind kind;
    const char *label;
    const void *op;
    void *want;
    struct verify_row *first; /* the row that carries the time; NULL before something is booked */
};

/* Before the reference runs: asks it for what choices are judged by. */
qr_status judge_prepare(struct judge *j, qr_error *err);
/* After both ran. */
qr_status judge_call(struct judge *j, qr_error *err);

#endif
