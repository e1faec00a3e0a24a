/* Compositions of the DSpark point (v4-model.md appendix D) by the model's own functions: the attention half of a stage over
 * a block of drafts, and the whole drafter, from taps to tokens (speculation.md 2.3 to 2.7). */
#include <math.h>
#include <string.h>

#include "tools/op_dspark.h"
#include "tools/op_layer.h"
#include "tools/op_layer_arrays.h"

/* Requests, each with a block behind its committed rows, and the paged keys of the stages. */
struct blocks {
    struct op_world *world;
    struct world_request *requests; /* committed rows of this step: those that the arrays have taps of */
    struct block_draft *drafts;
    int32_t count, width, stages, page_rows, pages, table_width;
    const int32_t *table;           /* [count][table_width] */
    uint8_t *keys;                  /* [stages][pages][page_rows][d], an output */
};

/* ---- opening ---- */

static struct qr_config config_of(const struct op_run *r, int32_t stages, int32_t targets)
{
    struct qr_config c = r->config;
    c.drafter = QR_DRAFTER_DSPARK;
    c.num_hidden_layers = targets;
    c.num_draft_layers = stages;
    c.num_hash_layers = 0;
    c.norm_topk_prob = true;
    c.vocab_size = c.vocab_size > 0 ? c.vocab_size : 1;
    c.dspark_block_size = op_dim(r, "g");
    c.dspark_noise_token_id = (int32_t)op_param(r, "dspark_noise_token_id", 0);
    c.dspark_markov_rank = (int32_t)op_param(r, "dspark_markov_rank", 1);
    c.dspark_n_routed_experts = c.n_routed_experts;
    c.dspark_n_experts_per_tok = c.n_experts_per_tok;
    c.n_dspark_targets = targets;
    for (int32_t i = 0; i < targets; i++)
        c.dspark_target_layers[i] = i;
    return c;
}

static qr_status check_positions(const struct op_run *r, const struct blocks *b, qr_error *err)
{
    const int64_t most = r->config.max_position_embeddings;
    for (int32_t i = 0; i < b->count; i++) {
        const int64_t first = b->drafts[i].position;
        if (first < 1 || first + b->width > most)
            return op_refuse(err, BAD_POSITION, "the block of request %d stands at %lld, wanted 1 to %lld", i, (long long)first,
                             (long long)most - b->width);
    }
    return QR_OK;
}

static qr_status open_blocks(struct op_run *r, const struct qr_config *config, unsigned parts, struct blocks *b, qr_error *err)
{
    const int32_t context = op_dim(r, "S"), rows = context > b->width ? context : b->width;
    const struct world_options options = {.config = *config, .parts = parts, .ranks = 1, .rank_rows = b->count * rows,
                                          .form = MOE_GROUPED, .step_rows = b->count * rows, .count = b->count,
                                          .requests = b->requests};
    b->page_rows = op_dim(r, "pg");
    b->pages = op_dim(r, "P");
    b->table = op_ints(r, "block_table");
    b->table_width = op_dim(r, "bn");
    TRY(check_positions(r, b, err));
    TRY(op_check_entries("block_table", b->table, (int64_t)b->count * b->table_width, b->pages, err));
    TRY(copied_output(r, "kv_cache", &b->keys, err));
    return world_open(r, &options, &b->world, err);
}

/* ---- keys ---- */

/* The key of a position in the arrays. */
static qr_status key_at(const struct op_run *r, const struct blocks *b, int32_t stage, int32_t request, int64_t position, uint8_t **out,
                        qr_error *err)
{
    const int64_t page = position / b->page_rows, bytes = 2LL * op_dim(r, "d");
    const int32_t entry = page < b->table_width ? b->table[(int64_t)request * b->table_width + page] : -1;
    if (entry < 0)
        return op_refuse(err, BAD_TABLE, "block_table of request %d has no page %lld, in which position %lld lies", request,
                         (long long)page, (long long)position);
    *out = b->keys + (((int64_t)stage * b->pages + entry) * b->page_rows + position % b->page_rows) * bytes;
    return QR_OK;
}

