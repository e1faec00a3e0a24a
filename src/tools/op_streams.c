/* Operators 1 to 5 and 22 of v4-model.md section 10: embedding, norm, mHC, and the MTP layer's projection. */
#include "tools/op_adapters.h"

#define RMS "RA(1e-4,1/128,0.005)"

static struct streams streams_of(const struct op_run *r, int32_t count, void *data)
{
    return (struct streams){r->w8a8 ? ACT_F32 : ACT_BF16, count, op_dim(r, "D"), data};
}

/* ---- 1 ---- */

static qr_status run_lookup(struct op_run *r, qr_error *err)
{
    int32_t rows = op_dim(r, "T");
    struct step *step;
    TRY(op_check_tokens(op_ints(r, "input_ids"), rows, op_dim(r, "V"), err));
    TRY(op_step(r, &(struct step_shape){.rows = rows, .per_request = rows, .tokens = op_ints(r, "input_ids")}, &step, err));
    CALL(r, embed, .rows = first_rows_of(rows), .step = step, .weight = op_weight(r, "embed"),
         .out = {ACT_BF16, 1, op_dim(r, "D"), op_out(r, "hidden")});
    return QR_OK;
}

/* ---- 2 ---- */

static qr_status run_rmsnorm(struct op_run *r, qr_error *err)
{
    int32_t d = op_dim(r, "D");
    CALL(r, norm, .rows = first_rows_of(op_dim(r, "T")), .in = act_rows(ACT_BF16, op_in(r, "x"), d), .weight = op_in(r, "w"),
         .eps = r->config.rms_norm_eps, .out = act_rows(ACT_BF16, op_out(r, "x_normed"), d));
    return QR_OK;
}

/* ---- 3 ---- */

static qr_status run_hc_pre(struct op_run *r, qr_error *err)
{
    const struct qr_config *c = &r->config;
    struct row_list rows = first_rows_of(op_dim(r, "T"));
    struct streams x = streams_of(r, c->hc_mult, op_in(r, "x"));
    float *pre;
    TRY(op_buffer(r, 4LL * rows.count * c->hc_mult, &pre, err));
    CALL(r, mhc_mix, .rows = rows, .x = x, .fn = op_weight(r, "hc_fn"), .base = op_in(r, "hc_base"), .scale = op_in(r, "hc_scale"),
         .norm_eps = c->rms_norm_eps, .hc_eps = c->hc_eps, .iterations = c->hc_sinkhorn_iters, .pre = pre,
         .post = op_out(r, "post"), .comb = op_out(r, "comb"));
    CALL(r, collapse, .rows = rows, .x = x, .pre = pre, .pairwise = r->w8a8,
         .collapsed = act_rows(ACT_BF16, op_out(r, "x_mixed"), c->hidden_size));
    return QR_OK;
}

/* ---- 4 ---- */

/* The operator works in place; rows from num_tokens on (the prefill form) stay zero. */
static qr_status run_hc_post(struct op_run *r, qr_error *err)
{
    int32_t live;
    struct streams y = streams_of(r, op_dim(r, "M"), op_out(r, "y"));
    int64_t row = (int64_t)op_dim(r, "M*D") * (r->w8a8 ? 4 : 2);
    TRY(op_live_rows(r, &live, err));
    CALL(r, copy, .to = y.data, .from = op_in(r, "residual"), .bytes = live * row);
    CALL(r, expand, .rows = first_rows_of(live), .y = op_in(r, "sub"), .post = op_in(r, "post"), .comb = op_in(r, "comb"), .x = y);
    op_out_slot(r, "y")->live = live;
    return QR_OK;
}

/* ---- 5 ---- */

