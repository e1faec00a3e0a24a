/* Compressed rows: goldens 07 to 09 and 29 to 31 of golden/ops4, the vectors of v4-model.md 13.1, and the law that a
 * member's source (this forward or the tail) changes nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "support/golden.h"
#include "support/ops.h"

#define BAD(share, n) ((int64_t)llround((share) * (double)(n)))

/* v4-model.md 13.1 "Compressor pool". */
static void one_channel_pools_to_the_worked_scalars(void **state)
{
    (void)state;
    const float score[4] = {0, 1, 0, -1};
    float values[16] = {0}, scores[16] = {0}, out[8];
    const int32_t from[1] = {0}, list[2] = {3, 7};
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 8, 0);
    for (int i = 0; i < 4; i++) { /* [row][first half, second half] */
        values[2 * i] = values[2 * i + 1] = (float)(i + 1);
        scores[2 * i] = scores[2 * i + 1] = score[i];
        values[2 * (4 + i) + 1] = (float)(10 * (i + 1));
    }
    RUN(&o, compress, .rows = {list, 2}, .step = &r.step, .from = from, .kind = COMPRESSOR_OVERLAP, .ratio = 4,
        .width = 1, .values = values, .scores = scores, .out = f32_rows(out, 1));
    const float want[2] = {2.144659f, 12.206264f};
    assert_close("first", &out[3], &want[0], 1, 1e-6, 1e-6, 0);
    assert_close("second", &out[7], &want[1], 1, 1e-6, 1e-6, 0);
    one_request_free(&r);
    ops_close(&o);
}

/* v41-model.md 5.3 by its formula. */
static void a_pair_is_a_softmax_of_two_in_each_channel(void **state)
{
    (void)state;
    enum { N = 16 };
    struct dice d = {21};
    float a[2 * N], g[2 * N];
    uint16_t out[2 * N];
    const int32_t from[1] = {0}, list[1] = {1};
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 6, 2, 0);
    dice_f32(&d, a, 2 * N, 1);
    dice_f32(&d, g, 2 * N, 3);
    g[0] = 300; /* beyond expf without the maximum taken off */
    RUN(&o, compress, .rows = {list, 1}, .step = &r.step, .from = from, .kind = COMPRESSOR_PAIR, .ratio = 2, .width = N,
        .values = a, .scores = g, .out = bf16_rows(out, N));
    for (int c = 0; c < N; c++) {
        float m = fmaxf(g[c], g[N + c]), e0 = expf(g[c] - m), e1 = expf(g[N + c] - m);
        double z = (double)a[c] * (e0 / (e0 + e1)) + (double)a[N + c] * (e1 / (e0 + e1));
        assert_int_equal(out[N + c], bf16_encode((float)z));
    }
    one_request_free(&r);
    ops_close(&o);
}

/* One pass over `total` positions against two with a cut: the second takes the earlier members from the tail. */
static void check_cut(struct ops *o, enum compressor kind, int32_t ratio, int32_t tail_rows, int32_t total, int32_t cut)
{
    enum { WIDTH = 8 };
    int32_t cols = kind == COMPRESSOR_OVERLAP ? 2 * WIDTH : WIDTH, n = 0;
    struct dice d = {22};
    float *values = malloc((size_t)(total * cols) * 4), *scores = malloc((size_t)(total * cols) * 4);
    float *whole = calloc((size_t)(total * WIDTH), 4), *second = calloc((size_t)(total * WIDTH), 4);
    int32_t *list = malloc((size_t)total * 4), from[1] = {0};
    struct ring_plane tail = ops_tail(cols, tail_rows, 2);
    struct one_request r, before, after;

    dice_f32(&d, values, total * cols, 1);
    dice_f32(&d, scores, total * cols, 2);
    one_request_make(&r, 0, total, 0);
    for (int32_t p = ratio - 1; p < total; p += ratio)
        list[n++] = p;
    RUN(o, compress, .rows = {list, n}, .step = &r.step, .from = from, .kind = kind, .ratio = ratio, .width = WIDTH,
        .values = values, .scores = scores, .tail = tail, .out = f32_rows(whole, WIDTH));

    one_request_make(&before, 0, cut, 0);
    before.slot[0] = 1;
    int32_t kept[512], k = 0; /* the ring keeps the last rows of a span */
    for (int32_t p = cut > tail_rows ? cut - tail_rows : 0; p < cut; p++)
        kept[k++] = p;
    RUN(o, tail_write, .rows = {kept, k}, .step = &before.step, .values = values, .scores = scores, .cols = cols,
        .tail = tail);

    one_request_make(&after, cut, total - cut, 0);
    after.slot[0] = 1;
    from[0] = cut;
    n = 0;
    for (int32_t p = cut; p < total; p++)
        if ((p + 1) % ratio == 0)
            list[n++] = p - cut;
    RUN(o, compress, .rows = {list, n}, .step = &after.step, .from = from, .kind = kind, .ratio = ratio, .width = WIDTH,
        .values = values + cut * cols, .scores = scores + cut * cols, .tail = tail, .out = f32_rows(second, WIDTH));
    for (int32_t i = 0; i < n; i++)
        assert_memory_equal(second + list[i] * WIDTH, whole + (list[i] + cut) * WIDTH, WIDTH * 4);
    free(values), free(scores), free(whole), free(second), free(list);
    ops_free_ring(&tail);
    one_request_free(&r), one_request_free(&before), one_request_free(&after);
}

