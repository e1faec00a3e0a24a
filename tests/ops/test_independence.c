/* The law of every operator on every path: a row's bits are the same alone or among others, with one thread or several,
 * and a row that is not listed is not touched (ops.h, promise 2 of architecture.md). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "support/ops.h"
#include "support/shared_memory.h"

enum { ROWS = 13, D = 128, M = 4, HEADS = 4, HD = 32, EXPERTS = 6, ACTIVE = 2, INPUTS = 1 << 15, OUT = 1 << 16 };

/* Inputs that all operators share, and one output. Each operator takes what it likes of them. */
struct scene {
    struct ops o;
    struct one_request r;
    uint16_t bf16[INPUTS], norm[D];
    float f32[INPUTS], pre[ROWS * M], comb[ROWS * M * M], weight[ROWS * ACTIVE];
    int32_t idx[ROWS * ACTIVE], from[1];
    struct activation q8, i8;
    uint8_t codes[EXPERTS * D * D], scales[EXPERTS * D * D / 32];
    float wide[INPUTS], int8_scale[D];
    struct weight *bf16_w, *f32_w, *fp8_w, *fp4_w, *int8_w, *gate_w, *fn_w;
    const struct weight *expert_w[EXPERTS];
    struct row_plane main, index;
    struct ring_plane ring, tail;
    uint8_t out[OUT];
};

/* Those that this machine lacks are passed over. */
static const char *const paths[] = {"reference", "portable", "avx2", "avx512", "cuda"};

static void fill_inputs(struct scene *s)
{
    struct dice d = {101};
    dice_bf16(&d, s->bf16, INPUTS, 1);
    dice_bf16(&d, s->norm, D, 1);
    dice_f32(&d, s->f32, INPUTS, 1);
    dice_f32(&d, s->pre, ROWS * M, 1);
    dice_f32(&d, s->comb, ROWS * M * M, 1);
    dice_f32(&d, s->weight, ROWS * ACTIVE, 1);
    dice_f32(&d, s->wide, INPUTS, 0.1f);
    dice_f32(&d, s->int8_scale, D, 0.01f);
    for (int i = 0; i < ROWS; i++) {
        s->idx[2 * i] = (int32_t)(dice_next(&d) % 3); /* some experts busy, one idle */
        s->idx[2 * i + 1] = 3 + (int32_t)(dice_next(&d) % 2);
    }
    for (size_t i = 0; i < sizeof s->codes; i++)
        s->codes[i] = (uint8_t)(dice_next(&d) % 0x70 | (dice_next(&d) & 0x80)); /* no NaN as E4M3 */
    for (size_t i = 0; i < sizeof s->scales; i++)
        s->scales[i] = (uint8_t)(114 + dice_next(&d) % 8);
}

static void fill_pools(struct scene *s)
{
    struct row_list all = first_rows(ROWS);
    s->main = ops_plane(ROW_FP4_E4M3, HD, 4, 8);
    s->index = ops_plane(ROW_INDEX_FP4, HD, 4, 8);
    s->ring = ops_ring(ROW_BF16, HD, 16, 1);
    s->tail = ops_tail(HD, 16, 1);
    RUN(&s->o, row_write, .rows = all, .step = &s->r.step, .ratio = 1, .in = bf16_rows(s->bf16, HD),
        .rope = test_rope(16), .grid = GRID_FP4_E4M3, .plane = s->main);
    RUN(&s->o, row_write, .rows = all, .step = &s->r.step, .ratio = 1, .in = bf16_rows(s->bf16, HD),
        .rope = test_rope(16), .grid = GRID_FP4_E8M0, .plane = s->index);
}

static void scene_make(struct scene *s, const char *path, int threads)
{
    memset(s, 0, sizeof *s);
    ops_open(&s->o, path, threads);
    fill_inputs(s);
    one_request_make(&s->r, 0, ROWS, 8);
    for (int i = 0; i < ROWS; i++)
        s->r.tokens[i] = i * 7 % D;
    s->bf16_w = ops_bf16(&s->o, D, D, s->bf16);
    s->f32_w = ops_f32(&s->o, D, D, s->wide);
    s->fp8_w = ops_fp8(&s->o, D, D, 32, s->codes, s->scales);
    s->fp4_w = ops_fp4(&s->o, D, D, s->codes, s->scales);
    s->int8_w = ops_int8(&s->o, D, D, s->codes, s->int8_scale);
    s->gate_w = ops_bf16(&s->o, EXPERTS, D, s->bf16);
    s->fn_w = ops_f32(&s->o, 24, M * D, s->wide);
    for (int e = 0; e < EXPERTS; e++)
        s->expert_w[e] = ops_fp4(&s->o, D, D, s->codes + e * D * D / 2, s->scales + e * D * D / 32);
    s->q8 = ops_rows(ACT_Q8, ROWS, D, 32);
    s->i8 = ops_rows(ACT_I8, ROWS, D, D);
    RUN(&s->o, quantize, .rows = first_rows(ROWS), .in = bf16_rows(s->bf16, D), .out = s->q8);
    RUN(&s->o, quantize, .rows = first_rows(ROWS), .in = bf16_rows(s->bf16, D), .out = s->i8);
    fill_pools(s);
}