static qr_status run_hc_head(struct op_run *r, qr_error *err)
{
    const struct qr_config *c = &r->config;
    struct row_list rows = first_rows_of(op_dim(r, "T"));
    struct streams x = streams_of(r, c->hc_mult, op_in(r, "x"));
    float *pre;
    TRY(op_buffer(r, 4LL * rows.count * c->hc_mult, &pre, err));
    CALL(r, mhc_mix, .rows = rows, .x = x, .fn = op_weight(r, "fn"), .base = op_in(r, "base"), .scale = op_in(r, "scale"),
         .norm_eps = c->rms_norm_eps, .hc_eps = c->hc_eps, .head_only = true, .pre = pre);
    CALL(r, collapse, .rows = rows, .x = x, .pre = pre,
         .collapsed = act_rows(ACT_BF16, op_out(r, "y"), c->hidden_size));
    return QR_OK;
}

/* ---- 22 ---- */

/* Steps 1 to 3 of 6.3 (w8a8: 7.4 mtp_projection): the embedding's row for all streams, each stream by itself. */
static qr_status run_mtp_projection(struct op_run *r, qr_error *err)
{
    bool w8a8 = r->w8a8;
    int32_t d = op_dim(r, "D"), streams = op_dim(r, "M");
    float eps = r->config.rms_norm_eps;
    struct row_list rows = first_rows_of(op_dim(r, "T"));
    enum act_format plain = w8a8 ? ACT_F32 : ACT_BF16, coded = w8a8 ? ACT_I8 : ACT_Q8;
    struct activation none = {.format = plain}, e8, h8, e, h;
    int32_t block = w8a8 ? d : 128;

    TRY(op_rows(r, coded, rows.count, d, block, &e8, err));
    TRY(op_rows(r, coded, rows.count, streams * d, block, &h8, err));
    TRY(op_rows(r, plain, rows.count, d, 0, &e, err));
    TRY(op_rows(r, plain, rows.count, streams * d, 0, &h, err));
    CALL(r, norm, .rows = rows, .in = act_rows(ACT_BF16, op_in(r, "hidden"), d),
         .weight = op_in(r, w8a8 ? "enorm_w" : "enorm.weight"), .weight_f32 = w8a8,
         .smooth = w8a8 ? op_in(r, "e_proj_smooth") : NULL, .eps = eps, .out = none, .quantized = e8);
    CALL(r, norm, .rows = rows, .in = act_rows(plain, op_in(r, "prev"), streams * d),
         .weight = op_in(r, w8a8 ? "hnorm_w" : "hnorm.weight"), .weight_f32 = w8a8,
         .smooth = w8a8 ? op_in(r, "h_proj_smooth") : NULL, .parts = streams, .eps = eps, .out = none, .quantized = h8);
    CALL(r, linear, .rows = rows, .in = e8, .weight = op_weight(r, w8a8 ? "e_proj_w" : "e_proj.weight"), .out = e);
    CALL(r, linear, .rows = rows, .in = h8, .weight = op_weight(r, w8a8 ? "h_proj_w" : "h_proj.weight"), .parts = streams, .out = h);
    CALL(r, stream_add, .rows = rows, .e = e, .h = h, .out = streams_of(r, streams, op_out(r, "hidden_out")));
    return QR_OK;
}

/* ---- the tables ---- */

static const struct op_array lookup_in[] = {ARRAY("input_ids", ARRAY_INT, "T"), ARRAY("embed", WEIGHT_OF_BF16, "V D"), {0}};
static const struct op_array lookup_out[] = {ARRAY("hidden", ARRAY_BF16, "T D", .tolerance = "exact"), {0}};

static const struct op_array rmsnorm_in[] = {ARRAY("x", ARRAY_BF16, "T D"), ARRAY("w", ARRAY_BF16, "D"), {0}};
static const struct op_array rmsnorm_out[] = {ARRAY("x_normed", ARRAY_BF16, "T D", .tolerance = RMS), {0}};

static const struct op_array hc_pre_in[] = {
    ARRAY("x", ARRAY_STREAM, "T M D"), ARRAY("hc_fn", WEIGHT_OF_F32, "MIX M*D"), ARRAY("hc_scale", ARRAY_F32, "3"), ARRAY("hc_base", ARRAY_F32, "MIX"), {0}};
static const struct op_array hc_pre_out[] = {ARRAY("x_mixed", ARRAY_BF16, "T D", .tolerance = RMS),
                                             ARRAY("post", ARRAY_F32, "T M", .tolerance = "RA(2.5e-5,5e-3,0.005)"),
                                             ARRAY("comb", ARRAY_F32, "T M*M", .tolerance = "RA(2.5e-5,5e-3,0.005)"),
                                             {0}};