static void members_from_the_tail_equal_members_of_this_forward(void **state)
{
    (void)state;
    struct ops o;
    ops_open(&o, "reference", 1);
    for (int32_t cut = 1; cut < 20; cut++) {
        check_cut(&o, COMPRESSOR_PAIR, 2, 2, 20, cut);
        check_cut(&o, COMPRESSOR_PAIR, 2, 7, 20, cut);
        check_cut(&o, COMPRESSOR_OVERLAP, 4, 8, 20, cut);
        check_cut(&o, COMPRESSOR_OVERLAP, 4, 13, 20, cut);
        check_cut(&o, COMPRESSOR_PLAIN, 5, 5, 20, cut);
    }
    check_cut(&o, COMPRESSOR_PLAIN, 128, 128, 300, 131);
    check_cut(&o, COMPRESSOR_PLAIN, 128, 128, 300, 255);
    ops_close(&o);
}

static void a_row_that_ends_no_group_is_refused(void **state)
{
    (void)state;
    float x[4] = {0};
    const int32_t from[1] = {0};
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 1, 0);
    struct op_compress op = {.rows = first_rows(1),
                             .step = &r.step,
                             .from = from,
                             .kind = COMPRESSOR_PAIR,
                             .ratio = 2,
                             .width = 1,
                             .values = x,
                             .scores = x,
                             .out = f32_rows(x, 1)};
    assert_int_equal(o.b->compress(o.b, &op, NULL), QR_BAD_ARGUMENT);
    one_request_free(&r);
    ops_close(&o);
}

static void rows_that_end_no_group_are_passed_over_in_a_padded_list(void **state)
{
    (void)state;
    enum { ROWS = 6, WIDTH = 16 };
    float x[ROWS * WIDTH], exact[ROWS * WIDTH], padded[ROWS * WIDTH];
    static const int32_t ends[] = {1, 3, 5}, every[] = {5, 4, 3, 2, 1, 0}, from[1] = {0}; /* a group's end first */
    struct one_request r;
    struct ops o;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, ROWS, 1);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = (float)(i % 13) - 6;
        exact[i] = padded[i] = -99;
    }
    struct op_compress op = {.rows = {ends, 3}, .step = &r.step, .from = from, .kind = COMPRESSOR_PAIR, .ratio = 2,
                             .width = WIDTH, .values = x, .scores = x, .out = f32_rows(exact, WIDTH)};
    assert_int_equal(o.b->compress(o.b, &op, NULL), QR_OK);
    op.rows = (struct row_list){every, ROWS};
    op.out = f32_rows(padded, WIDTH);
    op.padded = true;
    assert_int_equal(o.b->compress(o.b, &op, NULL), QR_OK);
    assert_memory_equal(exact, padded, sizeof exact);

    struct row_plane plane = ops_plane(ROW_BF16, WIDTH, 4, 1), other = ops_plane(ROW_BF16, WIDTH, 4, 1);
    struct op_row_write write = {.rows = {ends, 3}, .step = &r.step, .ratio = 2, .in = f32_rows(exact, WIDTH),
                                 .grid = GRID_NONE, .plane = plane};
    assert_int_equal(o.b->row_write(o.b, &write, NULL), QR_OK);
    write.rows = (struct row_list){every, ROWS};
    write.plane = other;
    write.padded = true;
    assert_int_equal(o.b->row_write(o.b, &write, NULL), QR_OK);
    assert_memory_equal(plane.values, other.values, 4 * WIDTH * 2);
    ops_free_plane(&plane);
    ops_free_plane(&other);
    one_request_free(&r);
    ops_close(&o);
}

