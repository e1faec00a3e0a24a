/* The CUDA operators at released widths but for the products, on device memory: a row's bits are the same alone, among few and
 * among many rows, and its values are the reference's up to the order of sums. Without a device: a visible skip. */
#include "support/twins.h"

enum { ACTIVE = 3 };

CASE(mix)
{
    RUN_ON(mhc_mix, .x = {ACT_BF16, 4, c->k, IN(0)}, .fn = twin_weight_of(side, c->w[0]), .base = IN(1), .scale = IN(2),
           .norm_eps = 1e-6f, .hc_eps = 1e-6f, .iterations = 20, .pre = OUT(0), .post = OUT(1), .comb = OUT(2));
}

CASE(collapse)
{
    RUN_ON(collapse, .x = {ACT_BF16, 4, c->k, IN(0)}, .pre = IN(1), .norm = IN(2), .norm_eps = 1e-6f,
           .normed = twin_act(ACT_BF16, c->out[0].buffer, NULL, c->k, 0, side),
           .quantized = twin_act(ACT_Q8, c->out[1].buffer, c->out[2].buffer, c->k, 32, side));
}

/* Everything between two sub-blocks in one list, which a device may join: the streams (output 0) start as in[9]. */
CASE(between)
{
    struct backend *b = backend_of(side);
    const struct streams x = {ACT_BF16, 4, c->k, OUT(0)};
    const struct op_combine sum = {.rows = rows, .idx = IN(3), .active = ACTIVE, .hidden = c->k, .routed = IN(4),
                                   .shared = IN(5), .out = IN(6)};
    const struct op_expand expand = {.rows = rows, .y = IN(6), .post = IN(7), .comb = IN(8), .x = x};
    const struct op_mhc_mix mix = {.rows = rows, .x = x, .fn = twin_weight_of(side, c->w[0]), .base = IN(0), .scale = IN(1),
                                   .norm_eps = 1e-6f, .hc_eps = 1e-6f, .iterations = 20, .pre = OUT(1), .post = IN(10),
                                   .comb = OUT(2)};
    if (side == GPU)
        MUST(b->upload(b, OUT(0), c->in[9]->host, (int64_t)c->in[9]->bytes, err));
    else
        memcpy(OUT(0), c->in[9]->host, c->in[9]->bytes);
    MUST(b->combine(b, &sum, err));
    MUST(b->expand(b, &expand, err));
    MUST(b->mhc_mix(b, &mix, err));
    RUN_ON(collapse, .x = x, .pre = OUT(1), .norm = IN(2), .norm_eps = 1e-6f,
           .normed = twin_act(ACT_BF16, c->out[3].buffer, NULL, c->k, 0, side));
}

CASE(norm)
{
    RUN_ON(norm, .in = twin_act(ACT_BF16, c->in[0], NULL, c->k, 0, side), .weight = IN(2), .eps = 1e-6f,
           .out = twin_act(ACT_BF16, c->out[0].buffer, NULL, c->k, 0, side),
           .quantized = twin_act(ACT_Q8, c->out[1].buffer, c->out[2].buffer, c->k, 128, side));
}

CASE(query)
{
    RUN_ON(query, STEP, .heads = c->heads, .head_dim = c->dim, .norm = QUERY_NORM_BF16, .eps = 1e-6f,
           .rope = test_rope(64), .in = twin_act(ACT_BF16, c->in[0], NULL, c->heads * c->dim, 0, side),
           .out = twin_act(ACT_BF16, c->out[0].buffer, NULL, c->heads * c->dim, 0, side));
}

CASE(window_key)
{
    RUN_ON(window_key, STEP, .in = twin_act(ACT_BF16, c->in[0], NULL, c->dim, 0, side), .norm = IN(1), .eps = 1e-6f,
           .rope = test_rope(64), .grid = GRID_FP8_ALL, .out = OUT(0),
           .packed = twin_act(ACT_Q8, c->out[1].buffer, c->out[2].buffer, c->dim, 32, side));
}

CASE(route)
{
    RUN_ON(route, STEP, .x = twin_act(ACT_BF16, c->in[0], NULL, c->k, 0, side), .gate = twin_weight_of(side, c->w[0]),
           .bias = IN(1), .experts = c->n, .active = 6, .normalise = true, .scaling = 1.5f, .denominator_eps = 1e-20f,
           .idx = OUT(0), .weight = OUT(1));
}

