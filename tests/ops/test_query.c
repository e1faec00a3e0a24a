/* Queries, window keys, rotations: goldens 06 and 36 of golden/ops4, vectors of v41-model.md 13.3, v4-model.md 13.1. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/quantize.h"
#include "support/golden.h"
#include "support/ops.h"

#define BAD(share, n) ((int64_t)llround((share) * (double)(n)))

static void assert_bf16_close(const char *what, const void *found, struct golden *g, const char *name, int64_t n)
{
    struct activation a = bf16_rows(found, (int32_t)n);
    float *values = ops_values(&a, 1);
    assert_close(what, values, golden_f32(g, name, NULL), n, 1e-4, 1 / 128.0, BAD(0.005, n));
    free(values);
}

static void check_reference_projections(struct ops *o, const char *file, bool yarn)
{
    struct golden *g = golden_open(file);
    int32_t heads = (int32_t)golden_param(g, "num_attention_heads");
    struct one_request r;
    float f[32];
    struct rope_spec rope = ops4_rope(f, yarn, false);
    struct activation x8 = ops_rows(ACT_Q8, 6, 128, 128), a = ops_rows(ACT_BF16, 6, 128, 0),
                      qr = ops_rows(ACT_BF16, 6, 128, 0);
    struct activation qr8 = ops_rows(ACT_Q8, 6, 128, 128), q = ops_rows(ACT_BF16, 6, heads * 128, 0);
    struct activation kv = ops_rows(ACT_BF16, 6, 128, 0), key = ops_rows(ACT_BF16, 6, 128, 0);

    one_request_make(&r, 0, 6, 0);
    memcpy(r.positions, golden_i32(g, "in.pos", NULL), 24);
    RUN(o, quantize, .rows = first_rows(6), .in = bf16_rows(golden_bf16(g, "in.x", NULL), 128), .out = x8);
    RUN(o, linear, .rows = first_rows(6), .in = x8, .out = a,
        .weight =
            ops_fp8(o, 128, 128, 128, golden_bytes(g, "in.wq_a.weight", NULL), golden_bytes(g, "in.wq_a.scale", NULL)));
    RUN(o, norm, .rows = first_rows(6), .in = a, .weight = golden_bf16(g, "in.q_norm.weight", NULL), .eps = 1e-6f,
        .out = qr, .quantized = qr8);
    RUN(o, linear, .rows = first_rows(6), .in = qr8, .out = q,
        .weight = ops_fp8(o, heads * 128, 128, 128, golden_bytes(g, "in.wq_b.weight", NULL),
                          golden_bytes(g, "in.wq_b.scale", NULL)));
    RUN(o, query, .rows = first_rows(6), .step = &r.step, .heads = heads, .head_dim = 128, .norm = QUERY_NORM_BF16,
        .eps = 1e-6f, .rope = rope, .in = q, .out = q);
    RUN(o, linear, .rows = first_rows(6), .in = x8, .out = kv,
        .weight =
            ops_fp8(o, 128, 128, 128, golden_bytes(g, "in.wkv.weight", NULL), golden_bytes(g, "in.wkv.scale", NULL)));
    RUN(o, window_key, .rows = first_rows(6), .step = &r.step, .in = kv,
        .norm = golden_bf16(g, "in.kv_norm.weight", NULL), .eps = 1e-6f, .rope = rope, .grid = GRID_FP8_NOPE,
        .out = key.codes);

    assert_memory_equal(qr.codes, golden_bf16(g, "out.qr", NULL), 6 * 128 * 2);
    assert_bf16_close("q", q.codes, g, "out.q", 6 * heads * 128);
    assert_bf16_close("kv", key.codes, g, "out.kv", 6 * 128);
    ops_free_rows(&x8), ops_free_rows(&a), ops_free_rows(&qr), ops_free_rows(&qr8), ops_free_rows(&q);
    ops_free_rows(&kv), ops_free_rows(&key);
    one_request_free(&r);
    golden_close(g);
}

static void reference_projections_equal_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 2);
    check_reference_projections(&o, "tests/golden/ops4/06-qkv_proj_rope-ref-a.safetensors", false);
    check_reference_projections(&o, "tests/golden/ops4/06-qkv_proj_rope-ref-b.safetensors", false);
    check_reference_projections(&o, "tests/golden/ops4/06-qkv_proj_rope_yarn-ref-a.safetensors", true);
    ops_close(&o);
}

/* The W8A8 files give tables, not positions: those of the REF file of the same set, which the tables must confirm. */
static void check_w8a8_projections(struct ops *o, const char *file, const char *reference_file, bool yarn)
{
    struct golden *g = golden_open(file), *reference = golden_open(reference_file);
    int32_t heads = (int32_t)golden_param(g, "num_attention_heads");
    struct one_request r;
    float f[32];
    struct rope_spec rope = ops4_rope(f, yarn, true);
    struct activation x = bf16_rows(golden_bf16(g, "in.x", NULL), 128), a = ops_rows(ACT_F32, 6, 128, 0);
    struct activation none = {.format = ACT_F32}, qr = ops_rows(ACT_I8, 6, 128, 128);
    struct activation q = ops_rows(ACT_F32, 6, heads * 128, 0), out = ops_rows(ACT_BF16, 6, heads * 128, 0);
    struct activation kv = ops_rows(ACT_F32, 6, 128, 0), key = ops_rows(ACT_BF16, 6, 128, 0);
    void *wq_a = ops4_transposed(golden_bf16(g, "in.wq_a", NULL), 128, 128, 2);
    void *wkv = ops4_transposed(golden_bf16(g, "in.wkv", NULL), 128, 128, 2);
    void *wq_b = ops4_transposed(golden_bytes(g, "in.wq_b", NULL), 128, heads * 128, 1);

    one_request_make(&r, 0, 6, 0);
    memcpy(r.positions, golden_i32(reference, "in.pos", NULL), 24);
    for (int row = 0; row < 6; row++)
        for (int i = 0; i < 32; i++)
            assert_true(golden_f32(g, "in.rope_cos", NULL)[row * 64 + i] ==
                        bf16_round((float)cos((double)((float)r.positions[row] * f[i]))));

    RUN(o, linear, .rows = first_rows(6), .in = x, .weight = ops_bf16(o, 128, 128, wq_a), .out = a);
    RUN(o, norm, .rows = first_rows(6), .in = a, .weight = golden_bf16(g, "in.gamma_cq", NULL), .eps = 1e-6f,
        .out = none, .quantized = qr);
    RUN(o, linear, .rows = first_rows(6), .in = qr, .out = q,
        .weight = ops_int8(o, heads * 128, 128, wq_b, golden_f32(g, "in.wq_b_scale", NULL)));
    RUN(o, query, .rows = first_rows(6), .step = &r.step, .heads = heads, .head_dim = 128, .norm = QUERY_NORM_F32,
        .eps = 1e-6f, .rope = rope, .in = q, .out = out);
    RUN(o, linear, .rows = first_rows(6), .in = x, .weight = ops_bf16(o, 128, 128, wkv), .out = kv);
    RUN(o, window_key, .rows = first_rows(6), .step = &r.step, .in = kv, .norm = golden_bf16(g, "in.gamma_ckv", NULL),
        .eps = 1e-6f, .rope = rope, .grid = GRID_NONE, .out = key.codes);

    for (int i = 0; i < 6 * 128; i++)
        assert_true(abs(((int8_t *)qr.codes)[i] - (int)golden_f32(g, "out.qr", NULL)[i]) <= 1);
    assert_close("qr_scale", qr.scales, golden_f32(g, "out.qr_scale", NULL), 6, 2.5e-5, 5e-3, 0);
    assert_bf16_close("q", out.codes, g, "out.q", 6 * heads * 128);
    assert_bf16_close("kv", key.codes, g, "out.kv", 6 * 128);
    free(wq_a), free(wkv), free(wq_b);
    ops_free_rows(&a), ops_free_rows(&qr), ops_free_rows(&q), ops_free_rows(&out), ops_free_rows(&kv),
        ops_free_rows(&key);
    one_request_free(&r);
    golden_close(g);
    golden_close(reference);
}

