/* Cache rows: a container changes no value; rings wrap; what is not mapped is not written (runtime.md 2.1). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "number/int8.h"
#include "number/quantize.h"
#include "support/ops.h"

enum { ROWS = 48, PER_BLOCK = 16, KEY = 128, KEY_ROWS = 48 };

/* Writes ROWS rows of ratio 1 on the grid into a plane of that format; returns the values as the cache holds them. */
static uint16_t *write_rows(struct ops *o, enum row_format format, enum key_grid grid, int32_t n, const uint16_t *in,
                            struct row_plane *plane)
{
    struct one_request r;
    uint16_t *out = calloc((size_t)(ROWS * n), 2);
    one_request_make(&r, 0, ROWS, ROWS / PER_BLOCK);
    r.table[0] = 2;
    r.table[2] = 0; /* pages in any order */
    *plane = ops_plane(format, n, PER_BLOCK, ROWS / PER_BLOCK);
    RUN(o, row_write, .rows = first_rows(ROWS), .step = &r.step, .ratio = 1, .in = bf16_rows(in, n),
        .rope = test_rope(16), .grid = grid, .plane = *plane, .values_out = out);
    one_request_free(&r);
    return out;
}

static void every_container_of_a_main_row_gives_the_same_values(void **state)
{
    (void)state;
    enum { N = 64 };
    struct dice d = {11};
    uint16_t in[ROWS * N];
    struct row_plane bf16, fp4;
    struct ops o;
    ops_open(&o, "reference", 2);
    dice_bf16(&d, in, ROWS * N, 2);
    memset(in + 5 * N, 0, N * 2); /* an all-zero row */
    for (int c = 0; c < N; c++)
        in[7 * N + c] = bf16_encode(bf16_decode(in[7 * N + c]) * 0x1p-9f); /* at the floor of the scale */

    uint16_t *a = write_rows(&o, ROW_BF16, GRID_FP4_E4M3, N, in, &bf16);
    uint16_t *b = write_rows(&o, ROW_FP4_E4M3, GRID_FP4_E4M3, N, in, &fp4);
    assert_memory_equal(a, b, ROWS * N * 2);
    for (int row = 0; row < ROWS; row++) { /* rows 0..15 lie in page 2, 32..47 in page 0 */
        int at = row < 16 ? row + 32 : row >= 32 ? row - 32 : row;
        assert_memory_equal(bf16.values + at * N * 2, a + row * N, N * 2);
        for (int c = 0; c < N; c++) {
            float v = e2m1_decode(e2m1_at(fp4.values + at * N / 2, c)) * e4m3_decode(fp4.scales[at * N / 16 + c / 16]);
            assert_int_equal(bf16_encode(v), a[row * N + c]);
        }
    }
    free(a);
    free(b);
    ops_free_plane(&bf16);
    ops_free_plane(&fp4);
    ops_close(&o);
}

static void every_container_of_an_index_key_gives_the_same_values(void **state)
{
    (void)state;
    enum { N = 128 };
    struct dice d = {12};
    uint16_t in[ROWS * N];
    struct row_plane bf16, fp4, fp8;
    struct ops o;
    ops_open(&o, "reference", 2);
    dice_bf16(&d, in, ROWS * N, 2);
    memset(in + 5 * N, 0, N * 2);
    for (int c = 0; c < N; c++) /* block scales 2^14 apart, the most that fp8 holds */
        in[7 * N + c] = bf16_encode((c % 2 ? 6.0f : -0.5f) * (c < 32 ? 0x1p-14f : 1.0f));
    for (int c = 0; c < 64; c++) /* a block of zeros beside another */
        in[9 * N + c] = 0;

    uint16_t *a = write_rows(&o, ROW_BF16, GRID_FP4_E8M0, N, in, &bf16);
    uint16_t *b = write_rows(&o, ROW_INDEX_FP4, GRID_FP4_E8M0, N, in, &fp4);
    uint16_t *c = write_rows(&o, ROW_INDEX_FP8, GRID_FP4_E8M0, N, in, &fp8);
    assert_memory_equal(a, b, ROWS * N * 2);
    for (int i = 0; i < ROWS * N; i++) /* as numbers: an fp8 zero block may differ in nothing but a sign */
        assert_true(bf16_decode(a[i]) == bf16_decode(c[i]));
    for (int row = 0; row < ROWS; row++) {
        float scale;
        memcpy(&scale, fp8.scales + row * 4, 4);
        assert_int_equal(f32_bits(scale) & 0x7FFFFF, 0); /* a power of two */
    }
    free(a);
    free(b);
    free(c);
    ops_free_plane(&bf16);
    ops_free_plane(&fp4);
    ops_free_plane(&fp8);
    ops_close(&o);
}