static struct row_plane plane_on(const struct test_case *c, int values, int scale, enum row_format format, int32_t v,
                                 int32_t s, int32_t per_block, enum side side)
{
    return (struct row_plane){.format = format,
                              .rows_per_block = per_block,
                              .tile_rows = per_block,
                              .values = IN(values),
                              .scales = IN(scale),
                              .value_row_stride = v,
                              .value_tile_stride = (int64_t)v * per_block,
                              .value_block_stride = (int64_t)v * per_block,
                              .scale_row_stride = s,
                              .scale_tile_stride = (int64_t)s * per_block,
                              .scale_block_stride = (int64_t)s * per_block};
}

/* flag: every visible row instead of those chosen. */
static struct op_attend attention_of(const struct test_case *c, enum side side, struct row_list rows, void *out)
{
    struct ring_plane ring = {.format = ROW_FP8_E8M0,
                              .rows = 128,
                              .values = IN(1),
                              .scales = IN(2),
                              .slot_stride = 128 * (int64_t)c->dim,
                              .value_row_stride = c->dim,
                              .scale_row_stride = c->dim / 32};
    return (struct op_attend){
        .rows = rows, STEP, .heads = c->heads, .head_dim = c->dim, .window_size = 128, .block = 64, .ratio = RATIO,
        .scale = 1 / sqrtf((float)c->dim), .q = IN(0), .fresh = IN(3), .key_from = IN(4), .ring = ring,
        .has_plane = true,
        .plane = plane_on(c, 5, 6, ROW_FP4_E4M3, c->dim / 2, c->dim / 16, BLOCK_TOKENS / RATIO, side),
        .selected = c->flag ? NULL : IN(7), .selected_stride = TOPK, .selected_count = IN(8), .sinks = IN(9),
        .out = {.format = ACT_BF16, .cols = c->heads * c->dim, .codes = out}};
}

CASE(attend)
{
    const struct op_attend op = attention_of(c, side, rows, OUT(0));
    MUST(backend_of(side)->attend(backend_of(side), &op, err));
    MUST(backend_of(side)->fence(backend_of(side), err));
}

/* In one list, which a device may join. */
CASE(attend_turned)
{
    const struct op_attend op = attention_of(c, side, rows, IN(10));
    MUST(backend_of(side)->attend(backend_of(side), &op, err));
    RUN_ON(unrotate, STEP, .heads = c->heads, .head_dim = c->dim, .rope = test_rope(64), .in = op.out,
           .out = twin_act(ACT_BF16, c->out[0].buffer, NULL, c->heads * c->dim, 0, side));
}

CASE(select)
{
    RUN_ON(index_select, STEP, .heads = c->heads, .dim = c->dim, .ratio = RATIO, .topk = TOPK,
           .query = twin_act(ACT_BF16, c->in[0], NULL, c->heads * c->dim, 0, side), .weights = IN(1),
           .order = c->flag ? SELECTION_BY_SCORE : SELECTION_ASCENDING,
           .plane = plane_on(c, 2, 3, ROW_INDEX_FP4, c->dim / 2, c->dim / 32, BLOCK_TOKENS / RATIO, side),
           .make_candidates = true, .block_size = 8, .topk_blocks = 96, .candidates = OUT(2), .candidate_count = IN(4),
           .selected = OUT(0), .selected_count = IN(5), .scores = OUT(1), .score_stride = CONTEXT / RATIO);
}

/* ---- the tests ---- */

