/* Operators 17 to 19 of v4-model.md section 10: gate, shared and routed experts. */
#include <string.h>

#include "tools/op_adapters.h"

/* ---- 17 ---- */

/* The operator's routes as the outputs indices and weights; rows from `live` on stay 0. */
static qr_status route(struct op_run *r, int32_t live, bool hash, const char *tokens, const char *table, struct op_route op,
                       qr_error *err)
{
    int32_t rows = op_dim(r, "T"), active = op_dim(r, "K"), *device_table = NULL, *idx;
    struct step *step;
    if (hash) {
        TRY(op_check_hash_table(r, table, err));
        TRY(op_check_tokens(op_ints(r, tokens), live, op_dim(r, "V"), err));
        TRY(op_upload(r, op_ints(r, table), 4LL * op_dim(r, "V") * active, &device_table, err));
    }
    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = rows, .tokens = hash ? op_ints(r, tokens) : NULL}, &step, err));
    TRY(op_buffer(r, 4LL * rows * active, &idx, err));
    op.rows = first_rows_of(live);
    op.step = step;
    op.table = device_table;
    op.experts = op_dim(r, "E");
    op.active = active;
    op.normalise = true;
    op.scaling = r->config.routed_scaling_factor;
    op.idx = idx;
    op.weight = op_out(r, "weights");
    TRY(op_call(r, OP_route, &op, sizeof op, err));
    TRY(op_download(r, idx, 4LL * rows * active, &idx, err));
    memcpy(op_out(r, "indices"), idx, 4 * (size_t)rows * (size_t)active);
    op_out_slot(r, "indices")->values = "weights";
    op_out_slot(r, "indices")->live = live;
    return QR_OK;
}

static qr_status gate_reference(struct op_run *r, bool hash, qr_error *err)
{
    int32_t rows = op_dim(r, "T"), experts = op_dim(r, "E");
    struct activation x = act_rows(ACT_BF16, op_in(r, "x"), op_dim(r, "D"));
    if (hash != op_has(r, "gate.tid2eid"))
        return op_refuse(err, BAD_CHECKPOINT, "in.gate.tid2eid is %s in a %s layer", hash ? "missing" : "given", hash ? "hash" : "score");
    CALL(r, linear, .rows = first_rows_of(rows), .in = x, .weight = op_weight(r, "gate.weight"),
         .out = act_rows(ACT_F32, op_out(r, "logits"), experts));
    return route(r, rows, hash, "ids", "gate.tid2eid",
                 (struct op_route){.x = x, .gate = op_weight(r, "gate.weight"), .bias = op_in(r, "gate.bias")}, err);
}

/* 7.4: the norm is inside and deferred to the scale; one stream with pre 1 makes the collapse the identity. */
static qr_status gate_w8a8(struct op_run *r, bool hash, qr_error *err)
{
    int32_t rows = op_dim(r, "T"), d = op_dim(r, "D"), live;
    struct activation xg;
    float *one, *inverse;
    TRY(op_live_rows(r, &live, err));
    TRY(op_host_new(r, 4LL * rows, &one, err));
    for (int32_t i = 0; i < rows; i++)
        one[i] = 1;
    TRY(op_upload(r, one, 4LL * rows, &one, err));
    TRY(op_buffer(r, 4LL * rows, &inverse, err));
    TRY(op_rows(r, ACT_F32, rows, d, 0, &xg, err));
    CALL(r, collapse, .rows = first_rows_of(rows), .x = {ACT_BF16, 1, d, op_in(r, "x_mixed")}, .pre = one, .norm = op_in(r, "norm_w"),
         .norm_eps = r->config.rms_norm_eps, .normed = xg,
         .quantized = act_coded(ACT_I8, op_out(r, "x_norm_i8"), op_out(r, "x_norm_scale"), d, d), .inverse = inverse);
    if (live < rows) { /* their codes stay, their scales are 0 */
        float *zeros;
        TRY(op_buffer(r, 4LL * rows, &zeros, err));
        CALL(r, copy, .to = (float *)op_out(r, "x_norm_scale") + live, .from = zeros, .bytes = 4LL * (rows - live));
    }
    return route(r, live, hash, "input_ids", "tid2eid",
                 (struct op_route){.x = xg, .x_scale = inverse, .gate = op_weight(r, "gate_w"), .bias = op_in(r, "gate_bias")}, err);
}

