#include "tools/op_forward.h"

#include <string.h>

/* ---- caches ---- */

/* The table of its own, or the one of all groups. */
static qr_status find_table(const struct op_run *r, struct op_pages *p, qr_error *err)
{
    const struct tensor_view *view = op_view(r, p->table_name);
    if (!view) {
        p->table_name = "block_table";
        view = op_view(r, p->table_name);
    }
    if (!view)
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.block_table", op_file_path(r->file));
    p->table = op_ints(r, p->table_name);
    p->width = (int32_t)view->shape[view->rank - 1];
    return QR_OK;
}

/* The pages of layer `at` of `layers` of a pool whose sizes have those names. */
static qr_status pool_of(struct op_run *r, struct op_pages *p, const char *name, const char *table, bool wraps, const char *pages,
                         int32_t layers, int32_t at, int64_t row_bytes, int64_t page_rows, int64_t wanted_rows, int64_t width,
                         int64_t wanted_width, qr_error *err)
{
    *p = (struct op_pages){.name = name, .table_name = table, .slot_name = table, .wraps = wraps};
    TRY(open_pages(r, p, op_dim(r, pages), layers, at, row_bytes, page_rows, wanted_rows, width, wanted_width, err));
    return find_table(r, p, err);
}

static qr_status window_pool(struct op_run *r, struct op_layer_cache *c, const char *name, const char *pages, int32_t layers, int32_t at,
                             qr_error *err)
{
    int64_t dim = op_dim(r, "d");
    return pool_of(r, &c->window, name, "ori_table", false, pages, layers, at, 2 * dim, WORLD_PAGE, WORLD_PAGE, dim, dim, err);
}

static qr_status hca_pools(struct op_run *r, struct op_layer_cache *c, int32_t ratio, int32_t layers, int32_t at, qr_error *err)
{
    int64_t dim = op_dim(r, "d");
    TRY(pool_of(r, &c->main, "hca_cmp_kv", "hca_cmp_table", false, "HP", layers, at, 2 * dim, op_dim(r, "hr"), WORLD_PAGE / ratio, dim, dim, err));
    return pool_of(r, &c->state, "hca_compress_state", "hca_state_table", true, "HS", layers, at, 8 * dim, op_dim(r, "hp"), 0, op_dim(r, "HW"),
                   2 * dim, err);
}

static qr_status csa_pools(struct op_run *r, struct op_layer_cache *c, int32_t layers, int32_t at, qr_error *err)
{
    int64_t dim = op_dim(r, "d"), index = op_dim(r, "di");
    TRY(pool_of(r, &c->main, "csa_cmp_kv", "csa_cmp_table", false, "CP", layers, at, 2 * dim, op_dim(r, "cr"), 32, dim, dim, err));
    TRY(pool_of(r, &c->state, "csa_compress_state", "csa_state_table", true, "CS", layers, at, 16 * dim, op_dim(r, "cp"), 0, op_dim(r, "CW"),
                4 * dim, err));
    TRY(pool_of(r, &c->index, "idx_kv_cache", "idx_table", false, "IP", layers, at, r->w8a8 ? index : 2 * index, 32, 32, index, index, err));
    TRY(pool_of(r, &c->index_state, "csa_inner_compress_state", "csa_inner_state_table", true, "JS", layers, at, 16 * index, op_dim(r, "jp"), 0,
                op_dim(r, "JW"), 4 * index, err));
    if (!r->w8a8)
        return QR_OK;
    if (!op_has(r, "idx_kv_scale"))
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.idx_kv_scale", op_file_path(r->file));
    if (at == 0)
        TRY(copied_output(r, "idx_kv_scale", &c->index.scales, err));
    c->index.scales = (float *)op_out(r, "idx_kv_scale") + at * c->index.pages * 32;
    return QR_OK;
}

static void drop_unused(struct op_run *r)
{
    static const char *const pools[] = {"hca_cmp_kv", "csa_cmp_kv", "idx_kv_cache", "idx_kv_scale", "hca_compress_state", "csa_compress_state",
                                        "csa_inner_compress_state"};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
        if (!op_has(r, pools[i]) && op_out_slot(r, pools[i]))
            op_drop(r, pools[i]);
}

static qr_status open_caches(struct op_run *r, struct op_composition *c, bool mtp, qr_error *err)
{
    const struct model_plan *plan = &c->world->plan;
    int32_t csa = 0, hca = 0, csa_layers = 0, hca_layers = 0;
    drop_unused(r);
    for (int32_t i = 0; i < plan->layers; i++) {
        csa_layers += plan->layer[i].attend == ATTEND_CSA;
        hca_layers += plan->layer[i].attend == ATTEND_HCA;
    }
    for (int32_t i = 0; i < plan->layers; i++) {
        struct op_layer_cache *cache = &c->caches[i];
        TRY(window_pool(r, cache, "kv_cache", "KP", plan->layers, i, err));
        if (plan->layer[i].attend == ATTEND_CSA)
            TRY(csa_pools(r, cache, csa_layers, csa++, err));
        if (plan->layer[i].attend == ATTEND_HCA)
            TRY(hca_pools(r, cache, plan->layer[i].ratio, hca_layers, hca++, err));
    }
    return mtp ? window_pool(r, &c->caches[plan->layers], "mtp_kv_cache", "MP", 1, 0, err) : QR_OK;
}

