/* placement.h: which routed experts of the backbone lie on a device with memory of its own, and which in host memory: those
 * that were used most on the device, whichever layers they are of. A drafter's and the shared ones always lie there. */
#ifndef QR_PLAN_PLACEMENT_H
#define QR_PLAN_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct expert_placement {
    int32_t layers, experts; /* of a layer */
    int32_t seats;           /* room on the device for experts of host memory while they are needed */
    int64_t on_host;         /* experts there; 0: none, and nothing else counts */
    bool *host;              /* [layers][experts] */
};

/* Puts `on_device` of all on the device. `uses`: visits of each expert, [layers][experts], or NULL: not known. Equally used
 * ones go by their number, so that without knowledge each layer gets as many as the next, or one more. QR_NO_MEMORY. */
qr_status placement_make(int32_t layers, int32_t experts, int64_t on_device, int32_t seats, const uint64_t *uses,
                         struct expert_placement *out, qr_error *err);
void placement_free(struct expert_placement *p);

/* `p` may be NULL: every expert lies on the device. */
static inline bool placement_is_on_host(const struct expert_placement *p, int32_t layer, int32_t expert)
{
    return p && p->on_host > 0 && layer < p->layers && expert < p->experts && p->host[(int64_t)layer * p->experts + expert];
}

#endif
