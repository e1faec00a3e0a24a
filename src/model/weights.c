#include "model/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"
#include "model/route_table.h"
#include "model/weights_ahead.h"
#include "ops/weight_spec.h"

/* A row-parallel weight is summed in this many ranges of K where it has as many scale blocks (architecture.md,
 * "Accumulation order"). */
enum { ROW_PARALLEL_SPLITS = 8 };
enum { NAME_BYTES = 160, FP4_GROUP = 32 };

struct loader {
    struct tensors *tensors;
    const struct model_plan *plan;
    struct weights *w;
    struct loading *loading;
    struct read_ahead *ahead; /* NULL: nothing is read ahead */
    const struct expert_placement *placement; /* NULL: all on the device */
    char prefix[64]; /* "layers.3." */
    bool again;      /* weights that rested come back where they were: in the order in which they first came, */
    size_t handle, slab; /* of which so many have */
};

static qr_status out_of_memory(const struct loader *l, qr_error *err)
{
    return qr_fail(err, QR_NO_MEMORY, "%s: no memory for the list of weights", tensors_path(l->tensors));
}

/* ---- vectors ---- */

/* The next slab; behind a rest it is there already. */
static qr_status new_slab(struct loader *l, int64_t bytes, qr_error *err)
{
    struct weights *w = l->w;
    void *slab;
    w->slab_size = bytes > WEIGHTS_SLAB_BYTES ? bytes : WEIGHTS_SLAB_BYTES;
    w->slab_used = 0;
    l->slab++;
    if (l->again)
        return QR_OK;
    if (!array_grow(&w->slabs, &w->slab_capacity, w->slab_count, sizeof *w->slabs))
        return qr_fail(err, QR_NO_MEMORY, "weights: no memory for the list of vector blocks");
    TRY(w->backend->allocate(w->backend, w->slab_size, &slab, err));
    w->slabs[w->slab_count++] = slab;
    return QR_OK;
}

/* `bytes` of `data` in backend memory; they may be gone after the call. */
static qr_status keep(struct loader *l, const void *data, int64_t bytes, void *out_pointer, qr_error *err)
{
    struct weights *w = l->w;
    int64_t room = (bytes + WEIGHTS_ALIGNMENT - 1) / WEIGHTS_ALIGNMENT * WEIGHTS_ALIGNMENT;
    if (l->slab == 0 || w->slab_used + room > w->slab_size)
        TRY(new_slab(l, room, err));
    void *at = (uint8_t *)w->slabs[l->slab - 1] + w->slab_used;
    w->slab_used += room;
    TRY(w->backend->upload(w->backend, at, data, bytes, err));
    memcpy(out_pointer, &at, sizeof at);
    ahead_passed(l->ahead, (uint64_t)bytes);
    return loading_add(l->loading, (uint64_t)bytes, err);
}

static qr_status find_values(struct loader *l, const char *name, struct tensor_values *out, qr_error *err)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%s%s", l->prefix, name);
    return tensors_values(l->tensors, full, out, err);
}

/* A copy of a whole tensor, as stored, in backend memory. */
static qr_status vector(struct loader *l, const char *name, void *out_pointer, qr_error *err)
{
    struct tensor_values v;
    TRY(find_values(l, name, &v, err));
    return keep(l, v.data, v.rows * v.cols * (int64_t)dtype_size(v.dtype), out_pointer, err);
}

/* ---- matrices ---- */

/* Where a row-parallel product is cut (architecture.md "Accumulation order"): at whole scale blocks. Sums of INT8 are
 * exact, so there is nothing to cut. */
int32_t weights_splits(const struct weight_spec *spec)
{
    int32_t block = spec->format == WEIGHT_FP8 ? spec->tile : FP4_GROUP;
    return spec->format != WEIGHT_INT8 && spec->k / block >= ROW_PARALLEL_SPLITS ? ROW_PARALLEL_SPLITS : 1;
}

static qr_status prepare(struct loader *l, const struct weight_spec *spec, struct weight **out, qr_error *err)
{
    struct weights *w = l->w;
    qr_status st;
    if (l->again) {
        *out = w->handles[l->handle++];
        st = w->backend->renew_weight(w->backend, *out, spec, err);
    } else if (!array_grow(&w->handles, &w->handle_capacity, w->handle_count, sizeof *w->handles)) {
        return out_of_memory(l, err);
    } else if ((st = w->backend->prepare_weight(w->backend, spec, out, err)) == QR_OK) {
        w->handles[w->handle_count++] = *out;
    }
    if (st != QR_OK)
        return qr_fail_in(err, st, "%s", tensors_path(l->tensors));
    ahead_passed(l->ahead, (uint64_t)weight_spec_bytes(spec));
    return loading_add(l->loading, (uint64_t)weight_spec_bytes(spec), err);
}