static void w8a8_projections_equal_the_goldens(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 2);
    check_w8a8_projections(&o, "tests/golden/ops4/06-qkv_proj_rope-w8a8-a.safetensors",
                           "tests/golden/ops4/06-qkv_proj_rope-ref-a.safetensors", false);
    check_w8a8_projections(&o, "tests/golden/ops4/06-qkv_proj_rope-w8a8-b.safetensors",
                           "tests/golden/ops4/06-qkv_proj_rope-ref-b.safetensors", false);
    check_w8a8_projections(&o, "tests/golden/ops4/06-qkv_proj_rope_yarn-w8a8-a.safetensors",
                           "tests/golden/ops4/06-qkv_proj_rope_yarn-ref-a.safetensors", true);
    ops_close(&o);
}

static void rotations_equal_the_golden_forth_and_back(void **state)
{
    (void)state;
    struct ops o;
    struct golden *g = golden_open("tests/golden/ops4/36-rope-both-a.safetensors");
    struct one_request r;
    uint16_t y[10 * 256];
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 10, 0);
    memcpy(r.positions, golden_i32(g, "in.pos", NULL), 40);
    struct activation x = bf16_rows(golden_bf16(g, "in.x", NULL), 256);
    for (int compress = 0; compress < 2; compress++) {
        float f[32];
        struct rope_spec rope = ops4_rope(f, compress, false);
        assert_memory_equal(f, golden_f32(g, compress ? "out.compress_freq" : "out.plain_freq", NULL), sizeof f);
        RUN(&o, query, .rows = first_rows(10), .step = &r.step, .heads = 2, .head_dim = 128, .rope = rope, .in = x,
            .out = bf16_rows(y, 256));
        assert_bf16_close("forth", y, g, compress ? "out.compress_ref" : "out.plain_ref", 2560);
        RUN(&o, unrotate, .rows = first_rows(10), .step = &r.step, .heads = 2, .head_dim = 128, .rope = rope, .in = x,
            .out = bf16_rows(y, 256));
        assert_bf16_close("back", y, g, compress ? "out.compress_ref_inverse" : "out.plain_ref_inverse", 2560);
        rope.bf16_tables = true;
        RUN(&o, query, .rows = first_rows(10), .step = &r.step, .heads = 2, .head_dim = 128, .rope = rope, .in = x,
            .out = bf16_rows(y, 256));
        assert_bf16_close("bf16 tables", y, g, compress ? "out.compress_w8a8" : "out.plain_w8a8", 2560);
    }
    one_request_free(&r);
    golden_close(g);
    ops_close(&o);
}

