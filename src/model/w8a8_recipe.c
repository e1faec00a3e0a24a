#include "model/w8a8_recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct w8a8_recipe w8a8_recipes[] = {
    {"embed_weight", NULL, "embed.weight", SCOPE_MODEL, FORM_SAME, false},
    {"lm_head_weight", NULL, "head.weight", SCOPE_MODEL, FORM_SAME, false},
    {"hc_attn_fn", NULL, "hc_attn_fn", SCOPE_LAYERS, FORM_SAME, false},
    {"hc_attn_scale", NULL, "hc_attn_scale", SCOPE_LAYERS, FORM_SAME, false},
    {"hc_attn_base", NULL, "hc_attn_base", SCOPE_LAYERS, FORM_SAME, false},
    {"hc_ffn_fn", NULL, "hc_ffn_fn", SCOPE_LAYERS, FORM_SAME, false},
    {"hc_ffn_scale", NULL, "hc_ffn_scale", SCOPE_LAYERS, FORM_SAME, false},
    {"hc_ffn_base", NULL, "hc_ffn_base", SCOPE_LAYERS, FORM_SAME, false},
    {"attn_norm_w", NULL, "attn_norm.weight", SCOPE_LAYERS, FORM_SAME, false},
    {"wq_a", NULL, "attn.wq_a.weight", SCOPE_LAYERS, FORM_BF16, true},
    {"wq_b", "wq_b_scale", "attn.wq_b.weight", SCOPE_LAYERS, FORM_INT8, true},
    {"wkv", NULL, "attn.wkv.weight", SCOPE_LAYERS, FORM_BF16, true},
    {"gamma_cq", NULL, "attn.q_norm.weight", SCOPE_LAYERS, FORM_SAME, false},
    {"gamma_ckv", NULL, "attn.kv_norm.weight", SCOPE_LAYERS, FORM_SAME, false},
    {"attn_sink", NULL, "attn.attn_sink", SCOPE_LAYERS, FORM_SAME, false},
    {"wo_a", NULL, "attn.wo_a.weight", SCOPE_LAYERS, FORM_BF16, false},
    {"wo_b", "wo_b_scale", "attn.wo_b.weight", SCOPE_LAYERS, FORM_INT8, false},
    {"norm_w", NULL, "ffn_norm.weight", SCOPE_LAYERS, FORM_SAME, false},
    {"gate_w", NULL, "ffn.gate.weight", SCOPE_LAYERS, FORM_F32, false},
    {"gate_bias", NULL, "ffn.gate.bias", SCOPE_LAYERS, FORM_BIAS, false},
    {"tid2eid", NULL, "ffn.gate.tid2eid", SCOPE_BACKBONE, FORM_ROUTES, false},
    {"routed_w1", "routed_w1_scale", "ffn.experts.*.w1.weight", SCOPE_LAYERS, FORM_INT8, false},
    {"routed_w3", "routed_w3_scale", "ffn.experts.*.w3.weight", SCOPE_LAYERS, FORM_INT8, false},
    {"routed_w2", "routed_w2_scale", "ffn.experts.*.w2.weight", SCOPE_LAYERS, FORM_INT8, false},
    {"shared_w1", "shared_w1_scale", "ffn.shared_experts.w1.weight", SCOPE_LAYERS, FORM_INT8, false},
    {"shared_w3", "shared_w3_scale", "ffn.shared_experts.w3.weight", SCOPE_LAYERS, FORM_INT8, false},
    {"shared_w2", "shared_w2_scale", "ffn.shared_experts.w2.weight", SCOPE_LAYERS, FORM_INT8, false},
    {"hca_cmp_wkv", NULL, "attn.compressor.wkv.weight", SCOPE_HCA, FORM_SAME, false},
    {"hca_cmp_wgate", NULL, "attn.compressor.wgate.weight", SCOPE_HCA, FORM_SAME, false},
    {"hca_cmp_ape", NULL, "attn.compressor.ape", SCOPE_HCA, FORM_SAME, false},
    {"hca_cmp_norm_w", NULL, "attn.compressor.norm.weight", SCOPE_HCA, FORM_SAME, false},
    {"csa_cmp_wkv", NULL, "attn.compressor.wkv.weight", SCOPE_CSA, FORM_SAME, false},
    {"csa_cmp_wgate", NULL, "attn.compressor.wgate.weight", SCOPE_CSA, FORM_SAME, false},
    {"csa_cmp_ape", NULL, "attn.compressor.ape", SCOPE_CSA, FORM_SAME, false},
    {"csa_cmp_norm_w", NULL, "attn.compressor.norm.weight", SCOPE_CSA, FORM_SAME, false},
    {"csa_idx_wq_b", "csa_idx_wq_b_scale", "attn.indexer.wq_b.weight", SCOPE_CSA, FORM_INT8, true},
    {"csa_weights_proj", NULL, "attn.indexer.weights_proj.weight", SCOPE_CSA, FORM_SAME, true},
    {"csa_hadamard_idx", NULL, "", SCOPE_CSA, FORM_HADAMARD, false},
    {"csa_inner_wkv", NULL, "attn.indexer.compressor.wkv.weight", SCOPE_CSA, FORM_SAME, false},
    {"csa_inner_wgate", NULL, "attn.indexer.compressor.wgate.weight", SCOPE_CSA, FORM_SAME, false},
    {"csa_inner_ape", NULL, "attn.indexer.compressor.ape", SCOPE_CSA, FORM_SAME, false},
    {"csa_inner_norm_w", NULL, "attn.indexer.compressor.norm.weight", SCOPE_CSA, FORM_SAME, false},
    {"hc_head_fn", NULL, "hc_head_fn", SCOPE_HEAD, FORM_SAME, false},
    {"hc_head_scale", NULL, "hc_head_scale", SCOPE_HEAD, FORM_SAME, false},
    {"hc_head_base", NULL, "hc_head_base", SCOPE_HEAD, FORM_SAME, false},
    {"final_norm_w", NULL, "norm.weight", SCOPE_HEAD, FORM_SAME, false},
    {"enorm_w", NULL, "enorm.weight", SCOPE_MTP, FORM_F32, false},
    {"hnorm_w", NULL, "hnorm.weight", SCOPE_MTP, FORM_F32, false},
    {"e_proj_w", "e_proj_scale", "e_proj.weight", SCOPE_MTP, FORM_INT8, false},
    {"e_proj_smooth", NULL, "e_proj.smooth", SCOPE_MTP, FORM_ONES, false},
    {"h_proj_w", "h_proj_scale", "h_proj.weight", SCOPE_MTP, FORM_INT8, false},
    {"h_proj_smooth", NULL, "h_proj.smooth", SCOPE_MTP, FORM_ONES, false},
    {"main_proj_w", NULL, "main_proj.weight", SCOPE_FIRST, FORM_BF16, false},
    {"main_norm_w", NULL, "main_norm.weight", SCOPE_FIRST, FORM_SAME, false},
    {"markov_w1", NULL, "markov_head.markov_w1.weight", SCOPE_LAST, FORM_SAME, false},
    {"markov_w2", NULL, "markov_head.markov_w2.weight", SCOPE_LAST, FORM_SAME, false},
    {"confidence_w", NULL, "confidence_head.proj.weight", SCOPE_LAST, FORM_SAME, false},
};
const int32_t w8a8_recipe_count = sizeof w8a8_recipes / sizeof *w8a8_recipes;