static qr_status matrix_of(struct loader *l, const char *name, bool row_parallel, struct weight **out, qr_error *err)
{
    struct weight_spec spec;
    char full[NAME_BYTES];

    snprintf(full, sizeof full, "%s%s", l->prefix, name);
    TRY(tensors_matrix(l->tensors, full, &spec, err));
    if (row_parallel)
        spec.k_splits = weights_splits(&spec);
    return prepare(l, &spec, out, err);
}

static qr_status matrix(struct loader *l, const char *name, struct weight **out, qr_error *err)
{
    return matrix_of(l, name, false, out, err);
}

/* ---- the parts of a layer ---- */

static qr_status load_mix(struct loader *l, const char *part, struct mix_weights *out, qr_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "hc_%s_fn", part);
    TRY(matrix(l, name, &out->fn, err));
    snprintf(name, sizeof name, "hc_%s_base", part);
    TRY(vector(l, name, &out->base, err));
    snprintf(name, sizeof name, "hc_%s_scale", part);
    return vector(l, name, &out->scale, err);
}

static qr_status load_projections(struct loader *l, struct layer_weights *out, qr_error *err)
{
    TRY(vector(l, "attn_norm.weight", &out->attn_norm, err));
    TRY(vector(l, "attn.q_norm.weight", &out->q_norm, err));
    TRY(vector(l, "attn.kv_norm.weight", &out->kv_norm, err));
    TRY(vector(l, "attn.attn_sink", &out->sinks, err));
    TRY(matrix(l, "attn.wq_a.weight", &out->wq_a, err));
    TRY(matrix(l, "attn.wq_b.weight", &out->wq_b, err));
    TRY(matrix(l, "attn.wkv.weight", &out->wkv, err));
    TRY(matrix(l, "attn.wo_a.weight", &out->wo_a, err));
    return matrix_of(l, "attn.wo_b.weight", true, &out->wo_b, err);
}

/* `stem` is "attn.compressor." or "attn.indexer.compressor.". */
static qr_status load_compressor(struct loader *l, const char *stem, enum compressor kind,
                                 struct compressor_weights *out, qr_error *err)
{
    char name[64];
    snprintf(name, sizeof name, "%swkv.weight", stem);
    TRY(matrix(l, name, &out->wkv, err));
    snprintf(name, sizeof name, "%swgate.weight", stem);
    if (kind != COMPRESSOR_SINGLE)
        TRY(matrix(l, name, &out->wgate, err));
    snprintf(name, sizeof name, "%sape", stem);
    if (kind == COMPRESSOR_OVERLAP || kind == COMPRESSOR_PLAIN)
        TRY(vector(l, name, &out->ape, err));
    snprintf(name, sizeof name, "%snorm.weight", stem);
    return vector(l, name, &out->norm, err);
}

/* Where index keys come from: V4.1 projects them from the pooled latent, V4 compresses them for themselves. */
static qr_status load_index_keys(struct loader *l, const struct layer_plan *layer, struct layer_weights *out,
                                 qr_error *err)
{
    if (layer->compressor == COMPRESSOR_OVERLAP)
        return load_compressor(l, "attn.indexer.compressor.", layer->compressor, &out->indexer.keys, err);
    if (layer->compressor == COMPRESSOR_PLAIN)
        return QR_OK;
    TRY(matrix(l, "attn.indexer.wk.weight", &out->indexer.wk, err));
    return vector(l, "attn.indexer.k_norm.weight", &out->indexer.k_norm, err);
}

static qr_status load_indexer(struct loader *l, struct layer_weights *out, qr_error *err)
{
    TRY(matrix(l, "attn.indexer.wq_b.weight", &out->indexer.wq_b, err));
    return matrix(l, "attn.indexer.weights_proj.weight", &out->indexer.weights_proj, err);
}

static qr_status load_engram(struct loader *l, struct layer_weights *out, qr_error *err)
{
    TRY(matrix(l, "engram.wkv.weight", &out->engram.wkv, err));
    TRY(vector(l, "engram.q_weight", &out->engram.q_weight, err));
    return vector(l, "engram.k_weight", &out->engram.k_weight, err);
}