/* ---- goldens ---- */

/* What the files of one compressor have in common. */
struct compressor_case {
    struct golden *g;
    int32_t ratio, cols; /* 256 (overlap) or 128 */
    bool w8a8, index;
    float frequencies[32];
    struct rope_spec rope;
    struct weight *wkv, *wgate;
    const float *ape;
    const uint16_t *norm;
};

static void open_case(struct ops *o, struct compressor_case *c, const char *file, int32_t ratio, bool w8a8, bool index)
{
    *c = (struct compressor_case){
        .g = golden_open(file), .ratio = ratio, .cols = ratio == 4 ? 256 : 128, .w8a8 = w8a8, .index = index};
    c->rope = ops4_rope(c->frequencies, true, w8a8);
    c->wkv = ops_bf16(o, c->cols, 128, golden_bf16(c->g, w8a8 ? "in.wkv" : "in.wkv.weight", NULL));
    c->wgate = ops_bf16(o, c->cols, 128, golden_bf16(c->g, w8a8 ? "in.wgate" : "in.wgate.weight", NULL));
    c->ape = golden_f32(c->g, "in.ape", NULL);
    c->norm = golden_bf16(c->g, w8a8 ? "in.norm_w" : "in.norm.weight", NULL);
}

/* Projections, bias, pooling and the stored row of one request's span whose tail is filled. */
static void run_case(struct ops *o, const struct compressor_case *c, const struct one_request *r, const uint16_t *x,
                     struct row_list emit, struct ring_plane tail, struct activation *kv, struct activation *sc,
                     struct row_plane plane, uint16_t *values)
{
    struct row_list all = first_rows(r->step.rows);
    struct activation pooled = ops_rows(c->w8a8 ? ACT_F32 : ACT_BF16, r->step.rows, 128, 0);
    RUN(o, linear, .rows = all, .in = bf16_rows(x, 128), .weight = c->wkv, .out = *kv);
    RUN(o, linear, .rows = all, .in = bf16_rows(x, 128), .weight = c->wgate, .out = *sc);
    RUN(o, position_bias, .rows = all, .step = &r->step, .ape = c->ape, .ratio = c->ratio, .cols = c->cols,
        .scores = sc->codes);
    RUN(o, compress, .rows = emit, .step = &r->step, .from = r->first_position,
        .kind = c->ratio == 4 ? COMPRESSOR_OVERLAP : COMPRESSOR_PLAIN, .ratio = c->ratio, .width = 128,
        .values = kv->codes, .scores = sc->codes, .tail = tail, .out = pooled);
    RUN(o, row_write, .rows = emit, .step = &r->step, .ratio = c->ratio, .in = pooled, .norm = c->norm, .eps = 1e-6f,
        .rope = c->rope, .hadamard = c->index,
        .grid = c->index ? (c->w8a8 ? GRID_INT8 : GRID_FP4_E8M0) : (c->w8a8 ? GRID_NONE : GRID_FP8_NOPE),
        .plane = plane, .values_out = values);
    ops_free_rows(&pooled);
}

/* Goldens 29 to 31: one prefill from position 0. */
static void check_prefill(const char *file, int32_t ratio, bool w8a8, bool index)
{
    struct ops o;
    struct compressor_case c;
    struct one_request r;
    ops_open(&o, "reference", 2);
    open_case(&o, &c, file, ratio, w8a8, index);
    int32_t rows = (int32_t)golden_param(c.g, "T"), emitted = rows / ratio, *list = malloc((size_t)emitted * 4);
    struct activation kv = ops_rows(ACT_F32, rows, c.cols, 0), sc = ops_rows(ACT_F32, rows, c.cols, 0);
    struct row_plane plane = ops_plane(w8a8 && index ? ROW_INDEX_INT8 : ROW_BF16, 128, 2, 16);
    struct ring_plane none = {0};
    uint16_t *values = calloc((size_t)(rows * 128), 2);

    one_request_make(&r, 0, rows, 16);
    for (int32_t i = 0; i < emitted; i++)
        list[i] = (i + 1) * ratio - 1;
    run_case(&o, &c, &r, golden_bf16(c.g, "in.x", NULL), (struct row_list){list, emitted}, none, &kv, &sc, plane,
             values);

    if (w8a8 && index) {
        const float *codes = golden_f32(c.g, "out.kv", NULL);
        int64_t off = 0;
        for (int i = 0; i < emitted * 128; i++) {
            float miss = fabsf((float)(int8_t)plane.values[i] - codes[i]);
            assert_true(miss <= 1);
            off += miss > 0;
        }
        assert_true(off <= BAD(0.01, emitted * 128));
        assert_close("scale", (float *)(void *)plane.scales, golden_f32(c.g, "out.scale", NULL), emitted, 1e-4,
                     1 / 128.0, 0);
    } else {
        struct activation stored = bf16_rows(plane.values, 128);
        float *found = ops_values(&stored, emitted);
        assert_close("cmp_kv", found, golden_f32(c.g, "out.cmp_kv", NULL), emitted * 128, 1e-4, 1 / 128.0,
                     BAD(w8a8 ? 0 : 0.005, emitted * 128));
        free(found);
    }
    int32_t kept = ratio == 4 ? 8 : 4;
    const float *tail = golden_f32(c.g, "out.state_tail", NULL);
    for (int32_t i = 0; i < kept; i++) {
        int64_t row = rows - kept + i;
        assert_close("kv", (float *)kv.codes + row * c.cols, tail + i * 2 * c.cols, c.cols, 1e-3, 1e-3, 0);
        assert_close("score", (float *)sc.codes + row * c.cols, tail + i * 2 * c.cols + c.cols, c.cols, 1e-3, 1e-3, 0);
    }
    free(list);
    free(values);
    ops_free_rows(&kv);
    ops_free_rows(&sc);
    ops_free_plane(&plane);
    one_request_free(&r);
    golden_close(c.g);
    ops_close(&o);
}

