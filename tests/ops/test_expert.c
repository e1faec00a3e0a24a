/* Router, experts, combination: goldens 17 to 20 of golden/ops4, worked scalars of v41-model.md 13.3 and
 * v4-model.md 13.1. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "support/golden.h"
#include "support/ops.h"

#define BAD(share, n) ((int64_t)llround((share) * (double)(n)))

/* Routes one row whose logits are the given ones: x = (1, 0, ...), the gate's first column. */
static void route_of(struct ops *o, const float *logits, const float *bias, struct op_route op, int32_t *idx,
                     float *weight)
{
    float gate[8 * 32] = {0};
    uint16_t x[32] = {bf16_encode(1)};
    struct one_request r;
    qr_error err = {0};
    for (int e = 0; e < op.experts; e++)
        gate[e * 32] = logits[e];
    one_request_make(&r, 0, 1, 0);
    op.rows = first_rows(1);
    op.step = &r.step;
    op.x = bf16_rows(x, 32);
    op.gate = ops_f32(o, op.experts, 32, gate);
    op.bias = bias;
    op.idx = idx;
    op.weight = weight;
    if (o->b->route(o->b, &op, &err) != QR_OK)
        fail_msg("%s", err.message);
    one_request_free(&r);
}

static void scores_are_the_root_of_softplus_far_down_too(void **state)
{
    (void)state;
    /* v41-model.md 13.3 and 7.1; v4-model.md 6.1: at -60 about e^-30 */
    static const float logit[6] = {-30, -5, 0, 1, 25, -60};
    static const float want[6] = {3.059023205e-7f, 8.194722991e-2f, 8.325546112e-1f, 1.145976303f, 5, 9.357623e-14f};
    static const int32_t order[6] = {4, 3, 2, 1, 0, 5};
    int32_t idx[6];
    float weight[6];
    struct ops o;
    ops_open(&o, "reference", 1);
    route_of(&o, logit, NULL, (struct op_route){.experts = 6, .active = 6, .scaling = 1}, idx, weight);
    assert_memory_equal(idx, order, sizeof order);
    for (int k = 0; k < 6; k++)
        assert_close("score", &weight[k], &want[order[k]], 1, 0, 3e-7, 0);
    ops_close(&o);
}

static void the_bias_chooses_but_does_not_weigh(void **state)
{
    (void)state;
    static const float logit[4] = {2, -1, 0.5f, 0}, bias[4] = {0, 2, 0, 0}, want[2] = {0.416009f, 1.083991f};
    int32_t idx[2];
    float weight[2];
    struct ops o;
    ops_open(&o, "reference", 1);
    route_of(&o, logit, bias, (struct op_route){.experts = 4, .active = 2, .normalise = true, .scaling = 1.5f}, idx,
             weight);
    assert_int_equal(idx[0], 1);
    assert_int_equal(idx[1], 0);
    assert_close("weights", weight, want, 2, 2e-6, 0, 0);
    ops_close(&o);
}

static void equal_choices_go_to_the_smaller_expert(void **state)
{
    (void)state;
    static const float logit[5] = {1, 3, 3, 1, 3};
    static const int32_t want[4] = {1, 2, 4, 0};
    int32_t idx[4];
    float weight[4];
    struct ops o;
    ops_open(&o, "reference", 1);
    route_of(&o, logit, NULL, (struct op_route){.experts = 5, .active = 4, .normalise = true, .scaling = 1}, idx,
             weight);
    assert_memory_equal(idx, want, sizeof want);
    ops_close(&o);
}

static void image_rows_use_their_own_bias(void **state)
{
    (void)state;
    float gate[3 * 32] = {0}, bias[3] = {1, 0, 0}, image[3] = {0, 0, 1}, weight[2];
    uint16_t x[2 * 32] = {0};
    uint8_t mask[2] = {0, 1};
    int32_t idx[2];
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 2, 0);
    r.step.image_mask = mask;
    struct op_route op = {.rows = first_rows(2),
                          .step = &r.step,
                          .x = bf16_rows(x, 32),
                          .gate = ops_f32(&o, 3, 32, gate),
                          .bias = bias,
                          .bias_image = image,
                          .experts = 3,
                          .active = 1,
                          .scaling = 1,
                          .idx = idx,
                          .weight = weight};
    assert_int_equal(o.b->route(o.b, &op, NULL), QR_OK);
    assert_int_equal(idx[0], 0);
    assert_int_equal(idx[1], 2);
    op.bias_image = NULL; /* drafts: never bias_vl */
    assert_int_equal(o.b->route(o.b, &op, NULL), QR_OK);
    assert_int_equal(idx[1], 0);
    one_request_free(&r);
    ops_close(&o);
}

