/* Operator 20 of v4-model.md section 10: the exchange of routed rows, and the whole of a MoE layer over simulated ranks in
 * both forms. */
#include <string.h>

#include "tools/op_moe.h"

/* ---- the exchange alone ---- */

static struct dispatch_world world_of(const struct op_run *r, int32_t ranks, int32_t rows)
{
    return (struct dispatch_world){.ranks = ranks, .experts = op_dim(r, "E"), .active = op_dim(r, "K"), .rows = rows};
}

static qr_status check_live(const int32_t *live, int32_t ranks, int32_t rows, qr_error *err)
{
    for (int32_t i = 0; i < ranks; i++)
        if (live[i] < 0 || live[i] > rows)
            return op_refuse(err, BAD_SHAPE, "rank %d has %d active rows, wanted 0 to %d", i, live[i], rows);
    return QR_OK;
}

static qr_status exchange_sizes(struct op_run *r, qr_error *err)
{
    int32_t ranks = op_dim(r, "ep");
    struct dispatch_world w = world_of(r, ranks, op_dim(r, "T"));
    if (r->ranks && r->ranks != ranks)
        return op_refuse(err, BAD_WORLD, "--ranks %d, the file holds the rows of %d", r->ranks, ranks);
    TRY(dispatch_check_world(&w, err));
    dims_bind(&r->dims, "El", w.experts / ranks);
    return QR_OK;
}

/* recv_meta, lanes (a route's number where it lies, -1 elsewhere) and compacted (each expert's rows, source by source). */
static qr_status run_counts(struct op_run *r, const struct dispatch_world *w, const int32_t *idx, const int32_t *live, qr_error *err)
{
    int32_t local = dispatch_local(w), room = dispatch_lane_rows(w), *counts, *ordinal, *first, *used;
    int32_t *meta = op_out(r, "recv_meta"), *lanes = op_out(r, "lanes"), *compacted = op_out(r, "compacted");
    int64_t routes = (int64_t)w->rows * w->active;
    TRY(op_host_new(r, 4LL * w->experts, &counts, err));
    TRY(op_host_new(r, 4 * routes, &ordinal, err));
    TRY(op_host_new(r, 4LL * local * w->ranks, &first, err));
    TRY(op_host_new(r, 4LL * w->experts, &used, err));
    memset(lanes, 0xFF, 4 * (size_t)w->experts * (size_t)room);
    memset(compacted, 0xFF, 4 * (size_t)w->experts * (size_t)room);
    dispatch_lanes(w, first);
    for (int32_t source = 0; source < w->ranks; source++) {
        const int32_t *at = idx + source * routes;
        dispatch_count(w, at, live[source], counts, ordinal);
        for (int32_t e = 0; e < w->experts; e++)
            meta[(e / local * w->ranks + source) * local + e % local] = counts[e];
        for (int64_t i = 0; i < (int64_t)live[source] * w->active; i++) {
            int32_t e = at[i], number = (int32_t)(source * routes + i);
            lanes[(int64_t)(e / local) * local * room + first[e % local * w->ranks + source] + ordinal[i]] = number;
            compacted[(int64_t)e * room + used[e] + ordinal[i]] = number;
        }
        for (int32_t e = 0; e < w->experts; e++)
            used[e] += counts[e];
    }
    return QR_OK;
}

static qr_status run_dispatch_combine(struct op_run *r, qr_error *err)
{
    int32_t ranks = op_dim(r, "ep"), rows = op_dim(r, "T"), all = ranks * rows, d = op_dim(r, "D"), n = 0, *list, *device_idx;
    struct dispatch_world w = world_of(r, ranks, rows);
    const int32_t *idx = op_ints(r, "indices"), *live = op_ints(r, "active");
    TRY(check_live(live, ranks, rows, err));
    for (int32_t source = 0; source < ranks; source++)
        TRY(dispatch_check_routes(&w, idx + (int64_t)source * rows * w.active, live[source], err));
    TRY(run_counts(r, &w, idx, live, err));

    TRY(op_host_new(r, 4LL * all, &list, err));
    for (int32_t i = 0; i < all; i++)
        if (i % rows < live[i / rows])
            list[n++] = i;
    TRY(op_upload(r, list, 4LL * n, &list, err));
    TRY(op_upload(r, idx, 4LL * all * w.active, &device_idx, err));
    CALL(r, copy, .to = op_out(r, "ffn"), .from = op_in(r, "shared"), .bytes = 2LL * all * d); /* rows that are not active keep it */
    CALL(r, combine, .rows = {list, n}, .idx = device_idx, .active = w.active, .hidden = d, .routed = op_in(r, "routed_y"),
         .shared = op_in(r, "shared"), .w8a8 = true, .out = op_out(r, "ffn"));
    return QR_OK;
}