/* `--index-query-grid plane`: keys and queries on the grid of the fp8 plane itself (runtime.md 3.6). */
static void the_planes_own_grid_is_one_for_keys_and_queries(void **state)
{
    (void)state;
    enum { N = 128 };
    struct dice d = {18};
    uint16_t in[ROWS * N], queries[ROWS * N];
    float weights[ROWS];
    struct row_plane plane;
    struct one_request r;
    struct ops o;
    int moved = 0;
    ops_open(&o, "reference", 1);
    dice_bf16(&d, in, ROWS * N, 2);
    one_request_make(&r, 0, ROWS, 0);
    uint16_t *keys = write_rows(&o, ROW_INDEX_FP8, GRID_FP8_ROW, N, in, &plane);
    RUN(&o, index_query, .rows = first_rows(ROWS), .step = &r.step, .heads = 1, .dim = N, .rope = test_rope(16),
        .grid = GRID_FP8_ROW, .in = bf16_rows(in, N), .out = bf16_rows(queries, N), .weights_in = bf16_rows(in, 1),
        .weight_factor = 1, .weights = weights);
    assert_memory_equal(keys, queries, sizeof queries);
    for (int i = 0; i < ROWS * N; i++) {
        float v = bf16_decode(keys[i]), x = bf16_decode(in[i]);
        moved += v != x;
        if (i % N < N - 16) /* channels that are not rotated: at most half a step of E4M3 away */
            assert_true(fabsf(v - x) <= fmaxf(fabsf(x) * 0x1p-4f, 0x1p-10f));
    }
    assert_true(moved > ROWS * N / 2);
    free(keys);
    ops_free_plane(&plane);
    one_request_free(&r);
    ops_close(&o);
}

/* Tiles of 16 rows, values before scales, and two planes: the addresses are geometry's, the operator's only use of
 * them. */
static void rows_go_where_the_plane_says(void **state)
{
    (void)state;
    enum { N = 128, TILE = 16 * (N + 4) };
    struct dice d = {13};
    uint16_t in[ROWS * N];
    uint8_t *memory = calloc(3, TILE);
    struct one_request r;
    struct row_plane plane = {.format = ROW_INDEX_FP8,
                              .rows_per_block = 16,
                              .tile_rows = 16,
                              .values = memory,
                              .scales = memory + 16 * N,
                              .value_block_stride = TILE,
                              .value_tile_stride = TILE,
                              .value_row_stride = N,
                              .scale_block_stride = TILE,
                              .scale_tile_stride = TILE,
                              .scale_row_stride = 4};
    struct ops o;
    ops_open(&o, "reference", 1);
    dice_bf16(&d, in, ROWS * N, 2);
    one_request_make(&r, 0, ROWS, 3);
    uint16_t *out = calloc(ROWS * N, 2);
    RUN(&o, row_write, .rows = first_rows(ROWS), .step = &r.step, .ratio = 1, .in = bf16_rows(in, N),
        .rope = test_rope(0), .grid = GRID_FP4_E8M0, .plane = plane, .values_out = out);
    for (int row = 0; row < ROWS; row++) {
        const uint8_t *tile = memory + row / 16 * TILE;
        float scale;
        memcpy(&scale, tile + 16 * N + row % 16 * 4, 4);
        for (int c = 0; c < N; c++)
            assert_int_equal(bf16_encode(e4m3_decode(tile[row % 16 * N + c]) * scale), out[row * N + c]);
    }
    free(out);
    free(memory);
    one_request_free(&r);
    ops_close(&o);
}

static void a_row_of_an_unmapped_block_is_not_stored(void **state)
{
    (void)state;
    enum { N = 64 };
    struct dice d = {14};
    uint16_t in[4 * N], out[4 * N], clean[N] = {0};
    struct row_plane plane = ops_plane(ROW_BF16, N, 2, 2);
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    dice_bf16(&d, in, 4 * N, 2);
    one_request_make(&r, 0, 4, 2);
    r.table[0] = -1;
    r.table[1] = 1;
    memset(out, 0, sizeof out);
    RUN(&o, row_write, .rows = first_rows(4), .step = &r.step, .ratio = 1, .in = bf16_rows(in, N),
        .rope = test_rope(16), .grid = GRID_FP4_E4M3, .plane = plane, .values_out = out);
    assert_memory_equal(plane.values, clean, sizeof clean);
    assert_memory_equal(plane.values + 2 * N * 2, out + 2 * N, 2 * N * 2);
    assert_memory_not_equal(out, clean, sizeof clean); /* its values are told all the same */
    ops_free_plane(&plane);
    one_request_free(&r);
    ops_close(&o);
}

