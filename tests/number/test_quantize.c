/* The block quantizers: the vectors of v41-model.md 13.3 and v4-model.md 13.1, and laws over all bf16 maxima. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/int8.h"
#include "number/quantize.h"
#include "support/golden.h"
#include "support/support.h"

static void scales_of_the_table(void **state)
{
    (void)state;
    static const struct {
        float a;
        int q8, q4_e8m0;
        uint8_t q4_e4m3;
    } rows[] = {{0, -22, -126, 0x01}, {1, -8, -2, 0x23}, {2, -7, -1, 0x2B}, {3.5f, -7, 0, 0x31},
                {4, -6, 0, 0x33},     {446, 0, 7, 0x69}, {448, 0, 7, 0x69}, {450, 1, 7, 0x69}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(q8_scale(rows[i].a) - 127, rows[i].q8);
        assert_int_equal(q4_e8m0_scale(rows[i].a) - 127, rows[i].q4_e8m0);
        assert_int_equal(q4_e4m3_scale(rows[i].a), rows[i].q4_e4m3);
    }
}

static void block_of_the_specification(void **state)
{
    (void)state;
    static const uint8_t q8[32] = {0xFC, 0xFB, 0xFA, 0xF9, 0xF8, 0xF8, 0xF6, 0xF5, 0xF3, 0xF2, 0xF0,
                                   0xED, 0xEA, 0xE7, 0xE1, 0xD4, 0x54, 0x61, 0x67, 0x6A, 0x6D, 0x70,
                                   0x72, 0x73, 0x75, 0x76, 0x78, 0x78, 0x79, 0x7A, 0x7B, 0x7C};
    static const uint8_t q4_e8m0[32] = {15, 15, 14, 14, 14, 14, 14, 13, 13, 12, 12, 11, 11, 10, 9, 8,
                                        0,  1,  2,  3,  3,  4,  4,  5,  5,  6,  6,  6,  6,  6,  7, 7};
    static const uint8_t q4_e4m3[32] = {15, 15, 15, 14, 14, 14, 14, 13, 13, 13, 12, 12, 11, 10, 9, 8,
                                        0,  1,  2,  3,  4,  4,  5,  5,  5,  6,  6,  6,  6,  7,  7, 7};
    uint16_t x[32];
    uint8_t codes[32], scales[2];
    for (int i = 0; i < 32; i++)
        x[i] = bf16_encode((float)((i - 15.5) * 0.37));

    q8_quantize(x, 32, 32, codes, scales);
    assert_int_equal(scales[0], 127 - 6);
    assert_memory_equal(codes, q8, 32);
    q4_e8m0_quantize(x, 32, codes, scales);
    assert_int_equal(scales[0], 127);
    for (int i = 0; i < 32; i++)
        assert_int_equal(e2m1_at(codes, i), q4_e8m0[i]);
    q4_e4m3_quantize(x, 32, codes, scales);
    assert_int_equal(scales[0], 0x37);
    assert_int_equal(scales[1], 0x37);
    for (int i = 0; i < 32; i++)
        assert_int_equal(e2m1_at(codes, i), q4_e4m3[i]);
}

static void v4_worked_blocks(void **state)
{
    (void)state;
    uint16_t x[128] = {0};
    uint8_t codes[128], scale;
    const float aq[4] = {3, -1, 0.1f, 1e-4f}, codes_want[4] = {384, -128, 13, 0.013671875f};
    const float back[4] = {3, -1, 0.1015625f, 0.0001068115f};
    for (int i = 0; i < 4; i++)
        x[i] = bf16_encode(aq[i]);
    q8_quantize(x, 128, 128, codes, &scale);
    assert_int_equal(scale, 127 - 7);
    q8_round(x, 128, 128);
    for (int i = 0; i < 4; i++) {
        assert_true(e4m3_decode(codes[i]) == codes_want[i]);
        assert_true(fabsf(bf16_decode(x[i]) - back[i]) <= 1e-10f);
    }

    const float fq[5] = {1, 0.30078125f, -0.259765625f, 0.01f, 0.625f}, fq_back[5] = {1, 0.25f, -0.25f, 0, 0.5f};
    memset(x, 0, sizeof x);
    for (int i = 0; i < 5; i++)
        x[i] = bf16_encode(fq[i]);
    q4_e8m0_quantize(x, 32, codes, &scale);
    assert_true(e8m0_decode(scale) == 0.25f);
    q4_e8m0_round(x, 32);
    for (int i = 0; i < 5; i++)
        assert_true(bf16_decode(x[i]) == fq_back[i]);
}

static void int8_worked_rows(void **state)
{
    (void)state;
    const float x[5] = {0.5f, -0.25f, 0.1f, 0, -0.03f}, zero[3] = {0};
    const int8_t want[5] = {127, -64, 25, 0, -8};
    int8_t q[5];
    assert_int_equal(f32_bits(int8_quantize_row(x, 5, q)), 0x3B810204);
    assert_memory_equal(q, want, 5);
    assert_true(fabsf(int8_quantize_row(zero, 3, q) - 7.874016e-07f) < 1e-12f);
    assert_int_equal(q[0] | q[1] | q[2], 0);

    float columns[5 * 3] = {0}; /* the row as the middle column of a [5, 3] matrix */
    int8_t column_codes[5 * 3];
    memset(column_codes, 99, sizeof column_codes);
    for (int i = 0; i < 5; i++)
        columns[i * 3 + 1] = x[i];
    assert_int_equal(f32_bits(int8_quantize_channel(columns + 1, 5, 3, column_codes + 1)), 0x3B810204);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(column_codes[i * 3 + 1], want[i]);
        assert_int_equal(column_codes[i * 3], 99);
    }
    uint16_t rows[5];
    float widened[5];
    int8_t other[5];
    for (int i = 0; i < 5; i++) {
        rows[i] = bf16_encode(x[i]);
        widened[i] = bf16_decode(rows[i]);
    }
    assert_true(int8_quantize_row_bf16(rows, 5, q) == int8_quantize_row(widened, 5, other));
    assert_memory_equal(q, other, 5);
}

