/* The products of the CUDA backend at released widths, on device memory: a row's bits are the same alone, among few and
 * among many rows, and its values are the reference's up to the order of sums; whole sums have the reference's bits.
 * Without a device: a visible skip. */
#include "support/twins.h"

enum { EXPERTS = 5, ACTIVE = 3 };

CASE(linear)
{
    const int32_t parts = c->dim > 1 ? c->dim : 1, cols = c->k * (c->groups > 1 ? c->groups : 1) * parts;
    const enum act_format out = c->out[0].kind == KIND_BF16 ? ACT_BF16 : ACT_F32;
    RUN_ON(linear, .in = twin_act(c->format, c->in[0], c->in[1], cols, c->block, side), .weight = twin_weight_of(side, c->w[0]),
           .groups = c->groups, .parts = c->dim,
           .out = twin_act(out, c->out[0].buffer, NULL, c->n * parts, 0, side));
}

/* One linear; K and N of a released weight (N cut to what the reference does in a moment). */
static void linear_case(const char *name, enum weight_format format, int32_t n, int32_t k, int32_t tile, int32_t splits,
                        int32_t groups, enum act_format in, enum kind out, double within)
{
    k = twin_width(k);
    struct test_case c = {
        .name = name, .run = run_linear, .n = n, .k = k, .groups = groups, .format = in, .block = tile};
    int64_t cols = (int64_t)k * groups;
    if (in == ACT_Q8) {
        c.in[0] = twin_codes(ROWS * cols, true);
        c.in[1] = twin_scales(ROWS * cols / tile, 112, 8);
    } else if (in == ACT_I8) {
        c.in[0] = twin_codes(ROWS * cols, false);
        c.in[1] = twin_f32(ROWS * cols / tile, 0.02f);
    } else {
        c.in[0] = in == ACT_F32 ? twin_f32(ROWS * cols, 1) : twin_bf16(ROWS * cols, 1);
    }
    c.w[0] = twin_weight(format, n, k, format == WEIGHT_FP4 ? 32 : tile, splits);
    size_t bytes = (size_t)n * (out == KIND_F32 ? 4 : 2);
    c.out[0] = (struct output){twin_room(ROWS * bytes), bytes, out, within};
    check_case(&c);
}

CASE(expert)
{
    const struct weight *w1[EXPERTS], *w2[EXPERTS], *w3[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        w1[e] = twin_weight_of(side, c->w[0] + 3 * e);
        w2[e] = twin_weight_of(side, c->w[0] + 3 * e + 1);
        w3[e] = twin_weight_of(side, c->w[0] + 3 * e + 2);
    }
    RUN_ON(expert, .x = twin_act(c->format, c->in[0], c->in[1], c->k, c->block, side), .w8a8 = c->format == ACT_I8,
           .idx = c->flag ? NULL : IN(2),
           .weight = c->flag ? NULL : IN(3), .experts = c->flag ? 1 : EXPERTS, .active = c->flag ? 1 : ACTIVE, .w1 = w1,
           .w2 = w2, .w3 = w3, .swiglu_limit = 10, .out = OUT(0));
}

static void expert_case(const char *name, enum weight_format format, int32_t hidden, int32_t inner, int32_t block,
                        bool shared)
{
    const bool int8 = format == WEIGHT_INT8;
    const int32_t rows = int8 ? twin_rows(MANY_ROWS) : ROWS;
    hidden = twin_width(hidden);
    struct test_case c = {.name = name, .run = run_expert, .n = inner, .k = hidden, .block = block, .flag = shared};
    int32_t active = shared ? 1 : ACTIVE;
    c.rows = rows;
    c.format = int8 ? ACT_I8 : ACT_Q8;
    c.in[0] = twin_codes((int64_t)rows * hidden, !int8);
    c.in[1] = int8 ? twin_f32(rows, 0.02f) : twin_scales((int64_t)rows * hidden / block, 112, 4);
    c.in[2] = twin_room((size_t)rows * ACTIVE * 4);
    for (int i = 0; i < rows * ACTIVE; i++)
        ((int32_t *)(void *)c.in[2]->host)[i] =
            (int32_t)((dice_next(&twins.dice) % 2 + 2 * (uint32_t)(i % ACTIVE)) % EXPERTS);
    twin_send(c.in[2]);
    c.in[3] = twin_f32(rows * ACTIVE, 1);
    c.w[0] = twins.n_weights;
    for (int e = 0; e < EXPERTS; e++) {
        int32_t tile = format == WEIGHT_FP8 ? block : 32;
        twin_weight(format, inner, hidden, tile, 1);
        twin_weight(format, hidden, inner, tile, 8);
        twin_weight(format, inner, hidden, tile, 1);
    }
    size_t bytes = (size_t)hidden * 2 * (size_t)active;
    c.out[0] = (struct output){twin_room((size_t)rows * bytes), bytes, int8 ? KIND_BITS : KIND_BF16, 0.02};
    check_case(&c);
}