/* A layer is hash by its id where params says how many are, else by the operator's name. */
static bool is_hash(const struct op_run *r)
{
    double layers = op_param(r, "num_hash_layers", -1);
    if (layers >= 0 && op_param(r, "layer_id", -1) >= 0)
        return op_param(r, "layer_id", 0) < layers;
    return strcmp(r->harness->name, "gate_hash") == 0;
}

static qr_status run_gate(struct op_run *r, qr_error *err)
{
    return r->w8a8 ? gate_w8a8(r, is_hash(r), err) : gate_reference(r, is_hash(r), err);
}

/* ---- 18 ---- */

static qr_status run_shared(struct op_run *r, qr_error *err)
{
    const struct weight *w[3] = {op_weight(r, "shared_w1"), op_weight(r, "shared_w2"), op_weight(r, "shared_w3")}, **kept;
    TRY(op_host_new(r, sizeof w, &kept, err));
    memcpy(kept, w, sizeof w);
    CALL(r, expert, .rows = first_rows_of(op_dim(r, "T")),
         .x = act_coded(ACT_I8, op_in(r, "x"), op_in(r, "scale"), op_dim(r, "D"), op_dim(r, "D")), .experts = 1, .active = 1,
         .w1 = &kept[0], .w2 = &kept[1], .w3 = &kept[2], .swiglu_limit = r->config.swiglu_limit, .w8a8 = true, .out = op_out(r, "sh"));
    return QR_OK;
}

/* ---- 19 ---- */

/* Rows below an expert's count; the others stay 0. */
static qr_status run_routed(struct op_run *r, qr_error *err)
{
    int32_t experts = op_dim(r, "El"), room = op_dim(r, "RM"), n = 0, *list, *expert;
    const int32_t *counts = op_ints(r, "counts");
    TRY(op_host_new(r, 4LL * experts * room, &list, err));
    TRY(op_host_new(r, 4LL * experts * room, &expert, err));
    for (int32_t e = 0; e < experts; e++) {
        if (counts[e] < 0 || counts[e] > room)
            return op_refuse(err, BAD_SHAPE, "counts of expert %d is %d, wanted 0 to %d", e, counts[e], room);
        for (int32_t i = 0; i < room; i++) {
            expert[e * room + i] = e;
            if (i < counts[e])
                list[n++] = e * room + i;
        }
    }
    TRY(op_upload(r, list, 4LL * n, &list, err));
    TRY(op_upload(r, expert, 4LL * experts * room, &expert, err));
    CALL(r, expert, .rows = {list, n},
         .x = act_coded(ACT_I8, op_in(r, "recv_x"), op_in(r, "recv_scale"), op_dim(r, "D"), op_dim(r, "D")), .idx = expert,
         .weight = op_in(r, "recv_weights"), .experts = experts, .active = 1, .w1 = op_stack(r, "routed_w1"),
         .w2 = op_stack(r, "routed_w2"), .w3 = op_stack(r, "routed_w3"), .swiglu_limit = r->config.swiglu_limit, .w8a8 = true,
         .out = op_out(r, "recv_y"));
    return QR_OK;
}

/* ---- the tables ---- */