/* v41-model.md 13.3: theta = f32(1000003 * f32(0.05)) = 50000.152. */
static void the_angle_is_rounded_to_f32_before_its_cosine(void **state)
{
    (void)state;
    const float f[1] = {0.05f}, x[2] = {1, 0}; /* (1, 0) turns into (cos, sin) */
    uint16_t y[2];
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 1000003, 1, 0);
    RUN(&o, query, .rows = first_rows(1), .step = &r.step, .heads = 1, .head_dim = 2,
        .rope = {.frequencies = f, .dim = 2}, .in = f32_rows(x, 2), .out = bf16_rows(y, 2));
    assert_int_equal(y[0], bf16_encode(0.13406070f));
    assert_int_equal(y[1], bf16_encode(-0.99097312f));
    assert_int_not_equal(y[0], bf16_encode(0.13247627f)); /* the angle in double */
    one_request_free(&r);
    ops_close(&o);
}

/* Five positions far apart, their tables by row: the same bits without frequencies, wherever the rows are said to stand. */
static void tables_given_by_row_take_the_place_of_the_positions(void **state)
{
    (void)state;
    enum { ROWS = 5, CHANNELS = 32, TURNED = 16 };
    const int32_t positions[ROWS] = {0, 3, 127, 65536, 1048575};
    struct rope_spec rope = test_rope(TURNED), given = {.dim = TURNED};
    float turns[ROWS * TURNED], x[ROWS * CHANNELS], y[2][ROWS * CHANNELS];
    uint16_t key[2][ROWS * CHANNELS], back[2][ROWS * CHANNELS];
    uint16_t norm[CHANNELS];
    struct one_request r;
    struct dice d = {11};
    struct ops o;
    ops_open(&o, "reference", 2);
    dice_f32(&d, x, ROWS * CHANNELS, 1);
    dice_bf16(&d, norm, CHANNELS, 1);
    one_request_make(&r, 0, ROWS, 0);
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < TURNED / 2; i++) {
            float angle = (float)positions[row] * rope.frequencies[i];
            turns[row * TURNED + i] = (float)cos((double)angle);
            turns[row * TURNED + TURNED / 2 + i] = (float)sin((double)angle);
        }
    given.turns = turns;
    for (int way = 0; way < 2; way++) {
        struct rope_spec spec = way ? given : rope;
        for (int row = 0; row < ROWS; row++)
            r.positions[row] = way ? 0 : positions[row];
        RUN(&o, query, .rows = first_rows(ROWS), .step = &r.step, .heads = 1, .head_dim = CHANNELS, .rope = spec,
            .in = f32_rows(x, CHANNELS), .out = f32_rows(y[way], CHANNELS));
        RUN(&o, window_key, .rows = first_rows(ROWS), .step = &r.step, .in = f32_rows(x, CHANNELS), .norm = norm, .eps = 1,
            .rope = spec, .out = key[way]);
        RUN(&o, unrotate, .rows = first_rows(ROWS), .step = &r.step, .heads = 1, .head_dim = CHANNELS, .rope = spec,
            .in = f32_rows(x, CHANNELS), .out = bf16_rows(back[way], CHANNELS));
    }
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    assert_memory_equal(key[0], key[1], sizeof key[0]);
    assert_memory_equal(back[0], back[1], sizeof back[0]);
    assert_true(y[0][CHANNELS * 2 - 1] != x[CHANNELS * 2 - 1]);
    one_request_free(&r);
    ops_close(&o);
}

