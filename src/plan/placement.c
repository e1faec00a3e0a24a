#include "plan/placement.h"

#include <stdlib.h>

#include "base/alloc.h"

struct candidate {
    uint64_t uses;
    int32_t expert, layer;
};

/* More used first, then the smaller expert, then the lower layer. */
static int by_use(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->uses != y->uses)
        return x->uses > y->uses ? -1 : 1;
    return x->expert != y->expert ? x->expert - y->expert : x->layer - y->layer;
}

qr_status placement_make(int32_t layers, int32_t experts, int64_t on_device, int32_t seats, const uint64_t *uses,
                         struct expert_placement *out, qr_error *err)
{
    const int64_t all = (int64_t)layers * experts;
    *out = (struct expert_placement){.layers = layers, .experts = experts, .seats = seats};
    if (on_device >= all)
        return QR_OK;
    struct candidate *order = qr_calloc((size_t)all, sizeof *order);
    out->host = qr_calloc((size_t)all, sizeof *out->host);
    if (!order || !out->host) {
        qr_free(order);
        placement_free(out);
        return qr_fail(err, QR_NO_MEMORY, "no memory to place %lld experts", (long long)all);
    }
    for (int32_t layer = 0; layer < layers; layer++)
        for (int32_t e = 0; e < experts; e++) {
            const int64_t i = (int64_t)layer * experts + e;
            order[i] = (struct candidate){.uses = uses ? uses[i] : 0, .expert = e, .layer = layer};
        }
    qsort(order, (size_t)all, sizeof *order, by_use);
    for (int64_t i = on_device > 0 ? on_device : 0; i < all; i++, out->on_host++)
        out->host[(int64_t)order[i].layer * experts + order[i].expert] = true;
    qr_free(order);
    return QR_OK;
}

void placement_free(struct expert_placement *p)
{
    qr_free(p->host);
    *p = (struct expert_placement){.host = NULL};
}