static void int8_never_gives_minus_128(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7F80; bits++) {
        float x[2] = {bf16_decode((uint16_t)bits), -bf16_decode((uint16_t)bits)};
        int8_t q[2];
        int8_quantize_row(x, 2, q);
        assert_true(q[0] <= 127 && q[1] >= -127 && q[0] == -q[1]);
        if (x[0] >= 1e-4f)
            assert_int_equal(q[0], 127);
    }
}

/* Of every bf16 maximum: the Q8 scale is the smallest power of two >= a/448, exactly (v4-model.md 4.1). */
static void q8_scale_is_the_least_that_does_not_saturate(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7F80; bits++) {
        double a = bf16_decode((uint16_t)bits);
        if (a < 1e-4f)
            a = 1e-4f;
        double s = e8m0_decode(q8_scale(bf16_decode((uint16_t)bits)));
        assert_true(a <= 448 * s && a > 224 * s);
    }
}

/* Dividing by 6 and multiplying by f32(1/6) give one scale code for every bf16 maximum (v41-model.md 3.3). */
static void q4_e4m3_scale_does_not_depend_on_the_way_of_dividing(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7F80; bits++) {
        float a = fmaxf(bf16_decode((uint16_t)bits), 6 * 0x1p-9f);
        assert_int_equal(q4_e4m3_scale(a), e4m3_encode(a * f32_from_bits(0x3E2AAAAB)));
    }
}

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* Random bf16 of a wide range; every tenth is zero, of either sign. */
static void fill(uint16_t *x, int n, uint64_t *seed)
{
    int exponent = 100 + (int)(next_random(seed) % 50);
    for (int i = 0; i < n; i++) {
        uint32_t r = next_random(seed);
        x[i] = r % 10 ? (uint16_t)((r & 0x807F) | (uint32_t)(exponent - (int)(r >> 16 & 7)) << 7) : r & 0x8000;
    }
}

static void packed_rows_give_back_the_in_place_values(void **state)
{
    (void)state;
    uint64_t seed = 7;
    enum { N = 256 };
    uint16_t x[N], back[N], y[N];
    uint8_t codes[N], scales[N];
    for (int round = 0; round < 500; round++) {
        fill(x, N, &seed);
        for (int block = 32; block <= 128; block *= 2) {
            q8_quantize(x, N, block, codes, scales);
            q8_dequantize(codes, scales, N, block, back);
            memcpy(y, x, sizeof y);
            q8_round(y, N, block);
            assert_memory_equal(y, back, sizeof y);
            q8_round(y, N, block); /* a rounded row is a fixed point unless the floor of the scale cut it */
            for (int i = 0; i < N; i++)
                if (scales[i / block] > 127 - 22)
                    assert_int_equal(y[i], back[i]);
        }
        q4_e8m0_quantize(x, N, codes, scales);
        q4_e8m0_dequantize(codes, scales, N, back);
        memcpy(y, x, sizeof y);
        q4_e8m0_round(y, N);
        assert_memory_equal(y, back, sizeof y);

        q4_e4m3_quantize(x, N, codes, scales);
        q4_e4m3_dequantize(codes, scales, N, back);
        memcpy(y, x, sizeof y);
        q4_e4m3_round(y, N);
        assert_memory_equal(y, back, sizeof y);
        for (int i = 0; i < N; i++) /* exact in bf16: the product has at most six significant bits */
            assert_true(bf16_decode(back[i]) == e2m1_decode(e2m1_at(codes, i)) * e4m3_decode(scales[i / 16]));
    }
}