/* v4-model.md 13.1 "q norm chain": every intermediate is bf16. */
static void the_query_norm_chain_rounds_at_every_step(void **state)
{
    (void)state;
    const float x[4] = {1.5f, -0.75f, 0.30078125f, 2}, want[4] = {1.140625f, -0.5703125f, 0.2294922f, 1.5234375f};
    uint16_t in[4], out[4];
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 1, 0);
    for (int i = 0; i < 4; i++)
        in[i] = bf16_encode(x[i]);
    RUN(&o, query, .rows = first_rows(1), .step = &r.step, .heads = 1, .head_dim = 4, .norm = QUERY_NORM_BF16,
        .eps = 1e-6f, .rope = test_rope(2), .in = bf16_rows(in, 4), .out = bf16_rows(out, 4));
    for (int i = 0; i < 4; i++)
        assert_int_equal(out[i], bf16_encode(want[i]));
    one_request_free(&r);
    ops_close(&o);
}

/* The same by its formula, where each of the four roundings shows in some of many heads. */
static void every_rounding_of_the_query_norm_chain_shows(void **state)
{
    (void)state;
    enum { HEADS = 64, N = 8 };
    struct dice d = {8};
    const float eps = 3e-3f;
    uint16_t in[HEADS * N], out[HEADS * N];
    int differs[4] = {0};
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 1, 0); /* position 0: the rotation is the identity */
    dice_bf16(&d, in, HEADS * N, 0.5f);
    RUN(&o, query, .rows = first_rows(1), .step = &r.step, .heads = HEADS, .head_dim = N, .norm = QUERY_NORM_BF16,
        .eps = eps, .rope = test_rope(2), .in = bf16_rows(in, HEADS * N), .out = bf16_rows(out, HEADS * N));
    for (int h = 0; h < HEADS; h++)
        for (int skip = -1; skip < 4; skip++) { /* -1: the chain; 0 to 3: without that rounding */
            double sum = 0;
            for (int c = 0; c < N; c++) {
                float q = bf16_decode(in[h * N + c]), u = q * q;
                sum += skip == 0 ? u : bf16_round(u);
            }
            float mu = skip == 1 ? (float)(sum / N) : bf16_round((float)(sum / N));
            float a = skip == 2 ? mu + eps : bf16_round(mu + eps), nu = 1.0f / sqrtf(a);
            nu = skip == 3 ? nu : bf16_round(nu);
            for (int c = 0; c < N; c++) {
                uint16_t q = bf16_encode(bf16_decode(in[h * N + c]) * nu);
                if (skip < 0)
                    assert_int_equal(out[h * N + c], q);
                else
                    differs[skip] += out[h * N + c] != q;
            }
        }
    for (int i = 0; i < 4; i++)
        assert_true(differs[i] > 0);
    one_request_free(&r);
    ops_close(&o);
}

