#include "model/weight_bytes.h"

#include <string.h>

#include "model/w8a8_recipe.h"
#include "model/weights.h"
#include "plan/schema.h"

struct counting {
    const struct model_plan *plan;
    const struct checkpoint *ck;
    weight_size *size, *staged;
    struct weight_bytes *out;
    int64_t large; /* vectors that need a block of their own */
};

static bool begins(const char *name, const char *with) { return strncmp(name, with, strlen(with)) == 0; }

static bool ends(const char *name, const char *with)
{
    const size_t n = strlen(name), m = strlen(with);
    return n >= m && strcmp(name + n - m, with) == 0;
}

bool weight_is_loaded(const char *name, bool drafter)
{
    return !begins(name, "vision.") && !begins(name, "aligner.") && !begins(name, "image_") &&
           !strstr(name, ".engram.embed.") && (drafter || !begins(name, "mtp."));
}

/* Scales go with their matrices. */
static bool is_left_out(const char *name, bool drafter) { return ends(name, ".scale") || !weight_is_loaded(name, drafter); }

static bool is_vector(const struct tensor_spec *t)
{
    return t->rank < 2 || ends(t->name, ".ape") || ends(t->name, "engram.q_weight") || ends(t->name, "engram.k_weight") ||
           ends(t->name, ".tid2eid");
}

/* As the forward pass wants it: the folder's own form, or that of the INT8 deployment. */
static enum dtype dtype_wanted(const struct counting *c, const struct tensor_spec *t)
{
    struct official_name name;
    if (c->plan->profile != QR_PROFILE_W8A8) {
        const struct tensor_view *view = c->ck && t->or_bf16 ? checkpoint_find(c->ck, t->name) : NULL;
        return view ? view->dtype : t->dtype;
    }
    official_split(c->plan, t->name, &name);
    const struct w8a8_recipe *recipe = w8a8_recipe_of(c->plan, &name);
    switch (recipe ? recipe->form : FORM_SAME) {
    case FORM_BF16:
        return DTYPE_BF16;
    case FORM_F32:
        return DTYPE_F32;
    case FORM_INT8:
        return DTYPE_I8;
    default:
        return t->dtype;
    }
}

static enum weight_format format_of(const struct counting *c, enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BF16:
        return WEIGHT_BF16;
    case DTYPE_F32:
        return WEIGHT_F32;
    case DTYPE_F8_E4M3:
        return WEIGHT_FP8;
    default:
        return c->plan->profile == QR_PROFILE_W8A8 ? WEIGHT_INT8 : WEIGHT_FP4;
    }
}

static void add_vector(struct counting *c, int64_t bytes)
{
    const int64_t room = (bytes + WEIGHTS_ALIGNMENT - 1) / WEIGHTS_ALIGNMENT * WEIGHTS_ALIGNMENT;
    c->out->vectors += room;
    c->large += room > WEIGHTS_SLAB_BYTES / 8;
}

static void add_matrix(struct counting *c, const struct weight_spec *spec)
{
    const int64_t staged = c->staged(spec), bytes = c->size(spec);
    c->out->matrices += bytes;
    if (begins(spec->name, "layers.") && strstr(spec->name, ".ffn.experts."))
        c->out->experts += bytes;
    c->out->staged = staged > c->out->staged ? staged : c->out->staged;
}

static void add_tensor(struct counting *c, const struct tensor_spec *t)
{
    const enum dtype dtype = dtype_wanted(c, t);
    if (is_vector(t)) {
        const int64_t elements = tensor_elements(t->rank, t->shape);
        add_vector(c, elements * (ends(t->name, ".tid2eid") ? (int64_t)sizeof(int32_t) : (int64_t)dtype_size(dtype)));
        return;
    }
    const bool packed = t->dtype == DTYPE_I8; /* two codes a byte */
    struct weight_spec spec = {.name = t->name,
                               .format = format_of(c, dtype),
                               .n = (int32_t)t->shape[0],
                               .k = (int32_t)(t->shape[1] * (packed ? 2 : 1)),
                               .k_splits = 1};
    spec.tile = spec.format == WEIGHT_FP8 ? c->plan->config.fp8_block : 0;
    if (!ends(t->name, "confidence_head.proj.weight")) {
        add_matrix(c, &spec);
        return;
    }
    const int32_t hidden = c->plan->config.hidden_size, rest = spec.k - hidden; /* two products (weights.c) */
    spec.k = hidden;
    add_matrix(c, &spec);
    spec.k = rest;
    add_matrix(c, &spec);
}

qr_status weight_bytes_count(const struct model_plan *plan, const struct checkpoint *ck, bool drafter, weight_size *size,
                             weight_size *staged, struct weight_bytes *out, qr_error *err)
{
    struct counting c = {.plan = plan, .ck = ck, .size = size, .staged = staged, .out = out};
    struct qr_config config = plan->config;
    struct schema *schema;
    *out = (struct weight_bytes){.matrices = 0};
    config.stored_w8a8 = false; /* official names are what weights are asked for by */
    TRY(schema_make(&config, &schema, err));
    const struct tensor_spec *t = schema_tensors(schema);
    for (int64_t i = 0; i < schema_count(schema); i++)
        if (!is_left_out(t[i].name, drafter))
            add_tensor(&c, &t[i]);
    if (plan->profile == QR_PROFILE_W8A8 && drafter && config.drafter == QR_DRAFTER_MTP)
        for (int side = 0; side < 2; side++) /* what smooths the inputs of e_proj and h_proj */
            add_vector(&c, config.hidden_size * (int64_t)sizeof(float));
    schema_free(schema);
    const int64_t experts = (int64_t)plan->layers * config.n_routed_experts;
    out->expert = experts > 0 ? out->experts / experts : 0;
    /* a block ends early where the next vector does not fit */
    out->vectors += out->vectors / 7 + (c.large + 2) * WEIGHTS_SLAB_BYTES;
    return QR_OK;
}
