/* The CUDA operators at released widths, on device memory: a row's bits are the same alone, among few and among many
 * rows, and its values are the reference's up to the order of sums. Without a device: a visible skip. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "ops/device.h"
#include "support/ops.h"

enum { ROWS = 256, COMPARED = 3, MOST_BUFFERS = 256, EXPERTS = 5, ACTIVE = 3 };

/* Memory on both sides; the same bytes at first. */
struct buffer {
    uint8_t *host, *device;
    size_t bytes;
};

static struct {
    struct backend *cpu, *gpu;
    struct model_plan plan;
    struct buffer buffers[MOST_BUFFERS];
    int count;
    struct weight *weights[2][64];
    int n_weights;
    struct dice dice;
    struct step step[2]; /* CPU, GPU */
} rig;

enum side { CPU, GPU };

#define MUST(call)                                   \
    do {                                             \
        qr_error must_err_ = {0}, *err = &must_err_; \
        if ((call) != QR_OK)                         \
            fail_msg("%s", must_err_.message);       \
    } while (0)

static struct backend *backend_of(enum side side) { return side == CPU ? rig.cpu : rig.gpu; }

/* ---- memory ---- */

static struct buffer *room(size_t bytes)
{
    void *device;
    assert_true(rig.count < MOST_BUFFERS);
    struct buffer *b = &rig.buffers[rig.count++];
    b->bytes = bytes;
    b->host = calloc(1, bytes);
    assert_non_null(b->host);
    MUST(rig.gpu->allocate(rig.gpu, (int64_t)bytes, &device, err));
    b->device = device;
    return b;
}

static void send(struct buffer *b) { MUST(rig.gpu->upload(rig.gpu, b->device, b->host, (int64_t)b->bytes, err)); }

static void *at(const struct buffer *b, enum side side) { return side == CPU ? b->host : b->device; }

static struct buffer *normal_bf16(int64_t n, float scale)
{
    struct buffer *b = room((size_t)n * 2);
    dice_bf16(&rig.dice, (uint16_t *)(void *)b->host, n, scale);
    send(b);
    return b;
}

static struct buffer *normal_f32(int64_t n, float scale)
{
    struct buffer *b = room((size_t)n * 4);
    dice_f32(&rig.dice, (float *)(void *)b->host, n, scale);
    send(b);
    return b;
}

/* E4M3 codes without NaN, or pairs of E2M1 codes. */
static struct buffer *codes(int64_t n, bool e4m3)
{
    struct buffer *b = room((size_t)n);
    for (int64_t i = 0; i < n; i++) {
        b->host[i] = (uint8_t)dice_next(&rig.dice);
        if (e4m3 && (b->host[i] & 0x7F) == 0x7F)
            b->host[i] ^= 1;
    }
    send(b);
    return b;
}

/* Bytes from `low` on, `span` of them. */
static struct buffer *scales(int64_t n, uint8_t low, uint8_t span)
{
    struct buffer *b = room((size_t)n);
    for (int64_t i = 0; i < n; i++)
        b->host[i] = (uint8_t)(low + dice_next(&rig.dice) % span);
    send(b);
    return b;
}

static struct weight *weights_of(enum side side, int i) { return rig.weights[side][i]; }

static int weight(enum weight_format format, int32_t n, int32_t k, int32_t tile, int32_t splits)
{
    struct weight_spec s = {.name = "test.weight", .format = format, .n = n, .k = k, .tile = tile, .k_splits = splits};
    int64_t values = (int64_t)n * k, scale_rows = format == WEIGHT_FP8 ? (n + tile - 1) / tile : n;
    int64_t scale_cols = format == WEIGHT_FP8 ? (k + tile - 1) / tile : k / 32;
    const struct buffer *b = format == WEIGHT_BF16 ? normal_bf16(values, 0.05f)
                             : format == WEIGHT_F32
                                 ? normal_f32(values, 0.05f)
                                 : codes(format == WEIGHT_FP4 ? values / 2 : values, format == WEIGHT_FP8);
    s.values = b->host;
    if (format == WEIGHT_FP8 || format == WEIGHT_FP4)
        s.scales = scales(scale_rows * scale_cols, 114, 8)->host;
    if (format == WEIGHT_INT8)
        s.scales = normal_f32(n, 0.01f)->host;
    assert_true(rig.n_weights < 64);
    MUST(rig.cpu->prepare_weight(rig.cpu, &s, &rig.weights[CPU][rig.n_weights], err));
    MUST(rig.gpu->prepare_weight(rig.gpu, &s, &rig.weights[GPU][rig.n_weights], err));
    return rig.n_weights++;
}