/* Norm, rounded, rotation, rounded (v41-model.md 5.2, v4-model.md 5.2 step 5). */
static void window_key_before_its_grid(const uint16_t *in, const uint16_t *norm, int n, float eps,
                                       const struct rope_spec *rope, int position, uint16_t *out)
{
    double sum = 0;
    for (int c = 0; c < n; c++)
        sum += (double)bf16_decode(in[c]) * bf16_decode(in[c]);
    float inverse = 1.0f / sqrtf((float)(sum / n) + eps);
    for (int c = 0; c < n; c++)
        out[c] = bf16_encode(bf16_decode(norm[c]) * (bf16_decode(in[c]) * inverse));
    for (int i = 0; i < rope->dim / 2; i++) {
        uint16_t *pair = out + n - rope->dim + 2 * i;
        float angle = (float)position * rope->frequencies[i];
        float co = (float)cos((double)angle), si = (float)sin((double)angle), a = bf16_decode(pair[0]),
              b = bf16_decode(pair[1]);
        pair[0] = bf16_encode(a * co - b * si);
        pair[1] = bf16_encode(a * si + b * co);
    }
}

/* v41-model.md 5.2: the whole chain by hand, and codes that give exactly the values. */
static void a_v41_window_key_and_its_codes_agree(void **state)
{
    (void)state;
    enum { N = 64, ROWS = 40 };
    struct dice d = {5};
    uint16_t in[ROWS * N], norm[N], key[ROWS * N];
    struct activation packed = ops_rows(ACT_Q8, ROWS, N, 32);
    struct rope_spec rope = test_rope(16);
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 100, ROWS, 0);
    dice_bf16(&d, in, ROWS * N, 3);
    dice_bf16(&d, norm, N, 1);
    RUN(&o, window_key, .rows = first_rows(ROWS), .step = &r.step, .in = bf16_rows(in, N), .norm = norm, .eps = 1e-20f,
        .rope = rope, .grid = GRID_FP8_ALL, .out = key, .packed = packed);
    for (int row = 0; row < ROWS; row++) {
        uint16_t want[N];
        uint8_t codes[N], scales[2];
        window_key_before_its_grid(in + row * N, norm, N, 1e-20f, &rope, 100 + row, want);
        q8_quantize(want, N, 32, codes, scales);
        assert_memory_equal((uint8_t *)packed.codes + row * N, codes, N);
        assert_memory_equal((uint8_t *)packed.scales + row * 2, scales, 2);
        for (int c = 0; c < N; c++)
            assert_int_equal(key[row * N + c], bf16_encode(e4m3_decode(codes[c]) * e8m0_decode(scales[c / 32])));
    }
    ops_free_rows(&packed);
    one_request_free(&r);
    ops_close(&o);
}

/* v4-model.md 5.2 step 5: the rotated channels stay bf16, off the grid. */
static void a_v4_window_key_leaves_its_rotated_channels(void **state)
{
    (void)state;
    enum { N = 128 };
    struct dice d = {6};
    uint16_t in[N], norm[N], plain[N], key[N], want[N];
    struct rope_spec rope = test_rope(64);
    struct one_request r;
    struct ops o;
    int moved = 0;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 9, 1, 0);
    dice_bf16(&d, in, N, 3);
    dice_bf16(&d, norm, N, 1);
    RUN(&o, window_key, .rows = first_rows(1), .step = &r.step, .in = bf16_rows(in, N), .norm = norm, .eps = 1e-6f,
        .rope = rope, .grid = GRID_NONE, .out = plain);
    RUN(&o, window_key, .rows = first_rows(1), .step = &r.step, .in = bf16_rows(in, N), .norm = norm, .eps = 1e-6f,
        .rope = rope, .grid = GRID_FP8_NOPE, .out = key);
    window_key_before_its_grid(in, norm, N, 1e-6f, &rope, 9, want);
    assert_memory_equal(plain, want, sizeof want);
    assert_memory_equal(key + 64, plain + 64, 64 * 2);
    for (int c = 0; c < 64; c++)
        moved += key[c] != plain[c];
    assert_true(moved > 10);
    q8_round(plain, 64, 64);
    assert_memory_equal(key, plain, N * 2);
    one_request_free(&r);
    ops_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_projections_equal_the_goldens),
        cmocka_unit_test(w8a8_projections_equal_the_goldens),
        cmocka_unit_test(rotations_equal_the_golden_forth_and_back),
        cmocka_unit_test(the_angle_is_rounded_to_f32_before_its_cosine),
        cmocka_unit_test(tables_given_by_row_take_the_place_of_the_positions),
        cmocka_unit_test(the_query_norm_chain_rounds_at_every_step),
        cmocka_unit_test(every_rounding_of_the_query_norm_chain_shows),
        cmocka_unit_test(a_v41_window_key_and_its_codes_agree),
        cmocka_unit_test(a_v4_window_key_leaves_its_rotated_channels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
