#include "model/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buffer.h"

/* Vectors share blocks of backend memory of this size, at offsets of this alignment. */
enum { SLAB_BYTES = 1 << 20, VECTOR_ALIGNMENT = 256 };
/* A row-parallel weight is summed in this many ranges of K where it has as many scale blocks (architecture.md,
 * "Accumulation order"). */
enum { ROW_PARALLEL_SPLITS = 8 };
enum { NAME_BYTES = 160, FP4_GROUP = 32 };

struct loader {
    const struct checkpoint *ck;
    const struct qr_config *config;
    struct weights *w;
    char prefix[64]; /* "layers.3." */
};

#define TRY(call)                      \
    do {                               \
        qr_status try_status = (call); \
        if (try_status != QR_OK)       \
            return try_status;         \
    } while (0)

static qr_status out_of_memory(const struct loader *l, qr_error *err)
{
    return qr_fail(err, QR_NO_MEMORY, "%s: no memory for the list of weights", checkpoint_path(l->ck));
}

/* ---- vectors ---- */

static qr_status new_slab(struct weights *w, int64_t bytes, qr_error *err)
{
    void *slab;
    if (!array_grow(&w->slabs, &w->slab_capacity, w->slab_count, sizeof *w->slabs))
        return qr_fail(err, QR_NO_MEMORY, "weights: no memory for the list of vector blocks");
    w->slab_size = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
    TRY(w->backend->allocate(w->backend, w->slab_size, &slab, err));
    w->slabs[w->slab_count++] = slab;
    w->slab_used = 0;
    return QR_OK;
}

/* A copy of a whole tensor, as stored, in backend memory. */
static qr_status vector(struct loader *l, const char *name, void *out_pointer, qr_error *err)
{
    struct weights *w = l->w;
    const struct tensor_view *view;
    char full[NAME_BYTES];
    void *at;

    snprintf(full, sizeof full, "%s%s", l->prefix, name);
    TRY(checkpoint_get(l->ck, full, &view, err));
    int64_t bytes = ((int64_t)view->bytes + VECTOR_ALIGNMENT - 1) / VECTOR_ALIGNMENT * VECTOR_ALIGNMENT;
    if (w->slab_count == 0 || w->slab_used + bytes > w->slab_size)
        TRY(new_slab(w, bytes, err));
    at = (uint8_t *)w->slabs[w->slab_count - 1] + w->slab_used;
    w->slab_used += bytes;
    TRY(w->backend->upload(w->backend, at, view->data, (int64_t)view->bytes, err));
    memcpy(out_pointer, &at, sizeof at);
    return QR_OK;
}

/* ---- matrices ---- */

static qr_status format_of(const struct loader *l, const struct tensor_view *view, enum weight_format *out,
                           qr_error *err)
{
    switch (view->dtype) {
    case DTYPE_BF16:
        *out = WEIGHT_BF16;
        return QR_OK;
    case DTYPE_F32:
        *out = WEIGHT_F32;
        return QR_OK;
    case DTYPE_F8_E4M3:
        *out = WEIGHT_FP8;
        return QR_OK;
    case DTYPE_I8:
    case DTYPE_U8:
    case DTYPE_F4:
        *out = WEIGHT_FP4;
        return QR_OK;
    default:
        return qr_fail(err, QR_BAD_FILE, "%s: %s has dtype %s, which is no format of a matrix", checkpoint_path(l->ck),
                       view->name, dtype_name(view->dtype));
    }
}

static qr_status describe(struct loader *l, const struct tensor_view *view, const struct tensor_view *scale,
                          bool row_parallel, struct weight_spec *spec, qr_error *err)
{
    memset(spec, 0, sizeof *spec);
    TRY(format_of(l, view, &spec->format, err));
    int64_t n = view->shape[0], k = view->shape[1] * (spec->format == WEIGHT_FP4 ? 2 : 1);
    if (n > INT32_MAX || k > INT32_MAX)
        return qr_fail(err, QR_BAD_FILE, "%s: %s has a dimension beyond 2^31 - 1", checkpoint_path(l->ck), view->name);

    spec->name = view->name;
    spec->n = (int32_t)n;
    spec->k = (int32_t)k;
    spec->tile = spec->format == WEIGHT_FP8 ? l->config->fp8_block : 0;
    int32_t block = spec->format == WEIGHT_FP8 ? spec->tile : FP4_GROUP;
    spec->k_splits = row_parallel && k / block >= ROW_PARALLEL_SPLITS ? ROW_PARALLEL_SPLITS : 1;
    spec->values = view->data;
    spec->scales = scale ? scale->data : NULL;
    return QR_OK;
}