static void scene_free(struct scene *s)
{
    ops_free_rows(&s->q8);
    ops_free_rows(&s->i8);
    ops_free_plane(&s->main);
    ops_free_plane(&s->index);
    ops_free_ring(&s->ring);
    ops_free_ring(&s->tail);
    one_request_free(&s->r);
    ops_close(&s->o);
}

#define OPERATOR(NAME) static void run_##NAME(struct scene *s, struct row_list rows)
#define STEP .step = &s->r.step

OPERATOR(embed) { RUN(&s->o, embed, rows, STEP, .weight = s->bf16_w, .out = {ACT_BF16, M, D, s->out}); }
OPERATOR(mhc_mix)
{
    float *out = (float *)(void *)s->out;
    RUN(&s->o, mhc_mix, rows, .x = {ACT_BF16, M, D, s->bf16}, .fn = s->fn_w, .base = s->wide, .scale = s->wide,
        .norm_eps = 1e-6f, .hc_eps = 1e-6f, .iterations = 20, .pre = out, .post = out + ROWS * M,
        .comb = out + 2 * ROWS * M);
}
OPERATOR(collapse)
{
    RUN(&s->o, collapse, rows, .x = {ACT_BF16, M, D, s->bf16}, .pre = s->pre, .norm = s->norm, .norm_eps = 1e-6f,
        .collapsed = bf16_rows(s->out, D), .normed = bf16_rows(s->out + ROWS * D * 2, D),
        .quantized = {ACT_Q8, D, 32, s->out + ROWS * D * 4, s->out + ROWS * D * 5});
}
OPERATOR(expand)
{
    RUN(&s->o, gather, first_rows(ROWS), .in = bf16_rows(s->bf16, M * D),
        .out = bf16_rows(s->out + ROWS * M * D * 2, M * D));
    for (int i = 0; i < rows.count; i++) { /* in place: start from the inputs again */
        int64_t row = rows.index ? rows.index[i] : i;
        memcpy(s->out + row * M * D * 2, s->bf16 + row * M * D, M * D * 2);
    }
    RUN(&s->o, expand, rows, .y = s->bf16, .post = s->pre, .comb = s->comb, .x = {ACT_BF16, M, D, s->out});
}
OPERATOR(norm)
{
    RUN(&s->o, norm, rows, .in = f32_rows(s->f32, D), .weight = s->norm, .eps = 1e-6f, .out = bf16_rows(s->out, D),
        .quantized = {ACT_I8, D, D, s->out + ROWS * D * 2, s->out + ROWS * D * 3});
}
OPERATOR(linear_bf16)
{
    RUN(&s->o, linear, rows, .in = bf16_rows(s->bf16, D), .weight = s->bf16_w, .out = f32_rows(s->out, D));
}
OPERATOR(linear_f32)
{
    RUN(&s->o, linear, rows, .in = f32_rows(s->f32, D), .weight = s->f32_w, .out = f32_rows(s->out, D));
}
OPERATOR(linear_wo_a)
{
    RUN(&s->o, linear, rows, .in = bf16_rows(s->bf16, 2 * D), .weight = s->fp8_w, .groups = 2,
        .out = bf16_rows(s->out, D));
}
OPERATOR(linear_fp8) { RUN(&s->o, linear, rows, .in = s->q8, .weight = s->fp8_w, .out = bf16_rows(s->out, D)); }
OPERATOR(linear_fp4) { RUN(&s->o, linear, rows, .in = s->q8, .weight = s->fp4_w, .out = bf16_rows(s->out, D)); }
OPERATOR(linear_int8) { RUN(&s->o, linear, rows, .in = s->i8, .weight = s->int8_w, .out = f32_rows(s->out, D)); }
OPERATOR(query)
{
    RUN(&s->o, query, rows, STEP, .heads = HEADS, .head_dim = HD, .norm = QUERY_NORM_BF16, .eps = 1e-6f,
        .rope = test_rope(16), .in = bf16_rows(s->bf16, D), .out = bf16_rows(s->out, D));
}
OPERATOR(window_key)
{
    RUN(&s->o, window_key, rows, STEP, .in = bf16_rows(s->bf16, D), .norm = s->norm, .eps = 1e-6f,
        .rope = test_rope(16), .grid = GRID_FP8_ALL, .out = s->out,
        .packed = {ACT_Q8, D, 32, s->out + ROWS * D * 2, s->out + ROWS * D * 3});
}
OPERATOR(compress)
{
    RUN(&s->o, compress, rows, STEP, .from = s->from, .kind = COMPRESSOR_PAIR, .ratio = 1, .width = D, .values = s->f32,
        .scores = s->f32 + 5, .out = bf16_rows(s->out, D));
}
OPERATOR(row_write)
{
    struct row_plane plane = s->main;
    plane.values = s->out;
    plane.scales = s->out + 4096;
    RUN(&s->o, row_write, rows, STEP, .ratio = 1, .in = bf16_rows(s->bf16, HD), .norm = s->norm, .eps = 1e-6f,
        .rope = test_rope(16), .grid = GRID_FP4_E4M3, .plane = plane, .values_out = s->out + 8192);
}
OPERATOR(index_query)
{
    RUN(&s->o, index_query, rows, STEP, .heads = HEADS, .dim = HD, .rope = test_rope(16), .hadamard = true,
        .grid = GRID_FP4_E8M0, .in = bf16_rows(s->bf16, D), .out = bf16_rows(s->out, D),
        .weights_in = f32_rows(s->f32, HEADS), .weight_factor = 0.3f,
        .weights = (float *)(void *)(s->out + ROWS * D * 2));
}
OPERATOR(index_select)
{
    int32_t *out = (int32_t *)(void *)s->out;
    RUN(&s->o, index_select, rows, STEP, .heads = HEADS, .dim = HD, .ratio = 1, .topk = 4,
        .query = bf16_rows(s->bf16, D), .weights = s->f32, .plane = s->index, .make_candidates = true, .block_size = 2,
        .topk_blocks = 3, .candidates = out, .candidate_count = out + ROWS * 3, .selected = out + ROWS * 4,
        .selected_count = out + ROWS * 8, .scores = (float *)(void *)(out + ROWS * 9), .score_stride = ROWS);
}
OPERATOR(attend)
{
    RUN(&s->o, attend, rows, STEP, .heads = HEADS, .head_dim = HD, .window_size = 5, .block = 4, .ratio = 1,
        .scale = 0.2f, .q = s->bf16, .fresh = s->bf16, .key_from = s->from, .ring = s->ring, .has_plane = true,
        .plane = s->main, .sinks = s->f32, .out = bf16_rows(s->out, D));
}
OPERATOR(attend_w8a8)
{
    RUN(&s->o, attend, rows, STEP, .heads = HEADS, .head_dim = HD, .window_size = 5, .block = 4, .ratio = 1,
        .scale = 0.2f, .w8a8 = true, .q = s->bf16, .fresh = s->bf16, .key_from = s->from, .ring = s->ring,
        .has_plane = true, .plane = s->main, .sinks = s->f32, .out = f32_rows(s->out, D));
}
OPERATOR(unrotate)
{
    RUN(&s->o, unrotate, rows, STEP, .heads = HEADS, .head_dim = HD, .rope = test_rope(16), .in = f32_rows(s->f32, D),
        .out = bf16_rows(s->out, D));
}
OPERATOR(route)
{
    RUN(&s->o, route, rows, STEP, .x = bf16_rows(s->bf16, D), .gate = s->gate_w, .bias = s->f32, .experts = EXPERTS,
        .active = ACTIVE, .normalise = true, .scaling = 1.5f, .denominator_eps = 1e-20f,
        .idx = (int32_t *)(void *)s->out, .weight = (float *)(void *)(s->out + 4096));
}
OPERATOR(expert)
{
    RUN(&s->o, expert, rows, .x = s->q8, .idx = s->idx, .weight = s->weight, .experts = EXPERTS, .active = ACTIVE,
        .w1 = s->expert_w, .w2 = s->expert_w, .w3 = s->expert_w, .swiglu_limit = 10, .out = s->out);
}
OPERATOR(expert_shared)
{
    RUN(&s->o, expert, rows, .x = s->q8, .experts = 1, .active = 1, .w1 = (const struct weight *[]){s->fp8_w},
        .w2 = (const struct weight *[]){s->fp8_w}, .w3 = (const struct weight *[]){s->fp8_w}, .swiglu_limit = 10,
        .out = s->out);
}
OPERATOR(combine)
{
    RUN(&s->o, combine, rows, .idx = s->idx, .active = ACTIVE, .hidden = D, .routed = s->bf16, .shared = s->bf16 + 77,
        .out = s->out);
}
OPERATOR(engram)
{
    for (int i = 0; i < rows.count; i++) {
        int64_t row = rows.index ? rows.index[i] : i;
        memcpy(s->out + row * M * D * 2, s->bf16 + row * M * D, M * D * 2);
    }
    RUN(&s->o, engram, rows, STEP, .x = {ACT_BF16, M, D, s->out}, .kv = s->bf16, .q_weight = s->bf16,
        .k_weight = s->bf16 + 9, .gate_out = (float *)(void *)(s->out + ROWS * M * D * 2));
}
OPERATOR(stream_mean) { RUN(&s->o, stream_mean, rows, .x = {ACT_BF16, M, D, s->bf16}, .out = bf16_rows(s->out, D)); }
OPERATOR(stream_add)
{
    RUN(&s->o, stream_add, rows, .e = bf16_rows(s->bf16, D), .h = bf16_rows(s->bf16, M * D),
        .out = {ACT_BF16, M, D, s->out});
}
OPERATOR(tail_write)
{
    struct ring_plane tail = s->tail;
    tail.values = s->out;
    tail.scales = s->out + OUT / 2;
    RUN(&s->o, tail_write, rows, STEP, .values = s->f32, .scores = s->f32 + 9, .cols = HD, .tail = tail);
}

