#include <string.h>

#include "base/memory.h"
#include "cache/budget.h"
#include "engine/engine.h"

/* Rows of a step whose logits may be wanted: prompt log probabilities and scores come in chunks of that many. */
enum { LOGIT_ROWS = 64 };

static qr_status read_format(const char *field, const char *name, enum row_format *format, qr_error *err)
{
    static const struct {
        const char *name;
        enum row_format main, index;
    } formats[] = {{"bf16", ROW_BF16, ROW_BF16},
                   {"fp4", ROW_FP4_E4M3, ROW_INDEX_FP4},
                   {"fp8", ROW_FP8_E8M0, ROW_INDEX_FP8},
                   {"int8", ROW_INDEX_INT8, ROW_INDEX_INT8}};
    if (!name)
        return QR_OK;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) {
            *format = field[0] == 'k' ? formats[i].main : formats[i].index;
            return QR_OK;
        }
    return qr_fail(err, QR_BAD_ARGUMENT, "%s: \"%s\", wanted bf16, fp4, fp8 or int8", field, name);
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

qr_status engine_size(const qr_model *model, const qr_engine_options *options, struct engine_size *out, qr_error *err)
{
    qr_engine_options o;
    struct geometry *g = &out->geometry;
    memset(out, 0, sizeof *out);
    qr_status st = read_options(options, &o, err);
    struct geometry_options formats = geometry_defaults(&model->plan);
    formats.draft_width = 0;
    if (o.block_size)
        formats.block_tokens = o.block_size;
    if (st == QR_OK)
        st = read_format("kv_cache_dtype", o.kv_cache_dtype, &formats.main_format, err);
    if (st == QR_OK)
        st = read_format("index_cache_dtype", o.index_cache_dtype, &formats.index_format, err);
    if (st == QR_OK)
        st = geometry_make(&model->plan, &formats, g, err);
    if (st != QR_OK)
        return st;

    const int64_t tables = table_bytes(&model->config);
    const int64_t weights = (int64_t)checkpoint_bytes(model->checkpoint) - tables;
    const struct budget_request wanted = {
        .bytes = o.kv_ram_bytes ? (int64_t)o.kv_ram_bytes : budget_default_bytes(memory_available(), weights),
        .slots = o.max_num_seqs, .max_model_len = o.max_model_len, .ceiling = model->config.max_position_embeddings};
    struct budget fits;
    st = budget_fit(g, &wanted, &fits, err);
    if (st != QR_OK)
        return st;

    const int32_t length = (int32_t)fits.max_model_len;
    const int32_t rows = o.max_num_batched_tokens < length ? o.max_num_batched_tokens : length;
    int32_t logits = rows < LOGIT_ROWS ? rows : LOGIT_ROWS;
    if (logits < o.max_num_seqs)
        logits = o.max_num_seqs;
    out->blocks = fits.blocks;
    out->slots = fits.slots;
    out->limits = (struct model_limits){.max_rows = rows, .max_requests = o.max_num_seqs, .max_logits = logits,
                                        .max_positions = length};
    out->bytes = (qr_plan_bytes){
        .weights = (uint64_t)weights, .tables = (uint64_t)tables, .pages = (uint64_t)(fits.blocks * g->unit_bytes),
        .states = (uint64_t)(fits.slots * g->state_bytes),
        .workspace = (uint64_t)model_workspace_bytes(&model->plan, &out->limits),
        .block_bytes = (uint64_t)g->unit_bytes, .blocks = (uint64_t)fits.blocks, .state_bytes = (uint64_t)g->state_bytes,
        .slots = (uint64_t)fits.slots, .max_model_len = length};
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