static struct activation act(enum act_format format, const struct buffer *values, const struct buffer *scale,
                             int32_t cols, int32_t block, enum side side)
{
    return (struct activation){.format = format,
                               .cols = cols,
                               .block = block,
                               .codes = at(values, side),
                               .scales = scale ? at(scale, side) : NULL};
}

/* ---- cases ---- */

enum kind { KIND_BYTES, KIND_BF16, KIND_F32, KIND_I32, KIND_IDS };

/* What a case writes: `bytes` a row. KIND_F32 and KIND_BF16 are compared with the reference within `within` of the
 * row's size, KIND_I32 must be equal, KIND_BYTES may differ in one of a hundred, KIND_IDS are sets that share nearly
 * all. */
struct output {
    struct buffer *buffer;
    size_t bytes;
    enum kind kind;
    double within;
};

struct test_case {
    const char *name;
    void (*run)(const struct test_case *, enum side, struct row_list);
    struct output out[4];
    struct buffer *in[16];
    int w[16];
    int32_t n, k, heads, dim, groups, block;
    enum act_format format;
    bool flag;
};

static void clear(const struct test_case *c)
{
    for (int i = 0; i < 4 && c->out[i].buffer; i++) {
        memset(c->out[i].buffer->host, 0, c->out[i].buffer->bytes);
        send(c->out[i].buffer);
    }
}

static uint8_t *fetch(const struct output *o)
{
    uint8_t *copy = malloc(o->buffer->bytes);
    assert_non_null(copy);
    MUST(rig.gpu->download(rig.gpu, copy, o->buffer->device, (int64_t)o->buffer->bytes, err));
    MUST(rig.gpu->fence(rig.gpu, err));
    return copy;
}

/* Rows first .. first + count - 1, as a list. */
static struct row_list list_of(struct buffer *index, int32_t first, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        ((int32_t *)(void *)index->host)[i] = first + i;
    send(index);
    return (struct row_list){(const int32_t *)(void *)index->device, count};
}

static double value_at(const struct output *o, const uint8_t *row, size_t i)
{
    uint16_t half;
    float single;
    if (o->kind == KIND_BF16) {
        memcpy(&half, row + 2 * i, 2);
        return bf16_decode(half);
    }
    memcpy(&single, row + 4 * i, 4);
    return single;
}

static void compare_values(const struct test_case *c, const struct output *o, int32_t row, const uint8_t *found,
                           const uint8_t *want)
{
    size_t n = o->bytes / (o->kind == KIND_BF16 ? 2 : 4);
    double size = 0, worst = 0;
    for (size_t i = 0; i < n; i++)
        size += value_at(o, want, i) * value_at(o, want, i);
    size = sqrt(size / (double)n);
    for (size_t i = 0; i < n; i++) {
        double a = value_at(o, found, i), b = value_at(o, want, i), apart = fabs(a - b) / (size + fabs(b));
        if (!(apart <= worst))
            worst = apart;
    }
    if (!(worst <= o->within))
        fail_msg("%s: row %d is %.3g of its size away from the reference, wanted %.3g", c->name, row, worst, o->within);
}

static void compare_ids(const struct test_case *c, int32_t row, const int32_t *found, const int32_t *want, size_t n)
{
    size_t shared = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            shared += found[i] == want[j];
    if (shared * 100 < n * 99)
        fail_msg("%s: row %d shares %zu of %zu with the reference", c->name, row, shared, n);
}

static void compare_bytes(const struct test_case *c, int32_t row, const uint8_t *found, const uint8_t *want, size_t n)
{
    size_t different = 0;
    for (size_t i = 0; i < n; i++)
        different += found[i] != want[i];
    if (different * 100 > n)
        fail_msg("%s: row %d: %zu of %zu bytes are not the reference's", c->name, row, different, n);
}

