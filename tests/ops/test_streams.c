/* The residual streams: goldens 01, 03 to 05, 22 of golden/ops4, vectors of v41-model.md 13.3 and v4-model.md 13.1. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "support/golden.h"
#include "support/ops.h"

#define BAD(share, n) ((int64_t)llround((share) * (double)(n)))

static void embedding_copies_the_row_into_every_stream(void **state)
{
    (void)state;
    struct ops o;
    struct golden *g = golden_open("tests/golden/ops4/01-lookup_embedding-both-a.safetensors");
    struct one_request r;
    uint16_t streams[8 * 4 * 128];
    float wide[8 * 128];

    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 8, 0);
    memcpy(r.tokens, golden_i32(g, "in.input_ids", NULL), 8 * sizeof(int32_t));
    struct weight *w = ops_bf16(&o, 288, 128, golden_bf16(g, "in.embed", NULL));
    RUN(&o, embed, .rows = first_rows(8), .step = &r.step, .weight = w, .out = {ACT_BF16, 4, 128, streams});
    RUN(&o, embed, .rows = first_rows(8), .step = &r.step, .weight = w, .out = {ACT_F32, 1, 128, wide});
    const uint16_t *want = golden_bf16(g, "out.hidden", NULL);
    for (int row = 0; row < 8; row++) {
        for (int j = 0; j < 4; j++)
            assert_memory_equal(streams + (row * 4 + j) * 128, want + row * 128, 256);
        for (int c = 0; c < 128; c++)
            assert_true(wide[row * 128 + c] == bf16_decode(want[row * 128 + c]));
    }

    r.tokens[3] = 288;
    struct op_embed bad = {.rows = first_rows(8), .step = &r.step, .weight = w, .out = {ACT_F32, 1, 128, wide}};
    assert_int_equal(o.b->embed(o.b, &bad, NULL), QR_BAD_ARGUMENT);
    one_request_free(&r);
    golden_close(g);
    ops_close(&o);
}

/* Golden 03 under one of its file names. */
static void check_hc_pre(const char *file, bool w8a8)
{
    struct ops o;
    struct golden *g = golden_open(file);
    float pre[32], post[32], comb[128];
    uint16_t u[8 * 128];

    ops_open(&o, "reference", 1);
    struct weight *fn = ops_f32(&o, 24, 512, golden_f32(g, "in.hc_fn", NULL));
    const void *data = w8a8 ? (const void *)golden_f32(g, "in.x", NULL) : (const void *)golden_bf16(g, "in.x", NULL);
    struct streams x = {w8a8 ? ACT_F32 : ACT_BF16, 4, 128, (void *)data};
    RUN(&o, mhc_mix, .rows = first_rows(8), .x = x, .fn = fn, .base = golden_f32(g, "in.hc_base", NULL),
        .scale = golden_f32(g, "in.hc_scale", NULL), .norm_eps = 1e-6f, .hc_eps = 1e-6f, .iterations = 20, .pre = pre,
        .post = post, .comb = comb);
    RUN(&o, collapse, .rows = first_rows(8), .x = x, .pre = pre, .pairwise = w8a8, .collapsed = bf16_rows(u, 128));

    struct activation mixed = bf16_rows(u, 128);
    float *values = ops_values(&mixed, 8);
    assert_close("x_mixed", values, golden_f32(g, "out.x_mixed", NULL), 1024, 1e-4, 1 / 128.0, BAD(0.005, 1024));
    assert_close("post", post, golden_f32(g, "out.post", NULL), 32, 2.5e-5, 5e-3, 0);
    assert_close("comb", comb, golden_f32(g, "out.comb", NULL), 128, 2.5e-5, 5e-3, 0);
    free(values);
    golden_close(g);
    ops_close(&o);
}

static void hc_pre_equals_the_goldens(void **state)
{
    (void)state;
    check_hc_pre("tests/golden/ops4/03-hc_pre-ref-a.safetensors", false);
    check_hc_pre("tests/golden/ops4/03-hc_pre-w8a8-a.safetensors", true);
}

static void twenty_iterations_are_run_where_they_show(void **state)
{
    (void)state;
    check_hc_pre("tests/golden/ops4/03-hc_pre_slow-ref-d.safetensors", false);
    check_hc_pre("tests/golden/ops4/03-hc_pre_slow-w8a8-d.safetensors", true);
}