static const char *const kinds[3] = {"w1", "w2", "w3"};

/* A matrix of an expert: `name` behind the prefix, `kind` of `kinds`. */
static qr_status expert_matrix(struct loader *l, const char *name, int kind, struct weight_spec *out, char full[NAME_BYTES],
                               qr_error *err)
{
    snprintf(full, NAME_BYTES, "%s%s%s.weight", l->prefix, name, kinds[kind]);
    TRY(tensors_matrix(l->tensors, full, out, err));
    if (kind == 1)
        out->k_splits = weights_splits(out);
    return QR_OK;
}

/* `stem` is "ffn.experts.%d." or "ffn.shared_experts."; layer -1: they lie on the device. */
static qr_status load_experts(struct loader *l, const char *stem, int32_t layer, int32_t count, struct expert_weights *out,
                              qr_error *err)
{
    struct weight **handles =
        l->again ? (struct weight **)out->w1 : arena_alloc(&l->w->arena, sizeof *handles * 3 * (size_t)count);
    char name[64], full[NAME_BYTES];
    struct weight_spec spec;
    if (!handles)
        return out_of_memory(l, err);

    for (int32_t e = 0; e < count; e++)
        for (int kind = 0; kind < 3; kind++) {
            snprintf(name, sizeof name, stem, e);
            TRY(expert_matrix(l, name, kind, &spec, full, err));
            spec.on_host = layer >= 0 && placement_is_on_host(l->placement, layer, e);
            TRY(prepare(l, &spec, &handles[kind * count + e], err));
        }
    out->count = count;
    out->w1 = (const struct weight **)handles;
    out->w2 = out->w1 + count;
    out->w3 = out->w2 + count;
    return QR_OK;
}

static qr_status load_expert_table(struct loader *l, int32_t experts, const int32_t **out, qr_error *err)
{
    struct tensor_values v;
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "%sffn.gate.tid2eid", l->prefix);
    TRY(tensors_values(l->tensors, full, &v, err));
    int32_t *table = qr_calloc((size_t)(v.rows * v.cols), sizeof *table);
    if (!table)
        return out_of_memory(l, err);
    qr_status st =
        route_table_read(tensors_path(l->tensors), full, v.dtype, v.data, v.rows, v.cols, experts, table, err);
    if (st == QR_OK)
        st = keep(l, table, v.rows * v.cols * (int64_t)sizeof *table, out, err);
    if (st == QR_OK)
        st = l->w->backend->fence(l->w->backend, err);
    qr_free(table);
    return st;
}

static qr_status load_router(struct loader *l, const struct layer_plan *layer, struct layer_weights *out, qr_error *err)
{
    TRY(matrix(l, "ffn.gate.weight", &out->gate, err));
    if (layer->router == ROUTER_HASH)
        return load_expert_table(l, layer->n_experts, &out->expert_table, err);
    TRY(vector(l, "ffn.gate.bias", &out->gate_bias, err));
    return l->plan->config.family == QR_FAMILY_V41 ? vector(l, "ffn.gate.bias_vl", &out->gate_bias_image, err) : QR_OK;
}

static qr_status load_attention(struct loader *l, const struct layer_plan *layer, struct layer_weights *out,
                                qr_error *err)
{
    TRY(load_mix(l, "attn", &out->attn_mix, err));
    TRY(load_projections(l, out, err));
    if (layer->owns_rows) {
        TRY(load_compressor(l, "attn.compressor.", layer->compressor, &out->compressor, err));
        TRY(load_index_keys(l, layer, out, err));
    }
    if (layer->owns_index)
        TRY(load_indexer(l, out, err));
    return layer->engram >= 0 ? load_engram(l, out, err) : QR_OK;
}

/* `number`: of a layer of the backbone; -1: of none. */
static qr_status load_ffn(struct loader *l, const struct layer_plan *layer, int32_t number, struct layer_weights *out,
                          qr_error *err)
{
    TRY(load_mix(l, "ffn", &out->ffn_mix, err));
    TRY(vector(l, "ffn_norm.weight", &out->ffn_norm, err));
    TRY(load_router(l, layer, out, err));
    TRY(load_experts(l, "ffn.experts.%d.", number, layer->n_experts, &out->routed, err));
    return load_experts(l, "ffn.shared_experts.", -1, 1, &out->shared, err);
}

