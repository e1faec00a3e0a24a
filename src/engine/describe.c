#include "engine/describe.h"

#include <string.h>

static void note(void *user, enum mismatch kind, const struct tensor_spec *spec, const struct tensor_view *view)
{
    struct differences *d = user;
    if (d->count[kind] == DIFFERENCES_SHOWN)
        return;
    d->shown[kind][d->count[kind]].spec = spec;
    d->shown[kind][d->count[kind]].view = view;
    d->count[kind]++;
}

qr_status differences_find(const struct checkpoint *ck, const struct schema *schema, struct differences *out,
                           qr_error *err)
{
    memset(out, 0, sizeof *out);
    return checkpoint_compare(ck, schema_tensors(schema), schema_count(schema), note, out, &out->diff, err);
}

void format_census(const struct checkpoint *ck, struct format_census *out)
{
    memset(out, 0, sizeof *out);
    for (int64_t i = 0; i < checkpoint_count(ck); i++) {
        const struct tensor_view *v = checkpoint_at(ck, i);
        if (v->dtype == DTYPE_COUNT) /* listed, held by no file */
            continue;
        out->tensors[v->dtype]++;
        out->bytes[v->dtype] += (int64_t)v->bytes;
        out->tensors[DTYPE_COUNT]++;
        out->bytes[DTYPE_COUNT] += (int64_t)v->bytes;
    }
}

const char *drafter_title(const struct qr_config *c)
{
    switch (c->drafter) {
    case QR_DRAFTER_MTP: return "MTP";
    case QR_DRAFTER_DSPARK: return "DSpark";
    case QR_DRAFTER_NONE: break;
    }
    return "none";
}

const char *mismatch_title(enum mismatch kind)
{
    static const char *const titles[MISMATCH_KINDS] = {
        [MISMATCH_MISSING] = "missing",
        [MISMATCH_UNEXPECTED] = "unexpected",
        [MISMATCH_SHAPE] = "wrong shape",
        [MISMATCH_DTYPE] = "wrong format",
    };
    return titles[kind];
}

const char *candidate_role(const struct layer_plan *layer)
{
    return layer->candidate_source ? "builds" : layer->candidate_reader ? "reads" : NULL;
}