static void hc_post_equals_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int w8a8 = 0; w8a8 < 2; w8a8++) {
        struct golden *g = golden_open(w8a8 ? "tests/golden/ops4/04-hc_post-w8a8-a.safetensors"
                                            : "tests/golden/ops4/04-hc_post-ref-a.safetensors");
        struct activation x = ops_rows(w8a8 ? ACT_F32 : ACT_BF16, 8, 512, 0);
        if (w8a8)
            memcpy(x.codes, golden_f32(g, "in.residual", NULL), 4096 * 4);
        else
            memcpy(x.codes, golden_bf16(g, "in.residual", NULL), 4096 * 2);
        RUN(&o, expand, .rows = first_rows(8), .y = golden_bf16(g, "in.sub", NULL),
            .post = golden_f32(g, "in.post", NULL), .comb = golden_f32(g, "in.comb", NULL),
            .x = {x.format, 4, 128, x.codes});
        float *values = ops_values(&x, 8);
        if (w8a8)
            assert_close("y", values, golden_f32(g, "out.y", NULL), 4096, 1e-6, 1e-6, 0);
        else
            assert_close("y", values, golden_f32(g, "out.y", NULL), 4096, 0, 1 / 128.0, BAD(0.005, 4096));
        free(values);
        ops_free_rows(&x);
        golden_close(g);
    }
    ops_close(&o);
}

static void hc_head_makes_pre_alone(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int w8a8 = 0; w8a8 < 2; w8a8++) {
        struct golden *g = golden_open(w8a8 ? "tests/golden/ops4/05-hc_head-w8a8-a.safetensors"
                                            : "tests/golden/ops4/05-hc_head-ref-a.safetensors");
        const void *data =
            w8a8 ? (const void *)golden_f32(g, "in.x", NULL) : (const void *)golden_bf16(g, "in.x", NULL);
        struct streams x = {w8a8 ? ACT_F32 : ACT_BF16, 4, 128, (void *)data};
        float pre[32];
        struct activation y = ops_rows(ACT_BF16, 8, 128, 0);
        RUN(&o, mhc_mix, .rows = first_rows(8), .x = x, .fn = ops_f32(&o, 4, 512, golden_f32(g, "in.fn", NULL)),
            .base = golden_f32(g, "in.base", NULL), .scale = golden_f32(g, "in.scale", NULL), .norm_eps = 1e-6f,
            .hc_eps = 1e-6f, .head_only = true, .pre = pre);
        RUN(&o, collapse, .rows = first_rows(8), .x = x, .pre = pre, .pairwise = w8a8, .collapsed = y);
        float *values = ops_values(&y, 8);
        assert_close("y", values, golden_f32(g, "out.y", NULL), 1024, 1e-4, 1 / 128.0, BAD(0.005, 1024));
        free(values);
        ops_free_rows(&y);
        golden_close(g);
    }
    ops_close(&o);
}

/* Streams x = (1, 0, ..., 0) have norm rsqrt(1 / (M D)); fn's first column then sets any mix. */
static void mix_of(struct ops *o, const float m[24], const float *scale, const float *base, float *pre, float *post,
                   float *comb)
{
    enum { D = 16 };
    float fn[24 * 4 * D] = {0}, x[4 * D] = {1};
    for (int i = 0; i < 24; i++)
        fn[i * 4 * D] = m[i] / 8; /* rsqrt(1/64) = 8 */
    RUN(o, mhc_mix, .rows = first_rows(1), .x = {ACT_F32, 4, D, x}, .fn = ops_f32(o, 24, 4 * D, fn), .base = base,
        .scale = scale, .norm_eps = 1e-20f, .hc_eps = 1e-6f, .iterations = 20, .pre = pre, .post = post, .comb = comb);
}