static uint8_t *ring_at(const struct op_world *w, int32_t layer, int32_t request, int64_t position)
{
    struct ring_plane ring;
    geometry_window(&w->geometry, &w->pool, w->base, layer, &ring);
    return ring.values + request * ring.slot_stride + position % ring.rows * ring.value_row_stride;
}

/* Brings the window that ends before `end` of a request into the ring of a layer. */
static qr_status load_window(struct op_run *r, const struct blocks *b, int32_t layer, int32_t stage, int32_t request, int64_t end,
                             qr_error *err)
{
    const int64_t window = r->config.sliding_window, bytes = 2LL * op_dim(r, "d");
    for (int64_t at = end > window ? end - window : 0; at < end; at++) {
        uint8_t *key;
        TRY(key_at(r, b, stage, request, at, &key, err));
        TRY(r->backend->upload(r->backend, ring_at(b->world, layer, request, at), key, bytes, err));
    }
    return QR_OK;
}

/* Puts the keys of a request's rows back into the arrays. */
static qr_status keep_rows(struct op_run *r, const struct blocks *b, int32_t layer, int32_t stage, int32_t request, qr_error *err)
{
    const struct world_request *q = &b->requests[request];
    for (int64_t at = q->first; at < (int64_t)q->first + q->count; at++) {
        uint8_t *key;
        TRY(key_at(r, b, stage, request, at, &key, err));
        TRY(r->backend->download(r->backend, key, ring_at(b->world, layer, request, at), 2LL * op_dim(r, "d"), err));
    }
    return r->backend->fence(r->backend, err);
}

/* ---- the attention half of a stage ---- */

static qr_status run_attention(struct op_run *r, qr_error *err)
{
    struct blocks b = {.count = op_dim(r, "B"), .width = op_dim(r, "g"), .stages = 1};
    const struct qr_config config = config_of(r, 1, 1);
    const int64_t bytes = (int64_t)b.count * b.width * op_dim(r, "M*D") * (r->w8a8 ? 4 : 2);
    TRY(op_host_new(r, b.count * (int64_t)sizeof *b.requests, &b.requests, err));
    TRY(op_host_new(r, b.count * (int64_t)sizeof *b.drafts, &b.drafts, err));
    for (int32_t i = 0; i < b.count; i++) {
        b.drafts[i] = (struct block_draft){.slot = i, .position = op_ints(r, "position_ids")[i]};
        b.requests[i] = (struct world_request){.first = b.drafts[i].position, .count = b.width};
    }
    TRY(open_blocks(r, &config, WEIGHTS_ATTENTION, &b, err));
    for (int32_t i = 0; i < b.count; i++)
        TRY(load_window(r, &b, 0, 0, i, b.drafts[i].position, err));
    struct op_world *w = b.world;
    TRY(world_block_step(w, b.drafts, b.count, err));
    CALL(r, copy, .to = w->ws.streams.data, .from = op_in(r, "x_hc"), .bytes = bytes);
    enter_layer(&w->pass, 0);
    TRY(v4_attention_block(&w->pass, err));
    CALL(r, copy, .to = op_out(r, "x_out"), .from = w->ws.streams.data, .bytes = bytes);
    return QR_OK;
}

/* ---- the whole drafter ---- */

static qr_status find_rows(struct op_run *r, struct blocks *b, qr_error *err)
{
    const int32_t each = op_dim(r, "S"), *live = op_ints(r, "num_tokens"), *positions = op_ints(r, "position_ids");
    TRY(op_host_new(r, b->count * (int64_t)sizeof *b->requests, &b->requests, err));
    TRY(op_host_new(r, b->count * (int64_t)sizeof *b->drafts, &b->drafts, err));
    TRY(op_check_positions(r, positions, b->count * each, each, err));
    TRY(op_check_tokens(op_ints(r, "anchors"), b->count, op_dim(r, "V"), err));
    for (int32_t i = 0; i < b->count; i++) {
        const int32_t count = live ? live[i] : each, first = positions[(int64_t)i * each];
        if (count < 1 || count > each)
            return op_refuse(err, BAD_SHAPE, "num_tokens of request %d is %d, wanted 1 to %d", i, count, each);
        b->requests[i] = (struct world_request){.row = i * each, .first = first, .count = count};
        b->drafts[i] = (struct block_draft){.slot = i, .position = first + count, .anchor = op_ints(r, "anchors")[i]};
    }
    return QR_OK;
}

