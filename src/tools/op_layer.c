#include "tools/op_layer.h"

#include <string.h>

/* ---- requests ---- */

static qr_status check_request(const struct op_run *r, const int32_t *positions, int32_t number, const struct world_request *q, qr_error *err)
{
    int32_t most = r->config.max_position_embeddings;
    for (int32_t k = 0; k < q->count; k++) {
        int32_t p = positions[k];
        if (p < 0 || p >= most)
            return op_refuse(err, BAD_POSITION, "row %d of request %d stands at %d, wanted 0 to %d", k, number, p, most - 1);
        if (k && p != positions[k - 1] + 1)
            return op_refuse(err, BAD_POSITION, "rows %d and %d of request %d stand at %d and %d, wanted consecutive positions", k - 1,
                             k, number, positions[k - 1], p);
    }
    return QR_OK;
}

static qr_status check_lengths(const struct op_run *r, const struct op_composition *c, qr_error *err)
{
    const int32_t *lengths = op_ints(r, "kv_seq_lens");
    for (int32_t i = 0; lengths && i < c->count; i++)
        if (c->requests[i].count && lengths[i] != c->requests[i].first + c->requests[i].count)
            return op_refuse(err, BAD_POSITION, "kv_seq_lens of request %d is %d, its rows end at %d", i, lengths[i],
                             c->requests[i].first + c->requests[i].count);
    return QR_OK;
}

static qr_status check_shape(const struct op_composition *c, int32_t each, qr_error *err)
{
    if (c->ranks != 1 && c->ranks != 2 && c->ranks != 4 && c->ranks != 8)
        return op_refuse(err, BAD_WORLD, "%d ranks, wanted 1, 2, 4 or 8", c->ranks);
    if (c->prefill && (c->rank_rows < 1 || c->rank_rows > WORLD_PREFILL_ROWS))
        return op_refuse(err, BAD_SHAPE, "a prefill of %d tokens, wanted 1 to %d", c->rank_rows, WORLD_PREFILL_ROWS);
    if (!c->prefill && (each < 1 || each > WORLD_REQUESTS || c->rank_rows != 2 * each))
        return op_refuse(err, BAD_SHAPE, "a decode step of %d rows for %d requests, wanted 2 rows each of 1 to %d requests", c->rank_rows,
                         each, WORLD_REQUESTS);
    return QR_OK;
}

/* Live rows of a rank. */
static qr_status live_rows(const struct op_run *r, const struct op_composition *c, int32_t rank, int32_t *out, qr_error *err)
{
    const int32_t *given = op_ints(r, "num_tokens");
    double live = given ? given[rank] : op_param(r, "num_tokens", c->rank_rows);
    if (live < 0 || live > c->rank_rows)
        return op_refuse(err, BAD_SHAPE, "num_tokens of rank %d is %.0f, wanted 0 to %d", rank, live, c->rank_rows);
    *out = (int32_t)live;
    return QR_OK;
}

qr_status layer_requests(struct op_run *r, bool prefill, struct op_composition *out, qr_error *err)
{
    const int32_t *positions = op_ints(r, "position_ids");
    int32_t each = prefill ? 1 : op_dim(r, "B"), ranks = op_dim(r, "ep"), rows = op_dim(r, "T");
    *out = (struct op_composition){.ranks = ranks > 0 ? ranks : 1, .rank_rows = rows, .prefill = prefill};
    if (r->ranks && r->ranks != out->ranks)
        return op_refuse(err, BAD_WORLD, "--ranks %d, the file holds the rows of %d", r->ranks, out->ranks);
    TRY(check_shape(out, each, err));
    out->count = each * out->ranks;
    TRY(op_host_new(r, out->count * (int64_t)sizeof *out->requests, &out->requests, err));
    for (int32_t i = 0; i < out->count; i++) {
        int32_t rank = i / each, row = prefill ? 0 : 2 * (i % each), live = 0, most = prefill ? rows : 2;
        struct world_request *q = &out->requests[i];
        TRY(live_rows(r, out, rank, &live, err));
        live = live > row ? live - row : 0;
        *q = (struct world_request){.rank = rank, .row = rank * rows + row, .count = live < most ? live : most};
        q->first = q->count ? positions[q->row] : 0;
        TRY(check_request(r, positions + q->row, i, q, err));
    }
    return check_lengths(r, out, err);
}