/* ---- opening ---- */

static qr_status open_turns(struct op_run *r, struct op_world *w, qr_error *err)
{
    const struct tensor_view *view = op_view(r, "freqs_cos");
    if (!view || !op_has(r, "freqs_sin"))
        return QR_OK;
    const float *cosines = op_host(r, "freqs_cos"), *sines = op_host(r, "freqs_sin");
    int64_t one = view->shape[1] * view->shape[2];
    TRY(world_tables(w, ROPE_MAIN, cosines, sines, view->shape[1], (int32_t)view->shape[2], err));
    return world_tables(w, ROPE_COMPRESS, cosines + one, sines + one, view->shape[1], (int32_t)view->shape[2], err);
}

/* Every layer that is loaded ahead of the step; the MTP layer's rows are known behind it. */
static qr_status load_caches(struct op_composition *c, qr_error *err)
{
    int32_t layers = c->world->plan.layers;
    for (int32_t i = 0; i < layers; i++)
        TRY(cache_check(c->world, i, &c->caches[i], err));
    for (int32_t i = 0; i < layers; i++)
        TRY(cache_load(c->world, i, &c->caches[i], err));
    return QR_OK;
}

qr_status forward_open(struct op_run *r, struct op_composition *c, bool mtp, qr_error *err)
{
    const char *params = op_file_metadata(r->file, "params");
    struct qr_config config;
    TRY(config_parse(params, strlen(params), op_file_path(r->file), &config, err));
    if (config.drafter != QR_DRAFTER_MTP)
        return qr_fail(err, QR_UNSUPPORTED, "unsupported model: %s: params are not those of a V4 model with the serial MTP layer", op_file_path(r->file));
    config.stored_w8a8 = r->w8a8;
    TRY(composition_open(r, c, &config, WEIGHTS_EMBED | WEIGHTS_FINAL | WEIGHTS_ATTENTION | WEIGHTS_EXPERTS | (mtp ? WEIGHTS_DRAFTER : 0), mtp,
                         false, err));
    TRY(open_caches(r, c, mtp, err));
    TRY(open_turns(r, c->world, err));
    return load_caches(c, err);
}

/* ---- running ---- */

qr_status forward_tile(struct op_run *r, struct op_composition *c, int32_t from, const int32_t *tokens, bool *any, qr_error *err)
{
    struct op_world *w = c->world;
    TRY(world_step(w, from, WORLD_TILE, tokens, any, err));
    if (!*any)
        return QR_OK;
    TRY(embed(&w->pass, w->pass.args->rows->layer[0].input, err));
    for (int32_t i = 0; i < w->plan.layers; i++) {
        TRY(world_enter(w, i, err));
        TRY(v4_block(&w->pass, err));
        TRY(cache_keep_rows(w, i, &c->caches[i], err));
    }
    TRY(v4_hidden(&w->pass, &w->weights.final, first_rows_of(w->tile.rows), err));
    return world_give(w, w->ws.x.codes, op_out(r, "hidden"), 2LL * op_dim(r, "D"), err);
}

qr_status forward_streams(struct op_run *r, struct op_composition *c, void *out, qr_error *err)
{
    return world_give(c->world, c->world->ws.streams.data, out, (int64_t)op_dim(r, "M*D") * (r->w8a8 ? 4 : 2), err);
}

qr_status forward_head(struct op_run *r, const struct op_composition *c, const char *hidden, const int32_t *index, const char *logits,
                       const char *ids, qr_error *err)
{
    const char *name = r->w8a8 ? "in.lm_head_weight" : "in.head.weight";
    const struct tensor_view *view = op_file_find(r->file, name);
    const uint16_t *weight;
    struct sharded_head head;
    void *rows;
    if (!view)
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array %s", op_file_path(r->file), name);
    if (tensor_elements(view->rank, view->shape) != (int64_t)op_dim(r, "V*D"))
        return op_refuse(err, BAD_SHAPE, "%s has %lld elements, wanted %d x %d", name, (long long)tensor_elements(view->rank, view->shape),
                         op_dim(r, "V"), op_dim(r, "D"));
    TRY(op_file_bf16(view, &r->arena, &weight, err));
    TRY(head_open(r, weight, op_dim(r, "V"), op_dim(r, "D"), c->ranks, (int32_t)op_param(r, "tp", 1), &head, err));
    TRY(op_upload(r, op_out(r, hidden), op_out_slot(r, hidden)->bytes, &rows, err));
    TRY(head_run(r, &head, rows, c->rank_rows, index, op_out(r, logits), op_out(r, ids), err));
    op_out_slot(r, ids)->values = logits;
    op_out_slot(r, ids)->values_by_id = true;
    return QR_OK;
}