static void check_closeness(const struct test_case *c, uint8_t *const *all)
{
    c->run(c, CPU, (struct row_list){NULL, COMPARED});
    for (int i = 0; i < 4 && c->out[i].buffer; i++) {
        const struct output *o = &c->out[i];
        for (int32_t row = 0; row < COMPARED; row++) {
            const uint8_t *found = all[i] + (size_t)row * o->bytes, *want = o->buffer->host + (size_t)row * o->bytes;
            if (o->kind == KIND_BYTES)
                compare_bytes(c, row, found, want, o->bytes);
            else if (o->kind == KIND_I32)
                compare_ids(c, row, (const int32_t *)(const void *)found, (const int32_t *)(const void *)want, 1);
            else if (o->kind == KIND_IDS)
                compare_ids(c, row, (const int32_t *)(const void *)found, (const int32_t *)(const void *)want,
                            o->bytes / 4);
            else
                compare_values(c, o, row, found, want);
        }
    }
}

static void check_case(const struct test_case *c)
{
    static const int32_t counts[] = {1, 2, 7, 8, 9, 17, 50, 64};
    uint8_t *all[4] = {0};
    struct buffer *index = room(ROWS * 4);

    clear(c);
    c->run(c, GPU, (struct row_list){NULL, ROWS});
    for (int i = 0; i < 4 && c->out[i].buffer; i++)
        all[i] = fetch(&c->out[i]);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        int32_t first = (int32_t)(5 * k % 20), count = counts[k];
        clear(c);
        c->run(c, GPU, list_of(index, first, count));
        for (int i = 0; i < 4 && c->out[i].buffer; i++) {
            uint8_t *some = fetch(&c->out[i]);
            size_t bytes = c->out[i].bytes;
            for (int32_t row = first; row < first + count; row++)
                if (memcmp(some + (size_t)row * bytes, all[i] + (size_t)row * bytes, bytes) != 0)
                    fail_msg("%s: output %d: row %d among %d rows is not row %d among %d", c->name, i, row, count, row,
                             ROWS);
            free(some);
        }
    }
    clear(c);
    check_closeness(c, all);
    for (int i = 0; i < 4; i++)
        free(all[i]);
}

#define RUN_ON(NAME, ...)                                              \
    do {                                                               \
        struct op_##NAME run_op_ = {.rows = rows, __VA_ARGS__};        \
        MUST(backend_of(side)->NAME(backend_of(side), &run_op_, err)); \
        MUST(backend_of(side)->fence(backend_of(side), err));          \
    } while (0)
#define CASE(NAME) static void run_##NAME(const struct test_case *c, enum side side, struct row_list rows)
#define IN(i) at(c->in[i], side)
#define OUT(i) at(c->out[i].buffer, side)
#define STEP .step = &rig.step[side]

CASE(linear)
{
    int32_t cols = c->k * (c->groups > 1 ? c->groups : 1);
    RUN_ON(linear, .in = act(c->format, c->in[0], c->in[1], cols, c->block, side), .weight = weights_of(side, c->w[0]),
           .groups = c->groups,
           .out = act(c->out[0].kind == KIND_F32 ? ACT_F32 : ACT_BF16, c->out[0].buffer, NULL, c->n, 0, side));
}

/* One linear; K and N of a released weight (N cut to what the reference does in a moment). */
static void linear_case(const char *name, enum weight_format format, int32_t n, int32_t k, int32_t tile, int32_t splits,
                        int32_t groups, enum act_format in, enum kind out, double within)
{
    struct test_case c = {
        .name = name, .run = run_linear, .n = n, .k = k, .groups = groups, .format = in, .block = tile};
    int64_t cols = (int64_t)k * groups;
    if (in == ACT_Q8) {
        c.in[0] = codes(ROWS * cols, true);
        c.in[1] = scales(ROWS * cols / tile, 112, 8);
    } else if (in == ACT_I8) {
        c.in[0] = codes(ROWS * cols, false);
        c.in[1] = normal_f32(ROWS * cols / tile, 0.02f);
    } else {
        c.in[0] = in == ACT_F32 ? normal_f32(ROWS * cols, 1) : normal_bf16(ROWS * cols, 1);
    }
    c.w[0] = weight(format, n, k, format == WEIGHT_FP4 ? 32 : tile, splits);
    size_t bytes = (size_t)n * (out == KIND_F32 ? 4 : 2);
    c.out[0] = (struct output){room(ROWS * bytes), bytes, out, within};
    check_case(&c);
}

