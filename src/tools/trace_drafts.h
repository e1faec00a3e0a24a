/* trace_drafts.h: the `draft.*` arrays of golden/v41: what a DSpark drafter says behind given prefixes of a sequence. The
 * keys of a stage are `draft.N.ring.S.codes` and `.scales`, of V4 their values in `draft.N.ring.S`. The steps of a pass must
 * end at each prefix (trace_to_prefix). */
#ifndef QR_TOOLS_TRACE_DRAFTS_H
#define QR_TOOLS_TRACE_DRAFTS_H

#include "tools/trace_download.h"
#include "tools/trace_recorder.h"

struct trace_drafts;

/* Makes the arrays of every sequence with draft_prefixes; with a forced pass finds its `taps`. Refuses a prefix without a
 * token behind it. `reader` and `arrays` must outlive it. */
qr_status trace_drafts_open(const struct trace_job *job, struct trace_arrays *arrays, struct trace_download *reader,
                            struct trace_drafts **out, qr_error *err);
void trace_drafts_close(struct trace_drafts *d); /* NULL is fine */

/* `count` rows of sequence `sequence` from `position` on, at `first_row` of the step. Their taps are about to be used: a
 * forced pass puts the file's in their place. */
qr_status trace_drafts_force(struct trace_drafts *d, int32_t sequence, int32_t first_row, int32_t position,
                             int32_t count, const struct workspace *ws, qr_error *err);
/* Their keys of stage `stage` are made. */
qr_status trace_drafts_keys(struct trace_drafts *d, int32_t sequence, int32_t stage, int32_t first_row,
                            int32_t position, int32_t count, const struct workspace *ws, qr_error *err);
/* The sequence in STATE slot `slot` stands at `position` after a step: drafts when that is one of its prefixes. */
qr_status trace_drafts_at(struct trace_drafts *d, int32_t sequence, int32_t slot, int32_t position, qr_error *err);

#endif