static const struct {
    const char *name;
    void (*run)(struct scene *, struct row_list);
} operators[] = {
#define ROW(NAME) {#NAME, run_##NAME},
    ROW(embed) ROW(mhc_mix) ROW(collapse) ROW(norm) ROW(linear_bf16) ROW(linear_f32) ROW(linear_wo_a) ROW(linear_fp8)
        ROW(linear_fp4) ROW(linear_int8) ROW(query) ROW(window_key) ROW(compress) ROW(row_write) ROW(index_query)
            ROW(index_select) ROW(attend) ROW(attend_w8a8) ROW(unrotate) ROW(route) ROW(expert) ROW(expert_shared)
                ROW(combine) ROW(engram) ROW(stream_mean) ROW(stream_add) ROW(tail_write) ROW(expand)
#undef ROW
};
enum { OPERATORS = sizeof operators / sizeof *operators };

static void expect_equal(const char *path, const char *name, const char *what, const uint8_t *found,
                         const uint8_t *want)
{
    for (int64_t i = 0; i < OUT; i++)
        if (found[i] != want[i])
            fail_msg("%s: %s: %s: byte %lld is %d, wanted %d", path, name, what, (long long)i, found[i], want[i]);
}

static bool is_here(const char *path)
{
    struct backend *b;
    if (strcmp(path, "cuda") == 0)
        return test_device_is_cuda();
    if (backend_cpu_open(path, 1, NULL, &b, NULL) != QR_OK)
        return false;
    b->close(b);
    return true;
}