static void small_operators_keep_a_row_and_stay_near_the_reference(void **state)
{
    (void)state;
    enum { HEADS = 16, DIM = 512 };
    const int32_t D = twins_are_short() ? 2048 : 5120; /* the streams are also 16 heads of 512 */
    struct buffer *streams = twin_bf16((int64_t)ROWS * 4 * D, 1), *norm = twin_bf16(D, 1);
    struct test_case mixing = {
        .name = "mhc_mix", .run = run_mix, .k = D, .in = {streams, twin_f32(24, 1), twin_f32(3, 1)}};
    mixing.w[0] = twin_weight(WEIGHT_F32, 24, 4 * D, 0, 1);
    mixing.out[0] = (struct output){twin_room(ROWS * 16), 16, KIND_F32, 1e-4};
    mixing.out[1] = (struct output){twin_room(ROWS * 16), 16, KIND_F32, 1e-4};
    mixing.out[2] = (struct output){twin_room(ROWS * 64), 64, KIND_F32, 1e-4};
    check_case(&mixing);

    struct test_case all = {.name = "between", .run = run_between, .k = D, .w = {mixing.w[0]}};
    struct buffer *idx = twin_room(ROWS * ACTIVE * 4);
    for (int i = 0; i < ROWS * ACTIVE; i++)
        ((int32_t *)(void *)idx->host)[i] = (int32_t)(dice_next(&twins.dice) % 7);
    twin_send(idx);
    struct buffer *const in[] = {mixing.in[1], mixing.in[2], norm, idx, twin_bf16((int64_t)ROWS * ACTIVE * D, 1),
                                 twin_bf16(ROWS * D, 1), twin_room(ROWS * D * 2), twin_f32(ROWS * 4, 1),
                                 twin_f32(ROWS * 16, 0.5f), streams, twin_room(ROWS * 16)};
    memcpy(all.in, in, sizeof in);
    all.out[0] = (struct output){twin_room((size_t)ROWS * 4 * D * 2), 4 * D * 2, KIND_BF16, 0.01};
    all.out[1] = mixing.out[0];
    all.out[2] = mixing.out[2];
    all.out[3] = (struct output){twin_room((size_t)ROWS * D * 2), D * 2, KIND_BF16, 0.01};
    check_case(&all);

    struct test_case c = {
        .name = "collapse", .run = run_collapse, .k = D, .in = {streams, twin_f32(ROWS * 4, 1), norm}};
    c.out[0] = (struct output){twin_room(ROWS * D * 2), D * 2, KIND_BYTES, 0};
    c.out[1] = (struct output){twin_room(ROWS * D), D, KIND_BYTES, 0};
    c.out[2] = (struct output){twin_room(ROWS * D / 32), D / 32, KIND_BYTES, 0};
    check_case(&c);
    c.name = "norm";
    c.run = run_norm;
    c.out[2].bytes = D / 128;
    check_case(&c);

    struct test_case q = {.name = "query", .run = run_query, .heads = HEADS, .dim = DIM, .in = {streams}};
    q.out[0] = (struct output){twin_room(ROWS * HEADS * DIM * 2), HEADS * DIM * 2, KIND_BYTES, 0};
    check_case(&q);

    struct test_case key = {.name = "window_key", .run = run_window_key, .dim = DIM, .in = {streams, norm}};
    key.out[0] = (struct output){twin_room(ROWS * DIM * 2), DIM * 2, KIND_BYTES, 0};
    key.out[1] = (struct output){twin_room(ROWS * DIM), DIM, KIND_BYTES, 0};
    key.out[2] = (struct output){twin_room(ROWS * DIM / 32), DIM / 32, KIND_BYTES, 0};
    check_case(&key);

    struct test_case r = {.name = "route", .run = run_route, .k = D, .n = 384, .in = {streams, twin_f32(384, 0.1f)}};
    r.w[0] = twin_weight(WEIGHT_BF16, 384, D, 0, 1);
    r.out[0] = (struct output){twin_room(ROWS * 24), 24, KIND_IDS, 0};
    r.out[1] = (struct output){twin_room(ROWS * 24), 24, KIND_F32, 1e-4};
    check_case(&r);
}

/* Attention of `heads` of `dim` channels. */
static void attention_case(const char *name, void (*run)(const struct test_case *, enum side, struct row_list),
                           int32_t heads, int32_t dim, bool all)
{
    struct test_case c = {.name = name, .run = run, .heads = heads, .dim = dim, .flag = all, .rows = twins_are_short() ? 16 : ROWS};
    c.in[0] = twin_bf16((int64_t)ROWS * heads * dim, 1);
    c.in[1] = twin_codes(128 * dim, true);
    c.in[2] = twin_scales(128 * dim, 118, 3);
    c.in[3] = twin_bf16((int64_t)ROWS * dim, 1);
    c.in[4] = twin_room(4);
    *(int32_t *)(void *)c.in[4]->host = CONTEXT - ROWS;
    twin_send(c.in[4]);
    c.in[5] = twin_codes((int64_t)CONTEXT / RATIO * dim / 2, false);
    c.in[6] = twin_scales((int64_t)CONTEXT / RATIO * dim / 16, 0x28, 16);
    c.in[7] = twin_room(ROWS * TOPK * 4);
    c.in[8] = twin_room(ROWS * 4);
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < TOPK; i++)
            ((int32_t *)(void *)c.in[7]->host)[row * TOPK + i] = i % 31 == row % 31 ? -1 : i + row % 3;
        ((int32_t *)(void *)c.in[8]->host)[row] = TOPK - row % 7;
    }
    twin_send(c.in[7]);
    twin_send(c.in[8]);
    c.in[9] = twin_f32(heads, 1);
    c.in[10] = twin_room((size_t)ROWS * (size_t)(heads * dim) * 2);
    c.out[0] = (struct output){twin_room((size_t)ROWS * (size_t)(heads * dim) * 2), (size_t)(heads * dim) * 2, KIND_BF16, 0.01};
    check_case(&c);
}

