/* Operators 24 and 34 of v4-model.md section 10: the MTP layer over simulated ranks, from projection to greedy token, by the
 * model's own functions (6.3). */
#include <string.h>

#include "tools/op_head.h"
#include "tools/op_layer.h"
#include "tools/op_layer_arrays.h"

static bool is_prefill(const struct op_run *r) { return strncmp(r->harness->name, "prefill", 7) == 0; }

/* The embedding of the token that follows each row, as a matrix that has one row a row. */
static qr_status give_embedding(struct op_run *r, struct op_composition *c, const int32_t **tokens, qr_error *err)
{
    int32_t rows = c->ranks * c->rank_rows, *ids;
    const struct weight_spec spec = {.name = "hidden", .format = WEIGHT_BF16, .n = rows, .k = op_dim(r, "D"), .values = op_host(r, "hidden")};
    const struct weight *embed;
    TRY(op_prepare(r, &spec, &embed, err));
    c->world->weights.embed = (struct weight *)(uintptr_t)embed;
    TRY(op_host_new(r, 4LL * rows, &ids, err));
    for (int32_t i = 0; i < rows; i++)
        ids[i] = i;
    *tokens = ids;
    return QR_OK;
}

static qr_status run_head(struct op_run *r, const struct op_composition *c, qr_error *err)
{
    const int32_t *index;
    struct sharded_head head;
    int32_t *unwanted;
    void *hidden;
    index = op_ints(r, "logit_row_indices");
    if (!index)
        TRY(composition_logit_rows(r, c, &index, err));
    TRY(head_open(r, op_host(r, "lm_head_weight"), op_dim(r, "V"), op_dim(r, "D"), c->ranks, (int32_t)op_param(r, "tp", 1), &head, err));
    TRY(op_upload(r, op_out(r, "hidden_out"), op_out_slot(r, "hidden_out")->bytes, &hidden, err));
    TRY(op_host_new(r, 4LL * c->ranks * LOGIT_ROWS * LOGIT_ROWS, &unwanted, err));
    return head_run(r, &head, hidden, c->rank_rows, index, op_out(r, "logits"), op_out(r, "sampled_ids") ? op_out(r, "sampled_ids") : unwanted, err);
}

/* Steps 1 to 5 of 6.3 on every live row. */
static qr_status run_rows(struct op_run *r, struct op_composition *c, const int32_t *tokens, qr_error *err)
{
    struct op_world *w = c->world;
    struct model_draft draft;
    int64_t row = 2LL * op_dim(r, "D"), streams = (int64_t)op_dim(r, "M*D") * (r->w8a8 ? 4 : 2);
    TRY(world_draft_step(w, tokens, NULL, 0, &draft, err));
    TRY(world_take(w, op_in(r, "prev"), w->ws.streams.data, streams, err));
    TRY(world_enter(w, w->plan.layers, err));
    TRY(mtp_streams(&w->pass, &draft, &w->draft_ws, err));
    TRY(world_give(w, w->draft_ws.streams.data, op_out(r, is_prefill(r) ? "pre_hc_hidden_out" : "next_pre_hc_hidden"), streams, err));
    TRY(v4_hidden(&w->pass, &w->weights.mtp.head, first_rows_of(w->tile.rows), err));
    return world_give(w, w->draft_ws.x.codes, op_out(r, "hidden_out"), row, err);
}

static qr_status run_mtp(struct op_run *r, qr_error *err)
{
    const int32_t *tokens;
    struct op_composition c;
    int32_t live = 0;
    TRY(layer_requests(r, is_prefill(r), &c, err));
    if (c.prefill && c.rank_rows > WORLD_TILE)
        return op_refuse(err, BAD_SHAPE, "%d rows of the MTP layer, wanted the last %d of a prompt at most", c.rank_rows, WORLD_TILE);
    struct qr_config config = layer_config(r, 0, false);
    if (config.vocab_size < c.ranks * c.rank_rows)
        config.vocab_size = c.ranks * c.rank_rows;
    for (int32_t i = 0; i < c.count; i++)
        live += c.requests[i].count;
    TRY(composition_open(r, &c, &config, WEIGHTS_DRAFTER, true, true, err));
    TRY(open_window(r, c.prefill, &c.caches[c.world->plan.layers], err));
    TRY(layer_tables(r, c.world, ROPE_MAIN, err));
    TRY(composition_load(&c, err));
    TRY(give_embedding(r, &c, &tokens, err));
    if (live)
        TRY(run_rows(r, &c, tokens, err));
    TRY(run_head(r, &c, err));
    if (op_out(r, "sampled_ids")) {
        op_out_slot(r, "sampled_ids")->values = "logits";
        op_out_slot(r, "sampled_ids")->values_by_id = true;
    }
    return QR_OK;
}