/* ---- official names ---- */

/* The number after `prefix` and the rest behind its dot; NULL when the name does not begin so. */
static const char *after_number(const char *name, const char *prefix, int32_t *number)
{
    size_t n = strlen(prefix);
    char *end;
    if (strncmp(name, prefix, n) != 0)
        return NULL;
    long value = strtol(name + n, &end, 10);
    if (end == name + n || *end != '.' || value < 0 || value >= 1 << 20)
        return NULL;
    *number = (int32_t)value;
    return end + 1;
}

void official_split(const struct model_plan *plan, const char *name, struct official_name *out)
{
    const char *rest;
    out->layer = out->expert = -1;
    if ((rest = after_number(name, "layers.", &out->layer)) != NULL)
        name = rest;
    else if ((rest = after_number(name, "mtp.", &out->layer)) != NULL) {
        name = rest;
        out->layer += plan->layers;
    }
    if ((rest = after_number(name, "ffn.experts.", &out->expert)) != NULL)
        snprintf(out->stem, sizeof out->stem, "ffn.experts.*.%s", rest);
    else
        snprintf(out->stem, sizeof out->stem, "%s", name);
}

void official_join(const struct model_plan *plan, const struct w8a8_recipe *recipe, int32_t layer, int32_t expert,
                   char *out, size_t size)
{
    const char *star = strchr(recipe->official, '*');
    int used = 0;
    if (layer >= plan->layers)
        used = snprintf(out, size, "mtp.%d.", layer - plan->layers);
    else if (layer >= 0)
        used = snprintf(out, size, "layers.%d.", layer);
    else
        out[0] = '\0';
    if (star)
        snprintf(out + used, size - (size_t)used, "%.*s%d%s", (int)(star - recipe->official), recipe->official, expert,
                 star + 1);
    else
        snprintf(out + used, size - (size_t)used, "%s", recipe->official);
}