/* ---- a layer from its normed rows, reference ---- */

/* Expert 0 on every row with weights that the file gives beside its outputs. */
static qr_status expert_zero(struct op_run *r, struct activation x8, int32_t rows, qr_error *err)
{
    const struct tensor_view *given = op_file_find(r->file, "out.expert0_weight");
    const float *weight;
    int32_t *zeros;
    float *device;
    if (!given || tensor_elements(given->rank, given->shape) != op_dim(r, "T")) {
        op_drop(r, "expert0");
        op_drop(r, "expert0_weight");
        return QR_OK;
    }
    TRY(op_file_f32(given, &r->arena, &weight, err));
    memcpy(op_out(r, "expert0_weight"), weight, 4 * (size_t)op_dim(r, "T"));
    TRY(op_buffer(r, 4LL * rows, &device, err));
    TRY(r->backend->upload(r->backend, device, weight, 4LL * op_dim(r, "T"), err));
    TRY(op_buffer(r, 4LL * rows, &zeros, err));
    CALL(r, expert, .rows = first_rows_of(op_dim(r, "T")), .x = x8, .idx = zeros, .weight = device, .experts = op_dim(r, "E"),
         .active = 1, .w1 = op_stack(r, "experts.#.w1.weight"), .w2 = op_stack(r, "experts.#.w2.weight"),
         .w3 = op_stack(r, "experts.#.w3.weight"), .swiglu_limit = r->config.swiglu_limit, .out = op_out(r, "expert0"));
    return QR_OK;
}

/* What a hash layer routes by: the token of every row (rows that no rank has hold 0), and the table where the backend has it. */
static qr_status hash_routes(struct op_run *r, int32_t all, const int32_t **tokens, const int32_t **table, qr_error *err)
{
    int32_t rows = op_dim(r, "T"), *padded, *device;
    if (!op_has(r, "ids"))
        return qr_fail(err, QR_BAD_REQUEST, "%s: no array in.ids, by which a hash layer routes", op_file_path(r->file));
    TRY(op_check_tokens(op_ints(r, "ids"), rows, op_dim(r, "V"), err));
    TRY(op_check_hash_table(r, "gate.tid2eid", err));
    TRY(op_host_new(r, 4LL * all, &padded, err));
    memcpy(padded, op_ints(r, "ids"), 4 * (size_t)rows);
    TRY(op_upload(r, op_ints(r, "gate.tid2eid"), 4LL * op_dim(r, "V") * op_dim(r, "K"), &device, err));
    *tokens = padded;
    *table = device;
    return QR_OK;
}

