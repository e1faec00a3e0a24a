/* expert_size.h: how many routed experts lie on a device with memory of its own, and how many in host memory. Pure arithmetic. */
#ifndef QR_ENGINE_EXPERT_SIZE_H
#define QR_ENGINE_EXPERT_SIZE_H

#include "engine/device_size.h"
#include "engine/rules.h"

struct expert_wish {
    uint64_t bytes;  /* of the device for experts and seats; 0: what everything else leaves, all of them if they fit */
    bool fit;        /* all of them do, with the pools */
    int64_t pools;   /* bytes that the pools want then, */
    bool by_share;   /* at least: they get a sixteenth of what may be taken, if that is more */
    int32_t of_layer, active; /* experts of a layer, and how many of them a row takes */
};

/* Sets on_host and seats of the plan; both stay 0 where every expert lies on the device, or where that cannot be helped.
 * QR_REFUSED (E31): not one expert goes into `bytes`. */
qr_status expert_size_choose(const struct expert_wish *wish, struct device_plan *d, qr_error *err);

/* Options that say nothing to a device which computes in host memory are refused by name. */
void expert_size_check(const qr_engine_options *o, const char *device, bool own_memory, struct rule_list *broken);

#endif