/* 17-gate_hash-ref: the table's experts, weights of their scores. */
static void hashed_routes_equal_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int set = 0; set < 2; set++) {
        struct golden *g = golden_open(set ? "tests/golden/ops4/17-gate_hash-ref-b.safetensors"
                                           : "tests/golden/ops4/17-gate_hash-ref-a.safetensors");
        int32_t experts = (int32_t)golden_param(g, "n_routed_experts"), idx[16];
        float weight[16];
        struct one_request r;
        one_request_make(&r, 0, 8, 0);
        memcpy(r.tokens, golden_i32(g, "in.ids", NULL), 32);
        struct op_route op = {.rows = first_rows(8),
                              .step = &r.step,
                              .x = bf16_rows(golden_bf16(g, "in.x", NULL), 128),
                              .gate = ops_bf16(&o, experts, 128, golden_bf16(g, "in.gate.weight", NULL)),
                              .table = golden_i32(g, "in.gate.tid2eid", NULL),
                              .experts = experts,
                              .active = 2,
                              .normalise = true,
                              .scaling = 1.5f,
                              .idx = idx,
                              .weight = weight};
        assert_int_equal(o.b->route(o.b, &op, NULL), QR_OK);
        assert_memory_equal(idx, golden_i32(g, "out.indices", NULL), sizeof idx);
        assert_close("weights", weight, golden_f32(g, "out.weights", NULL), 16, 1e-5, 1e-5, 0);

        int32_t bad[2 * 288] = {0};
        bad[2 * r.tokens[5] + 1] = experts;
        op.table = bad;
        assert_int_equal(o.b->route(o.b, &op, NULL), QR_BAD_ARGUMENT);
        one_request_free(&r);
        golden_close(g);
    }
    ops_close(&o);
}

/* 17 W8A8: the norm inside, deferred to the scale. */
static void check_w8a8_gate(struct ops *o, const char *file, bool hash)
{
    struct golden *g = golden_open(file);
    int32_t experts = (int32_t)golden_param(g, "n_routed_experts"), live = (int32_t)golden_param(g, "num_tokens"),
            idx[16];
    float weight[16], inverse[8], one[8], xg[8 * 128];
    struct activation q = ops_rows(ACT_I8, 8, 128, 128);
    struct one_request r;
    one_request_make(&r, 0, 8, 0);
    memcpy(r.tokens, golden_i32(g, "in.input_ids", NULL), 32);
    for (int i = 0; i < 8; i++)
        one[i] = 1; /* one stream with pre 1: collapse is the identity */
    RUN(o, collapse, .rows = first_rows(live), .x = {ACT_BF16, 1, 128, (void *)golden_bf16(g, "in.x_mixed", NULL)},
        .pre = one, .norm = golden_bf16(g, "in.norm_w", NULL), .norm_eps = 1e-6f, .normed = f32_rows(xg, 128),
        .quantized = q, .inverse = inverse);
    RUN(o, route, .rows = first_rows(live), .step = &r.step, .x = f32_rows(xg, 128), .x_scale = inverse,
        .gate = ops_f32(o, experts, 128, golden_f32(g, "in.gate_w", NULL)), .bias = golden_f32(g, "in.gate_bias", NULL),
        .table = hash ? golden_i32(g, "in.tid2eid", NULL) : NULL, .experts = experts, .active = 2, .normalise = true,
        .scaling = 1.5f, .idx = idx, .weight = weight);

    const float *codes = golden_f32(g, "out.x_norm_i8", NULL);
    for (int i = 0; i < live * 128; i++)
        assert_true(fabsf((float)((int8_t *)q.codes)[i] - codes[i]) <= 1);
    assert_close("scale", q.scales, golden_f32(g, "out.x_norm_scale", NULL), live, 1e-6, 1e-5, 0);
    assert_memory_equal(idx, golden_i32(g, "out.indices", NULL), (size_t)live * 8);
    assert_close("weights", weight, golden_f32(g, "out.weights", NULL), live * 2, 1e-5, 1e-5, 0);
    ops_free_rows(&q);
    one_request_free(&r);
    golden_close(g);
}