static qr_status load_head(struct loader *l, struct head_weights *out, qr_error *err)
{
    if (l->plan->config.family == QR_FAMILY_V4)
        TRY(load_mix(l, "head", &out->mix, err));
    return vector(l, "norm.weight", &out->norm, err);
}

/* Whether a matrix of the reference profile is stored in bf16, where a release has codes. */
static qr_status stored_plain(struct loader *l, const char *name, bool *out, qr_error *err)
{
    struct tensor_values v = {.dtype = DTYPE_I8};
    if (l->plan->profile == QR_PROFILE_REFERENCE)
        TRY(find_values(l, name, &v, err));
    *out = v.dtype == DTYPE_BF16;
    return QR_OK;
}

/* `side` is "e" or "h". */
static qr_status load_projection(struct loader *l, const char *side, struct weight **out, bool *plain,
                                 const void **norm, const float **smooth, qr_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "%snorm.weight", side);
    TRY(vector(l, name, norm, err));
    snprintf(name, sizeof name, "%s_proj.weight", side);
    TRY(stored_plain(l, name, plain, err));
    TRY(matrix(l, name, out, err));
    snprintf(name, sizeof name, "%s_proj.smooth", side);
    return l->plan->profile == QR_PROFILE_W8A8 ? vector(l, name, smooth, err) : QR_OK;
}

static qr_status load_mtp(struct loader *l, qr_error *err)
{
    struct mtp_weights *out = &l->w->mtp;
    int32_t index = l->plan->layers;
    snprintf(l->prefix, sizeof l->prefix, "mtp.0.");
    TRY(load_attention(l, &l->plan->layer[index], &l->w->layer[index], err));
    TRY(load_ffn(l, &l->plan->layer[index], -1, &l->w->layer[index], err));
    TRY(load_projection(l, "e", &out->e_proj, &out->e_plain, &out->e_norm, &out->e_smooth, err));
    TRY(load_projection(l, "h", &out->h_proj, &out->h_plain, &out->h_norm, &out->h_smooth, err));
    return load_head(l, &out->head, err);
}

/* The head of confidence reads a hidden row and a row of the Markov head's table, one behind the other: two products. */
static qr_status load_confidence(struct loader *l, qr_error *err)
{
    struct weight_spec spec, part;
    char name[NAME_BYTES];
    int32_t hidden = l->plan->config.hidden_size;

    snprintf(name, sizeof name, "%sconfidence_head.proj.weight", l->prefix);
    TRY(tensors_matrix(l->tensors, name, &spec, err));
    part = spec;
    part.k = hidden;
    TRY(prepare(l, &part, &l->w->dspark.confidence_hidden, err));
    part.k = spec.k - hidden;
    part.values = (const uint16_t *)spec.values + hidden;
    return prepare(l, &part, &l->w->dspark.confidence_markov, err);
}

static qr_status load_dspark(struct loader *l, qr_error *err)
{
    struct dspark_weights *out = &l->w->dspark;
    const bool v4 = l->plan->config.family == QR_FAMILY_V4;
    const int32_t stages = l->plan->draft_layers;

    for (int32_t i = 0; i < stages; i++) {
        const int32_t index = l->plan->layers + i;
        snprintf(l->prefix, sizeof l->prefix, "mtp.%d.", i);
        TRY(load_attention(l, &l->plan->layer[index], &l->w->layer[index], err));
        TRY(load_ffn(l, &l->plan->layer[index], -1, &l->w->layer[index], err));
        if (i == 0) {
            TRY(matrix(l, "main_proj.weight", &out->main_proj, err));
            TRY(vector(l, "main_norm.weight", &out->main_norm, err));
        }
    }
    TRY(load_head(l, &out->head, err));
    TRY(matrix(l, v4 ? "markov_head.markov_w1.weight" : "markov_head.embed.weight", &out->markov_embed, err));
    TRY(matrix(l, v4 ? "markov_head.markov_w2.weight" : "markov_head.head.weight", &out->markov_head, err));
    return load_confidence(l, err);
}

static qr_status load_drafter(struct loader *l, qr_error *err)
{
    return l->plan->config.drafter == QR_DRAFTER_DSPARK ? load_dspark(l, err) : load_mtp(l, err);
}