CASE(expert)
{
    const struct weight *w1[EXPERTS], *w2[EXPERTS], *w3[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        w1[e] = weights_of(side, c->w[0] + 3 * e);
        w2[e] = weights_of(side, c->w[0] + 3 * e + 1);
        w3[e] = weights_of(side, c->w[0] + 3 * e + 2);
    }
    RUN_ON(expert, .x = act(ACT_Q8, c->in[0], c->in[1], c->k, c->block, side), .idx = c->flag ? NULL : IN(2),
           .weight = c->flag ? NULL : IN(3), .experts = c->flag ? 1 : EXPERTS, .active = c->flag ? 1 : ACTIVE, .w1 = w1,
           .w2 = w2, .w3 = w3, .swiglu_limit = 10, .out = OUT(0));
}

static void expert_case(const char *name, enum weight_format format, int32_t hidden, int32_t inner, int32_t block,
                        bool shared)
{
    struct test_case c = {.name = name, .run = run_expert, .n = inner, .k = hidden, .block = block, .flag = shared};
    int32_t active = shared ? 1 : ACTIVE;
    c.in[0] = codes((int64_t)ROWS * hidden, true);
    c.in[1] = scales((int64_t)ROWS * hidden / block, 112, 4);
    c.in[2] = room(ROWS * ACTIVE * 4);
    for (int i = 0; i < ROWS * ACTIVE; i++)
        ((int32_t *)(void *)c.in[2]->host)[i] =
            (int32_t)((dice_next(&rig.dice) % 2 + 2 * (uint32_t)(i % ACTIVE)) % EXPERTS);
    send(c.in[2]);
    c.in[3] = normal_f32(ROWS * ACTIVE, 1);
    c.w[0] = rig.n_weights;
    for (int e = 0; e < EXPERTS; e++) {
        int32_t tile = format == WEIGHT_FP8 ? block : 32;
        weight(format, inner, hidden, tile, 1);
        weight(format, hidden, inner, tile, 8);
        weight(format, inner, hidden, tile, 1);
    }
    size_t bytes = (size_t)hidden * 2 * (size_t)active;
    c.out[0] = (struct output){room(ROWS * bytes), bytes, KIND_BF16, 0.02};
    check_case(&c);
}

CASE(mix)
{
    RUN_ON(mhc_mix, .x = {ACT_BF16, 4, c->k, IN(0)}, .fn = weights_of(side, c->w[0]), .base = IN(1), .scale = IN(2),
           .norm_eps = 1e-6f, .hc_eps = 1e-6f, .iterations = 20, .pre = OUT(0), .post = OUT(1), .comb = OUT(2));
}

CASE(collapse)
{
    RUN_ON(collapse, .x = {ACT_BF16, 4, c->k, IN(0)}, .pre = IN(1), .norm = IN(2), .norm_eps = 1e-6f,
           .normed = act(ACT_BF16, c->out[0].buffer, NULL, c->k, 0, side),
           .quantized = act(ACT_Q8, c->out[1].buffer, c->out[2].buffer, c->k, 32, side));
}

CASE(norm)
{
    RUN_ON(norm, .in = act(ACT_BF16, c->in[0], NULL, c->k, 0, side), .weight = IN(2), .eps = 1e-6f,
           .out = act(ACT_BF16, c->out[0].buffer, NULL, c->k, 0, side),
           .quantized = act(ACT_Q8, c->out[1].buffer, c->out[2].buffer, c->k, 128, side));
}

