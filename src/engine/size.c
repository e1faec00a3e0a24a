#include <string.h>

#include "base/memory.h"
#include "cache/budget.h"
#include "engine/engine.h"
#include "plan/schema.h"

/* Rows of a step whose logits may be wanted: prompt log probabilities and scores come in chunks of that many. */
enum { LOGIT_ROWS = 64 };

/* The container that a flag names, where one is given; which containers a model takes is geometry's to say. */
static qr_status read_format(const char *field, const char *name, bool index, enum row_format *format, qr_error *err)
{
    if (!name || row_format_parse(name, index, format))
        return QR_OK;
    return qr_fail(err, QR_REFUSED, "%s %s is \"%s\", wanted %s", index ? "E05" : "E06", field, name,
                   index ? "fp4, fp8 or int8" : "bf16 or fp4");
}

static qr_status read_options(const qr_engine_options *given, qr_engine_options *o, qr_error *err)
{
    static const qr_engine_options defaults = QR_ENGINE_OPTIONS;
    *o = defaults;
    if (given) {
        if (given->size < offsetof(qr_engine_options, index_cache_dtype) || given->size > sizeof *given)
            return qr_fail(err, QR_BAD_ARGUMENT, "qr_engine_options: size %zu, this library knows up to %zu", given->size,
                           sizeof *given);
        memcpy(o, given, given->size);
    }
    if (o->max_model_len < 0 || o->max_num_seqs < 0 || o->max_num_batched_tokens < 0 || o->block_size < 0)
        return qr_fail(err, QR_BAD_ARGUMENT, "max_model_len %d, max_num_seqs %d, max_num_batched_tokens %d, block_size %d: "
                       "none may be negative", o->max_model_len, o->max_num_seqs, o->max_num_batched_tokens,
                       o->block_size);
    if (o->max_num_seqs == 0)
        o->max_num_seqs = 1;
    if (o->max_num_batched_tokens == 0)
        o->max_num_batched_tokens = 2048;
    return QR_OK;
}

/* Bytes of the Engram tables: mapped and read by row, so no part of what must stay resident. */
static int64_t table_bytes(const struct qr_config *c)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < c->n_engram; i++)
        rows += c->engram_num_embeddings[i];
    return rows * (c->engram_head_dim + c->engram_head_dim / 32);
}

/* Bytes of the INT8 weights that the w8a8 profile derives from an official folder (v4-model.md 7.2). */
static qr_status derived_bytes(const struct model_plan *plan, int64_t *out, qr_error *err)
{
    struct qr_config stored = plan->config;
    *out = 0;
    if (plan->profile != QR_PROFILE_W8A8 || stored.stored_w8a8)
        return QR_OK;
    stored.stored_w8a8 = true;
    return schema_total(&stored, out, err);
}

static qr_status choose_geometry(const struct model_plan *plan, const qr_engine_options *o, struct geometry *out,
                                 qr_error *err)
{
    struct geometry_options formats = geometry_defaults(plan);
    formats.draft_width = 0;
    if (o->block_size)
        formats.block_tokens = o->block_size;
    qr_status st = read_format("kv cache dtype", o->kv_cache_dtype, false, &formats.main_format, err);
    if (st == QR_OK)
        st = read_format("index cache dtype", o->index_cache_dtype, true, &formats.index_format, err);
    if (st == QR_OK)
        st = geometry_make(plan, &formats, out, err);
    return st;
}

static struct model_limits choose_limits(const qr_engine_options *o, int32_t length)
{
    const int32_t rows = o->max_num_batched_tokens < length ? o->max_num_batched_tokens : length;
    int32_t logits = rows < LOGIT_ROWS ? rows : LOGIT_ROWS;
    if (logits < o->max_num_seqs)
        logits = o->max_num_seqs;
    return (struct model_limits){
        .max_rows = rows, .max_requests = o->max_num_seqs, .max_logits = logits, .max_positions = length};
}

qr_status engine_size(const qr_model *model, const qr_engine_options *options, struct engine_size *out, qr_error *err)
{
    qr_engine_options o;
    const struct geometry *g = &out->geometry;
    memset(out, 0, sizeof *out);
    qr_status st = read_options(options, &o, err);
    if (st == QR_OK)
        st = choose_geometry(&model->plan, &o, &out->geometry, err);
    if (st == QR_OK)
        st = derived_bytes(&model->plan, &out->prepared, err);
    if (st != QR_OK)
        return st;

    const int64_t tables = table_bytes(&model->config);
    const int64_t weights = (int64_t)checkpoint_bytes(model->checkpoint) - tables;
    out->cache_bytes = o.kv_ram_bytes > INT64_MAX ? INT64_MAX
                       : o.kv_ram_bytes           ? (int64_t)o.kv_ram_bytes
                                        : budget_default_bytes(memory_available(), weights + out->prepared);
    const struct budget_request wanted = {.bytes = out->cache_bytes,
                                          .slots = o.max_num_seqs,
                                          .max_model_len = o.max_model_len,
                                          .ceiling = model->config.max_position_embeddings};
    st = budget_fit(g, &wanted, &out->budget, err);
    if (st != QR_OK) {
        out->too_small = true;
        return st;
    }
    const struct budget *fits = &out->budget;
    out->blocks = fits->blocks;
    out->slots = fits->slots;
    out->limits = choose_limits(&o, (int32_t)fits->max_model_len);
    out->bytes = (qr_plan_bytes){
        .weights = (uint64_t)(weights + out->prepared), .tables = (uint64_t)tables,
        .pages = (uint64_t)fits->pool.state_offset, .states = (uint64_t)(fits->slots * g->state_bytes),
        .workspace = (uint64_t)model_workspace_bytes(&model->plan, &out->limits),
        .block_bytes = (uint64_t)g->unit_bytes, .blocks = (uint64_t)fits->blocks, .state_bytes = (uint64_t)g->state_bytes,
        .slots = (uint64_t)fits->slots, .max_model_len = (int32_t)fits->max_model_len};
    return QR_OK;
}

qr_status qr_plan(const char *dir, const qr_model_options *model_options, const qr_engine_options *options,
                  qr_plan_bytes *out, qr_error *err)
{
    struct engine_size size;
    qr_model *model;
    qr_status st = model_open_parts(dir, model_options, false, &model, err);
    if (st != QR_OK)
        return st;
    st = engine_size(model, options, &size, err);
    if (st == QR_OK)
        *out = size.bytes;
    qr_model_close(model);
    return st;
}