/* ---- the tests ---- */

static void products_keep_a_row_and_stay_near_the_reference(void **state)
{
    (void)state;
    linear_case("wq_b FP8 tile 32", WEIGHT_FP8, 272, 1280, 32, 1, 1, ACT_Q8, KIND_BF16, 0.006);
    linear_case("shared FP8 tile 32", WEIGHT_FP8, 100, 5120, 32, 1, 1, ACT_Q8, KIND_F32, 2e-5);
    linear_case("wo_b FP8 tile 128", WEIGHT_FP8, 256, 8192, 128, 8, 1, ACT_Q8, KIND_F32, 2e-5);
    linear_case("gate FP4", WEIGHT_FP4, 128, 5120, 32, 1, 1, ACT_Q8, KIND_F32, 2e-5);
    linear_case("down FP4", WEIGHT_FP4, 144, 2304, 32, 8, 1, ACT_Q8, KIND_F32, 2e-5);
    linear_case("FP4 with blocks of 128", WEIGHT_FP4, 64, 4096, 128, 1, 1, ACT_Q8, KIND_F32, 2e-5);
    linear_case("head BF16", WEIGHT_BF16, 200, 5120, 0, 1, 1, ACT_BF16, KIND_F32, 2e-5);
    linear_case("odd BF16", WEIGHT_BF16, 13, 77, 0, 1, 1, ACT_BF16, KIND_F32, 2e-5);
    linear_case("wo_a FP8 in groups", WEIGHT_FP8, 8 * 32, 4096, 32, 1, 8, ACT_BF16, KIND_BF16, 0.006);
    linear_case("F32", WEIGHT_F32, 64, 4096, 0, 1, 1, ACT_F32, KIND_F32, 1e-6);
}

static void experts_keep_a_row_and_stay_near_the_reference(void **state)
{
    (void)state;
    expert_case("routed FP4 of V4.1", WEIGHT_FP4, 5120, 576, 32, false);
    expert_case("routed FP4 of V4-Flash", WEIGHT_FP4, 4096, 512, 128, false);
    expert_case("shared FP8", WEIGHT_FP8, 5120, 288, 32, true);
}

/* Widths that the product of many rows takes. */
static void shared_experts_of_many_rows_keep_a_row(void **state)
{
    (void)state;
    expert_case("shared FP8, 320 inner columns", WEIGHT_FP8, 1024, 320, 32, true);
    expert_case("shared FP8, tile 128", WEIGHT_FP8, 1024, 384, 128, true);
}

/* An INT8 linear of so many rows, in blocks of so many columns. */
static void int8_case(const char *name, int32_t n, int32_t k, int32_t block, int32_t splits, int32_t groups, int32_t parts,
                      int32_t rows)
{
    const int64_t cols = (int64_t)k * (groups > 1 ? groups : 1) * parts;
    const size_t bytes = (size_t)n * (size_t)parts * 4;
    struct test_case c = {.name = name, .run = run_linear, .n = n, .k = k, .groups = groups, .dim = parts, .block = block,
                          .rows = rows, .format = ACT_I8};
    c.in[0] = twin_codes(rows * cols, false);
    c.in[1] = twin_f32(rows * cols / block, 0.02f);
    c.w[0] = twin_weight(WEIGHT_INT8, n, k, 0, splits);
    c.out[0] = (struct output){twin_room((size_t)rows * bytes), bytes, KIND_BITS, 0};
    check_case(&c);
}