static void mix_equals_the_vector_of_13_3(void **state)
{
    (void)state;
    static const float want[24] = {0.1418521f, 0.3230051f, 0.5793253f, 0.7989920f, 0.8219191f, 1.0000000f,
                                   1.1780809f, 0.7645043f, 0.0415883f, 0.0762575f, 0.8405720f, 0.0415888f,
                                   0.2499989f, 0.4584117f, 0.0415866f, 0.2499991f, 0.2499989f, 0.4584117f,
                                   0.0415866f, 0.2499991f, 0.4584129f, 0.0069181f, 0.0762538f, 0.4584119f};
    static const float scale[3] = {1.5f, 0.5f, 2.0f};
    float m[24], base[24], got[24];
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int i = 0; i < 24; i++) {
        m[i] = 0.1f * (float)(7 * i % 24 - 12);
        base[i] = 0.01f * (float)i;
    }
    mix_of(&o, m, scale, base, got, got + 4, got + 8);
    assert_close("mix", got, want, 24, 3e-7, 0, 0);
    ops_close(&o);
}

static void comb_rows_are_sources(void **state)
{
    (void)state;
    static const float scale[3] = {1, 1, 1}, base[24] = {0};
    static const float diagonal[16] = {2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1};
    static const float want[16] = {.5574760f, .1073966f, .1456586f, .1894678f, .1073966f, .4155590f,
                                   .2073412f, .2697023f, .1456586f, .2073412f, .2812104f, .3657888f,
                                   .1894678f, .2697023f, .3657888f, .1750401f};
    static const float first[4] = {.0524515f, .1307899f, .2902854f, .5264722f};
    static const float other[4] = {.3158492f, .2897364f, .2365712f, .1578423f};
    float m[24] = {0}, pre[4], post[4], comb[16];
    struct ops o;
    ops_open(&o, "reference", 1);
    memcpy(m + 8, diagonal, sizeof diagonal);
    mix_of(&o, m, scale, base, pre, post, comb);
    assert_close("diagonal", comb, want, 16, 2e-6, 0, 0);
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < 4; k++)
            m[8 + 4 * j + k] = k ? 0 : (float)j;
    mix_of(&o, m, scale, base, pre, post, comb);
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < 4; k++)
            assert_close("rows", &comb[4 * j + k], k ? &other[j] : &first[j], 1, 2e-6, 0, 0);
    ops_close(&o);
}

/* expand by hand: the sum over sources first, then the product; destination k takes column k of comb. */
static void expand_adds_the_product_after_the_sum(void **state)
{
    (void)state;
    float x[8] = {0x1p24f, 1, 0, 0, 0, 0, 0, 0}, post[2] = {1, 0.5f}, comb[4] = {1, 0, 0, 2};
    uint16_t y[4] = {bf16_encode(1), bf16_encode(1), bf16_encode(2), bf16_encode(-2)};
    struct ops o;
    ops_open(&o, "reference", 1);
    x[4] = 3;
    RUN(&o, expand, .rows = first_rows(1), .y = y, .post = post, .comb = comb, .x = {ACT_F32, 2, 4, x});
    const float want[8] = {0x1p24f, 2, 2, -2, 6.5f, 0.5f, 1, -1}; /* 2^24 + 1 rounds to even */
    assert_memory_equal(x, want, sizeof x);
    ops_close(&o);
}

static void stream_mean_goes_into_its_columns(void **state)
{
    (void)state;
    uint16_t x[2 * 4 * 4], out[2 * 12];
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int i = 0; i < 32; i++)
        x[i] = bf16_encode((float)(i % 16 / 4 * 10 + i % 4 + i / 16));
    memset(out, 0xFF, sizeof out);
    RUN(&o, stream_mean, .rows = first_rows(2), .x = {ACT_BF16, 4, 4, x}, .out = bf16_rows(out, 12), .column = 4);
    for (int row = 0; row < 2; row++)
        for (int c = 0; c < 12; c++)
            assert_int_equal(out[row * 12 + c], c < 4 || c >= 8 ? 0xFFFF : bf16_encode((float)(15 + c - 4 + row)));
    ops_close(&o);
}