CASE(query)
{
    RUN_ON(query, STEP, .heads = c->heads, .head_dim = c->dim, .norm = QUERY_NORM_BF16, .eps = 1e-6f,
           .rope = test_rope(64), .in = act(ACT_BF16, c->in[0], NULL, c->heads * c->dim, 0, side),
           .out = act(ACT_BF16, c->out[0].buffer, NULL, c->heads * c->dim, 0, side));
}

CASE(window_key)
{
    RUN_ON(window_key, STEP, .in = act(ACT_BF16, c->in[0], NULL, c->dim, 0, side), .norm = IN(1), .eps = 1e-6f,
           .rope = test_rope(64), .grid = GRID_FP8_ALL, .out = OUT(0),
           .packed = act(ACT_Q8, c->out[1].buffer, c->out[2].buffer, c->dim, 32, side));
}

CASE(route)
{
    RUN_ON(route, STEP, .x = act(ACT_BF16, c->in[0], NULL, c->k, 0, side), .gate = weights_of(side, c->w[0]),
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

enum { CONTEXT = 4096, BLOCK_TOKENS = 128, RATIO = 4, TOPK = 512 };

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
           .out = act(ACT_BF16, c->out[0].buffer, NULL, c->heads * c->dim, 0, side));
}

CASE(select)
{
    RUN_ON(index_select, STEP, .heads = c->heads, .dim = c->dim, .ratio = RATIO, .topk = TOPK,
           .query = act(ACT_BF16, c->in[0], NULL, c->heads * c->dim, 0, side), .weights = IN(1),
           .order = c->flag ? SELECTION_BY_SCORE : SELECTION_ASCENDING,
           .plane = plane_on(c, 2, 3, ROW_INDEX_FP4, c->dim / 2, c->dim / 32, BLOCK_TOKENS / RATIO, side),
           .make_candidates = true, .block_size = 8, .topk_blocks = 96, .candidates = OUT(2), .candidate_count = IN(4),
           .selected = OUT(0), .selected_count = IN(5), .scores = OUT(1), .score_stride = CONTEXT / RATIO);
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
    linear_case("INT8", WEIGHT_INT8, 64, 4096, 4096, 1, 1, ACT_I8, KIND_F32, 1e-6);
}

static void experts_keep_a_row_and_stay_near_the_reference(void **state)
{
    (void)state;
    expert_case("routed FP4 of V4.1", WEIGHT_FP4, 5120, 576, 32, false);
    expert_case("routed FP4 of V4-Flash", WEIGHT_FP4, 4096, 512, 128, false);
    expert_case("shared FP8", WEIGHT_FP8, 5120, 288, 32, true);
}

/* Rows and columns enough for the product of many rows, against the same rows among few. */
static void check_many(enum weight_format format, enum act_format in, int32_t n, int32_t many)
{
    enum { K = 320, SOME = 6 };
    const int32_t firsts[] = {0, many / 2 - 3, many - SOME};
    size_t bytes = (size_t)many * (size_t)n * 4;
    struct buffer *x = in == ACT_Q8 ? codes((int64_t)many * K, true) : normal_bf16((int64_t)many * K, 1);
    struct buffer *scale = in == ACT_Q8 ? scales((int64_t)many * K / 32, 112, 8) : NULL, *index = room(SOME * 4);
    struct buffer *all = room(bytes), *some = room(bytes);
    struct op_linear op = {.rows = {NULL, many},
                           .in = act(in, x, scale, K, 32, GPU),
                           .weight = weights_of(GPU, weight(format, n, K, format == WEIGHT_BF16 ? 0 : 32, 1)),
                           .out = act(ACT_F32, all, NULL, n, 0, GPU)};
    MUST(rig.gpu->linear(rig.gpu, &op, err));
    MUST(rig.gpu->download(rig.gpu, all->host, all->device, (int64_t)all->bytes, err));
    op.out = act(ACT_F32, some, NULL, n, 0, GPU);
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        op.rows = list_of(index, firsts[i], SOME);
        MUST(rig.gpu->linear(rig.gpu, &op, err));
        MUST(rig.gpu->download(rig.gpu, some->host, some->device, (int64_t)some->bytes, err));
        MUST(rig.gpu->fence(rig.gpu, err));
        size_t at = (size_t)firsts[i] * (size_t)n * 4;
        assert_memory_equal(some->host + at, all->host + at, SOME * (size_t)n * 4);
    }
}