static void f32_and_bf16_inputs_of_equal_value_give_equal_codes(void **state)
{
    (void)state;
    uint64_t seed = 11;
    uint16_t x[128];
    float wide[128];
    uint8_t a[128], b[128], scales_a[4], scales_b[4];
    for (int round = 0; round < 200; round++) {
        fill(x, 128, &seed);
        for (int i = 0; i < 128; i++)
            wide[i] = bf16_decode(x[i]);
        q8_quantize(x, 128, 32, a, scales_a);
        q8_quantize_f32(wide, 128, 32, b, scales_b);
        assert_memory_equal(a, b, 128);
        assert_memory_equal(scales_a, scales_b, 4);
    }
}

static void a_block_of_zeros_keeps_its_signs_and_the_smallest_scale(void **state)
{
    (void)state;
    uint16_t x[32] = {0};
    uint8_t codes[32], scales[2];
    x[5] = 0x8000;
    q8_quantize(x, 32, 32, codes, scales);
    assert_int_equal(scales[0], 127 - 22);
    assert_int_equal(codes[4], 0);
    assert_int_equal(codes[5], 0x80);
    q4_e4m3_quantize(x, 32, codes, scales);
    assert_int_equal(scales[0], 0x01);
    assert_int_equal(codes[2], 0x80);
    q4_e8m0_quantize(x, 32, codes, scales);
    assert_int_equal(scales[0], 1);
    assert_int_equal(codes[2], 0x80);
}

static void a_nan_stays_one_in_every_format(void **state)
{
    (void)state;
    const float nans[] = {NAN, -NAN, INFINITY};
    for (int n = 0; n < 3; n++)
        for (int at = 0; at < 32; at++) {
            uint16_t x[32], back[32];
            float values[32];
            uint8_t codes[32], scales[2];
            int8_t bytes[32];
            for (int i = 0; i < 32; i++) {
                values[i] = i == at ? nans[n] : (float)(i - 11);
                x[i] = bf16_encode(values[i]);
            }
            q8_quantize(x, 32, 32, codes, scales);
            q8_dequantize(codes, scales, 32, 32, back);
            assert_false(isfinite(bf16_decode(back[at])));
            q8_quantize_f32(values, 32, 32, codes, scales);
            q8_dequantize(codes, scales, 32, 32, back);
            assert_false(isfinite(bf16_decode(back[at])));
            q4_e8m0_quantize(x, 32, codes, scales);
            q4_e8m0_dequantize(codes, scales, 32, back);
            assert_false(isfinite(bf16_decode(back[at])));
            if (n < 2) { /* E4M3 scales saturate: an infinity is a large number */
                q4_e4m3_quantize(x, 32, codes, scales);
                q4_e4m3_dequantize(codes, scales, 32, back);
                assert_false(isfinite(bf16_decode(back[at])));
            }
            assert_false(isfinite(int8_quantize_row(values, 32, bytes)));
            assert_false(isfinite(int8_quantize_row_bf16(x, 32, bytes)));
        }
}

