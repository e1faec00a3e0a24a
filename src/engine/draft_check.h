/* draft_check.h: the acceptance self-check of a block that is wider than its checkpoint's (speculation.md 2.9). */
#ifndef QR_ENGINE_DRAFT_CHECK_H
#define QR_ENGINE_DRAFT_CHECK_H

#include "quire.h"

struct qr_log;

/* Lets a running engine that nobody uses yet answer a short request, greedily, and logs how many drafts a step were right:
 * a warning where positions beyond the width that was trained spoil all of them. Changes nothing but metrics, where that
 * request is counted. */
void draft_check(qr_engine *engine, const struct qr_log *log, int32_t width, int32_t own);

#endif