static void w8a8_gates_equal_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 1);
    check_w8a8_gate(&o, "tests/golden/ops4/17-gate-w8a8-a.safetensors", false);
    check_w8a8_gate(&o, "tests/golden/ops4/17-gate-w8a8-b.safetensors", false);
    check_w8a8_gate(&o, "tests/golden/ops4/17-gate_hash-w8a8-a.safetensors", true);
    check_w8a8_gate(&o, "tests/golden/ops4/17-gate_hash-w8a8-b.safetensors", true);
    ops_close(&o);
}

static void assert_bf16_close(const char *what, const void *found, const float *want, int64_t n, double absolute,
                              double relative, double share)
{
    struct activation a = bf16_rows(found, (int32_t)n);
    float *values = ops_values(&a, 1);
    assert_close(what, values, want, n, absolute, relative, BAD(share, n));
    free(values);
}

static void shared_w8a8_experts_equal_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int set = 0; set < 2; set++) {
        struct golden *g = golden_open(set ? "tests/golden/ops4/18-expert_shared-w8a8-b.safetensors"
                                           : "tests/golden/ops4/18-expert_shared-w8a8-a.safetensors");
        struct weight *w[3];
        uint16_t out[8 * 128];
        for (int i = 0; i < 3; i++) {
            char values[32], scales[32];
            snprintf(values, sizeof values, "in.shared_w%d", i + 1);
            snprintf(scales, sizeof scales, "in.shared_w%d_scale", i + 1);
            w[i] = ops_int8(&o, 128, 128, golden_bytes(g, values, NULL), golden_f32(g, scales, NULL));
        }
        struct activation x = {.format = ACT_I8,
                               .cols = 128,
                               .block = 128,
                               .codes = (void *)golden_bytes(g, "in.x", NULL),
                               .scales = (void *)golden_f32(g, "in.scale", NULL)};
        RUN(&o, expert, .rows = first_rows(8), .x = x, .experts = 1, .active = 1, .w1 = (const struct weight *[]){w[0]},
            .w2 = (const struct weight *[]){w[1]}, .w3 = (const struct weight *[]){w[2]},
            .swiglu_limit = (float)golden_param(g, "swiglu_limit"), .w8a8 = true, .out = out);
        assert_bf16_close("sh", out, golden_f32(g, "out.sh", NULL), 1024, 2e-3, 2e-3, 0.01);
        golden_close(g);
    }
    ops_close(&o);
}

static void routed_w8a8_experts_equal_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 2);
    for (int set = 0; set < 2; set++) {
        struct golden *g = golden_open(set ? "tests/golden/ops4/19-expert_routed-w8a8-b.safetensors"
                                           : "tests/golden/ops4/19-expert_routed-w8a8-a.safetensors");
        const struct weight *w1[2], *w2[2], *w3[2], **w[3] = {w1, w2, w3};
        int32_t idx[10], list[10], n = 0;
        uint16_t out[10 * 128] = {0};
        for (int i = 0; i < 3; i++)
            for (int e = 0; e < 2; e++) {
                char values[32], scales[32];
                snprintf(values, sizeof values, "in.routed_w%d", i + 1);
                snprintf(scales, sizeof scales, "in.routed_w%d_scale", i + 1);
                w[i][e] = ops_int8(&o, 128, 128, golden_bytes(g, values, NULL) + e * 128 * 128,
                                   golden_f32(g, scales, NULL) + e * 128);
            }
        for (int e = 0; e < 2; e++)
            for (int i = 0; i < 5; i++) {
                idx[e * 5 + i] = e;
                if (i < golden_i32(g, "in.counts", NULL)[e])
                    list[n++] = e * 5 + i;
            }
        struct activation x = {.format = ACT_I8,
                               .cols = 128,
                               .block = 128,
                               .codes = (void *)golden_bytes(g, "in.recv_x", NULL),
                               .scales = (void *)golden_f32(g, "in.recv_scale", NULL)};
        RUN(&o, expert, .rows = {list, n}, .x = x, .idx = idx, .weight = golden_f32(g, "in.recv_weights", NULL),
            .experts = 2, .active = 1, .w1 = w1, .w2 = w2, .w3 = w3,
            .swiglu_limit = (float)golden_param(g, "swiglu_limit"), .w8a8 = true, .out = out);
        assert_bf16_close("recv_y", out, golden_f32(g, "out.recv_y", NULL), 1280, 2e-3, 2e-3, 0.01);
        golden_close(g);
    }
    ops_close(&o);
}