/* ---- the world ---- */

struct qr_config layer_config(const struct op_run *r, int32_t ratio, bool hash)
{
    struct qr_config c = r->config;
    c.drafter = QR_DRAFTER_MTP;
    c.num_hidden_layers = c.num_draft_layers = 1;
    c.num_hash_layers = hash;
    c.compress_ratios[0] = ratio;
    c.norm_topk_prob = true;
    c.vocab_size = c.vocab_size > 0 ? c.vocab_size : 1;
    return c;
}

/* Keeps what the layers make, as they make it. */
static qr_status at_point(void *user, enum model_point point, int32_t layer, const struct workspace *ws, qr_error *err)
{
    struct op_composition *c = user;
    (void)ws;
    if (layer < 0 || !c->caches)
        return QR_OK;
    switch (point) {
    case POINT_KEYS:
        return cache_keep_keys(c->world, &c->caches[layer], err);
    case POINT_COMPRESSOR_INPUTS:
        return cache_keep_inputs(c->world, &c->caches[layer], false, err);
    case POINT_INDEX_INPUTS:
        return cache_keep_inputs(c->world, &c->caches[layer], true, err);
    default:
        return QR_OK;
    }
}

qr_status composition_open(struct op_run *r, struct op_composition *c, const struct qr_config *config, unsigned parts, bool mtp,
                           bool bare, qr_error *err)
{
    int32_t tile = c->prefill && c->rank_rows > WORLD_TILE ? WORLD_TILE : c->rank_rows;
    struct op_composition *kept;
    const struct world_options options = {.config = *config, .parts = parts, .mtp = mtp, .bare = bare, .ranks = c->ranks, .rank_rows = c->rank_rows,
                                          .form = c->prefill ? MOE_GROUPED : MOE_LANES, .step_rows = tile * c->ranks,
                                          .count = c->count, .requests = c->requests};
    TRY(world_open(r, &options, &c->world, err));
    TRY(op_host_new(r, (c->world->plan.layers + 1) * (int64_t)sizeof *c->caches, &c->caches, err));
    TRY(op_host_new(r, sizeof *kept, &kept, err));
    *kept = *c;
    c->world->observer = (struct model_observer){.user = kept, .at = at_point};
    return QR_OK;
}

qr_status composition_load(struct op_composition *c, qr_error *err)
{
    for (int32_t i = 0; i <= c->world->plan.layers; i++)
        if (c->caches[i].window.data)
            TRY(cache_check(c->world, i, &c->caches[i], err));
    for (int32_t i = 0; i <= c->world->plan.layers; i++)
        if (c->caches[i].window.data)
            TRY(cache_load(c->world, i, &c->caches[i], err));
    return QR_OK;
}

qr_status composition_logit_rows(struct op_run *r, const struct op_composition *c, const int32_t **out, qr_error *err)
{
    int32_t *index;
    TRY(op_host_new(r, 4LL * c->ranks * LOGIT_ROWS, &index, err));
    for (int32_t i = 0; i < c->ranks * LOGIT_ROWS; i++)
        index[i] = -1;
    for (int32_t i = 0; i < c->count; i++) {
        const struct world_request *q = &c->requests[i];
        int32_t *mine = index + q->rank * LOGIT_ROWS, row = q->row - q->rank * c->rank_rows;
        for (int32_t k = 0; k < q->count && !c->prefill; k++)
            mine[row + k] = row + k;
        if (c->prefill)
            mine[0] = q->count - 1;
    }
    *out = index;
    return QR_OK;
}

