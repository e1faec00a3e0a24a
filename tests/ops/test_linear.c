/* Norms, quantizers and products: goldens 02, 21 and 36 of golden/ops4, and laws. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/int8.h"
#include "support/golden.h"
#include "support/ops.h"

#define BAD(share, n) ((int64_t)llround((share) * (double)(n)))

static void rms_norm_equals_the_golden(void **state)
{
    (void)state;
    struct ops o;
    struct golden *g = golden_open("tests/golden/ops4/02-rmsnorm-both-a.safetensors");
    struct activation y = ops_rows(ACT_BF16, 8, 128, 0);
    ops_open(&o, "reference", 1);
    RUN(&o, norm, .rows = first_rows(8), .in = bf16_rows(golden_bf16(g, "in.x", NULL), 128),
        .weight = golden_bf16(g, "in.w", NULL), .eps = 1e-6f, .out = y);
    float *values = ops_values(&y, 8);
    assert_close("x_normed", values, golden_f32(g, "out.x_normed", NULL), 1024, 1e-4, 1 / 128.0, BAD(0.005, 1024));
    free(values);
    ops_free_rows(&y);
    golden_close(g);
    ops_close(&o);
}

static void a_zero_row_norms_to_zero_under_the_smallest_epsilon(void **state)
{
    (void)state;
    uint16_t x[32] = {0}, w[32], y[32];
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int i = 0; i < 32; i++)
        w[i] = bf16_encode(3);
    memset(y, 0xFF, sizeof y);
    RUN(&o, norm, .rows = first_rows(1), .in = bf16_rows(x, 32), .weight = w, .eps = 1e-20f, .out = bf16_rows(y, 32));
    for (int i = 0; i < 32; i++)
        assert_int_equal(y[i], 0);
    ops_close(&o);
}

/* The weight multiplies before the one rounding: x = 1 + 2^-7 in every channel but one, so that a rounding between the
 * two steps shows (v41-model.md 4.2). */
static void the_weight_multiplies_before_the_rounding(void **state)
{
    (void)state;
    uint16_t x[64], w[64], y[64];
    struct dice d = {7};
    struct ops o;
    ops_open(&o, "reference", 1);
    dice_bf16(&d, x, 64, 1);
    dice_bf16(&d, w, 64, 1);
    RUN(&o, norm, .rows = first_rows(1), .in = bf16_rows(x, 64), .weight = w, .eps = 1e-6f, .out = bf16_rows(y, 64));
    double sum = 0;
    int differs = 0;
    for (int i = 0; i < 64; i++)
        sum += (double)bf16_decode(x[i]) * bf16_decode(x[i]);
    float inverse = 1 / sqrtf((float)(sum / 64) + 1e-6f);
    for (int i = 0; i < 64; i++) {
        float normed = bf16_decode(x[i]) * inverse;
        assert_int_equal(y[i], bf16_encode(bf16_decode(w[i]) * normed));
        differs += y[i] != bf16_encode(bf16_decode(w[i]) * bf16_round(normed));
    }
    assert_true(differs > 0);
    ops_close(&o);
}

static void quantizers_equal_the_golden(void **state)
{
    (void)state;
    struct ops o;
    struct golden *g = golden_open("tests/golden/ops4/36-quantizers-both-a.safetensors");
    struct activation x = bf16_rows(golden_bf16(g, "in.x", NULL), 256);
    struct activation q = ops_rows(ACT_Q8, 8, 256, 128), i = ops_rows(ACT_I8, 8, 256, 256);
    ops_open(&o, "reference", 1);
    RUN(&o, quantize, .rows = first_rows(8), .in = x, .out = q);
    RUN(&o, quantize, .rows = first_rows(8), .in = x, .out = i);
    assert_memory_equal(q.codes, golden_bytes(g, "out.aq_codes", NULL), 8 * 256);
    for (int s = 0; s < 16; s++)
        assert_true(e8m0_decode(((uint8_t *)q.scales)[s]) == golden_f32(g, "out.aq_scale", NULL)[s]);
    assert_memory_equal(i.codes, golden_bytes(g, "out.i8", NULL), 8 * 256);
    assert_memory_equal(i.scales, golden_f32(g, "out.i8_scale", NULL), 8 * sizeof(float));
    ops_free_rows(&q);
    ops_free_rows(&i);
    golden_close(g);
    ops_close(&o);
}

