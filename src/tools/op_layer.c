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
                           qr_error *err)
{
    int32_t tile = c->prefill && !mtp && c->rank_rows > WORLD_TILE ? WORLD_TILE : c->rank_rows;
    struct op_composition *kept;
    const struct world_options options = {.config = *config, .parts = parts, .mtp = mtp, .ranks = c->ranks, .rank_rows = c->rank_rows,
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