static void int8_products_have_the_bits_of_the_reference(void **state)
{
    (void)state;
    int8_case("wq_b", 520, 1024, 1024, 1, 1, 1, MANY_ROWS);
    int8_case("wq_b of few rows, wide", 17032, 256, 256, 1, 1, 1, ROWS);
    int8_case("wo_b, 8 groups' scales", 520, 2048, 256, 8, 1, 1, MANY_ROWS);
    int8_case("wo_b, 16 groups' scales", 264, 2048, 128, 8, 1, 1, ROWS);
    int8_case("2 scales, 8 splits", 520, 512, 256, 8, 1, 1, MANY_ROWS);
    int8_case("4 streams of one row", 520, 512, 512, 1, 1, 4, 1024);
    int8_case("groups of 40 rows", 8 * 40, 384, 384, 1, 8, 1, 2304);
}

static void int8_products_of_odd_shapes_have_the_bits_of_the_reference(void **state)
{
    (void)state;
    int8_case("77 columns", 13, 77, 77, 1, 1, 1, ROWS);
    int8_case("3 scales, 1 split", 64, 96, 32, 1, 1, 1, ROWS);
    int8_case("24 scales, 8 splits", 64, 768, 32, 8, 1, 1, ROWS);
    int8_case("16 scales, 1 split", 64, 512, 32, 1, 1, 1, ROWS);
    int8_case("scales of 24 columns", 64, 192, 24, 8, 1, 1, ROWS);
}

static void int8_experts_have_the_bits_of_the_reference(void **state)
{
    (void)state;
    expert_case("routed INT8", WEIGHT_INT8, 512, 384, 512, false);
    expert_case("shared INT8", WEIGHT_INT8, 512, 384, 512, true);
}

static void int8_experts_of_odd_shapes_have_the_bits_of_the_reference(void **state)
{
    (void)state;
    expert_case("routed INT8, 80 inner columns", WEIGHT_INT8, 96, 80, 96, false);
    expert_case("shared INT8, 160 inner columns", WEIGHT_INT8, 96, 160, 96, true);
}

/* A product of many rows, in groups, FP8 in tiles of so many columns. */
struct many {
    enum weight_format format;
    enum act_format in;
    int32_t n, k, tile, groups, rows;
};

/* Rows and columns enough for the product of many rows, against the same rows among few. */
static void check_many(const struct many *m)
{
    enum { SOME = 6 };
    const int32_t firsts[] = {0, m->rows / 2 - 3, m->rows - SOME}, cols = m->k * m->groups;
    size_t row_bytes = (size_t)m->n * 4, bytes = (size_t)m->rows * row_bytes;
    const bool q8 = m->in == ACT_Q8;
    struct buffer *x = q8 ? twin_codes((int64_t)m->rows * cols, true) : twin_bf16((int64_t)m->rows * cols, 1);
    struct buffer *scale = q8 ? twin_scales((int64_t)m->rows * cols / m->tile, 112, 8) : NULL, *index = twin_room(SOME * 4);
    struct buffer *all = twin_room(bytes), *some = twin_room(bytes);
    struct op_linear op = {.rows = {NULL, m->rows},
                           .in = twin_act(m->in, x, scale, cols, m->tile, GPU),
                           .weight = twin_weight_of(GPU, twin_weight(m->format, m->n, m->k, m->tile, 1)),
                           .groups = m->groups,
                           .out = twin_act(ACT_F32, all, NULL, m->n, 0, GPU)};
    MUST(twins.gpu->linear(twins.gpu, &op, err));
    MUST(twins.gpu->download(twins.gpu, all->host, all->device, (int64_t)all->bytes, err));
    op.out = twin_act(ACT_F32, some, NULL, m->n, 0, GPU);
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        op.rows = twin_list(index, firsts[i], SOME);
        MUST(twins.gpu->linear(twins.gpu, &op, err));
        MUST(twins.gpu->download(twins.gpu, some->host, some->device, (int64_t)some->bytes, err));
        MUST(twins.gpu->fence(twins.gpu, err));
        size_t at = (size_t)firsts[i] * row_bytes;
        assert_memory_equal(some->host + at, all->host + at, SOME * row_bytes);
    }
    twins_release(NULL); /* memcheck knows no copy from two chunks of the weights' range */
}