static qr_status load_parts(struct loader *l, unsigned parts, qr_error *err)
{
    struct weights *w = l->w;
    if (parts & WEIGHTS_EMBED)
        TRY(matrix(l, "embed.weight", &w->embed, err));
    if (parts & WEIGHTS_HEAD)
        TRY(matrix(l, "head.weight", &w->head, err));
    if (parts & WEIGHTS_FINAL)
        TRY(load_head(l, &w->final, err));
    for (int32_t i = 0; i < l->plan->layers; i++) {
        snprintf(l->prefix, sizeof l->prefix, "layers.%d.", i);
        if (parts & WEIGHTS_ATTENTION)
            TRY(load_attention(l, &l->plan->layer[i], &w->layer[i], err));
        if (parts & WEIGHTS_EXPERTS)
            TRY(load_ffn(l, &l->plan->layer[i], i, &w->layer[i], err));
    }
    return parts & WEIGHTS_DRAFTER ? load_drafter(l, err) : QR_OK;
}

/* Room for experts of host memory, before the first of them comes. */
static qr_status make_seats(struct loader *l, qr_error *err)
{
    const struct expert_placement *p = l->placement;
    struct backend *b = l->w->backend;
    char full[3][NAME_BYTES];
    if (!p || p->on_host == 0 || l->again)
        return QR_OK;
    if (!b->seat_experts)
        return qr_fail(err, QR_UNSUPPORTED, "experts in host memory: backend %s uses all of them where they lie", b->name);
    struct expert_seating seating = {.seats = p->seats, .on_host = p->on_host};
    snprintf(l->prefix, sizeof l->prefix, "layers.0.");
    for (int kind = 0; kind < 3; kind++)
        TRY(expert_matrix(l, "ffn.experts.0.", kind, &seating.shape[kind], full[kind], err));
    l->prefix[0] = '\0';
    return b->seat_experts(b, &seating, err);
}

/* Conversions to INT8 use every core while the model is opened. */
static qr_status open_with_pool(struct loader *l, const struct checkpoint *ck, unsigned parts, qr_error *err)
{
    struct worker_pool *pool = NULL;
    qr_status st = l->plan->profile == QR_PROFILE_W8A8 ? pool_open(0, &pool, err) : QR_OK;
    if (st == QR_OK)
        st = tensors_open(ck, l->plan, pool, &l->w->tensors, err);
    l->tensors = l->w->tensors;
    if (st == QR_OK)
        st = make_seats(l, err);
    if (st == QR_OK && l->w->backend->rest_weights)
        st = weights_ahead_open(ck, l->plan, parts & WEIGHTS_DRAFTER, &l->ahead, err);
    if (st == QR_OK)
        st = load_parts(l, parts, err);
    ahead_close(l->ahead);
    pool_close(pool);
    return st;
}

qr_status weights_open(const struct checkpoint *ck, const struct model_plan *plan, unsigned parts,
                       struct backend *backend, struct loading *loading, struct weights *out, qr_error *err)
{
    return weights_open_placed(ck, plan, parts, backend, NULL, loading, out, err);
}

qr_status weights_open_placed(const struct checkpoint *ck, const struct model_plan *plan, unsigned parts,
                              struct backend *backend, const struct expert_placement *placement, struct loading *loading,
                              struct weights *out, qr_error *err)
{
    struct loader l = {.plan = plan, .w = out, .loading = loading, .placement = placement};
    memset(out, 0, sizeof *out);
    out->backend = backend;
    arena_init(&out->arena, 0);

    qr_status st = open_with_pool(&l, ck, parts, err);
    if (st == QR_OK)
        st = backend->fence(backend, err);
    if (st != QR_OK)
        weights_close(out);
    return st;
}

void weights_rest(struct weights *w)
{
    w->backend->rest_weights(w->backend);
    tensors_close(w->tensors);
    w->tensors = NULL;
}

qr_status weights_rise(const struct checkpoint *ck, const struct model_plan *plan, unsigned parts, struct loading *loading,
                       struct weights *w, qr_error *err)
{
    struct loader l = {.plan = plan, .w = w, .loading = loading, .again = true};
    qr_status st = open_with_pool(&l, ck, parts, err);
    if (st == QR_OK)
        st = w->backend->fence(w->backend, err);
    if (st != QR_OK)
        weights_rest(w);
    return st;
}

void weights_close(struct weights *w)
{
    for (size_t i = 0; i < w->handle_count; i++)
        w->backend->release_weight(w->backend, w->handles[i]);
    for (size_t i = 0; i < w->slab_count; i++)
        w->backend->release(w->backend, w->slabs[i]);
    qr_free(w->handles);
    qr_free(w->slabs);
    tensors_close(w->tensors);
    arena_free(&w->arena);
    memset(w, 0, sizeof *w);
}
