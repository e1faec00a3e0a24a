/* Operator 6 of v4-model.md section 10: queries and window keys (5.2; w8a8: 7.4). */
#include "tools/op_adapters.h"

static qr_status run_reference(struct op_run *r, struct row_list rows, qr_error *err)
{
    int32_t d = op_dim(r, "D"), q_rank = op_dim(r, "Qr"), heads = op_dim(r, "H"), head_dim = op_dim(r, "d");
    float eps = r->config.rms_norm_eps;
    struct activation x8, a, qr8, kv, qr = act_rows(ACT_BF16, op_out(r, "qr"), q_rank);
    struct activation q = act_rows(ACT_BF16, op_out(r, "q"), heads * head_dim);
    struct rope_spec rope;
    struct step *step;

    TRY(op_check_positions(r, op_ints(r, "pos"), rows.count, 1, err));
    TRY(op_step(r, &(struct step_shape){.rows = rows.count, .per_request = 1, .positions = op_ints(r, "pos")}, &step, err));
    TRY(op_frequencies(r, op_dim(r, "rho"), &rope, err));
    TRY(op_rows(r, ACT_Q8, rows.count, d, 128, &x8, err));
    TRY(op_rows(r, ACT_BF16, rows.count, q_rank, 0, &a, err));
    TRY(op_rows(r, ACT_Q8, rows.count, q_rank, 128, &qr8, err));
    TRY(op_rows(r, ACT_BF16, rows.count, head_dim, 0, &kv, err));
    CALL(r, quantize, .rows = rows, .in = act_rows(ACT_BF16, op_in(r, "x"), d), .out = x8);
    CALL(r, linear, .rows = rows, .in = x8, .weight = op_weight(r, "wq_a.weight"), .out = a);
    CALL(r, norm, .rows = rows, .in = a, .weight = op_in(r, "q_norm.weight"), .eps = eps, .out = qr, .quantized = qr8);
    CALL(r, linear, .rows = rows, .in = qr8, .weight = op_weight(r, "wq_b.weight"), .out = q);
    CALL(r, query, .rows = rows, .step = step, .heads = heads, .head_dim = head_dim, .norm = QUERY_NORM_BF16, .eps = eps,
         .rope = rope, .in = q, .out = q);
    CALL(r, linear, .rows = rows, .in = x8, .weight = op_weight(r, "wkv.weight"), .out = kv);
    CALL(r, window_key, .rows = rows, .step = step, .in = kv, .norm = op_in(r, "kv_norm.weight"), .eps = eps, .rope = rope,
         .grid = GRID_FP8_NOPE, .out = op_out(r, "kv"));
    return QR_OK;
}

static qr_status run_w8a8(struct op_run *r, struct row_list rows, qr_error *err)
{
    int32_t d = op_dim(r, "D"), q_rank = op_dim(r, "Qr"), heads = op_dim(r, "H"), head_dim = op_dim(r, "d");
    float eps = r->config.rms_norm_eps;
    struct activation x = act_rows(ACT_BF16, op_in(r, "x"), d), none = {.format = ACT_F32}, a, q, kv;
    struct activation qr = act_coded(ACT_I8, op_out(r, "qr"), op_out(r, "qr_scale"), q_rank, q_rank);
    struct rope_spec rope;
    struct step *step;

    TRY(op_step(r, &(struct step_shape){.rows = rows.count, .per_request = 1}, &step, err));
    TRY(op_turns(r, "rope_cos", "rope_sin", rows.count, NULL, &rope, err));
    TRY(op_rows(r, ACT_F32, rows.count, q_rank, 0, &a, err));
    TRY(op_rows(r, ACT_F32, rows.count, heads * head_dim, 0, &q, err));
    TRY(op_rows(r, ACT_F32, rows.count, head_dim, 0, &kv, err));
    CALL(r, linear, .rows = rows, .in = x, .weight = op_weight(r, "wq_a"), .out = a);
    CALL(r, norm, .rows = rows, .in = a, .weight = op_in(r, "gamma_cq"), .eps = eps, .out = none, .quantized = qr);
    CALL(r, linear, .rows = rows, .in = qr, .weight = op_weight(r, "wq_b"), .out = q);
    CALL(r, query, .rows = rows, .step = step, .heads = heads, .head_dim = head_dim, .norm = QUERY_NORM_F32, .eps = eps,
         .rope = rope, .in = q, .out = act_rows(ACT_BF16, op_out(r, "q"), heads * head_dim));
    CALL(r, linear, .rows = rows, .in = x, .weight = op_weight(r, "wkv"), .out = kv);
    CALL(r, window_key, .rows = rows, .step = step, .in = kv, .norm = op_in(r, "gamma_ckv"), .eps = eps, .rope = rope,
         .grid = GRID_NONE, .out = op_out(r, "kv"));
    return QR_OK;
}