static void fp8_and_fp4_products_equal_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 3);
    for (int fp4 = 0; fp4 < 2; fp4++) {
        struct golden *g = golden_open(fp4 ? "tests/golden/ops4/36-linear_fp4-ref-a.safetensors"
                                           : "tests/golden/ops4/36-linear_fp8-ref-a.safetensors");
        const uint8_t *values = golden_bytes(g, "in.weight", NULL), *scales = golden_bytes(g, "in.scale", NULL);
        struct weight *w = fp4 ? ops_fp4(&o, 136, 256, values, scales) : ops_fp8(&o, 136, 256, 128, values, scales);
        struct activation q = ops_rows(ACT_Q8, 8, 256, 128), y = ops_rows(ACT_BF16, 8, 136, 0);
        RUN(&o, quantize, .rows = first_rows(8), .in = bf16_rows(golden_bf16(g, "in.x", NULL), 256), .out = q);
        RUN(&o, linear, .rows = first_rows(8), .in = q, .weight = w, .out = y);
        /* exact sums inside a block, f32 where the text says so: bit for bit */
        assert_memory_equal(y.codes, golden_bf16(g, "out.y", NULL), 8 * 136 * 2);
        ops_free_rows(&q);
        ops_free_rows(&y);
        golden_close(g);
    }
    ops_close(&o);
}

static void head_logits_equal_the_golden(void **state)
{
    (void)state;
    struct ops o;
    struct golden *g = golden_open("tests/golden/ops4/21-lm_head-both-a.safetensors");
    const int32_t *rows = golden_i32(g, "in.logit_row_indices", NULL);
    const float *want = golden_f32(g, "out.logits", NULL);
    const uint16_t *hidden = golden_bf16(g, "in.hidden", NULL);
    uint16_t chosen[8 * 128];
    float y[8 * 288];
    ops_open(&o, "reference", 1);
    struct weight *w = ops_bf16(&o, 288, 128, golden_bf16(g, "in.weight", NULL));
    for (int owner = 0; owner < 2; owner++) {
        int32_t list[8], n = 0;
        while (n < 8 && rows[owner * 8 + n] >= 0) {
            list[n] = rows[owner * 8 + n];
            n++;
        }
        assert_true(n > 0);
        RUN(&o, gather, .rows = {list, n}, .in = bf16_rows(hidden + owner * 1280, 128), .out = bf16_rows(chosen, 128));
        RUN(&o, linear, .rows = first_rows(n), .in = bf16_rows(chosen, 128), .weight = w, .out = f32_rows(y, 288));
        assert_close("logits", y, want + owner * 8 * 288, n * 288, 1e-5, 1e-5, 0);
    }
    golden_close(g);
    ops_close(&o);
}

/* A weight of each format, and the same matrix dequantized. */
struct matrix {
    int32_t n, k;
    uint8_t *codes, *scales;
    float *values;
};

static struct matrix make_fp8(int32_t n, int32_t k, int32_t tile, struct dice *d)
{
    struct matrix m = {n, k, malloc((size_t)(n * k)), malloc((size_t)(n * k)), malloc((size_t)(n * k) * 4)};
    int32_t cols = (k + tile - 1) / tile;
    for (int i = 0; i < (n + tile - 1) / tile * cols; i++)
        m.scales[i] = (uint8_t)(112 + dice_next(d) % 14);
    for (int i = 0; i < n * k; i++) {
        m.codes[i] = e4m3_encode(dice_normal(d, 60));
        m.values[i] = e4m3_decode(m.codes[i]) * e8m0_decode(m.scales[i / k / tile * cols + i % k / tile]);
    }
    return m;
}

static void free_matrix(struct matrix *m)
{
    free(m->codes);
    free(m->scales);
    free(m->values);
}