/* ---- where a recipe applies ---- */

static bool applies(const struct model_plan *plan, const struct w8a8_recipe *recipe, int32_t layer)
{
    const bool mtp = layer >= plan->layers, serial = plan->config.drafter == QR_DRAFTER_MTP;
    const bool last = layer == plan->layers + plan->draft_layers - 1;
    switch (recipe->scope) {
    case SCOPE_LAYERS:
        return layer >= 0;
    case SCOPE_BACKBONE:
        return layer >= 0 && !mtp;
    case SCOPE_HCA:
        return layer >= 0 && plan->layer[layer].attend == ATTEND_HCA;
    case SCOPE_CSA:
        return layer >= 0 && plan->layer[layer].attend == ATTEND_CSA;
    case SCOPE_MODEL:
        return layer < 0;
    case SCOPE_HEAD:
        return layer < 0 || (mtp && last);
    case SCOPE_MTP:
        return mtp && serial;
    case SCOPE_FIRST:
        return layer == plan->layers && !serial;
    case SCOPE_LAST:
        return mtp && last && !serial;
    }
    return false;
}

static bool stacked(const struct w8a8_recipe *recipe) { return recipe->scope <= SCOPE_CSA; }

const struct w8a8_recipe *w8a8_recipe_of(const struct model_plan *plan, const struct official_name *name)
{
    if (name->layer >= plan->layers + plan->draft_layers)
        return NULL;
    for (int32_t i = 0; i < w8a8_recipe_count; i++)
        if (strcmp(w8a8_recipes[i].official, name->stem) == 0 && applies(plan, &w8a8_recipes[i], name->layer))
            return &w8a8_recipes[i];
    return NULL;
}

int32_t w8a8_place(const struct model_plan *plan, const struct w8a8_recipe *recipe, int32_t layer)
{
    int32_t place = 0;
    if (!stacked(recipe))
        return 0;
    for (int32_t i = layer >= plan->layers ? plan->layers : 0; i < layer; i++)
        place += applies(plan, recipe, i);
    return place;
}

int32_t w8a8_layers(const struct model_plan *plan, const struct w8a8_recipe *recipe, bool mtp,
                    int32_t out[QR_MAX_LAYERS])
{
    int32_t first = mtp ? plan->layers : stacked(recipe) ? 0 : -1;
    int32_t end = mtp ? plan->layers + plan->draft_layers : stacked(recipe) ? plan->layers : 0, count = 0;
    for (int32_t layer = first; layer < end; layer++)
        if (applies(plan, recipe, layer))
            out[count++] = layer;
    return count;
}

bool w8a8_routed(const struct w8a8_recipe *recipe) { return strchr(recipe->official, '*') != NULL; }

bool w8a8_has_official(const struct model_plan *plan, const struct w8a8_recipe *recipe, int32_t layer)
{
    bool hashed = layer >= 0 && plan->layer[layer].router == ROUTER_HASH;
    switch (recipe->form) {
    case FORM_ROUTES:
        return hashed;
    case FORM_BIAS:
        return !hashed;
    case FORM_ONES:
    case FORM_HADAMARD:
        return false;
    default:
        return true;
    }
}