static qr_status run_reference_moe(struct op_run *r, qr_error *err)
{
    const int32_t *tokens = NULL, *table = NULL;
    int32_t rows = op_dim(r, "T"), ranks = r->ranks ? r->ranks : 1, each = (rows + ranks - 1) / ranks, all = each * ranks;
    int32_t d = op_dim(r, "D"), active = op_dim(r, "K"), *live, *idx;
    struct moe_scratch scratch = {0};
    struct moe m = {.scratch = &scratch, .world = world_of(r, ranks, each), .form = MOE_LANES, .swiglu_limit = r->config.swiglu_limit,
                    .w1 = op_stack(r, "experts.#.w1.weight"), .w2 = op_stack(r, "experts.#.w2.weight"),
                    .w3 = op_stack(r, "experts.#.w3.weight"),
                    .shared = {op_weight(r, "shared_experts.w1.weight"), op_weight(r, "shared_experts.w2.weight"),
                               op_weight(r, "shared_experts.w3.weight")}};
    struct activation x = act_rows(ACT_BF16, op_in(r, "x"), d);
    struct step *step;
    float *weight;
    TRY(dispatch_check_world(&m.world, err));
    TRY(op_host_new(r, 4LL * ranks, &live, err));
    for (int32_t k = 0; k < ranks; k++)
        live[k] = rows - k * each < 0 ? 0 : rows - k * each < each ? rows - k * each : each;
    if (op_has(r, "gate.tid2eid") == op_has(r, "gate.bias"))
        return op_refuse(err, BAD_CHECKPOINT, "a layer has in.gate.bias or, routed by token, in.gate.tid2eid, found %s",
                         op_has(r, "gate.bias") ? "both" : "neither");
    if (op_has(r, "gate.tid2eid"))
        TRY(hash_routes(r, all, &tokens, &table, err));
    TRY(op_step(r, &(struct step_shape){.rows = all, .per_request = all, .tokens = tokens}, &step, err));
    TRY(op_rows(r, ACT_Q8, all, d, 128, &m.x, err));
    TRY(op_buffer(r, 4LL * all * active, &idx, err));
    TRY(op_buffer(r, 4LL * all * active, &weight, err));
    TRY(op_buffer(r, 2LL * all * active * d, &m.routed, err));
    TRY(op_buffer(r, 2LL * all * d, &m.shared_out, err));
    TRY(op_buffer(r, 2LL * all * d, &m.out, err));
    CALL(r, route, .rows = first_rows_of(rows), .step = step, .x = x, .gate = op_weight(r, "gate.weight"), .bias = op_in(r, "gate.bias"), .table = table,
         .experts = m.world.experts, .active = active, .normalise = true, .scaling = r->config.routed_scaling_factor, .idx = idx,
         .weight = weight);
    CALL(r, quantize, .rows = first_rows_of(rows), .in = x, .out = m.x);
    m.live = live;
    m.device_idx = idx;
    m.weight = weight;
    TRY(op_download(r, idx, 4LL * all * active, &m.idx, err));
    TRY(moe_run(r, &m, err));

    memcpy(op_out(r, "route"), m.idx, 4 * (size_t)rows * (size_t)active);
    CALL(r, copy, .to = op_out(r, "weight"), .from = weight, .bytes = 4LL * rows * active);
    CALL(r, copy, .to = op_out(r, "shared"), .from = m.shared_out, .bytes = 2LL * rows * d);
    CALL(r, copy, .to = op_out(r, "y"), .from = m.out, .bytes = 2LL * rows * d);
    return expert_zero(r, m.x, all, err);
}

/* ---- a layer from its streams, w8a8, over the ranks of the file ---- */

static qr_status layer_sizes(struct op_run *r, qr_error *err)
{
    int32_t ranks = op_dim(r, "ep");
    struct dispatch_world w = world_of(r, ranks, op_dim(r, "T"));
    if (r->ranks && r->ranks != ranks)
        return op_refuse(err, BAD_WORLD, "--ranks %d, the file holds the rows of %d", r->ranks, ranks);
    return dispatch_check_world(&w, err);
}