static void attention_keeps_a_row_and_stays_near_the_reference(void **state)
{
    (void)state;
    attention_case("attend", run_attend, 64, 512, false);
    attention_case("attend, every visible row", run_attend, 128, 512, true);
    attention_case("attend, some heads, turned back", run_attend_turned, 40, 512, false);
    attention_case("attend, small heads, turned back", run_attend_turned, 4, 128, true);
}

static void selections_keep_a_row_and_stay_near_the_reference(void **state)
{
    (void)state;
    enum { HEADS = 64, DIM = 128 };
    struct test_case c = {.name = "index_select", .run = run_select, .heads = HEADS, .dim = DIM};
    c.in[0] = twin_bf16((int64_t)ROWS * HEADS * DIM, 1);
    c.in[1] = twin_f32(ROWS * HEADS, 1);
    c.in[2] = twin_codes((int64_t)CONTEXT / RATIO * DIM / 2, false);
    c.in[3] = twin_scales((int64_t)CONTEXT / RATIO * DIM / 32, 120, 4);
    c.in[4] = twin_room(ROWS * 4);
    c.in[5] = twin_room(ROWS * 4);
    c.out[0] = (struct output){twin_room(ROWS * TOPK * 4), TOPK * 4, KIND_IDS, 0};
    c.out[1] = (struct output){twin_room((size_t)ROWS * CONTEXT / RATIO * 4), CONTEXT / RATIO * 4, KIND_F32, 1e-5};
    c.out[2] = (struct output){twin_room(ROWS * 96 * 4), 96 * 4, KIND_IDS, 0};
    check_case(&c);
    c.flag = true;
    c.name = "index_select by score";
    check_case(&c);
}

static void a_nan_stays_one_through_the_quantizers(void **state)
{
    (void)state;
    enum { COLS = 256 };
    struct buffer *in = twin_bf16(ROWS * COLS, 1), *out = twin_room(ROWS * COLS), *scale = twin_room(ROWS * COLS / 32 * 4);
    for (int row = 0; row < ROWS; row++)
        ((uint16_t *)(void *)in->host)[row * COLS + row % COLS] = row % 2 ? 0x7FC0 : 0xFFC0;
    twin_send(in);
    struct op_quantize op = {.rows = {.count = ROWS},
                             .in = {.format = ACT_BF16, .cols = COLS, .codes = in->device},
                             .out = {.format = ACT_Q8, .cols = COLS, .block = 32, .codes = out->device, .scales = scale->device}};
    MUST(twins.gpu->quantize(twins.gpu, &op, err));
    MUST(twins.gpu->download(twins.gpu, out->host, out->device, (int64_t)out->bytes, err));
    MUST(twins.gpu->fence(twins.gpu, err));
    for (int row = 0; row < ROWS; row++)
        assert_int_equal(out->host[row * COLS + row % COLS] & 0x7F, 0x7F);
    op.out.format = ACT_I8;
    op.out.block = COLS;
    MUST(twins.gpu->quantize(twins.gpu, &op, err));
    MUST(twins.gpu->download(twins.gpu, scale->host, scale->device, (int64_t)scale->bytes, err));
    MUST(twins.gpu->fence(twins.gpu, err));
    for (int row = 0; row < ROWS; row++)
        assert_true(isnan(((const float *)(const void *)scale->host)[row]));
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
        cmocka_unit_test_teardown(small_operators_keep_a_row_and_stay_near_the_reference, twins_release),
        cmocka_unit_test_teardown(attention_keeps_a_row_and_stays_near_the_reference, twins_release),
        cmocka_unit_test_teardown(selections_keep_a_row_and_stay_near_the_reference, twins_release),
        cmocka_unit_test_teardown(a_nan_stays_one_through_the_quantizers, twins_release),
    };
    return cmocka_run_group_tests(tests, twins_open, NULL);
}