static void a_row_among_thousands_is_that_row_among_few(void **state)
{
    static const struct {
        enum weight_format format;
        enum act_format in;
    } kinds[] = {{WEIGHT_FP8, ACT_Q8}, {WEIGHT_FP4, ACT_Q8}, {WEIGHT_BF16, ACT_BF16}};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) { /* blocks of 128, 64 and 32 rows */
        check_many(kinds[i].format, kinds[i].in, 520, 2300);
        check_many(kinds[i].format, kinds[i].in, 17032, 50);
        check_many(kinds[i].format, kinds[i].in, 17032, 20);
    }
}

static void small_operators_keep_a_row_and_stay_near_the_reference(void **state)
{
    (void)state;
    enum { D = 5120, HEADS = 16, DIM = 512 };
    struct buffer *streams = normal_bf16((int64_t)ROWS * 4 * D, 1), *norm = normal_bf16(D, 1);
    struct test_case mixing = {
        .name = "mhc_mix", .run = run_mix, .k = D, .in = {streams, normal_f32(24, 1), normal_f32(3, 1)}};
    mixing.w[0] = weight(WEIGHT_F32, 24, 4 * D, 0, 1);
    mixing.out[0] = (struct output){room(ROWS * 16), 16, KIND_F32, 1e-4};
    mixing.out[1] = (struct output){room(ROWS * 16), 16, KIND_F32, 1e-4};
    mixing.out[2] = (struct output){room(ROWS * 64), 64, KIND_F32, 1e-4};
    check_case(&mixing);

    struct test_case c = {
        .name = "collapse", .run = run_collapse, .k = D, .in = {streams, normal_f32(ROWS * 4, 1), norm}};
    c.out[0] = (struct output){room(ROWS * D * 2), D * 2, KIND_BYTES, 0};
    c.out[1] = (struct output){room(ROWS * D), D, KIND_BYTES, 0};
    c.out[2] = (struct output){room(ROWS * D / 32), D / 32, KIND_BYTES, 0};
    check_case(&c);
    c.name = "norm";
    c.run = run_norm;
    c.out[2].bytes = D / 128;
    check_case(&c);

    struct test_case q = {.name = "query", .run = run_query, .heads = HEADS, .dim = DIM, .in = {streams}};
    q.out[0] = (struct output){room(ROWS * HEADS * DIM * 2), HEADS * DIM * 2, KIND_BYTES, 0};
    check_case(&q);

    struct test_case key = {.name = "window_key", .run = run_window_key, .dim = DIM, .in = {streams, norm}};
    key.out[0] = (struct output){room(ROWS * DIM * 2), DIM * 2, KIND_BYTES, 0};
    key.out[1] = (struct output){room(ROWS * DIM), DIM, KIND_BYTES, 0};
    key.out[2] = (struct output){room(ROWS * DIM / 32), DIM / 32, KIND_BYTES, 0};
    check_case(&key);

    struct test_case r = {.name = "route", .run = run_route, .k = D, .n = 384, .in = {streams, normal_f32(384, 0.1f)}};
    r.w[0] = weight(WEIGHT_BF16, 384, D, 0, 1);
    r.out[0] = (struct output){room(ROWS * 24), 24, KIND_IDS, 0};
    r.out[1] = (struct output){room(ROWS * 24), 24, KIND_F32, 1e-4};
    check_case(&r);
}