qr_status copied_output(struct op_run *r, const char *name, void *out, qr_error *err)
{
    const void *from = op_host(r, name);
    void *to = op_out(r, name);
    (void)err;
    if (!from && to)
        op_drop(r, name);
    to = from ? to : NULL;
    if (to)
        memcpy(to, from, (size_t)op_out_slot(r, name)->bytes);
    memcpy(out, &to, sizeof to);
    return QR_OK;
}

qr_status open_pages(struct op_run *r, struct op_pages *p, int64_t all_pages, int32_t layers, int32_t at, int64_t row_bytes,
                     int64_t page_rows, int64_t wanted_rows, int64_t width, int64_t wanted_width, qr_error *err)
{
    if (!op_has(r, p->name))
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.%s", op_file_path(r->file), p->name);
    if (page_rows < 1 || (wanted_rows && page_rows != wanted_rows) || width != wanted_width)
        return op_refuse(err, BAD_SHAPE, "in.%s has pages of %lld rows of %lld, wanted %lld of %lld", p->name, (long long)page_rows,
                         (long long)width, (long long)(wanted_rows ? wanted_rows : page_rows), (long long)wanted_width);
    if (all_pages % layers)
        return op_refuse(err, BAD_SHAPE, "in.%s has %lld pages for %d layers, wanted a multiple", p->name, (long long)all_pages, layers);
    if (at == 0)
        TRY(copied_output(r, p->name, &p->data, err));
    else
        p->data = op_out(r, p->name);
    p->rank_pages = all_pages;
    p->pages = all_pages / layers;
    p->row_bytes = row_bytes;
    p->page_rows = (int32_t)page_rows;
    p->data += at * p->pages * page_rows * row_bytes;
    return QR_OK;
}

qr_status open_window(struct op_run *r, bool prefill, struct op_layer_cache *c, qr_error *err)
{
    int64_t dim = op_dim(r, "d");
    c->window = (struct op_pages){.name = "kv_cache", .table_name = "block_table", .slot_name = "slots"};
    TRY(open_pages(r, &c->window, op_dim(r, "P"), 1, 0, 2 * dim, WORLD_PAGE, WORLD_PAGE, dim, dim, err));
    c->window.table = op_ints(r, "block_table");
    c->window.width = op_dim(r, "bn");
    c->window.slot = op_ints(r, "slots");
    c->window_rows = op_ints(r, "swa_indices");
    if (!c->window.table && (prefill || !c->window.slot || !c->window_rows))
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.block_table%s", op_file_path(r->file),
                       prefill ? "" : ", nor both in.slots and in.swa_indices");
    if (op_dim(r, "W") != 128 && op_has(r, "swa_indices"))
        return op_refuse(err, BAD_SHAPE, "a window of %d, wanted 128", op_dim(r, "W"));
    const int32_t *lengths = op_ints(r, "swa_lens"), *positions = op_ints(r, "position_ids");
    for (int32_t i = 0; lengths && i < op_dim(r, "T") * (op_dim(r, "ep") > 0 ? op_dim(r, "ep") : 1); i++)
        if (positions[i] >= 0 && lengths[i] != (positions[i] + 1 < op_dim(r, "W") ? positions[i] + 1 : op_dim(r, "W")))
            return op_refuse(err, BAD_SHAPE, "swa_lens of row %d is %d at position %d", i, lengths[i], positions[i]);
    return QR_OK;
}

qr_status layer_tables(struct op_run *r, struct op_world *w, enum rope rope, qr_error *err)
{
    const struct tensor_view *view = op_view(r, "freqs_cos");
    if (!view || !op_has(r, "freqs_sin"))
        return QR_OK;
    return world_tables(w, rope, op_host(r, "freqs_cos"), op_host(r, "freqs_sin"), view->shape[0],
                        (int32_t)view->shape[1], err);
}
