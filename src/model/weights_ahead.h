/* weights_ahead.h: has a folder's tensors read ahead of the loader (base/ahead.h), for devices with memory of their own: a disk
 * goes on reading while what it has read is checked, copied and laid out. */
#ifndef QR_MODEL_WEIGHTS_AHEAD_H
#define QR_MODEL_WEIGHTS_AHEAD_H

#include "base/ahead.h"
#include "checkpoint/checkpoint.h"
#include "plan/plan.h"

/* The tensors that weights_open asks for, about in its order: outside of layers, then layer by layer, each as its file has
 * it. The loader tells ahead_passed of what it is done with. */
qr_status weights_ahead_open(const struct checkpoint *ck, const struct model_plan *plan, bool drafter, struct read_ahead **out,
                             qr_error *err);

#endif