/* Attention of `heads` of `dim` channels. */
static void attention_case(const char *name, void (*run)(const struct test_case *, enum side, struct row_list),
                           int32_t heads, int32_t dim, bool all)
{
    struct test_case c = {.name = name, .run = run, .heads = heads, .dim = dim, .flag = all};
    c.in[0] = normal_bf16((int64_t)ROWS * heads * dim, 1);
    c.in[1] = codes(128 * dim, true);
    c.in[2] = scales(128 * dim, 118, 3);
    c.in[3] = normal_bf16((int64_t)ROWS * dim, 1);
    c.in[4] = room(4);
    *(int32_t *)(void *)c.in[4]->host = CONTEXT - ROWS;
    send(c.in[4]);
    c.in[5] = codes((int64_t)CONTEXT / RATIO * dim / 2, false);
    c.in[6] = scales((int64_t)CONTEXT / RATIO * dim / 16, 0x28, 16);
    c.in[7] = room(ROWS * TOPK * 4);
    c.in[8] = room(ROWS * 4);
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < TOPK; i++)
            ((int32_t *)(void *)c.in[7]->host)[row * TOPK + i] = i % 31 == row % 31 ? -1 : i + row % 3;
        ((int32_t *)(void *)c.in[8]->host)[row] = TOPK - row % 7;
    }
    send(c.in[7]);
    send(c.in[8]);
    c.in[9] = normal_f32(heads, 1);
    c.in[10] = room((size_t)ROWS * (size_t)(heads * dim) * 2);
    c.out[0] = (struct output){room((size_t)ROWS * (size_t)(heads * dim) * 2), (size_t)(heads * dim) * 2, KIND_BF16, 0.01};
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
    c.in[0] = normal_bf16((int64_t)ROWS * HEADS * DIM, 1);
    c.in[1] = normal_f32(ROWS * HEADS, 1);
    c.in[2] = codes((int64_t)CONTEXT / RATIO * DIM / 2, false);
    c.in[3] = scales((int64_t)CONTEXT / RATIO * DIM / 32, 120, 4);
    c.in[4] = room(ROWS * 4);
    c.in[5] = room(ROWS * 4);
    c.out[0] = (struct output){room(ROWS * TOPK * 4), TOPK * 4, KIND_IDS, 0};
    c.out[1] = (struct output){room((size_t)ROWS * CONTEXT / RATIO * 4), CONTEXT / RATIO * 4, KIND_F32, 1e-5};
    c.out[2] = (struct output){room(ROWS * 96 * 4), 96 * 4, KIND_IDS, 0};
    check_case(&c);
    c.flag = true;
    c.name = "index_select by score";
    check_case(&c);
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
    MUST(rig.gpu->prepare_weight(rig.gpu, &spec, &w, err));
    rig.gpu->release_weight(rig.gpu, w);
    values[63 * 640 + 639] = 0xFF;
    assert_int_equal(rig.gpu->prepare_weight(rig.gpu, &spec, &w, &err), QR_BAD_FILE);
    assert_non_null(strstr(err.message, "layers.3.attn.wkv: value [63][639] is the E4M3 code 0xFF (NaN)"));
}

static void a_nan_stays_one_through_the_quantizers(void **state)
{
    (void)state;
    enum { COLS = 256 };
    struct buffer *in = normal_bf16(ROWS * COLS, 1), *out = room(ROWS * COLS), *scale = room(ROWS * COLS / 32 * 4);
    for (int row = 0; row < ROWS; row++)
        ((uint16_t *)(void *)in->host)[row * COLS + row % COLS] = row % 2 ? 0x7FC0 : 0xFFC0;
    send(in);
    struct op_quantize op = {.rows = {.count = ROWS},
                             .in = {.format = ACT_BF16, .cols = COLS, .codes = in->device},
                             .out = {.format = ACT_Q8, .cols = COLS, .block = 32, .codes = out->device, .scales = scale->device}};
    MUST(rig.gpu->quantize(rig.gpu, &op, err));
    MUST(rig.gpu->download(rig.gpu, out->host, out->device, (int64_t)out->bytes, err));
    MUST(rig.gpu->fence(rig.gpu, err));
    for (int row = 0; row < ROWS; row++)
        assert_int_equal(out->host[row * COLS + row % COLS] & 0x7F, 0x7F);
    op.out.format = ACT_I8;
    op.out.block = COLS;
    MUST(rig.gpu->quantize(rig.gpu, &op, err));
    MUST(rig.gpu->download(rig.gpu, scale->host, scale->device, (int64_t)scale->bytes, err));
    MUST(rig.gpu->fence(rig.gpu, err));
    for (int row = 0; row < ROWS; row++)
        assert_true(isnan(((const float *)(const void *)scale->host)[row]));
}

