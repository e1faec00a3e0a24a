/* w8a8_recipe.h: how each tensor of the INT8 deployment (v4-model.md 7.1) follows from official ones. Names only. */
#ifndef QR_MODEL_W8A8_RECIPE_H
#define QR_MODEL_W8A8_RECIPE_H

#include "plan/plan.h"

/* Which layers have the tensor, stacked on a leading axis; the drafter's stand apart, named with "mtp_". */
enum w8a8_scope {
    SCOPE_LAYERS, /* every layer, and the drafter's in a stack of its own */
    SCOPE_BACKBONE,
    SCOPE_HCA,
    SCOPE_CSA,
    SCOPE_MODEL, /* once, no stack */
    SCOPE_HEAD,  /* once, and once for the drafter's last layer, no stack */
    SCOPE_MTP,   /* the MTP layer, no stack */
    SCOPE_FIRST, /* the first stage of a DSpark drafter, no stack */
    SCOPE_LAST   /* its last */
};

enum w8a8_form {
    FORM_SAME,    /* as it is */
    FORM_BF16,    /* dequantized, exactly */
    FORM_F32,     /* widened */
    FORM_INT8,    /* quantized by output channel, with f32 scales (7.2) */
    FORM_ROUTES,  /* expert numbers as int32; zeros in a layer without the table */
    FORM_BIAS,    /* as it is; zeros in a layer without it */
    FORM_ONES,    /* f32 ones */
    FORM_HADAMARD /* a Sylvester matrix times n^-0.5, bf16 */
};

struct w8a8_recipe {
    const char *name;     /* of 7.1, without "mtp_" */
    const char *scale;    /* FORM_INT8: of its scales */
    const char *official; /* without the layer's prefix; "*" stands for the number of a routed expert */
    enum w8a8_scope scope;
    enum w8a8_form form;
    bool turned; /* stored [in, out], where official ones are [out, in] */
};

/* All of them; the MTP layer's are those of SCOPE_LAYERS, SCOPE_HEAD and SCOPE_MTP, a DSpark drafter's those of SCOPE_LAYERS,
 * SCOPE_FIRST, SCOPE_LAST and SCOPE_HEAD. */
extern const struct w8a8_recipe w8a8_recipes[];
extern const int32_t w8a8_recipe_count;

/* An official name in its parts: "layers.3.ffn.experts.7.w1.weight" is layer 3, expert 7, "ffn.experts.*.w1.weight". */
struct official_name {
    int32_t layer;  /* backbone first, then the drafter's; -1: none */
    int32_t expert; /* -1: none */
    char stem[64];
};
void official_split(const struct model_plan *plan, const char *name, struct official_name *out);
/* The name of the parts. */
void official_join(const struct model_plan *plan, const struct w8a8_recipe *recipe, int32_t layer, int32_t expert,
                   char *out, size_t size);

/* The recipe whose official tensor that is, or NULL. */
const struct w8a8_recipe *w8a8_recipe_of(const struct model_plan *plan, const struct official_name *name);

/* Place of `layer` in the stack of the recipe's backbone (or drafter's) tensor; 0 without a stack. */
int32_t w8a8_place(const struct model_plan *plan, const struct w8a8_recipe *recipe, int32_t layer);
/* Layers in that stack, in order, into `out`; -1 where no layer is meant. Returns how many; 0: the model has none. */
int32_t w8a8_layers(const struct model_plan *plan, const struct w8a8_recipe *recipe, bool mtp,
                    int32_t out[QR_MAX_LAYERS]);

/* Whether it holds one matrix a routed expert. */
bool w8a8_routed(const struct w8a8_recipe *recipe);
/* Whether `layer` has the official tensor; where not, zeros stand in its place. */
bool w8a8_has_official(const struct model_plan *plan, const struct w8a8_recipe *recipe, int32_t layer);

#endif