static void prefilled_rows_equal_the_goldens(void **state)
{
    (void)state;
    check_prefill("tests/golden/ops4/29-prefill_compressor_ratio4-ref-a.safetensors", 4, false, false);
    check_prefill("tests/golden/ops4/29-prefill_compressor_ratio4-w8a8-a.safetensors", 4, true, false);
    check_prefill("tests/golden/ops4/30-prefill_compressor_ratio128-ref-a.safetensors", 128, false, false);
    check_prefill("tests/golden/ops4/30-prefill_compressor_ratio128-w8a8-a.safetensors", 128, true, false);
    check_prefill("tests/golden/ops4/31-prefill_indexer_compressor-ref-a.safetensors", 4, false, true);
    check_prefill("tests/golden/ops4/31-prefill_indexer_compressor-w8a8-a.safetensors", 4, true, true);
}

/* The pages of a golden's state pool as a ring of absolute positions; a missing page is value 0, score -inf. */
static void fill_tail(struct ring_plane *tail, const struct compressor_case *c, int32_t request, int32_t first_position)
{
    const struct tensor_view *table = golden_view(c->g, "in.state_table"), *pool = golden_view(c->g, "in.state");
    int32_t pages = (int32_t)table->shape[1], page_rows = (int32_t)pool->shape[1];
    const int32_t *page = golden_i32(c->g, "in.state_table", NULL) + request * pages;
    const float *state = golden_f32(c->g, "in.state", NULL);
    int32_t members = c->ratio == 4 ? 8 : 128;

    for (int32_t q = first_position - members < 0 ? 0 : first_position - members; q < first_position; q++) {
        int32_t at = q % (pages * page_rows), p = page[at / page_rows];
        float *value = (float *)(void *)(tail->values + q % tail->rows * tail->value_row_stride);
        float *score = (float *)(void *)(tail->scales + q % tail->rows * tail->scale_row_stride);
        const float *row = state + ((int64_t)p * page_rows + at % page_rows) * 2 * c->cols;
        for (int32_t i = 0; i < c->cols; i++) {
            value[i] = p < 0 ? 0 : row[i];
            score[i] = p < 0 ? -INFINITY : row[c->cols + i];
        }
    }
}