/* The whole list with one thread is the truth; then three threads, row by row, and in two interleaved lists. */
static void check_path(const char *path)
{
    struct scene *one = malloc(sizeof *one), *three = malloc(sizeof *three);
    uint8_t *want = malloc(OUT);
    if (!is_here(path)) {
        printf("    %s: not on this machine\n", path);
        free(one), free(three), free(want);
        return;
    }
    scene_make(one, path, 1);
    scene_make(three, path, 3);
    for (int i = 0; i < OPERATORS; i++) {
        int32_t alone[1], even[ROWS], odd[ROWS], n = 0, m = 0;
        memset(one->out, 0, OUT);
        operators[i].run(one, first_rows(ROWS));
        memcpy(want, one->out, OUT);

        memset(three->out, 0, OUT);
        operators[i].run(three, first_rows(ROWS));
        expect_equal(path, operators[i].name, "three threads", three->out, want);

        memset(three->out, 0, OUT);
        for (int32_t row = ROWS; row-- > 0;) {
            alone[0] = row;
            operators[i].run(three, (struct row_list){alone, 1});
        }
        expect_equal(path, operators[i].name, "rows alone", three->out, want);

        for (int32_t row = 0; row < ROWS; row++) {
            if (row % 2)
                odd[m++] = row;
            else
                even[n++] = row;
        }
        memset(one->out, 0, OUT);
        operators[i].run(one, (struct row_list){odd, m});
        operators[i].run(one, (struct row_list){even, n});
        expect_equal(path, operators[i].name, "two lists", one->out, want);
    }
    scene_free(one), scene_free(three);
    free(one), free(three), free(want);
}

static void a_row_is_the_same_alone_in_a_batch_and_with_any_threads(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof paths / sizeof *paths; p++)
        check_path(paths[p]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_the_same_alone_in_a_batch_and_with_any_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
