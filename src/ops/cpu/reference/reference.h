/* reference.h: the scalar operators, written down as the specifications say them: the oracle of every faster path.
 *
 * How it adds (v4-model.md 4.3): a sum inside one scale block, and any sum whose order the text leaves open, runs in
 * ascending order in binary64 and is rounded once to binary32; whatever the text writes as an f32 operation is one.
 * Elementary functions are the host's f32 ones, the cosines and sines of rotations excepted (v41-model.md 4.3). */
#ifndef QR_OPS_CPU_REFERENCE_REFERENCE_H
#define QR_OPS_CPU_REFERENCE_REFERENCE_H

#include "ops/cpu/cpu.h"

/* Fills every operator, prepare_weight and reserve of the table. */
void reference_install(struct backend *b);

/* Scratch a thread of the largest operator needs. */
int64_t reference_scratch_bytes(const struct op_limits *limits);

/* Whether a call's arguments fit together and every expert it visits is prepared; what a faster form asks too. */
qr_status expert_check(const struct op_expert *op, qr_error *err);
qr_status index_select_check(const struct op_index_select *op, qr_error *err);

/* Lists of likeliest ids (ops/shortlist.h), as a device makes them; no path of the CPU has them in its table, for here a row is
 * as near to its draw. */
qr_status reference_shortlist(struct backend *b, const struct op_shortlist *op, qr_error *err);

#define REFERENCE_OPERATOR(NAME) \
    qr_status reference_##NAME(struct backend *b, const struct op_##NAME *op, qr_error *err);
QR_OPERATORS(REFERENCE_OPERATOR)
#undef REFERENCE_OPERATOR

#endif