static void a_row_among_thousands_is_that_row_among_few(void **state)
{
    static const struct many kinds[] = {
        {WEIGHT_FP8, ACT_Q8, .tile = 32}, {WEIGHT_FP4, ACT_Q8, .tile = 32}, {WEIGHT_BF16, ACT_BF16, .tile = 32}};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) { /* blocks of 128, 64 and 32 rows */
        struct many m = kinds[i];
        m.k = 320;
        m.groups = 1;
        m.n = 520, m.rows = 2300;
        check_many(&m);
        m.n = 17032, m.rows = 50;
        check_many(&m);
        m.rows = 20;
        check_many(&m);
    }
}

static void a_row_among_thousands_keeps_its_bits_in_tiles_of_128_and_in_groups(void **state)
{
    static const struct many kinds[] = {{WEIGHT_FP8, ACT_Q8, 520, 1152, 128, 1, 2300},
                                        {WEIGHT_FP8, ACT_BF16, 8 * 40, 320, 32, 8, 2300},
                                        {WEIGHT_FP8, ACT_BF16, 8 * 128, 256, 128, 8, 1100},
                                        {WEIGHT_BF16, ACT_BF16, 8 * 40, 320, 32, 8, 2300}};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        check_many(&kinds[i]);
}

static void a_code_that_is_no_number_is_refused_by_name_and_place(void **state)
{
    (void)state;
    static uint8_t values[64 * 640], scales[2 * 20];
    struct weight_spec spec = {.name = "layers.3.attn.wkv", .format = WEIGHT_FP8, .n = 64, .k = 640, .tile = 32,
                               .values = values, .scales = scales};
    struct weight *w;
    qr_error err = {0};
    memset(scales, 120, sizeof scales);
    MUST(twins.gpu->prepare_weight(twins.gpu, &spec, &w, err));
    twins.gpu->release_weight(twins.gpu, w);
    values[63 * 640 + 639] = 0xFF;
    assert_int_equal(twins.gpu->prepare_weight(twins.gpu, &spec, &w, &err), QR_BAD_FILE);
    assert_non_null(strstr(err.message, "layers.3.attn.wkv: value [63][639] is the E4M3 code 0xFF (NaN)"));
}

/* An argument: a pattern of the names of the tests to run. */
int main(int argc, char **argv)
{
    const int missing = twins_find();
    if (missing)
        return missing;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(products_keep_a_row_and_stay_near_the_reference, twins_release),
        cmocka_unit_test_teardown(a_row_among_thousands_is_that_row_among_few, twins_release),
        cmocka_unit_test_teardown(a_row_among_thousands_keeps_its_bits_in_tiles_of_128_and_in_groups, twins_release),
        cmocka_unit_test_teardown(experts_keep_a_row_and_stay_near_the_reference, twins_release),
        cmocka_unit_test_teardown(shared_experts_of_many_rows_keep_a_row, twins_release),
        cmocka_unit_test_teardown(int8_products_have_the_bits_of_the_reference, twins_release),
        cmocka_unit_test_teardown(int8_products_of_odd_shapes_have_the_bits_of_the_reference, twins_release),
        cmocka_unit_test_teardown(int8_experts_have_the_bits_of_the_reference, twins_release),
        cmocka_unit_test_teardown(int8_experts_of_odd_shapes_have_the_bits_of_the_reference, twins_release),
        cmocka_unit_test_teardown(a_code_that_is_no_number_is_refused_by_name_and_place, twins_release),
    };
    return cmocka_run_group_tests(tests, twins_open, NULL);
}
