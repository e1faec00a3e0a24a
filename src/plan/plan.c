#include "plan/plan.h"

#include <string.h>

/* The largest of `sources` at or before `layer`, or -1. */
static int32_t owner_at(const int32_t *sources, int32_t n, int32_t layer)
{
    int32_t owner = -1;
    for (int32_t i = 0; i < n; i++)
        if (sources[i] <= layer && sources[i] > owner)
            owner = sources[i];
    return owner;
}

static int32_t index_of(const int32_t *list, int32_t n, int32_t wanted)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == wanted)
            return i;
    return -1;
}

/* What a window-only layer with the backbone's router is; the other kinds start from it. */
static struct layer_plan window_layer(const struct qr_config *c)
{
    return (struct layer_plan){
        .attend = ATTEND_WINDOW,
        .kv_owner = -1,
        .index_owner = -1,
        .compressor = COMPRESSOR_NONE,
        .order = SELECTION_ASCENDING,
        .rope = ROPE_MAIN,
        .router = ROUTER_SCORE,
        .engram = -1,
        .tap = -1,
        .n_experts = c->n_routed_experts,
        .n_active = c->n_experts_per_tok,
    };
}

/* v41-model.md 1.4. */
static qr_status layer_v41(const struct qr_config *c, int32_t layer, struct layer_plan *out, qr_error *err)
{
    *out = window_layer(c);
    out->ratio = c->compress_ratios[layer];
    out->engram = index_of(c->engram_layers, c->n_engram, layer);
    if (out->ratio == 0)
        return QR_OK;
    out->kv_owner = owner_at(c->kv_source_layers, c->n_kv_sources, layer);
    out->index_owner = owner_at(c->index_source_layers, c->n_index_sources, layer);
    if (out->kv_owner < 0 || out->index_owner < out->kv_owner || c->compress_ratios[out->kv_owner] != out->ratio)
        return qr_fail(err, QR_BAD_CONFIG,
                       "E28 layer %d of ratio %d reads the rows of layer %d and the selection of layer %d, wanted an "
                       "owner of its ratio and a selection made at or after it",
                       (int)layer, (int)out->ratio, (int)out->kv_owner, (int)out->index_owner);
    out->rope = ROPE_COMPRESS;
    out->owns_rows = out->kv_owner == layer;
    out->owns_index = out->index_owner == layer;
    out->attend = out->owns_rows ? ATTEND_FULL : out->owns_index ? ATTEND_REINDEX : ATTEND_REUSE;
    if (out->owns_rows)
        out->compressor = out->ratio == 1 ? COMPRESSOR_SINGLE : COMPRESSOR_PAIR;
    out->candidate_source = layer == c->candidate_source_layer;
    out->candidate_reader = c->candidate_source_layer >= 0 && out->owns_index && layer > c->candidate_source_layer;
    return QR_OK;
}

/* v4-model.md 1.3: every layer with a ratio owns what it reads; ratio 4 overlaps and selects, any other is plain. */
static void layer_v4(const struct qr_config *c, int32_t layer, struct layer_plan *out)
{
    *out = window_layer(c);
    out->ratio = c->compress_ratios[layer];
    out->router = layer < c->num_hash_layers ? ROUTER_HASH : ROUTER_SCORE;
    if (out->ratio == 0)
        return;
    out->attend = out->ratio == 4 ? ATTEND_CSA : ATTEND_HCA;
    out->kv_owner = layer;
    out->owns_rows = true;
    out->rope = ROPE_COMPRESS;
    out->compressor = out->ratio == 4 ? COMPRESSOR_OVERLAP : COMPRESSOR_PLAIN;
    if (out->attend == ATTEND_CSA) {
        out->index_owner = layer;
        out->owns_index = true;
        out->order = SELECTION_BY_SCORE;
    }
}

static struct layer_plan draft_layer(const struct qr_config *c)
{
    struct layer_plan layer = window_layer(c);
    if (c->drafter == QR_DRAFTER_DSPARK) {
        layer.n_experts = c->dspark_n_routed_experts;
        layer.n_active = c->dspark_n_experts_per_tok;
    }
    return layer;
}

static struct owner_plan owner_record(const struct qr_config *c, int32_t layer, const struct layer_plan *l)
{
    struct owner_plan o = {.layer = layer, .ratio = l->ratio, .has_index = l->owns_index, .compressor = l->compressor};
    switch (l->compressor) {
    case COMPRESSOR_PAIR:
        o.tail_rows = 2;
        o.tail_width = c->head_dim;
        break;
    case COMPRESSOR_OVERLAP: /* two windows of four; each row holds both halves of the channels */
        o.tail_rows = 2 * l->ratio;
        o.tail_width = 2 * c->head_dim;
        o.index_tail_width = 2 * c->index_head_dim;
        break;
    case COMPRESSOR_PLAIN:
        o.tail_rows = l->ratio;
        o.tail_width = c->head_dim;
        break;
    case COMPRESSOR_SINGLE: /* a group of one is never pending */
    case COMPRESSOR_NONE: break;
    }
    return o;
}