/* 20-moe-ref: route, routed and shared experts, sum. */
static void check_moe(struct ops *o, const char *file)
{
    struct golden *g = golden_open(file);
    int32_t experts = (int32_t)golden_param(g, "n_routed_experts"), idx[16];
    float limit = (float)golden_param(g, "swiglu_limit"), weight[16];
    const struct weight *w[3][8], *shared[3];
    uint16_t routed[16 * 128], sh[8 * 128], y[8 * 128], first[8 * 128];
    struct activation x = bf16_rows(golden_bf16(g, "in.x", NULL), 128), x8 = ops_rows(ACT_Q8, 8, 128, 128);
    struct one_request r;
    one_request_make(&r, 0, 8, 0);
    for (int i = 0; i < 3; i++) {
        char name[64], scale[64];
        for (int e = 0; e < experts; e++) {
            snprintf(name, sizeof name, "in.experts.%d.w%d.weight", e, i + 1);
            snprintf(scale, sizeof scale, "in.experts.%d.w%d.scale", e, i + 1);
            w[i][e] = ops_fp4(o, 128, 128, golden_bytes(g, name, NULL), golden_bytes(g, scale, NULL));
        }
        snprintf(name, sizeof name, "in.shared_experts.w%d.weight", i + 1);
        snprintf(scale, sizeof scale, "in.shared_experts.w%d.scale", i + 1);
        shared[i] = ops_fp8(o, 128, 128, 128, golden_bytes(g, name, NULL), golden_bytes(g, scale, NULL));
    }
    RUN(o, route, .rows = first_rows(8), .step = &r.step, .x = x,
        .gate = ops_bf16(o, experts, 128, golden_bf16(g, "in.gate.weight", NULL)),
        .bias = golden_f32(g, "in.gate.bias", NULL), .experts = experts, .active = 2, .normalise = true,
        .scaling = 1.5f, .idx = idx, .weight = weight);
    assert_memory_equal(idx, golden_i32(g, "out.route", NULL), sizeof idx);
    assert_close("weight", weight, golden_f32(g, "out.weight", NULL), 16, 1e-5, 1e-6, 0);

    RUN(o, quantize, .rows = first_rows(8), .in = x, .out = x8);
    RUN(o, expert, .rows = first_rows(8), .x = x8, .idx = idx, .weight = weight, .experts = experts, .active = 2,
        .w1 = w[0], .w2 = w[1], .w3 = w[2], .swiglu_limit = limit, .out = routed);
    RUN(o, expert, .rows = first_rows(8), .x = x8, .experts = 1, .active = 1, .w1 = &shared[0], .w2 = &shared[1],
        .w3 = &shared[2], .swiglu_limit = limit, .out = sh);
    RUN(o, combine, .rows = first_rows(8), .idx = idx, .active = 2, .hidden = 128, .routed = routed, .shared = sh,
        .out = y);
    assert_bf16_close("shared", sh, golden_f32(g, "out.shared", NULL), 1024, 1e-4, 1 / 128.0, 0.005);
    assert_bf16_close("y", y, golden_f32(g, "out.y", NULL), 1024, 1e-4, 1 / 128.0, 0.005);

    int32_t zero[8] = {0};
    RUN(o, expert, .rows = first_rows(8), .x = x8, .idx = zero, .weight = golden_f32(g, "out.expert0_weight", NULL),
        .experts = experts, .active = 1, .w1 = w[0], .w2 = w[1], .w3 = w[2], .swiglu_limit = limit, .out = first);
    assert_bf16_close("expert0", first, golden_f32(g, "out.expert0", NULL), 1024, 1e-4, 1 / 128.0, 0.005);
    ops_free_rows(&x8);
    one_request_free(&r);
    golden_close(g);
}

static void reference_moe_equals_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 2);
    check_moe(&o, "tests/golden/ops4/20-moe-ref-a.safetensors");
    check_moe(&o, "tests/golden/ops4/20-moe-ref-b.safetensors");
    ops_close(&o);
}