static const struct op_array gate_in[] = {ARRAY("x", ARRAY_BF16, "T D", .flags = ARRAY_REFERENCE),
                                          ARRAY("gate.weight", WEIGHT_OF_BF16, "E D", .flags = ARRAY_REFERENCE),
                                          ARRAY("gate.bias", ARRAY_F32, "E", .flags = ARRAY_REFERENCE | ARRAY_OPTIONAL),
                                          ARRAY("gate.tid2eid", ARRAY_INT, "V K", .flags = ARRAY_REFERENCE | ARRAY_OPTIONAL),
                                          ARRAY("ids", ARRAY_INT, "T", .flags = ARRAY_REFERENCE),
                                          ARRAY("x_mixed", ARRAY_BF16, "T D", .flags = ARRAY_W8A8),
                                          ARRAY("norm_w", ARRAY_BF16, "D", .flags = ARRAY_W8A8),
                                          ARRAY("gate_w", WEIGHT_OF_F32, "E D", .flags = ARRAY_W8A8),
                                          ARRAY("gate_bias", ARRAY_F32, "E", .flags = ARRAY_W8A8),
                                          ARRAY("tid2eid", ARRAY_INT, "V K", .flags = ARRAY_W8A8),
                                          ARRAY("input_ids", ARRAY_INT, "T", .flags = ARRAY_W8A8),
                                          ARRAY("num_tokens", ARRAY_INT, "1", .flags = ARRAY_OPTIONAL),
                                          {0}};
static const struct op_array gate_out[] = {
    ARRAY("logits", ARRAY_F32, "T E", .flags = ARRAY_REFERENCE, .tolerance = "AC(1e-5,1e-5)"),
    ARRAY("x_norm_i8", ARRAY_I8, "T D", .flags = ARRAY_W8A8, .also = "i8", .tolerance = "RA(1,0,.001)"),
    ARRAY("x_norm_scale", ARRAY_F32, "T 1", .flags = ARRAY_W8A8, .tolerance = "AC(1e-3,1e-3)"),
    ARRAY("indices", ARRAY_INT, "T K", .tolerance = "TK(weights)"),
    ARRAY("weights", ARRAY_F32, "T K", .tolerance = "AC(1e-3,1e-3)"),
    {0}};

static const struct op_array shared_in[] = {ARRAY("x", ARRAY_I8, "T D"),
                                            ARRAY("scale", ARRAY_F32, "T 1"),
                                            ARRAY("shared_w1", WEIGHT_OF_I8, "I D", .scales = "shared_w1_scale"),
                                            ARRAY("shared_w3", WEIGHT_OF_I8, "I D", .scales = "shared_w3_scale"),
                                            ARRAY("shared_w2", WEIGHT_OF_I8, "D I", .scales = "shared_w2_scale"),
                                            {0}};
static const struct op_array shared_out[] = {ARRAY("sh", ARRAY_BF16, "T D", .tolerance = "RD(2e-3,.01)"), {0}};

static const struct op_array routed_in[] = {ARRAY("recv_x", ARRAY_I8, "El RM D"),
                                            ARRAY("recv_scale", ARRAY_F32, "El RM"),
                                            ARRAY("recv_weights", ARRAY_F32, "El RM"),
                                            ARRAY("counts", ARRAY_INT, "El 1"),
                                            ARRAY("routed_w1", WEIGHT_OF_I8, "El I D", .flags = ARRAY_STACKED, .scales = "routed_w1_scale"),
                                            ARRAY("routed_w3", WEIGHT_OF_I8, "El I D", .flags = ARRAY_STACKED, .scales = "routed_w3_scale"),
                                            ARRAY("routed_w2", WEIGHT_OF_I8, "El D I", .flags = ARRAY_STACKED, .scales = "routed_w2_scale"),
                                            {0}};
static const struct op_array routed_out[] = {ARRAY("recv_y", ARRAY_BF16, "El RM D", .tolerance = "RD(2e-3,.01)"), {0}};

const struct op_harness op_expert_harnesses[] = {
    {"gate", 17, "router, by score", "", gate_in, gate_out, "T", NULL, run_gate, NULL},
    {"gate_hash", 17, "router, by the token's row of the table", "", gate_in, gate_out, "T", NULL, run_gate, NULL},
    {"expert_shared", 18, "the shared expert", "swiglu_limit", shared_in, shared_out, "T", NULL, run_shared, NULL},
    {"expert_routed", 19, "routed experts over the rows that each received", "swiglu_limit", routed_in, routed_out, "El*RM", NULL, run_routed, NULL},
    {0}};