static void golden_quantizers_match(void **state)
{
    (void)state;
    struct golden *g = golden_open("tests/golden/ops4/36-quantizers-both-a.safetensors");
    int64_t n;
    const uint16_t *x = golden_bf16(g, "in.x", &n);
    int64_t width = golden_view(g, "in.x")->shape[1];
    uint8_t *codes = test_malloc((size_t)n), *scales = test_malloc((size_t)n);
    uint16_t *y = test_malloc((size_t)n * sizeof *y);
    int8_t *q = test_malloc((size_t)n);
    assert_true(n % width == 0 && width % 128 == 0);

    q8_quantize(x, n, 128, codes, scales);
    assert_memory_equal(codes, golden_bytes(g, "out.aq_codes", NULL), n);
    const float *want = golden_f32(g, "out.aq_scale", NULL);
    for (int64_t i = 0; i < n / 128; i++)
        assert_true(e8m0_decode(scales[i]) == want[i]);

    memcpy(y, x, (size_t)n * sizeof *y);
    q8_round(y, n, 64);
    assert_memory_equal(y, golden_bf16(g, "out.aqd64", NULL), (size_t)n * sizeof *y);
    memcpy(y, x, (size_t)n * sizeof *y);
    q4_e8m0_round(y, n);
    assert_memory_equal(y, golden_bf16(g, "out.fq32", NULL), (size_t)n * sizeof *y);

    want = golden_f32(g, "out.i8_scale", NULL);
    for (int64_t r = 0; r < n / width; r++)
        assert_true(int8_quantize_row_bf16(x + r * width, width, q + r * width) == want[r]);
    assert_memory_equal(q, golden_bytes(g, "out.i8", NULL), n);

    test_free(q);
    test_free(y);
    test_free(scales);
    test_free(codes);
    golden_close(g);
}

/* The cache rows of a golden: codes and scales give its bf16 rows, and rounding such a row again changes nothing (but
 * for Q4-E4M3, which is not idempotent everywhere). Codes need not come back: a block whose largest value was rounded
 * down to a power of two takes half the scale the second time. Returns how many arrays there were. */
static int check_rows(const char *path)
{
    enum { LARGEST = 1 << 17 };
    static uint16_t back[LARGEST];
    struct golden *g = golden_open(path);
    int arrays = 0;
    for (int i = 0; i < 3 * 40; i++) {
        static const char *const planes[] = {"win", "main", "ik"};
        char rows[32], rows_codes[32], rows_scales[32];
        int64_t n;
        snprintf(rows, sizeof rows, "%s.%d", planes[i % 3], i / 3);
        snprintf(rows_codes, sizeof rows_codes, "%s.codes", rows);
        snprintf(rows_scales, sizeof rows_scales, "%s.scales", rows);
        if (!golden_has(g, rows))
            continue;
        arrays++;
        const uint16_t *want = golden_bf16(g, rows, &n);
        const uint8_t *want_codes = golden_bytes(g, rows_codes, NULL),
                      *want_scales = golden_bytes(g, rows_scales, NULL);
        assert_true(n <= LARGEST);
        if (i % 3 == 0) {
            q8_dequantize(want_codes, want_scales, n, 32, back);
            assert_memory_equal(back, want, (size_t)n * sizeof *back);
            q8_round(back, n, 32);
        } else if (i % 3 == 1) {
            q4_e4m3_dequantize(want_codes, want_scales, n, back);
        } else {
            q4_e8m0_dequantize(want_codes, want_scales, n, back);
            assert_memory_equal(back, want, (size_t)n * sizeof *back);
            q4_e8m0_round(back, n);
        }
        assert_memory_equal(back, want, (size_t)n * sizeof *back);
    }
    golden_close(g);
    return arrays;
}

static void golden_cache_rows_unpack_and_are_fixed_points(void **state)
{
    (void)state;
    assert_true(check_rows("tests/golden/v41/spec-13.1/t90.safetensors") > 8);
    assert_true(check_rows("tests/golden/v41/wide/t90.safetensors") > 8);
    assert_true(check_rows("tests/golden/v41/pad/t78.safetensors") > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_of_the_table),
        cmocka_unit_test(block_of_the_specification),
        cmocka_unit_test(v4_worked_blocks),
        cmocka_unit_test(int8_worked_rows),
        cmocka_unit_test(int8_never_gives_minus_128),
        cmocka_unit_test(q8_scale_is_the_least_that_does_not_saturate),
        cmocka_unit_test(q4_e4m3_scale_does_not_depend_on_the_way_of_dividing),
        cmocka_unit_test(packed_rows_give_back_the_in_place_values),
        cmocka_unit_test(f32_and_bf16_inputs_of_equal_value_give_equal_codes),
        cmocka_unit_test(a_nan_stays_one_in_every_format),
        cmocka_unit_test(golden_quantizers_match),
        cmocka_unit_test(golden_cache_rows_unpack_and_are_fixed_points),
        cmocka_unit_test(a_block_of_zeros_keeps_its_signs_and_the_smallest_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