/* 2.3 for the committed rows of every request. */
static qr_status run_context(struct op_run *r, struct blocks *b, qr_error *err)
{
    struct op_world *w = b->world;
    bool any;
    for (int32_t s = 0; s < b->stages; s++)
        for (int32_t i = 0; i < b->count; i++)
            TRY(load_window(r, b, w->plan.layers + s, s, i, b->requests[i].first, err));
    TRY(world_step(w, 0, op_dim(r, "S"), NULL, &any, err));
    TRY(world_take(w, op_in(r, "taps"), w->ws.taps.codes, 2LL * op_dim(r, "TD"), err));
    TRY(dspark_context(&w->pass, err));
    TRY(r->backend->fence(r->backend, err));
    for (int32_t s = 0; s < b->stages; s++)
        for (int32_t i = 0; i < b->count; i++)
            TRY(keep_rows(r, b, w->plan.layers + s, s, i, err));
    return QR_OK;
}

/* The greedy chain behind the pass, as block_drafts_next makes it. */
static qr_status run_chain(struct op_run *r, const struct blocks *b, qr_error *err)
{
    const struct op_world *w = b->world;
    const struct dspark_weights *weights = &w->weights.dspark;
    const int64_t vocab = op_dim(r, "V"), width = b->width, rows = b->count * width;
    const float *base = op_out(r, "base"), *own, *added, *score;
    float *logits = op_out(r, "logits"), *confidence = op_out(r, "confidence");
    int32_t *ids = op_out(r, "draft_ids"), *before;
    TRY(op_download(r, w->ws.draft_confidence.codes, 4 * rows, &own, err));
    TRY(op_host_new(r, 4LL * b->count, &before, err));
    memcpy(before, op_ints(r, "anchors"), 4 * (size_t)b->count);
    for (int64_t k = 0; k < width; k++) {
        struct markov_rows m;
        struct activation scores;
        TRY(op_markov(r, weights->markov_embed, weights->markov_head, before, b->count, &m, err));
        TRY(op_rows(r, ACT_F32, b->count, 1, 0, &scores, err));
        CALL(r, linear, .rows = first_rows_of(b->count), .in = m.rows, .weight = weights->confidence_markov, .out = scores);
        TRY(op_download(r, m.bias.codes, 4 * b->count * vocab, &added, err));
        TRY(op_download(r, scores.codes, 4LL * b->count, &score, err));
        TRY(op_host_new(r, 4LL * b->count, &before, err));
        for (int64_t i = 0, at = k; i < b->count; i++, at += width) {
            markov_choose(added + i * vocab, base + at * vocab, vocab, logits + at * vocab, &before[i]);
            ids[at] = before[i];
            confidence[at] = 1 / (1 + expf(-(score[i] + own[at])));
        }
    }
    return QR_OK;
}

static qr_status run_drafter(struct op_run *r, qr_error *err)
{
    struct blocks b = {.count = op_dim(r, "B"), .width = op_dim(r, "g"), .stages = op_dim(r, "st")};
    const int64_t d = op_dim(r, "D"), rows = (int64_t)b.count * b.width;
    if (op_dim(r, "TD") % d || op_dim(r, "TD") / d < 1)
        return op_refuse(err, BAD_SHAPE, "in.taps has %d columns, wanted a multiple of %lld", op_dim(r, "TD"), (long long)d);
    const struct qr_config config = config_of(r, b.stages, op_dim(r, "TD") / (int32_t)d);
    TRY(find_rows(r, &b, err));
    TRY(open_blocks(r, &config, WEIGHTS_EMBED | WEIGHTS_HEAD | WEIGHTS_DRAFTER, &b, err));
    TRY(run_context(r, &b, err));
    struct op_world *w = b.world;
    TRY(world_block_step(w, b.drafts, b.count, err));
    TRY(dspark_draft(&w->pass, err));
    TRY(r->backend->fence(r->backend, err));
    TRY(r->backend->download(r->backend, op_out(r, "hidden"), w->ws.draft_hidden.codes, 2 * rows * d, err));
    TRY(r->backend->download(r->backend, op_out(r, "base"), w->ws.logits, 4 * rows * op_dim(r, "V"), err));
    TRY(r->backend->fence(r->backend, err));
    return run_chain(r, &b, err);
}