/* Goldens 07 to 09: two decode rows a request, earlier members in the state. */
static void check_decode(const char *file, int32_t ratio, bool index)
{
    struct ops o;
    struct compressor_case c;
    ops_open(&o, "reference", 1);
    open_case(&o, &c, file, ratio, true, index);
    int32_t requests = (int32_t)golden_view(c.g, "in.position_ids")->shape[0], seen = 0;
    const int32_t *positions = golden_i32(c.g, "in.position_ids", NULL);
    const float *kv_want = golden_f32(c.g, "out.kv", NULL), *state = golden_f32(c.g, "out.state_rows", NULL);
    const float *hadamard = index ? golden_f32(c.g, "out.kv_hadamard", NULL) : NULL;

    for (int32_t b = 0; b < requests; b++) {
        struct one_request r;
        struct activation kv = ops_rows(ACT_F32, 2, c.cols, 0), sc = ops_rows(ACT_F32, 2, c.cols, 0);
        struct ring_plane tail = ops_tail(c.cols, ratio == 4 ? 9 : 129, 1);
        struct row_plane plane = ops_plane(index ? ROW_INDEX_INT8 : ROW_BF16, 128, 1, 1);
        int32_t p = positions[2 * b], list[1], n = 0;
        uint16_t values[2 * 128];
        for (int i = 0; i < 2; i++)
            if ((p + i + 1) % ratio == 0)
                list[n++] = i;
        one_request_make(&r, p, 2, (p + 1) / ratio + 1); /* the emitted row's block is 0, whatever its number */
        for (int32_t i = 0; i <= (p + 1) / ratio; i++)
            r.table[i] = 0;
        fill_tail(&tail, &c, b, p);
        run_case(&o, &c, &r, golden_bf16(c.g, "in.x", NULL) + b * 256, (struct row_list){list, n}, tail, &kv, &sc,
                 plane, values);

        if (n && index) { /* what was quantized, within the step of the code */
            float scale;
            memcpy(&scale, plane.scales, 4);
            for (int i = 0; i < 128; i++)
                assert_true(fabsf((float)(int8_t)plane.values[i] * scale - hadamard[b * 128 + i]) <=
                            0.51f * scale + fabsf(hadamard[b * 128 + i]) / 128);
        } else if (n) {
            struct activation row = bf16_rows(values + list[0] * 128, 128);
            float *found = ops_values(&row, 1), want[128];
            for (int i = 0; i < 128; i++)
                want[i] = bf16_round(kv_want[b * 256 + i]);
            assert_close("row", found, want, 128, 1e-4, 1 / 128.0, 0);
            free(found);
        }
        seen += n;
        const int32_t *slot = golden_i32(c.g, "in.state_slot", NULL) + 2 * b;
        for (int i = 0; i < 2; i++) {
            if (slot[i] < 0)
                continue;
            assert_close("kv", (float *)kv.codes + i * c.cols, state + (2 * b + i) * 2 * c.cols, c.cols, 1e-3, 1e-3, 0);
            assert_close("score", (float *)sc.codes + i * c.cols, state + (2 * b + i) * 2 * c.cols + c.cols, c.cols,
                         1e-3, 1e-3, 0);
        }
        ops_free_rows(&kv);
        ops_free_rows(&sc);
        ops_free_ring(&tail);
        ops_free_plane(&plane);
        one_request_free(&r);
    }
    assert_true(seen > 0);
    golden_close(c.g);
    ops_close(&o);
}

static void decoded_rows_equal_the_goldens(void **state)
{
    (void)state;
    check_decode("tests/golden/ops4/07-decode_compressor_ratio4-w8a8-a.safetensors", 4, false);
    check_decode("tests/golden/ops4/07-decode_compressor_ratio4_starts-w8a8-a.safetensors", 4, false);
    check_decode("tests/golden/ops4/07-decode_compressor_ratio4_missing-w8a8-d.safetensors", 4, false);
    check_decode("tests/golden/ops4/07-decode_compressor_ratio4_far-w8a8-d.safetensors", 4, false);
    check_decode("tests/golden/ops4/08-decode_compressor_ratio128-w8a8-a.safetensors", 128, false);
    check_decode("tests/golden/ops4/08-decode_compressor_ratio128_starts-w8a8-a.safetensors", 128, false);
    check_decode("tests/golden/ops4/08-decode_compressor_ratio128_far-w8a8-d.safetensors", 128, false);
    check_decode("tests/golden/ops4/09-decode_indexer_compressor-w8a8-a.safetensors", 4, true);
    check_decode("tests/golden/ops4/09-decode_indexer_compressor_starts-w8a8-a.safetensors", 4, true);
    check_decode("tests/golden/ops4/09-decode_indexer_compressor_missing-w8a8-d.safetensors", 4, true);
    check_decode("tests/golden/ops4/09-decode_indexer_compressor_far-w8a8-d.safetensors", 4, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_channel_pools_to_the_worked_scalars),
        cmocka_unit_test(a_pair_is_a_softmax_of_two_in_each_channel),
        cmocka_unit_test(members_from_the_tail_equal_members_of_this_forward),
        cmocka_unit_test(a_row_that_ends_no_group_is_refused),
        cmocka_unit_test(rows_that_end_no_group_are_passed_over_in_a_padded_list),
        cmocka_unit_test(prefilled_rows_equal_the_goldens),
        cmocka_unit_test(decoded_rows_equal_the_goldens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