/* 20-dispatch_combine: shared first, then the routes in k order. */
static void w8a8_combination_equals_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int set = 0; set < 2; set++) {
        struct golden *g = golden_open(set ? "tests/golden/ops4/20-dispatch_combine-w8a8-b.safetensors"
                                           : "tests/golden/ops4/20-dispatch_combine-w8a8-a.safetensors");
        const uint16_t *routed = golden_bf16(g, "in.routed_y", NULL), *shared = golden_bf16(g, "in.shared", NULL);
        const uint16_t *want = golden_bf16(g, "out.ffn", NULL);
        uint16_t y[8 * 128];
        for (int rank = 0; rank < 2; rank++) {
            int32_t live = golden_i32(g, "in.active", NULL)[rank];
            RUN(&o, combine, .rows = first_rows(live), .idx = golden_i32(g, "in.indices", NULL) + rank * 16,
                .active = 2, .hidden = 128, .routed = routed + rank * 16 * 128, .shared = shared + rank * 8 * 128,
                .w8a8 = true, .out = y);
            assert_memory_equal(y, want + rank * 8 * 128, (size_t)live * 128 * 2);
        }
        golden_close(g);
    }
    ops_close(&o);
}

/* 2^24 + 1 - 2^24 in f32 tells the orders apart: ascending expert id, shared last; w8a8: shared first, then k order. */
static void the_order_of_the_sum_is_the_profiles(void **state)
{
    (void)state;
    const int32_t idx[3] = {7, 0, 3};
    const uint16_t routed[3] = {bf16_encode(-0x1p24f), bf16_encode(0x1p24f), bf16_encode(1)},
                   shared[1] = {bf16_encode(4)};
    uint16_t y[1];
    struct ops o;
    ops_open(&o, "reference", 1);
    RUN(&o, combine, .rows = first_rows(1), .idx = idx, .active = 3, .hidden = 1, .routed = routed, .shared = shared,
        .out = y);
    assert_int_equal(y[0], bf16_encode(4)); /* 2^24 + 1 is lost, then -2^24, then 4 */
    RUN(&o, combine, .rows = first_rows(1), .idx = idx, .active = 3, .hidden = 1, .routed = routed, .shared = shared,
        .w8a8 = true, .out = y);
    assert_int_equal(y[0], bf16_encode(5)); /* 4 - 2^24 is exact, + 2^24, + 1 */
    ops_close(&o);
}

static void experts_that_are_not_there_are_refused(void **state)
{
    (void)state;
    struct ops o;
    qr_error err = {0};
    uint8_t zeros[1024] = {0};
    int32_t idx[1] = {1};
    float one[1] = {1};
    uint16_t out[32];
    ops_open(&o, "reference", 1);
    const struct weight *w[2] = {ops_fp4(&o, 32, 32, zeros, zeros), NULL};
    struct activation x = {.format = ACT_Q8, .cols = 32, .block = 32, .codes = zeros, .scales = zeros};
    struct op_expert op = {.rows = first_rows(1),
                           .x = x,
                           .idx = idx,
                           .weight = one,
                           .experts = 2,
                           .active = 1,
                           .w1 = w,
                           .w2 = w,
                           .w3 = w,
                           .out = out};
    assert_int_equal(o.b->expert(o.b, &op, &err), QR_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "expert 1 is not prepared"));
    idx[0] = 2;
    assert_int_equal(o.b->expert(o.b, &op, &err), QR_BAD_ARGUMENT);
    idx[0] = -1;
    assert_int_equal(o.b->expert(o.b, &op, &err), QR_BAD_ARGUMENT);
    idx[0] = 0;
    assert_int_equal(o.b->expert(o.b, &op, &err), QR_OK);
    ops_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_the_root_of_softplus_far_down_too),
        cmocka_unit_test(the_bias_chooses_but_does_not_weigh),
        cmocka_unit_test(equal_choices_go_to_the_smaller_expert),
        cmocka_unit_test(image_rows_use_their_own_bias),
        cmocka_unit_test(hashed_routes_equal_the_goldens),
        cmocka_unit_test(w8a8_gates_equal_the_goldens),
        cmocka_unit_test(shared_w8a8_experts_equal_the_goldens),
        cmocka_unit_test(routed_w8a8_experts_equal_the_goldens),
        cmocka_unit_test(reference_moe_equals_the_goldens),
        cmocka_unit_test(w8a8_combination_equals_the_goldens),
        cmocka_unit_test(the_order_of_the_sum_is_the_profiles),
        cmocka_unit_test(experts_that_are_not_there_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
