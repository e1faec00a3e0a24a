#include "model/weights_ahead.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/memory.h"
#include "model/w8a8_recipe.h"
#include "model/weight_bytes.h"

/* How far the reading goes ahead: enough for the tensors of a layer, which do not come in their file's order. */
static const uint64_t farthest = (uint64_t)4 << 30;

struct ranked {
    int32_t layer; /* -1: outside */
    struct ahead_part part;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    const uintptr_t at = (uintptr_t)x->part.data, other = (uintptr_t)y->part.data;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return (at > other) - (at < other);
}

qr_status weights_ahead_open(const struct checkpoint *ck, const struct model_plan *plan, bool drafter, struct read_ahead **out,
                             qr_error *err)
{
    const int64_t count = checkpoint_count(ck), available = memory_available();
    struct ranked *ranked = qr_calloc((size_t)count + 1, sizeof *ranked);
    struct ahead_part *parts = qr_calloc((size_t)count + 1, sizeof *parts);
    size_t used = 0;
    for (int64_t i = 0; ranked && i < count; i++) {
        const struct tensor_view *t = checkpoint_at(ck, i);
        struct official_name name;
        if (!t->data || !weight_is_loaded(t->name, drafter))
            continue;
        official_split(plan, t->name, &name);
        ranked[used++] = (struct ranked){name.layer, {t->data, t->bytes}};
    }
    if (ranked && used > 1)
        qsort(ranked, used, sizeof *ranked, by_rank);
    for (size_t i = 0; parts && i < used; i++)
        parts[i] = ranked[i].part;
    const uint64_t quarter = available > 0 ? (uint64_t)available / 4 : farthest;
    const qr_status st = ranked && parts ? ahead_open(parts, used, quarter < farthest ? quarter : farthest, NULL, out, err)
                                         : qr_fail(err, QR_NO_MEMORY, "%s: no memory to read ahead", checkpoint_path(ck));
    qr_free(ranked);
    qr_free(parts);
    return st;
}