static qr_status mtp_sizes(struct op_run *r, qr_error *err)
{
    (void)err;
    dims_bind(&r->dims, "ep", 1);
    return QR_OK;
}

#define MTP_WEIGHTS                                                                                                    \
    HC_ATTN, FFN_WEIGHTS, TENSOR("enorm_w", "D", W8), TENSOR("hnorm_w", "D", W8), TENSOR("e_proj_w", "D D", W8),                       \
        TENSOR("e_proj_scale", "D", W8), TENSOR("e_proj_smooth", "D", W8), TENSOR("h_proj_w", "D D", W8), TENSOR("h_proj_scale", "D", W8), \
        TENSOR("h_proj_smooth", "D", W8), TENSOR("final_norm_w", "D", W8), TENSOR("enorm.weight", "D", REF), TENSOR("hnorm.weight", "D", REF), \
        FP8("e_proj", "D D", REF), FP8("h_proj", "D D", REF), TENSOR("norm.weight", "D", REF), TENSOR("hc_head_fn", "M M*D", 0),         \
        TENSOR("hc_head_scale", "1", 0), TENSOR("hc_head_base", "M", 0)
#define MTP_ROWS                                                                                                       \
    ARRAY("hidden", ARRAY_BF16, "ep T D", .flags = ARRAY_HOST), ARRAY("prev", ARRAY_STREAM, "ep T M D"),                               \
        ARRAY("lm_head_weight", ARRAY_BF16, "V D", .flags = ARRAY_HOST, .alias = "weight"), INTS("logit_row_indices", "ep 8", OPT),      \
        INTS("position_ids", POSITIONS, 0), ARRAY("num_tokens", ARRAY_INT, "ep", .flags = OPT),                                    \
        ARRAY("freqs_cos", ARRAY_F32, "* *", .flags = W8 | ARRAY_HOST | OPT), ARRAY("freqs_sin", ARRAY_F32, "* *", .flags = W8 | ARRAY_HOST | OPT), \
        ARRAY("kv_cache", ARRAY_BF16, "ep P 128 1 d", .flags = ARRAY_HOST, .alias = "mtp_kv_cache"),                                \
        ARRAY("slots", ARRAY_INT, POSITIONS, .flags = OPT, .alias = "ori_slot"), INTS("swa_indices", "ep T W", OPT), INTS("swa_lens", "ep T", OPT)

#define POSITIONS "ep B S"
static const struct op_array decode_in[] = {MTP_ROWS, ARRAY("block_table", ARRAY_INT, "ep B bn", .flags = OPT, .alias = "ori_table"),
                                            INTS("kv_seq_lens", "ep B", OPT), MTP_WEIGHTS, {0}};
#undef POSITIONS
#define POSITIONS "ep T"
static const struct op_array prefill_in[] = {MTP_ROWS, ARRAY("block_table", ARRAY_INT, "ep bn", .alias = "ori_table"), MTP_WEIGHTS, {0}};
#undef POSITIONS

static const struct op_array decode_out[] = {OUT("hidden_out", ARRAY_BF16, "ep T D", 0, "RD(.02,.10)"),
                                             OUT("next_pre_hc_hidden", ARRAY_STREAM, "ep T M D", 0, "RD(.02,.05)"),
                                             KV_OUT("ep ", "RD(.01,.05)"),
                                             OUT("logits", ARRAY_F32, "ep 8 V", 0, "RD(.02,.10)"),
                                             ARRAY("sampled_ids", ARRAY_INT, "ep 8 8", .tolerance = "exactly the lowest arg max"),
                                             {0}};
static const struct op_array prefill_out[] = {KV_OUT("ep ", "RA(1e-4,1e-2,.01)"),
                                              OUT("hidden_out", ARRAY_BF16, "ep T D", 0, "RD(.02,.05)"),
                                              OUT("pre_hc_hidden_out", ARRAY_STREAM, "ep T M D", 0, "RD(.02,.05)"),
                                              OUT("logits", ARRAY_F32, "ep 8 V", 0, "RA(1e-2,1e-2,.06)"),
                                              ARRAY("sampled_ids", ARRAY_INT, "ep 8 8", .tolerance = "exactly the lowest arg max"),
                                              {0}};

const struct op_harness op_mtp_harnesses[] = {
    {"decode_mtp", 24, "the MTP layer and its head, two rows a request", COMPOSITION_EXPERT_NEEDS, decode_in, decode_out, "ep*T", mtp_sizes,
     run_mtp, NULL},
    {"prefill_mtp", 34, "the MTP layer and its head over the last rows of a prompt", COMPOSITION_EXPERT_NEEDS, prefill_in, prefill_out,
     "ep*T", mtp_sizes, run_mtp, NULL},
    {0}};