/* v4-model.md 6.3 steps 1 to 3, both profiles. */
static void check_mtp_projection(struct ops *o, const char *file, bool w8a8, double absolute, double relative)
{
    struct golden *g = golden_open(file);
    enum act_format plain = w8a8 ? ACT_F32 : ACT_BF16, quantized = w8a8 ? ACT_I8 : ACT_Q8;
    struct activation e8 = ops_rows(quantized, 4, 128, 128), h8 = ops_rows(quantized, 4, 512, 128);
    struct activation e = ops_rows(plain, 4, 128, 0), h = ops_rows(plain, 4, 512, 0), z = ops_rows(plain, 4, 512, 0);
    struct activation none = {.format = plain};
    struct weight *we, *wh;

    if (w8a8) {
        we = ops_int8(o, 128, 128, golden_bytes(g, "in.e_proj_w", NULL), golden_f32(g, "in.e_proj_scale", NULL));
        wh = ops_int8(o, 128, 128, golden_bytes(g, "in.h_proj_w", NULL), golden_f32(g, "in.h_proj_scale", NULL));
    } else {
        we = ops_fp8(o, 128, 128, 128, golden_bytes(g, "in.e_proj.weight", NULL),
                     golden_bytes(g, "in.e_proj.scale", NULL));
        wh = ops_fp8(o, 128, 128, 128, golden_bytes(g, "in.h_proj.weight", NULL),
                     golden_bytes(g, "in.h_proj.scale", NULL));
    }
    const void *enorm =
        w8a8 ? (const void *)golden_f32(g, "in.enorm_w", NULL) : golden_bf16(g, "in.enorm.weight", NULL);
    const void *hnorm =
        w8a8 ? (const void *)golden_f32(g, "in.hnorm_w", NULL) : golden_bf16(g, "in.hnorm.weight", NULL);
    struct activation prev =
        w8a8 ? f32_rows(golden_f32(g, "in.prev", NULL), 512) : bf16_rows(golden_bf16(g, "in.prev", NULL), 512);
    RUN(o, norm, .rows = first_rows(4), .in = bf16_rows(golden_bf16(g, "in.hidden", NULL), 128), .weight = enorm,
        .weight_f32 = w8a8, .smooth = w8a8 ? golden_f32(g, "in.e_proj_smooth", NULL) : NULL, .eps = 1e-6f, .out = none,
        .quantized = e8);
    RUN(o, norm, .rows = first_rows(4), .in = prev, .weight = hnorm, .weight_f32 = w8a8,
        .smooth = w8a8 ? golden_f32(g, "in.h_proj_smooth", NULL) : NULL, .parts = 4, .eps = 1e-6f, .out = none,
        .quantized = h8);
    RUN(o, linear, .rows = first_rows(4), .in = e8, .weight = we, .out = e);
    RUN(o, linear, .rows = first_rows(4), .in = h8, .weight = wh, .parts = 4, .out = h);
    RUN(o, stream_add, .rows = first_rows(4), .e = e, .h = h, .out = {plain, 4, 128, z.codes});

    float *values = ops_values(&z, 4);
    assert_close(file, values, golden_f32(g, "out.hidden_out", NULL), 2048, absolute, relative, BAD(0.005, 2048));
    free(values);
    ops_free_rows(&e8), ops_free_rows(&h8), ops_free_rows(&e), ops_free_rows(&h), ops_free_rows(&z);
    golden_close(g);
}

static void mtp_projection_equals_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 2);
    check_mtp_projection(&o, "tests/golden/ops4/22-mtp_projection-ref-a.safetensors", false, 1e-4, 1 / 128.0);
    check_mtp_projection(&o, "tests/golden/ops4/22-mtp_projection-ref-b.safetensors", false, 1e-4, 1 / 128.0);
    check_mtp_projection(&o, "tests/golden/ops4/22-mtp_projection-w8a8-a.safetensors", true, 1e-3, 1e-3);
    check_mtp_projection(&o, "tests/golden/ops4/22-mtp_projection-w8a8-b.safetensors", true, 1e-3, 1e-3);
    check_mtp_projection(&o, "tests/golden/ops4/22-mtp_projection_smooth-w8a8-d.safetensors", true, 1e-3, 1e-3);
    ops_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_copies_the_row_into_every_stream),
        cmocka_unit_test(hc_pre_equals_the_goldens),
        cmocka_unit_test(twenty_iterations_are_run_where_they_show),
        cmocka_unit_test(hc_post_equals_the_goldens),
        cmocka_unit_test(hc_head_makes_pre_alone),
        cmocka_unit_test(mix_equals_the_vector_of_13_3),
        cmocka_unit_test(comb_rows_are_sources),
        cmocka_unit_test(expand_adds_the_product_after_the_sum),
        cmocka_unit_test(stream_mean_goes_into_its_columns),
        cmocka_unit_test(mtp_projection_equals_the_goldens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