/* Q8 x FP8 of 32 x 32 tiles by its formula, written the plain way (v41-model.md 3.5). */
static void v41_product_follows_its_formula(void **state)
{
    (void)state;
    enum { N = 40, K = 96, ROWS = 11 };
    struct dice d = {1};
    struct matrix m = make_fp8(N, K, 32, &d);
    uint16_t x[ROWS * K], y[ROWS * N];
    struct activation q = ops_rows(ACT_Q8, ROWS, K, 32);
    struct ops o;
    ops_open(&o, "reference", 2);
    dice_bf16(&d, x, ROWS * K, 2);
    RUN(&o, quantize, .rows = first_rows(ROWS), .in = bf16_rows(x, K), .out = q);
    RUN(&o, linear, .rows = first_rows(ROWS), .in = q, .weight = ops_fp8(&o, N, K, 32, m.codes, m.scales),
        .out = bf16_rows(y, N));
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < N; n++) {
            float acc = 0;
            for (int b = 0; b < K / 32; b++) {
                double part = 0;
                for (int k = b * 32; k < b * 32 + 32; k++)
                    part += (double)e4m3_decode(((uint8_t *)q.codes)[r * K + k]) * e4m3_decode(m.codes[n * K + k]);
                acc +=
                    (float)part * e8m0_decode(((uint8_t *)q.scales)[r * 3 + b]) * e8m0_decode(m.scales[n / 32 * 3 + b]);
            }
            assert_int_equal(y[r * N + n], bf16_encode(acc));
        }
    ops_free_rows(&q);
    free_matrix(&m);
    ops_close(&o);
}

/* wo_a: FP8 widened, bf16 input not quantized, one block of W for each group (v41-model.md 2.5, 5.6). */
static void groups_take_their_own_block_of_an_fp8_weight(void **state)
{
    (void)state;
    enum { G = 2, N = 48, K = 64, ROWS = 3 };
    struct dice d = {2};
    struct matrix m = make_fp8(G * N, K, 32, &d);
    uint16_t x[ROWS * G * K], y[ROWS * G * N];
    struct ops o;
    ops_open(&o, "reference", 1);
    dice_bf16(&d, x, ROWS * G * K, 1);
    RUN(&o, linear, .rows = first_rows(ROWS), .in = bf16_rows(x, G * K), .groups = G,
        .weight = ops_fp8(&o, G * N, K, 32, m.codes, m.scales), .out = bf16_rows(y, G * N));
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < G * N; n++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += (double)bf16_decode(x[(r * G + n / N) * K + k]) * m.values[n * K + k];
            assert_int_equal(y[r * G * N + n], bf16_encode((float)sum));
        }
    free_matrix(&m);
    ops_close(&o);
}

/* Eight splits: each summed by itself to f32, then added ascending; the cut is floor(s * blocks / 8) scale blocks. */
static void eight_splits_are_summed_one_by_one(void **state)
{
    (void)state;
    enum { N = 32, K = 32 * 11, ROWS = 2 };
    struct dice d = {3};
    struct matrix m = make_fp8(N, K, 32, &d);
    uint16_t x[ROWS * K];
    float split[ROWS * N];
    struct activation q = ops_rows(ACT_Q8, ROWS, K, 32);
    int differs = 0;
    struct ops o;
    ops_open(&o, "reference", 1);
    dice_bf16(&d, x, ROWS * K, 1);
    RUN(&o, quantize, .rows = first_rows(ROWS), .in = bf16_rows(x, K), .out = q);
    struct weight_spec spec = {.name = "w",
                               .format = WEIGHT_FP8,
                               .n = N,
                               .k = K,
                               .tile = 32,
                               .k_splits = 8,
                               .values = m.codes,
                               .scales = m.scales};
    RUN(&o, linear, .rows = first_rows(ROWS), .in = q, .weight = ops_weight(&o, spec), .out = f32_rows(split, N));
    for (int r = 0; r < ROWS; r++)
        for (int n = 0; n < N; n++) {
            float sum = 0, whole = 0; /* whole: without splits */
            for (int s = 0; s < 8; s++) {
                float acc = 0;
                for (int b = s * 11 / 8; b < (s + 1) * 11 / 8; b++) {
                    double part = 0;
                    for (int k = b * 32; k < b * 32 + 32; k++)
                        part += (double)e4m3_decode(((uint8_t *)q.codes)[r * K + k]) * e4m3_decode(m.codes[n * K + k]);
                    float block = (float)part * e8m0_decode(((uint8_t *)q.scales)[r * 11 + b]) *
                                  e8m0_decode(m.scales[n / 32 * 11 + b]);
                    acc += block;
                    whole += block;
                }
                sum = s ? sum + acc : acc;
            }
            assert_true(split[r * N + n] == sum);
            differs += split[r * N + n] != whole;
        }
    assert_true(differs > 0);
    ops_free_rows(&q);
    free_matrix(&m);
    ops_close(&o);
}