/* The row of a group stands at position div ratio and is turned by the group's first position. */
static void a_group_is_turned_by_its_first_position(void **state)
{
    (void)state;
    enum { N = 64 };
    struct dice d = {15};
    uint16_t in[8 * N], out[8 * N], turned[N];
    int32_t list[2] = {3, 7};
    struct row_plane plane = ops_plane(ROW_BF16, N, 8, 4);
    struct one_request r, first;
    struct ops o;
    ops_open(&o, "reference", 1);
    dice_bf16(&d, in, 8 * N, 2);
    one_request_make(&r, 40, 8, 4);
    RUN(&o, row_write, .rows = {list, 2}, .step = &r.step, .ratio = 4, .in = bf16_rows(in, N), .rope = test_rope(16),
        .grid = GRID_NONE, .plane = plane, .values_out = out);
    for (int i = 0; i < 2; i++) {
        int j = 10 + i; /* positions 43 and 47 */
        one_request_make(&first, 4 * j, 1, 0);
        RUN(&o, query, .rows = first_rows(1), .step = &first.step, .heads = 1, .head_dim = N, .rope = test_rope(16),
            .in = bf16_rows(in + list[i] * N, N), .out = bf16_rows(turned, N));
        assert_memory_equal(plane.values + j * N * 2, turned, N * 2);
        one_request_free(&first);
    }
    ops_free_plane(&plane);
    one_request_free(&r);
    ops_close(&o);
}

/* Norm, rotation, Hadamard, grid of the two profiles, by hand on one row (v4-model.md 5.6, 7.4). */
static void index_keys_are_transformed_between_rotation_and_grid(void **state)
{
    (void)state;
    enum { N = 32 };
    struct dice d = {16};
    uint16_t in[N], norm[N], out[N];
    float wide[N];
    struct row_plane fp4 = ops_plane(ROW_INDEX_FP4, N, 1, 1), int8 = ops_plane(ROW_INDEX_INT8, N, 1, 1);
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    dice_bf16(&d, in, N, 2);
    dice_bf16(&d, norm, N, 1);
    one_request_make(&r, 0, 1, 1); /* position 0: the rotation is the identity */
    double sum = 0;
    for (int c = 0; c < N; c++) {
        wide[c] = bf16_decode(in[c]);
        sum += (double)wide[c] * wide[c];
    }
    float inverse = 1.0f / sqrtf((float)(sum / N) + 1e-6f);
    for (int c = 0; c < N; c++)
        wide[c] = bf16_round(bf16_decode(norm[c]) * (wide[c] * inverse));

    uint16_t reference[N], deployed[N];
    float s32 = (float)(1 / sqrt(32.0)), s16 = bf16_round(s32);
    for (int i = 0; i < N; i++) {
        double y = 0;
        for (int k = 0; k < N; k++) {
            int ones = 0;
            for (int b = i & k; b; b &= b - 1)
                ones++;
            y += ones % 2 ? -wide[k] : wide[k];
        }
        reference[i] = bf16_encode((float)y * s32);
        deployed[i] = bf16_encode((float)(y * s16));
    }
    q4_e8m0_round(reference, N);
    RUN(&o, row_write, .rows = first_rows(1), .step = &r.step, .ratio = 1, .in = bf16_rows(in, N), .norm = norm,
        .eps = 1e-6f, .rope = test_rope(16), .hadamard = true, .grid = GRID_FP4_E8M0, .plane = fp4, .values_out = out);
    assert_memory_equal(out, reference, sizeof out);

    int8_t codes[N];
    float sigma = int8_quantize_row_bf16(deployed, N, codes), stored;
    RUN(&o, row_write, .rows = first_rows(1), .step = &r.step, .ratio = 1, .in = bf16_rows(in, N), .norm = norm,
        .eps = 1e-6f, .rope = test_rope(16), .hadamard = true, .grid = GRID_INT8, .plane = int8);
    memcpy(&stored, int8.scales, 4);
    assert_memory_equal(int8.values, codes, N);
    assert_true(stored == sigma);
    ops_free_plane(&fp4);
    ops_free_plane(&int8);
    one_request_free(&r);
    ops_close(&o);
}

struct key_case {
    const char *name;
    enum row_format format;
    enum key_grid grid;
    bool hadamard, wide; /* f32 in */
};