/* Numbers the owners and the index sources in layer order, and tells every layer which is its own. */
static void number_owners(struct model_plan *p)
{
    p->max_ratio = 1;
    for (int32_t i = 0; i < p->layers; i++) {
        const struct layer_plan *l = &p->layer[i];
        if (l->owns_rows) {
            p->owner_of_layer[i] = p->owners;
            p->owner[p->owners++] = owner_record(&p->config, i, l);
            if (l->ratio > p->max_ratio)
                p->max_ratio = l->ratio;
        }
        if (l->owns_index)
            p->index_source_of_layer[i] = p->index_sources++;
    }
    for (int32_t i = 0; i < p->layers; i++) {
        const struct layer_plan *l = &p->layer[i];
        if (l->kv_owner >= 0)
            p->owner_of_layer[i] = p->owner_of_layer[l->kv_owner];
        if (l->index_owner >= 0)
            p->index_source_of_layer[i] = p->index_source_of_layer[l->index_owner];
    }
}

/* What the values that are cached may be kept as (v41-model.md 5.2; v4-model.md 5.6, 7.4; runtime.md 2.1). */
static void choose_containers(struct model_plan *p)
{
    p->rows_pack = p->config.family == QR_FAMILY_V41;
    p->index_keys = p->config.family == QR_FAMILY_V41     ? INDEX_KEYS_FP8_OR_FP4
                    : p->profile == QR_PROFILE_REFERENCE ? INDEX_KEYS_FP4
                                                         : INDEX_KEYS_INT8;
}

/* What the arithmetic profile asks of the model (v4-model.md 1.4 rule 9). */
static qr_status check_profile(const struct model_plan *p, qr_error *err)
{
    const struct qr_config *c = &p->config;
    if (p->profile == QR_PROFILE_REFERENCE && c->stored_w8a8)
        return qr_fail(err, QR_BAD_ARGUMENT, "the folder holds INT8 weights (quant_method w8a8-int8): profile is "
                                           "reference, wanted w8a8");
    if (p->profile == QR_PROFILE_REFERENCE)
        return QR_OK;
    if (c->family != QR_FAMILY_V4)
        return qr_fail(err, QR_BAD_ARGUMENT, "profile is w8a8, DeepSeek-V4.1 has the reference profile only");
    if (c->sliding_window != 128)
        return qr_fail(err, QR_BAD_CONFIG, "profile w8a8: sliding_window is %d, wanted 128", (int)c->sliding_window);
    for (int32_t i = 0; i < p->layers; i++)
        if (p->layer[i].ratio > 0 && 128 % p->layer[i].ratio)
            return qr_fail(err, QR_BAD_CONFIG, "profile w8a8: ratio of layer %d is %d, wanted a divisor of 128", (int)i,
                           (int)p->layer[i].ratio);
    return QR_OK;
}

/* V4's DSpark block may be extrapolated (speculation.md 2.9). */
static void plan_drafts(const struct qr_config *c, struct model_plan *p)
{
    const bool dspark = c->drafter == QR_DRAFTER_DSPARK;
    const int32_t widest = dspark && c->family == QR_FAMILY_V4 ? 7 : 0;
    p->draft_width = dspark ? c->dspark_block_size : c->drafter == QR_DRAFTER_MTP;
    p->draft_widest = p->draft_width > widest ? p->draft_width : widest;
}

qr_status plan_make(const struct qr_config *config, enum qr_profile profile, struct model_plan *out, qr_error *err)
{
    int32_t layers = config->num_hidden_layers, drafts = config->num_draft_layers;
    if (layers < 1 || drafts < 0 || layers + drafts > QR_MAX_LAYERS)
        return qr_fail(err, QR_BAD_CONFIG, "%d layers and %d draft layers, wanted 1 to %d in all", (int)layers,
                       (int)drafts, QR_MAX_LAYERS);
    memset(out, 0, sizeof *out);
    out->config = *config;
    out->profile = profile;
    out->layers = layers;
    out->draft_layers = drafts;
    plan_drafts(config, out);
    for (int32_t i = 0; i < QR_MAX_LAYERS; i++)
        out->owner_of_layer[i] = out->index_source_of_layer[i] = -1;
    for (int32_t i = 0; i < layers; i++) {
        qr_status st = QR_OK;
        if (config->family == QR_FAMILY_V41)
            st = layer_v41(config, i, &out->layer[i], err);
        else
            layer_v4(config, i, &out->layer[i]);
        if (st != QR_OK)
            return st;
        if (config->drafter == QR_DRAFTER_DSPARK)
            out->layer[i].tap = index_of(config->dspark_target_layers, config->n_dspark_targets, i);
    }
    for (int32_t i = 0; i < drafts; i++)
        out->layer[layers + i] = draft_layer(config);
    number_owners(out);
    choose_containers(out);
    return check_profile(out, err);
}

const char *attend_name(enum attend attend)
{
    static const char *const names[] = {
        [ATTEND_WINDOW] = "window", [ATTEND_FULL] = "full", [ATTEND_REINDEX] = "reindex",
        [ATTEND_REUSE] = "reuse",   [ATTEND_CSA] = "csa",   [ATTEND_HCA] = "hca",
    };
    return (unsigned)attend < sizeof names / sizeof *names ? names[attend] : "?";
}