/* f32(int32) sigma summed over the blocks of a row, then the column's scale (v4-model.md 7.3, 7.4). */
static void int8_product_scales_in_order(void **state)
{
    (void)state;
    enum { N = 5, K = 256 };
    struct dice d = {4};
    float w[N * K], x[K], scales[N], y[N];
    int8_t codes[N * K];
    struct activation q = ops_rows(ACT_I8, 1, K, 64);
    struct ops o;
    ops_open(&o, "reference", 1);
    dice_f32(&d, w, N * K, 1);
    dice_f32(&d, x, K, 1);
    for (int n = 0; n < N; n++)
        scales[n] = int8_quantize_channel(w + n * K, K, 1, codes + n * K);
    RUN(&o, quantize, .rows = first_rows(1), .in = f32_rows(x, K), .out = q);
    RUN(&o, linear, .rows = first_rows(1), .in = q, .weight = ops_int8(&o, N, K, codes, scales), .out = f32_rows(y, N));
    for (int n = 0; n < N; n++) {
        float acc = 0;
        for (int g = 0; g < 4; g++) {
            int32_t part = 0;
            for (int k = g * 64; k < g * 64 + 64; k++)
                part += ((int8_t *)q.codes)[k] * codes[n * K + k];
            acc += (float)part * ((float *)q.scales)[g];
        }
        assert_true(y[n] == acc * scales[n]);
    }
    ops_free_rows(&q);
    ops_close(&o);
}

static void gather_brings_listed_rows_together(void **state)
{
    (void)state;
    float in[12], out[6];
    int32_t list[2] = {1, 3};
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int i = 0; i < 12; i++)
        in[i] = (float)i;
    RUN(&o, gather, .rows = {list, 2}, .in = f32_rows(in, 3), .out = f32_rows(out, 3));
    const float want[6] = {3, 4, 5, 9, 10, 11};
    assert_memory_equal(out, want, sizeof want);
    ops_close(&o);
}

static void expect_refused(struct ops *o, struct weight_spec spec, qr_status status, const char *part)
{
    struct weight *w;
    qr_error err = {0};
    assert_int_equal(o->b->prepare_weight(o->b, &spec, &w, &err), status);
    if (!strstr(err.message, part))
        fail_msg("\"%s\" does not say \"%s\"", err.message, part);
}

static void a_scale_that_is_no_number_is_refused_by_name_and_index(void **state)
{
    (void)state;
    uint8_t values[64 * 64] = {0}, scales[64 * 2];
    struct ops o;
    ops_open(&o, "reference", 1);
    memset(scales, 120, sizeof scales);
    struct weight_spec fp8 = {.name = "layers.3.attn.wq_a",
                              .format = WEIGHT_FP8,
                              .n = 33,
                              .k = 64,
                              .tile = 32,
                              .values = values,
                              .scales = scales};
    ops_weight(&o, fp8);
    scales[3] = 255; /* the partial last tile row */
    expect_refused(&o, fp8, QR_BAD_FILE, "layers.3.attn.wq_a: scale [1][1] is E8M0 255");
    fp8.n = 32;
    ops_weight(&o, fp8); /* beyond its scales */

    struct weight_spec fp4 = {.name = "w1", .format = WEIGHT_FP4, .n = 64, .k = 64, .values = values, .scales = scales};
    expect_refused(&o, fp4, QR_BAD_FILE, "w1: scale [1][1] is E8M0 255");
    scales[3] = 254;
    scales[127] = 255;
    expect_refused(&o, fp4, QR_BAD_FILE, "w1: scale [63][1]");
    ops_close(&o);
}