/* Norm, rotation, transform, and grid with store, an operator each. INT8 is transformed by a matrix that its grid names,
 * so there the last two are one. */
static void store_by_steps(struct ops *o, const struct key_case *c, struct row_list rows, const struct step *step,
                           struct activation in, const void *norm, struct row_plane plane, uint16_t *out)
{
    struct activation normed = ops_rows(in.format, KEY_ROWS, KEY, 0), turned = ops_rows(ACT_BF16, KEY_ROWS, KEY, 0),
                      transformed = ops_rows(ACT_BF16, KEY_ROWS, KEY, 0);
    struct row_plane nowhere = ops_plane(ROW_BF16, KEY, 8, 4);
    const bool joined = c->hadamard && c->grid == GRID_INT8;
    RUN(o, norm, .rows = rows, .in = in, .weight = norm, .eps = 1e-6f, .out = normed);
    RUN(o, row_write, .rows = rows, .step = step, .ratio = 4, .in = normed, .rope = test_rope(64), .plane = nowhere,
        .values_out = turned.codes);
    RUN(o, row_write, .rows = rows, .step = step, .ratio = 4, .in = turned, .rope = test_rope(0),
        .hadamard = c->hadamard && !joined, .plane = nowhere, .values_out = transformed.codes);
    RUN(o, row_write, .rows = rows, .step = step, .ratio = 4, .in = transformed, .rope = test_rope(0), .hadamard = joined,
        .grid = c->grid, .plane = plane, .values_out = out);
    ops_free_rows(&normed), ops_free_rows(&turned), ops_free_rows(&transformed);
    ops_free_plane(&nowhere);
}

/* In every container and of both families, the bytes of the chain, and no others. */
static void a_key_stored_by_one_operator_has_the_bits_of_one_stored_by_four(void **state)
{
    (void)state;
    static const struct key_case cases[] = {{"V4.1, fp4", ROW_INDEX_FP4, GRID_FP4_E8M0, false, false},
                                            {"V4.1, fp8", ROW_INDEX_FP8, GRID_FP4_E8M0, false, false},
                                            {"V4, fp4", ROW_INDEX_FP4, GRID_FP4_E8M0, true, false},
                                            {"V4, fp8", ROW_INDEX_FP8, GRID_FP4_E8M0, true, false},
                                            {"fp8 of its own grid", ROW_INDEX_FP8, GRID_FP8_ROW, true, false},
                                            {"bf16", ROW_BF16, GRID_FP4_E8M0, true, false},
                                            {"W8A8", ROW_INDEX_INT8, GRID_INT8, true, true}};
    static float wide[KEY_ROWS * KEY];
    static uint16_t in[KEY_ROWS * KEY], norm[KEY], one[KEY_ROWS * KEY], four[KEY_ROWS * KEY];
    int32_t list[KEY_ROWS / 4];
    struct dice d = {19};
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 40, KEY_ROWS, 4);
    for (int i = 0; i < KEY_ROWS / 4; i++)
        list[i] = 4 * i + 3;
    dice_bf16(&d, in, KEY_ROWS * KEY, 2);
    dice_f32(&d, wide, KEY_ROWS * KEY, 2);
    dice_bf16(&d, norm, KEY, 1);
    memset(in + list[2] * KEY, 0, KEY * 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct key_case *c = &cases[i];
        struct row_plane a = ops_plane(c->format, KEY, 8, 4), b = ops_plane(c->format, KEY, 8, 4);
        const struct row_list rows = {list, KEY_ROWS / 4};
        const struct activation from = c->wide ? f32_rows(wide, KEY) : bf16_rows(in, KEY);
        memset(one, 0, sizeof one);
        memset(four, 0, sizeof four);
        RUN(&o, row_write, .rows = rows, .step = &r.step, .ratio = 4, .in = from, .norm = norm, .eps = 1e-6f,
            .rope = test_rope(64), .hadamard = c->hadamard, .grid = c->grid, .plane = a, .values_out = one);
        store_by_steps(&o, c, rows, &r.step, from, norm, b, four);
        for (int64_t at = 0; at < 4 * a.value_block_stride; at++)
            if (a.values[at] != b.values[at])
                fail_msg("%s: byte %lld is %d, by steps %d", c->name, (long long)at, a.values[at], b.values[at]);
        for (int64_t at = 0; a.scales && at < 4 * a.scale_block_stride; at++)
            if (a.scales[at] != b.scales[at])
                fail_msg("%s: scale byte %lld is %d, by steps %d", c->name, (long long)at, a.scales[at], b.scales[at]);
        assert_memory_equal(one, four, sizeof one);
        ops_free_plane(&a);
        ops_free_plane(&b);
    }
    one_request_free(&r);
    ops_close(&o);
}