static qr_status run_layer(struct op_run *r, qr_error *err)
{
    const struct qr_config *c = &r->config;
    int32_t ranks = op_dim(r, "ep"), rows = op_dim(r, "T"), all = ranks * rows, d = op_dim(r, "D"), active = op_dim(r, "K"), n = 0;
    const int32_t *live = op_ints(r, "num_tokens"), *tokens = op_ints(r, "input_ids");
    bool hash = op_param(r, "layer_id", 0) < op_param(r, "num_hash_layers", 0);
    struct moe_scratch scratch = {0};
    struct moe m = {.scratch = &scratch, .world = world_of(r, ranks, rows), .form = r->harness->name[0] == 'p' ? MOE_GROUPED : MOE_LANES, .live = live,
                    .w1 = op_stack(r, "routed_w1"), .w2 = op_stack(r, "routed_w2"), .w3 = op_stack(r, "routed_w3"),
                    .shared = {op_weight(r, "shared_w1"), op_weight(r, "shared_w2"), op_weight(r, "shared_w3")},
                    .swiglu_limit = c->swiglu_limit};
    struct streams x = {ACT_F32, c->hc_mult, d, op_out(r, "x_next")};
    struct row_list every = first_rows_of(all), list;
    struct activation xg;
    float *pre, *post, *comb, *inverse, *weight;
    int32_t *idx, *index, *table = NULL;
    struct step *step;

    TRY(check_live(live, ranks, rows, err));
    if (hash) {
        TRY(op_check_tokens(tokens, all, op_dim(r, "V"), err));
        TRY(op_check_hash_table(r, "tid2eid", err));
        TRY(op_upload(r, op_ints(r, "tid2eid"), 4LL * op_dim(r, "V") * active, &table, err));
    }
    TRY(op_step(r, &(struct step_shape){.rows = all, .per_request = all, .tokens = hash ? tokens : NULL}, &step, err));
    TRY(op_host_new(r, 4LL * all, &index, err));
    for (int32_t i = 0; i < all; i++)
        if (i % rows < live[i / rows])
            index[n++] = i;
    TRY(op_upload(r, index, 4LL * n, &list.index, err));
    list.count = n;
    TRY(op_buffer(r, 4LL * all * c->hc_mult, &pre, err));
    TRY(op_buffer(r, 4LL * all * c->hc_mult, &post, err));
    TRY(op_buffer(r, 4LL * all * c->hc_mult * c->hc_mult, &comb, err));
    TRY(op_buffer(r, 4LL * all, &inverse, err));
    TRY(op_rows(r, ACT_F32, all, d, 0, &xg, err));
    TRY(op_rows(r, ACT_I8, all, d, d, &m.x, err)); /* rows that are not active keep scale 0 */
    TRY(op_buffer(r, 4LL * all * active, &idx, err));
    TRY(op_buffer(r, 4LL * all * active, &weight, err));
    TRY(op_buffer(r, 2LL * all * active * d, &m.routed, err));
    TRY(op_buffer(r, 2LL * all * d, &m.shared_out, err));
    TRY(op_buffer(r, 2LL * all * d, &m.out, err));

    CALL(r, copy, .to = x.data, .from = op_in(r, "x_hc"), .bytes = 4LL * all * c->hc_mult * d);
    CALL(r, mhc_mix, .rows = every, .x = x, .fn = op_weight(r, "hc_fn"), .base = op_in(r, "hc_base"), .scale = op_in(r, "hc_scale"),
         .norm_eps = c->rms_norm_eps, .hc_eps = c->hc_eps, .iterations = c->hc_sinkhorn_iters, .pre = pre, .post = post, .comb = comb);
    CALL(r, collapse, .rows = list, .x = x, .pre = pre, .norm = op_in(r, "norm_w"), .norm_eps = c->rms_norm_eps, .pairwise = true,
         .normed = xg, .quantized = m.x, .inverse = inverse);
    CALL(r, route, .rows = list, .step = step, .x = xg, .x_scale = inverse, .gate = op_weight(r, "gate_w"), .bias = op_in(r, "gate_bias"),
         .table = table, .experts = m.world.experts, .active = active, .normalise = true, .scaling = c->routed_scaling_factor,
         .idx = idx, .weight = weight);
    m.device_idx = idx;
    m.weight = weight;
    TRY(op_download(r, idx, 4LL * all * active, &m.idx, err));
    TRY(moe_run(r, &m, err));
    CALL(r, expand, .rows = every, .y = m.out, .post = post, .comb = comb, .x = x);
    return QR_OK;
}

/* ---- the tables ---- */

static const struct op_array exchange_in[] = {ARRAY("indices", ARRAY_INT, "ep T K"),
                                              ARRAY("active", ARRAY_INT, "ep"),
                                              ARRAY("routed_y", ARRAY_BF16, "ep T*K D"),
                                              ARRAY("shared", ARRAY_BF16, "ep T D"),
                                              {0}};
static const struct op_array exchange_out[] = {ARRAY("recv_meta", ARRAY_INT, "ep ep El", .tolerance = "exact"),
                                               ARRAY("lanes", ARRAY_INT, "ep El ep*T", .tolerance = "exact"),
                                               ARRAY("compacted", ARRAY_INT, "ep El ep*T", .tolerance = "exact"),
                                               ARRAY("ffn", ARRAY_BF16, "ep T D", .tolerance = "exact"),
                                               {0}};

static const struct op_array moe_in[] = {ARRAY("x", ARRAY_BF16, "T D"),
                                         ARRAY("gate.weight", WEIGHT_OF_BF16, "E D"),
                                         ARRAY("gate.bias", ARRAY_F32, "E", .flags = ARRAY_OPTIONAL),
                                         ARRAY("gate.tid2eid", ARRAY_INT, "V K", .flags = ARRAY_OPTIONAL),
                                         ARRAY("ids", ARRAY_INT, "T", .flags = ARRAY_OPTIONAL),
                                         ARRAY("experts.#.w1.weight", WEIGHT_OF_FP4, "I D/2", .scales = "experts.#.w1.scale"),
                                         ARRAY("experts.#.w3.weight", WEIGHT_OF_FP4, "I D/2", .scales = "experts.#.w3.scale"),
                                         ARRAY("experts.#.w2.weight", WEIGHT_OF_FP4, "D I/2", .flags = ARRAY_CUT, .scales = "experts.#.w2.scale"),
                                         ARRAY("shared_experts.w1.weight", WEIGHT_OF_FP8, "I D", .scales = "shared_experts.w1.scale"),
                                         ARRAY("shared_experts.w3.weight", WEIGHT_OF_FP8, "I D", .scales = "shared_experts.w3.scale"),
                                         ARRAY("shared_experts.w2.weight", WEIGHT_OF_FP8, "D I", .flags = ARRAY_CUT, .scales = "shared_experts.w2.scale"),
                                         {0}};
