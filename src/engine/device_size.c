#include "engine/device_size.h"

#include <math.h>
#include <stdio.h>

enum { SAFETY_PARTS = 50 }; /* of the device's memory one stays free */

static int64_t chunks(const struct device_plan *d, int64_t bytes)
{
    const int64_t chunk = d->memory.weight_chunk;
    return chunk > 0 ? (bytes + chunk - 1) / chunk * chunk : bytes;
}

/* Matrices on the device, and room for others. */
static int64_t laid(const struct device_plan *d) { return d->matrices - (d->on_host - d->seats) * d->expert_bytes; }

static int64_t books(const struct device_plan *d) { return d->on_host > 0 ? d->memory.expert_books : 0; }

int64_t device_plan_weights(const struct device_plan *d) { return chunks(d, laid(d)) + d->vectors + books(d); }

int64_t device_plan_seats(const struct device_plan *d) { return d->seats * d->expert_bytes + books(d); }

int64_t device_plan_workspace(const struct device_plan *d)
{
    return d->staging + d->forward + d->lists + d->drafts + d->sampling + d->memory.scratch;
}

int64_t device_plan_beside(const struct device_plan *d)
{
    return device_plan_weights(d) + device_plan_workspace(d) + d->memory.graphs + d->memory.collective;
}

int64_t device_plan_held(const struct device_plan *d, int64_t pools)
{
    return device_plan_weights(d) + device_plan_workspace(d) + chunks(d, pools);
}

int64_t device_plan_outside(const struct device_plan *d) { return d->memory.total - d->memory.free; }

int64_t device_plan_safety(const struct device_plan *d) { return d->memory.total / SAFETY_PARTS; }

/* Everything that is no pool, whoever takes it. */
static int64_t taken(const struct device_plan *d)
{
    return device_plan_beside(d) + device_plan_outside(d) + device_plan_safety(d);
}

int64_t device_plan_cache(const struct device_plan *d)
{
    const int64_t share = (int64_t)(d->utilization * (double)d->memory.total), left = share - taken(d);
    const int64_t chunk = d->memory.weight_chunk;
    if (left <= 0)
        return 0;
    return chunk > 0 ? left / chunk * chunk : left; /* a pool is taken in whole chunks */
}

bool device_plan_fits(const struct device_plan *d, int64_t bytes)
{
    return bytes <= d->memory.free && chunks(d, bytes) <= d->memory.free - device_plan_beside(d);
}

int64_t device_plan_expert_room(const struct device_plan *d, int64_t pools)
{
    struct device_plan none = *d;
    none.on_host = none.experts;
    none.seats = 0;
    if (pools > d->memory.total)
        return -1;
    return (int64_t)(d->utilization * (double)d->memory.total) - taken(&none) - chunks(d, pools) - chunks(d, 1);
}

qr_status device_plan_refuse(const struct device_plan *d, int64_t pools, uint64_t given, qr_error *err)
{
    const int64_t room = device_plan_expert_room(d, pools);
    const int64_t wanted = pools > INT64_MAX - chunks(d, 1) - taken(d) ? INT64_MAX : taken(d) + chunks(d, pools);
    const double least = ceil((double)wanted / (double)d->memory.total * 100.0) / 100.0;
    char hint[200];
    if (given > 0 && d->on_host > 0 && room >= d->expert_bytes)
        snprintf(hint, sizeof hint, "--expert-memory %lld would fit", (long long)room);
    else if (least <= 1.0)
        snprintf(hint, sizeof hint, "--gpu-memory-utilization %.2f would fit", least);
    else
        snprintf(hint, sizeof hint,
                 "no --gpu-memory-utilization would fit: %lld bytes more have to be free, or fewer requests at once "
                 "(--max-num-seqs) or shorter ones (--max-model-len) take less",
                 (long long)(wanted - d->memory.total));
    return qr_fail(err, QR_REFUSED,
                   "E31 weights of %lld bytes, a workspace of %lld, recorded steps of %lld, a collective reserve of %lld, "
                   "%lld taken by others and %lld for safety leave %lld of %.2f of the device's %lld bytes to pools of at least "
                   "%lld; %s",
                   (long long)device_plan_weights(d), (long long)device_plan_workspace(d), (long long)d->memory.graphs, (long long)d->memory.collective,
                   (long long)device_plan_outside(d), (long long)device_plan_safety(d), (long long)device_plan_cache(d),
                   d->utilization, (long long)d->memory.total, (long long)pools, hint);
}

void device_plan_items(const struct device_plan *d, struct byte_plan *out)
{
    const int64_t scores = d->memory.score_band;
    const int64_t others = d->matrices - d->experts * d->expert_bytes;
    if (d->on_host > 0) {
        byte_plan_add(out, BYTES_DEVICE_WEIGHTS, "matrices but routed experts", 1, others);
        byte_plan_add(out, BYTES_DEVICE_WEIGHTS, "routed experts on the device", d->experts - d->on_host, d->expert_bytes);
        byte_plan_add(out, BYTES_DEVICE_WEIGHTS, "seats for experts of host memory", d->seats, d->expert_bytes);
        byte_plan_add(out, BYTES_DEVICE_WEIGHTS, "books of these", 1, books(d));
        byte_plan_add(out, BYTES_HOST_EXPERTS, "routed experts", d->on_host, d->expert_bytes);
    } else {
        byte_plan_add(out, BYTES_DEVICE_WEIGHTS, "matrices", 1, d->matrices);
    }
    byte_plan_add(out, BYTES_DEVICE_WEIGHTS, "vectors and tables", 1, d->vectors);
    byte_plan_add(out, BYTES_DEVICE_WEIGHTS, "alignment of chunks", 1, chunks(d, laid(d)) - laid(d));
    byte_plan_add(out, BYTES_DEVICE_WORKSPACE, "buffers of a forward pass", 1, d->forward);
    byte_plan_add(out, BYTES_DEVICE_WORKSPACE, "scratch: a band of index scores or less", 1, scores);
    byte_plan_add(out, BYTES_DEVICE_WORKSPACE, "scratch: the rest, tables, counters", 1, d->memory.scratch - scores);
    byte_plan_add(out, BYTES_DEVICE_WORKSPACE, "staging of a weight", 1, d->staging);
    byte_plan_add(out, BYTES_DEVICE_WORKSPACE, "rows and lists of a step", 1, d->lists);
    byte_plan_add(out, BYTES_DEVICE_WORKSPACE, "drafts", 1, d->drafts);
    byte_plan_add(out, BYTES_DEVICE_WORKSPACE, "likeliest ids of a step's rows", 1, d->sampling);
    byte_plan_add(out, BYTES_GRAPHS, "graphs kept at once", 1, d->memory.graphs);
    byte_plan_add(out, BYTES_COLLECTIVE, "one device", 1, d->memory.collective);
    byte_plan_add(out, BYTES_BESIDE, "taken by others and the driver", 1, device_plan_outside(d));
    byte_plan_add(out, BYTES_BESIDE, "kept free for safety", 1, device_plan_safety(d));
}
