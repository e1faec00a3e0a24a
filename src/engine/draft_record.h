/* draft_record.h: what an engine shows of its drafts while a profile of them is measured (speculation.md 6.5): times of
 * steps by rows, of draft passes by requests, and what became of drafts of each confidence. Lengths take turns meanwhile,
 * so that every size of a step comes up. */
#ifndef QR_ENGINE_DRAFT_RECORD_H
#define QR_ENGINE_DRAFT_RECORD_H

#include "engine/draft_calibration.h"
#include "engine/draft_profile.h"

struct draft_record;

qr_status draft_record_open(int32_t requests, int32_t rows, struct draft_record **out, qr_error *err);
void draft_record_close(struct draft_record *r); /* NULL is fine */

void draft_record_step(struct draft_record *r, int32_t rows, double seconds);
void draft_record_pass(struct draft_record *r, int32_t requests, double seconds);
void draft_record_sample(struct draft_record *r, const struct calibration_sample *sample);
/* Drafts that the next step verifies of each request: 0 to `limit` by turns. */
int32_t draft_record_length(struct draft_record *r, int32_t limit);

/* Taus of `width` drafts and both tables of `out`: medians, raised where they fall. QR_BAD_REQUEST when the largest step
 * or pass did not come up: too few requests ran. */
qr_status draft_record_profile(const struct draft_record *r, int32_t width, struct draft_profile *out, qr_error *err);

#endif