static const struct op_array hc_post_in[] = {ARRAY("sub", ARRAY_BF16, "T D"),
                                             ARRAY("residual", ARRAY_STREAM, "T M D"),
                                             ARRAY("post", ARRAY_F32, "T M"),
                                             ARRAY("comb", ARRAY_F32, "T M*M"),
                                             ARRAY("num_tokens", ARRAY_INT, "1", .flags = ARRAY_OPTIONAL),
                                             {0}};
static const struct op_array hc_post_out[] = {ARRAY("y", ARRAY_STREAM, "T M D", .tolerance = "AC(1e-3,1e-3)"), {0}};

static const struct op_array hc_head_in[] = {
    ARRAY("x", ARRAY_STREAM, "T M D"), ARRAY("fn", WEIGHT_OF_F32, "M M*D"), ARRAY("scale", ARRAY_F32, "1"), ARRAY("base", ARRAY_F32, "M"), {0}};
static const struct op_array hc_head_out[] = {ARRAY("y", ARRAY_BF16, "T D", .tolerance = RMS), {0}};

static const struct op_array mtp_projection_in[] = {
    ARRAY("hidden", ARRAY_BF16, "T D"),
    ARRAY("prev", ARRAY_STREAM, "T M D"),
    ARRAY("enorm.weight", ARRAY_BF16, "D", .flags = ARRAY_REFERENCE),
    ARRAY("hnorm.weight", ARRAY_BF16, "D", .flags = ARRAY_REFERENCE),
    ARRAY("e_proj.weight", WEIGHT_OF_FP8, "D D", .flags = ARRAY_REFERENCE, .scales = "e_proj.scale"),
    ARRAY("h_proj.weight", WEIGHT_OF_FP8, "D D", .flags = ARRAY_REFERENCE, .scales = "h_proj.scale"),
    ARRAY("enorm_w", ARRAY_F32, "D", .flags = ARRAY_W8A8),
    ARRAY("hnorm_w", ARRAY_F32, "D", .flags = ARRAY_W8A8),
    ARRAY("e_proj_smooth", ARRAY_F32, "D", .flags = ARRAY_W8A8),
    ARRAY("h_proj_smooth", ARRAY_F32, "D", .flags = ARRAY_W8A8),
    ARRAY("e_proj_w", WEIGHT_OF_I8, "D D", .flags = ARRAY_W8A8, .scales = "e_proj_scale"),
    ARRAY("h_proj_w", WEIGHT_OF_I8, "D D", .flags = ARRAY_W8A8, .scales = "h_proj_scale"),
    {0}};
static const struct op_array mtp_projection_out[] = {ARRAY("hidden_out", ARRAY_STREAM, "T M D", .tolerance = "RA(1e-3,1e-3,.05)"), {0}};

const struct op_harness op_streams_harnesses[] = {
    {"lookup_embedding", 1, "rows of the embedding", "", lookup_in, lookup_out, "T", NULL, run_lookup, NULL},
    {"rmsnorm", 2, "RMS norm of bf16 rows", "rms_norm_eps", rmsnorm_in, rmsnorm_out, "T", NULL, run_rmsnorm, NULL},
    {"hc_pre", 3, "mHC mix and collapse", "rms_norm_eps hc_eps hc_sinkhorn_iters", hc_pre_in, hc_pre_out, "T", NULL, run_hc_pre, NULL},
    {"hc_post", 4, "mHC expansion", "", hc_post_in, hc_post_out, "T", NULL, run_hc_post, NULL},
    {"hc_head", 5, "mHC collapse before the head", "rms_norm_eps hc_eps", hc_head_in, hc_head_out, "T", NULL, run_hc_head, NULL},
    {"mtp_projection", 22, "embedding and streams into the MTP layer's streams", "rms_norm_eps", mtp_projection_in,
     mtp_projection_out, "T", NULL, run_mtp_projection, NULL},
    {0}};