static void impossible_weights_and_products_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[4096] = {0};
    struct ops o;
    qr_error err = {0};
    ops_open(&o, "reference", 1);
    struct weight_spec spec = {.name = "w", .format = WEIGHT_FP4, .n = 2, .k = 48, .values = bytes, .scales = bytes};
    expect_refused(&o, spec, QR_BAD_ARGUMENT, "48 columns");
    spec.format = WEIGHT_FP8;
    spec.tile = 64;
    expect_refused(&o, spec, QR_BAD_ARGUMENT, "tiles of 64");
    spec.tile = 32;
    spec.k_splits = 3;
    expect_refused(&o, spec, QR_BAD_ARGUMENT, "3 splits");
    spec.k_splits = 1;
    spec.scales = NULL;
    expect_refused(&o, spec, QR_BAD_ARGUMENT, "scales missing");

    struct weight *w = ops_fp4(&o, 2, 64, bytes, bytes);
    struct op_linear op = {.rows = first_rows(1), .in = bf16_rows(bytes, 64), .weight = w, .out = bf16_rows(bytes, 2)};
    assert_int_equal(o.b->linear(o.b, &op, &err), QR_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "no product of bf16 with FP4"));
    op.in = bf16_rows(bytes, 32);
    assert_int_equal(o.b->linear(o.b, &op, &err), QR_BAD_ARGUMENT);
    uint16_t *zeros = calloc(1 << 20, sizeof *zeros);
    struct weight *wide = ops_bf16(&o, 1, 1 << 20, zeros);
    op = (struct op_linear){
        .rows = first_rows(1), .in = bf16_rows(bytes, 1 << 20), .weight = wide, .out = bf16_rows(bytes, 1)};
    assert_int_equal(o.b->linear(o.b, &op, &err), QR_BAD_ARGUMENT);
    assert_non_null(strstr(err.message, "scratch"));
    ops_close(&o);
    free(zeros);
}

static qr_status open_reserve_prepare(const struct model_plan *plan)
{
    static const uint16_t values[4] = {0};
    struct weight_spec spec = {.name = "w", .format = WEIGHT_BF16, .n = 2, .k = 2, .values = values};
    struct op_limits limits = {plan, 8, 1, 8};
    struct backend *b;
    struct weight *w;
    void *memory;
    int64_t bytes;
    qr_error err = {0};
    qr_status st = backend_cpu_open("reference", 2, NULL, &b, &err);
    if (st != QR_OK)
        return st;
    st = b->reserve(b, &limits, &bytes, &err);
    if (st == QR_OK)
        st = b->reserve(b, &limits, &bytes, &err); /* again: replaces the first */
    if (st == QR_OK) {
        st = b->allocate(b, 100, &memory, &err);
        if (st == QR_OK)
            b->release(b, memory);
    }
    if (st == QR_OK) {
        st = b->prepare_weight(b, &spec, &w, &err);
        if (st == QR_OK)
            b->release_weight(b, w);
    }
    b->close(b);
    return st;
}

static void every_failed_allocation_is_a_status(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 1);
    struct model_plan plan = o.plan;
    ops_close(&o);
    assert_int_equal(open_reserve_prepare(&plan), QR_OK);
    int64_t live = alloc_live(), n = 0;
    qr_status st;
    do {
        alloc_fault_at(++n, 0);
        st = open_reserve_prepare(&plan);
        assert_true(st == QR_OK || st == QR_NO_MEMORY);
        assert_int_equal(alloc_live(), live);
    } while (st != QR_OK);
    alloc_fault_at(0, 0);
    assert_true(n > 4);
}

static void an_unknown_path_is_refused(void **state)
{
    (void)state;
    struct backend *b;
    qr_error err = {0};
    assert_int_equal(backend_cpu_open("abacus", 1, NULL, &b, &err), QR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "abacus"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rms_norm_equals_the_golden),
        cmocka_unit_test(a_zero_row_norms_to_zero_under_the_smallest_epsilon),
        cmocka_unit_test(the_weight_multiplies_before_the_rounding),
        cmocka_unit_test(quantizers_equal_the_golden),
        cmocka_unit_test(fp8_and_fp4_products_equal_the_goldens),
        cmocka_unit_test(head_logits_equal_the_golden),
        cmocka_unit_test(v41_product_follows_its_formula),
        cmocka_unit_test(groups_take_their_own_block_of_an_fp8_weight),
        cmocka_unit_test(eight_splits_are_summed_one_by_one),
        cmocka_unit_test(int8_product_scales_in_order),
        cmocka_unit_test(gather_brings_listed_rows_together),
        cmocka_unit_test(a_scale_that_is_no_number_is_refused_by_name_and_index),
        cmocka_unit_test(impossible_weights_and_products_are_refused),
        fault_test(every_failed_allocation_is_a_status),
        cmocka_unit_test(an_unknown_path_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