static qr_status run_projection(struct op_run *r, qr_error *err)
{
    struct row_list rows = first_rows_of(op_dim(r, "T"));
    return r->w8a8 ? run_w8a8(r, rows, err) : run_reference(r, rows, err);
}

static const struct op_array projection_in[] = {
    ARRAY("x", ARRAY_BF16, "T D"),
    ARRAY("pos", ARRAY_INT, "T", .flags = ARRAY_REFERENCE),
    ARRAY("q_norm.weight", ARRAY_BF16, "Qr", .flags = ARRAY_REFERENCE),
    ARRAY("kv_norm.weight", ARRAY_BF16, "d", .flags = ARRAY_REFERENCE),
    ARRAY("wq_a.weight", WEIGHT_OF_FP8, "Qr D", .flags = ARRAY_REFERENCE, .scales = "wq_a.scale"),
    ARRAY("wq_b.weight", WEIGHT_OF_FP8, "H*d Qr", .flags = ARRAY_REFERENCE, .scales = "wq_b.scale"),
    ARRAY("wkv.weight", WEIGHT_OF_FP8, "d D", .flags = ARRAY_REFERENCE, .scales = "wkv.scale"),
    ARRAY("gamma_cq", ARRAY_BF16, "Qr", .flags = ARRAY_W8A8),
    ARRAY("gamma_ckv", ARRAY_BF16, "d", .flags = ARRAY_W8A8),
    ARRAY("rope_cos", ARRAY_F32, "T *", .flags = ARRAY_W8A8 | ARRAY_HOST),
    ARRAY("rope_sin", ARRAY_F32, "T *", .flags = ARRAY_W8A8 | ARRAY_HOST),
    ARRAY("wq_a", WEIGHT_OF_BF16_IN_OUT, "D Qr", .flags = ARRAY_W8A8),
    ARRAY("wq_b", WEIGHT_OF_I8_IN_OUT, "Qr H*d", .flags = ARRAY_W8A8, .scales = "wq_b_scale"),
    ARRAY("wkv", WEIGHT_OF_BF16_IN_OUT, "D d", .flags = ARRAY_W8A8),
    {0}};
static const struct op_array projection_out[] = {
    ARRAY("q", ARRAY_BF16, "T H d", .tolerance = "RA(1e-4,1/128,0.005)"),
    ARRAY("kv", ARRAY_BF16, "T d", .tolerance = "RA(1e-4,1/128,0.005)"),
    ARRAY("qr", ARRAY_BF16, "T Qr", .flags = ARRAY_REFERENCE, .tolerance = "RA(1e-4,1/128,0.005)"),
    ARRAY("qr", ARRAY_I8, "T Qr", .flags = ARRAY_W8A8, .tolerance = "RA(1,0,0)"),
    ARRAY("qr_scale", ARRAY_F32, "T 1", .flags = ARRAY_W8A8, .tolerance = "RA(2.5e-5,5e-3,0.005)"),
    {0}};

const struct op_harness op_projection_harnesses[] = {
    {"qkv_proj_rope", 6, "queries and window keys", "num_attention_heads qk_rope_head_dim rms_norm_eps", projection_in,
     projection_out, "T", NULL, run_projection, NULL},
    {0}};