static void window_keys_wrap_in_their_slots_ring(void **state)
{
    (void)state;
    enum { N = 64, RING = 5 };
    struct dice d = {17};
    uint16_t keys[7 * N];
    int32_t list[5] = {2, 3, 4, 5, 6};
    struct activation packed = ops_rows(ACT_Q8, 7, N, 32);
    struct ring_plane plain = ops_ring(ROW_BF16, N, RING, 3), codes = ops_ring(ROW_FP8_E8M0, N, RING, 3);
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    dice_bf16(&d, keys, 7 * N, 2);
    one_request_make(&r, 20, 7, 0);
    r.slot[0] = 2;
    RUN(&o, quantize, .rows = first_rows(7), .in = bf16_rows(keys, N), .out = packed);
    RUN(&o, window_write, .rows = {list, 5}, .step = &r.step, .keys = keys, .head_dim = N, .ring = plain);
    RUN(&o, window_write, .rows = {list, 5}, .step = &r.step, .keys = keys, .packed = packed, .head_dim = N,
        .ring = codes);
    for (int i = 0; i < 5; i++) {
        int row = list[i], at = (20 + row) % RING;
        assert_memory_equal(plain.values + 2 * plain.slot_stride + at * N * 2, keys + row * N, N * 2);
        assert_memory_equal(codes.values + 2 * codes.slot_stride + at * N, (uint8_t *)packed.codes + row * N, N);
        assert_memory_equal(codes.scales + 2 * codes.slot_stride + at * 2, (uint8_t *)packed.scales + row * 2, 2);
    }
    for (int64_t i = 0; i < 2 * plain.slot_stride; i++) /* the other slots */
        assert_int_equal(plain.values[i], 0);
    r.slot[0] = -1; /* no slot: nothing to write to */
    RUN(&o, window_write, .rows = {list, 5}, .step = &r.step, .keys = keys, .head_dim = N, .ring = plain);
    struct op_window_write bad = {.rows = {list, 5}, .step = &r.step, .keys = keys, .head_dim = N, .ring = codes};
    assert_int_equal(o.b->window_write(o.b, &bad, NULL), QR_BAD_ARGUMENT);
    ops_free_rows(&packed);
    ops_free_ring(&plain);
    ops_free_ring(&codes);
    one_request_free(&r);
    ops_close(&o);
}

static void grids_and_containers_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        enum row_format format;
        enum key_grid grid;
        int32_t cols;
    } bad[] = {{ROW_FP4_E4M3, GRID_FP8_ALL, 64},    {ROW_INDEX_FP4, GRID_FP4_E4M3, 64},
               {ROW_INDEX_INT8, GRID_FP4_E8M0, 64}, {ROW_BF16, GRID_INT8, 64},
               {ROW_BF16, GRID_FP8_NOPE, 64},       {ROW_INDEX_FP4, GRID_FP4_E8M0, 48}};
    uint16_t in[64] = {0};
    struct row_plane plane = ops_plane(ROW_BF16, 64, 1, 1);
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 1, 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        plane.format = bad[i].format;
        struct op_row_write op = {.rows = first_rows(1),
                                  .step = &r.step,
                                  .ratio = 1,
                                  .in = bf16_rows(in, bad[i].cols),
                                  .rope = test_rope(16),
                                  .grid = bad[i].grid,
                                  .plane = plane};
        assert_int_equal(o.b->row_write(o.b, &op, NULL), QR_BAD_ARGUMENT);
    }
    ops_free_plane(&plane);
    one_request_free(&r);
    ops_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_container_of_a_main_row_gives_the_same_values),
        cmocka_unit_test(every_container_of_an_index_key_gives_the_same_values),
        cmocka_unit_test(the_planes_own_grid_is_one_for_keys_and_queries),
        cmocka_unit_test(rows_go_where_the_plane_says),
        cmocka_unit_test(a_row_of_an_unmapped_block_is_not_stored),
        cmocka_unit_test(a_group_is_turned_by_its_first_position),
        cmocka_unit_test(index_keys_are_transformed_between_rotation_and_grid),
        cmocka_unit_test(a_key_stored_by_one_operator_has_the_bits_of_one_stored_by_four),
        cmocka_unit_test(window_keys_wrap_in_their_slots_ring),
        cmocka_unit_test(grids_and_containers_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
