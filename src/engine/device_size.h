/* device_size.h: what an engine takes of a device with memory of its own, and what that leaves for the pools (runtime.md
 * 2.10). Pure arithmetic on what the device says of itself. */
#ifndef QR_ENGINE_DEVICE_SIZE_H
#define QR_ENGINE_DEVICE_SIZE_H

#include "ops/device.h"
#include "plan/byte_plan.h"

struct device_plan {
    struct device_memory memory; /* total 0: the engine computes in host memory, and nothing below counts */
    double utilization;          /* share of the device that may be taken, by others included */
    int64_t matrices, vectors;   /* weights in the device's layout */
    int64_t staging;             /* a weight on its way there */
    int64_t forward, lists, drafts, sampling; /* buffers of a step */
    /* Of the matrices: routed experts of the backbone, and the bytes of one; of them in host memory (expert_size.h), and how many
     * of these the device has room for while they are needed. */
    int64_t experts, expert_bytes, on_host;
    int32_t seats;
};

/* Weights as they lie there, in whole chunks; buffers and scratch of steps. */
int64_t device_plan_weights(const struct device_plan *d);
int64_t device_plan_workspace(const struct device_plan *d);
/* Of the weights: room for experts of host memory, with its books. */
int64_t device_plan_seats(const struct device_plan *d);
/* Everything but the pools: what is allocated, what is recorded, and the collective reserve. */
int64_t device_plan_beside(const struct device_plan *d);
/* Of it, and of the pools, what the backend's own allocations may come to (backend.hold). */
int64_t device_plan_held(const struct device_plan *d, int64_t pools);
/* Taken by others, the driver's part among it; and kept free: 2 % of the device. */
int64_t device_plan_outside(const struct device_plan *d);
int64_t device_plan_safety(const struct device_plan *d);

/* utilization * total - (everything but the pools + outside + safety): what the pools may take; never below 0. */
int64_t device_plan_cache(const struct device_plan *d);
/* Whether pools of `bytes` that were asked for by number go beside everything else into what is free. */
bool device_plan_fits(const struct device_plan *d, int64_t bytes);

/* What routed experts may take on the device beside pools of `pools` bytes; below 0: not even the rest fits. */
int64_t device_plan_expert_room(const struct device_plan *d, int64_t pools);

/* Why the pools do not fit, and what would: the smallest utilization, rounded up to 0.01, fewer bytes of experts
 * (where `given`, they were asked for by number), or how much has to be freed. */
qr_status device_plan_refuse(const struct device_plan *d, int64_t pools, uint64_t given, qr_error *err);

void device_plan_items(const struct device_plan *d, struct byte_plan *out);

#endif