/* ---- the rig ---- */

static int open_rig(void **state)
{
    enum { BLOCKS = CONTEXT / BLOCK_TOKENS };
    struct op_limits limits = {&rig.plan, ROWS, 1, CONTEXT};
    struct ops o;
    int64_t bytes;
    (void)state;
    ops_open(&o, "portable", 1); /* for its plan, larger than any operator here */
    rig.plan = o.plan;
    ops_close(&o);
    rig.plan.config.hidden_size = 8192;
    rig.plan.config.num_attention_heads = 64;
    rig.plan.config.index_n_heads = 64;
    rig.plan.config.moe_intermediate_size = 2304;
    MUST(backend_cpu_open("reference", 0, NULL, &rig.cpu, err));
    MUST(rig.cpu->reserve(rig.cpu, &limits, &bytes, err));
    MUST(rig.gpu->reserve(rig.gpu, &limits, &bytes, err));
    rig.dice.state = 7;

    struct one_request r;
    one_request_make(&r, CONTEXT - ROWS, ROWS, BLOCKS);
    rig.step[CPU] = rig.step[GPU] = r.step;
    const struct {
        const void *from;
        size_t bytes;
        const int32_t **to;
    } arrays[] = {{r.positions, ROWS * 4, &rig.step[GPU].positions},    {r.batch_id, ROWS * 4, &rig.step[GPU].batch_id},
                  {r.tokens, ROWS * 4, &rig.step[GPU].token_ids},       {r.first_row, 8, &rig.step[GPU].first_row},
                  {r.first_position, 4, &rig.step[GPU].first_position}, {r.slot, 4, &rig.step[GPU].slot},
                  {r.table, BLOCKS * 4, &rig.step[GPU].block_table}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *device;
        MUST(rig.gpu->allocate(rig.gpu, (int64_t)arrays[i].bytes, &device, err));
        MUST(rig.gpu->upload(rig.gpu, device, arrays[i].from, (int64_t)arrays[i].bytes, err));
        *arrays[i].to = device;
    }
    static struct one_request kept; /* the CPU's step points into it */
    kept = r;
    rig.step[CPU].first_row = kept.first_row;
    rig.step[CPU].first_position = kept.first_position;
    rig.step[CPU].slot = kept.slot;
    return 0;
}

/* Frees what a test took. */
static int release_rig(void **state)
{
    (void)state;
    for (int i = 0; i < rig.n_weights; i++) {
        rig.cpu->release_weight(rig.cpu, rig.weights[CPU][i]);
        rig.gpu->release_weight(rig.gpu, rig.weights[GPU][i]);
    }
    for (int i = 0; i < rig.count; i++) {
        rig.gpu->release(rig.gpu, rig.buffers[i].device);
        free(rig.buffers[i].host);
    }
    rig.n_weights = rig.count = 0;
    return 0;
}

int main(void)
{
    qr_error err = {0};
    qr_status st = backend_cuda_open(NULL, NULL, &rig.gpu, &err);
    if (st != QR_OK) {
        print_message("skipped: %s\n", err.message);
        return st == QR_UNSUPPORTED ? 77 : 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(products_keep_a_row_and_stay_near_the_reference, release_rig),
        cmocka_unit_test_teardown(a_row_among_thousands_is_that_row_among_few, release_rig),
        cmocka_unit_test_teardown(experts_keep_a_row_and_stay_near_the_reference, release_rig),
        cmocka_unit_test_teardown(small_operators_keep_a_row_and_stay_near_the_reference, release_rig),
        cmocka_unit_test_teardown(attention_keeps_a_row_and_stays_near_the_reference, release_rig),
        cmocka_unit_test_teardown(selections_keep_a_row_and_stay_near_the_reference, release_rig),
        cmocka_unit_test_teardown(a_code_that_is_no_number_is_refused_by_name_and_place, release_rig),
        cmocka_unit_test_teardown(a_nan_stays_one_through_the_quantizers, release_rig),
    };
    return cmocka_run_group_tests(tests, open_rig, NULL);
}