/* The matrix `name`, with its scales (".scale" for ".weight") where its format has any. */
static qr_status matrix_of(struct loader *l, const char *name, bool row_parallel, struct weight **out, qr_error *err)
{
    struct weights *w = l->w;
    const struct tensor_view *view, *scale = NULL;
    struct weight_spec spec;
    char full[NAME_BYTES];

    int length = snprintf(full, sizeof full, "%s%s", l->prefix, name);
    TRY(checkpoint_get(l->ck, full, &view, err));
    if (view->rank != 2)
        return qr_fail(err, QR_BAD_FILE, "%s: %s has %d dimensions, wanted 2", checkpoint_path(l->ck), full,
                       view->rank);
    if (view->dtype != DTYPE_BF16 && view->dtype != DTYPE_F32) {
        length -= (int)strlen(".weight");
        snprintf(full + length, sizeof full - (size_t)length, ".scale");
        TRY(checkpoint_get(l->ck, full, &scale, err));
    }
    TRY(describe(l, view, scale, row_parallel, &spec, err));

    if (!array_grow(&w->handles, &w->handle_capacity, w->handle_count, sizeof *w->handles))
        return out_of_memory(l, err);
    qr_status st = w->backend->prepare_weight(w->backend, &spec, out, err);
    if (st != QR_OK)
        return qr_fail_in(err, st, "%s", checkpoint_path(l->ck));
    w->handles[w->handle_count++] = *out;
    return QR_OK;
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

static qr_status load_attention(struct loader *l, struct layer_weights *out, qr_error *err)
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

static qr_status load_compressor(struct loader *l, const struct layer_plan *layer, struct layer_weights *out,
                                 qr_error *err)
{
    TRY(matrix(l, "attn.compressor.wkv.weight", &out->compressor.wkv, err));
    if (layer->compressor != COMPRESSOR_SINGLE)
        TRY(matrix(l, "attn.compressor.wgate.weight", &out->compressor.wgate, err));
    TRY(vector(l, "attn.compressor.norm.weight", &out->compressor.norm, err));
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

/* `stem` is "ffn.experts.%d." or "ffn.shared_experts.". */
static qr_status load_experts(struct loader *l, const char *stem, int32_t count, struct expert_weights *out,
                              qr_error *err)
{
    static const char *const kinds[3] = {"w1", "w2", "w3"};
    struct weight **handles = arena_alloc(&l->w->arena, sizeof *handles * 3 * (size_t)count);
    char name[64];
    if (!handles)
        return out_of_memory(l, err);

    for (int32_t e = 0; e < count; e++)
        for (int kind = 0; kind < 3; kind++) {
            int length = snprintf(name, sizeof name, stem, e);
            snprintf(name + length, sizeof name - (size_t)length, "%s.weight", kinds[kind]);
            TRY(matrix_of(l, name, kind == 1, &handles[kind * count + e], err));
        }
    out->count = count;
    out->w1 = (const struct weight **)handles;
    out->w2 = out->w1 + count;
    out->w3 = out->w2 + count;
    return QR_OK;
}

static qr_status load_ffn(struct loader *l, const struct layer_plan *layer, struct layer_weights *out, qr_error *err)
{
    TRY(vector(l, "ffn_norm.weight", &out->ffn_norm, err));
    TRY(matrix(l, "ffn.gate.weight", &out->gate, err));
    TRY(vector(l, "ffn.gate.bias", &out->gate_bias, err));
    TRY(vector(l, "ffn.gate.bias_vl", &out->gate_bias_image, err));
    TRY(load_experts(l, "ffn.experts.%d.", layer->n_experts, &out->routed, err));
    return load_experts(l, "ffn.shared_experts.", 1, &out->shared, err);
}

static qr_status load_layer(struct loader *l, const struct layer_plan *layer, struct layer_weights *out, qr_error *err)
{
    TRY(load_mix(l, "attn", &out->attn_mix, err));
    TRY(load_mix(l, "ffn", &out->ffn_mix, err));
    TRY(load_attention(l, out, err));
    if (layer->owns_rows)
        TRY(load_compressor(l, layer, out, err));
    if (layer->owns_index)
        TRY(load_indexer(l, out, err));
    if (layer->engram >= 0)
        TRY(load_engram(l, out, err));
    return load_ffn(l, layer, out, err);
}

static qr_status load_all(struct loader *l, const struct model_plan *plan, qr_error *err)
{
    struct weights *w = l->w;
    TRY(matrix(l, "embed.weight", &w->embed, err));
    TRY(matrix(l, "head.weight", &w->head, err));
    TRY(vector(l, "norm.weight", &w->norm, err));
    for (int32_t i = 0; i < plan->layers; i++) {
        snprintf(l->prefix, sizeof l->prefix, "layers.%d.", i);
        TRY(load_layer(l, &plan->layer[i], &w->layer[i], err));
    }
    return QR_OK;
}

qr_status weights_open(const struct checkpoint *ck, const struct model_plan *plan, struct backend *backend,
                       struct weights *out, qr_error *err)
{
    struct loader l = {.ck = ck, .config = &plan->config, .w = out};
    memset(out, 0, sizeof *out);
    out->backend = backend;
    arena_init(&out->arena, 0);

    qr_status st = load_all(&l, plan, err);
    if (st == QR_OK)
        st = backend->fence(backend, err);
    if (st != QR_OK)
        weights_close(out);
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
    arena_free(&w->arena);
    memset(w, 0, sizeof *w);
}