/* ---- sizes ---- */

static qr_status attention_sizes(struct op_run *r, qr_error *err)
{
    if (op_dim(r, "T") % op_dim(r, "B") || op_dim(r, "T") < op_dim(r, "B"))
        return op_refuse(err, BAD_SHAPE, "%d rows of blocks for %d requests, wanted a multiple", op_dim(r, "T"), op_dim(r, "B"));
    dims_set(&r->dims, "g", op_dim(r, "T") / op_dim(r, "B"));
    dims_set(&r->dims, "S", 0);
    return QR_OK;
}

/* The width of a block: the file's, or the checkpoint's. */
static qr_status drafter_sizes(struct op_run *r, qr_error *err)
{
    const double width = op_param(r, "draft_width", op_param(r, "dspark_block_size", 0));
    if (width < 1 || width > 64)
        return op_refuse(err, BAD_SHAPE, "a block of %.0f drafts, wanted 1 to 64", width);
    dims_bind(&r->dims, "g", (int64_t)width);
    return QR_OK;
}

/* In place of the two rows that a decode step has. */
static void bind_rows(struct op_run *r)
{
    const struct tensor_view *taps = op_file_find(r->file, "in.taps");
    if (taps && taps->rank == 3)
        dims_set(&r->dims, "S", taps->shape[1]);
}

static const struct op_array attention_in[] = {ARRAY("x_hc", ARRAY_STREAM, "T M D"), INTS("position_ids", "B", 0),
                                               ARRAY("kv_cache", ARRAY_BF16, "P pg 1 d", .flags = ARRAY_HOST),
                                               INTS("block_table", "B bn", 0), HC_NAMES, {0}};
static const struct op_array attention_out[] = {ARRAY("x_out", ARRAY_STREAM, "T M D", .tolerance = "RA(1e-2,1e-2,.05)"),
                                                OUT("kv_cache", ARRAY_BF16, "P pg 1 d", 0, KEYS), {0}};
static const struct op_array drafter_in[] = {ARRAY("taps", ARRAY_BF16, "B S TD"), INTS("position_ids", "B S", 0), INTS("num_tokens", "B", OPT),
                                             INTS("anchors", "B", 0), ARRAY("kv_cache", ARRAY_BF16, "st P pg 1 d", .flags = ARRAY_HOST),
                                             INTS("block_table", "B bn", 0), {0}};
static const struct op_array drafter_out[] = {OUT("hidden", ARRAY_BF16, "B g D", 0, "AC(1e-3,1e-3)"),
                                              OUT("base", ARRAY_F32, "B g V", 0, "AC(1e-3,1e-3)"),
                                              OUT("logits", ARRAY_F32, "B g V", 0, "AC(1e-3,1e-3)"),
                                              OUT("confidence", ARRAY_F32, "B g", 0, "AC(1e-3,1e-3)"),
                                              ARRAY("draft_ids", ARRAY_INT, "B g", .tolerance = "exact"),
                                              OUT("kv_cache", ARRAY_BF16, "st P pg 1 d", 0, KEYS), {0}};

const struct op_harness op_drafter_harnesses[] = {
    {"dspark_attention", 44, "attention half of a stage over blocks of drafts, which see one another", COMPOSITION_NEEDS, attention_in,
     attention_out, "T", attention_sizes, run_attention, NULL},
    {"dspark_drafter", 49, "the drafter, from taps of committed rows to a block of tokens; weights by their names in a folder",
     COMPOSITION_EXPERT_NEEDS " vocab_size dspark_markov_rank dspark_noise_token_id", drafter_in, drafter_out, "B*S", drafter_sizes,
     run_drafter, bind_rows},
    {0}};
