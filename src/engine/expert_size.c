#include "engine/expert_size.h"

enum {
    POOL_PARTS = 16, /* of what may be taken one is the pools', where experts would take everything */
    SEAT_PARTS = 64  /* of the experts that there is room for one is a seat, */
};

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Bytes that experts may take. */
static int64_t room_of(const struct expert_wish *wish, const struct device_plan *d)
{
    if (wish->bytes > 0)
        return wish->bytes > INT64_MAX ? INT64_MAX : (int64_t)wish->bytes;
    const int64_t share = (int64_t)(d->utilization * (double)d->memory.total) / POOL_PARTS;
    return device_plan_expert_room(d, wish->by_share ? larger(wish->pools, share) : wish->pools);
}

qr_status expert_size_choose(const struct expert_wish *wish, struct device_plan *d, qr_error *err)
{
    const int64_t most = smaller(d->memory.most_seats, d->memory.expert_views - wish->of_layer);
    if (d->experts == 0 || most < 1 || (wish->bytes == 0 && wish->fit))
        return QR_OK;
    const int64_t count = room_of(wish, d) / d->expert_bytes;
    if (count >= d->experts)
        return QR_OK;
    if (count < 1)
        return wish->bytes == 0 ? QR_OK
                                : qr_fail(err, QR_REFUSED,
                                          "E31 --expert-memory %llu has no room for one of %lld experts; %lld would do",
                                          (unsigned long long)wish->bytes, (long long)d->experts, (long long)d->expert_bytes);
    /* but as many as a row takes, and no more than are wanting */
    const int64_t least = smaller(wish->active, count);
    const int64_t seats = smaller(larger(smaller(count / SEAT_PARTS, d->experts - count), least), most);
    d->seats = (int32_t)seats;
    d->on_host = d->experts - (count - seats);
    return QR_OK;
}

void expert_size_check(const qr_engine_options *o, const char *device, bool own_memory, struct rule_list *broken)
{
    if (!own_memory && o->expert_memory > 0)
        rule_broken(broken, "expert-memory is %llu: device %s reads experts where they lie, wanted none",
                    (unsigned long long)o->expert_memory, device);
    if (!own_memory && o->expert_use)
        rule_broken(broken, "expert-use is %s: device %s reads experts where they lie, wanted none", o->expert_use, device);
}