static const struct op_array moe_out[] = {ARRAY("route", ARRAY_INT, "T K", .tolerance = "exact"),
                                          ARRAY("weight", ARRAY_F32, "T K", .tolerance = "AC(1e-5,1e-6)"),
                                          ARRAY("shared", ARRAY_BF16, "T D", .tolerance = "RA(1e-4,1/128,0.005)"),
                                          ARRAY("y", ARRAY_BF16, "T D", .tolerance = "RA(1e-4,1/128,0.005)"),
                                          ARRAY("expert0", ARRAY_BF16, "T D", .tolerance = "RA(1e-4,1/128,0.005)"),
                                          ARRAY("expert0_weight", ARRAY_F32, "T", .flags = ARRAY_HOST, .tolerance = "exact"),
                                          {0}};

static const struct op_array layer_in[] = {ARRAY("x_hc", ARRAY_F32, "ep T M D"),
                                           ARRAY("hc_fn", WEIGHT_OF_F32, "MIX M*D"),
                                           ARRAY("hc_scale", ARRAY_F32, "3"),
                                           ARRAY("hc_base", ARRAY_F32, "MIX"),
                                           ARRAY("norm_w", ARRAY_BF16, "D"),
                                           ARRAY("gate_w", WEIGHT_OF_F32, "E D"),
                                           ARRAY("gate_bias", ARRAY_F32, "E"),
                                           ARRAY("tid2eid", ARRAY_INT, "V K"),
                                           ARRAY("input_ids", ARRAY_INT, "ep T"),
                                           ARRAY("num_tokens", ARRAY_INT, "ep"),
                                           ARRAY("shared_w1", WEIGHT_OF_I8, "I D", .scales = "shared_w1_scale"),
                                           ARRAY("shared_w3", WEIGHT_OF_I8, "I D", .scales = "shared_w3_scale"),
                                           ARRAY("shared_w2", WEIGHT_OF_I8, "D I", .scales = "shared_w2_scale"),
                                           ARRAY("routed_w1", WEIGHT_OF_I8, "E I D", .flags = ARRAY_STACKED, .scales = "routed_w1_scale"),
                                           ARRAY("routed_w3", WEIGHT_OF_I8, "E I D", .flags = ARRAY_STACKED, .scales = "routed_w3_scale"),
                                           ARRAY("routed_w2", WEIGHT_OF_I8, "E D I", .flags = ARRAY_STACKED, .scales = "routed_w2_scale"),
                                           {0}};
static const struct op_array layer_out[] = {ARRAY("x_next", ARRAY_F32, "ep T M D", .tolerance = "RD(3e-3,.05)"), {0}};

#define LAYER_NEEDS "rms_norm_eps hc_eps hc_sinkhorn_iters swiglu_limit num_experts_per_tok"

const struct op_harness op_exchange_harnesses[] = {
    {"dispatch_combine", 20, "routed rows to the ranks of their experts and back", "n_routed_experts", exchange_in, exchange_out,
     "ep*T", exchange_sizes, run_dispatch_combine, NULL},
    {"moe", 20, "a MoE layer from its normed rows; --ranks N splits rows and experts", "swiglu_limit num_experts_per_tok", moe_in,
     moe_out, "8*T*K", NULL, run_reference_moe, NULL},
    {"decode_moe", 20, "a MoE layer from its streams over ranks, lanes", LAYER_NEEDS, layer_in, layer_out, "ep*T*E", layer_sizes, run_layer, NULL},
    {"prefill_moe", 20, "a MoE layer from its streams over ranks, counts first", LAYER_NEEDS, layer_in, layer_out, "ep*T*K*2", layer_sizes,
     run_layer, NULL},
    {0}};
