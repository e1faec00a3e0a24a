/* label: release */
/* Experts in host memory (ops/cuda/seats.h): where they lie changes no bit, whether they fit their seats at once or come in
 * rounds, started one by one or in a recorded graph; and what the device counts of them. Without a device: a visible skip. */
#include <stdlib.h>
#include <string.h>

#include "ops/device.h"
#include "support/ops.h"
#include "support/support.h"

enum { EXPERTS = 24, ACTIVE = 6, SEATS = 7, HIDDEN = 512, INNER = 256, ROWS = 1024 };

/* Weights of a layer's experts: all on the device, all in host memory, and in turn. */
enum place { DEVICE, HOST, MIXED, PLACES };

static struct rig {
    struct backend *gpu;
    struct dice dice;
    struct weight *w[PLACES][3][EXPERTS];
    void *x, *scales, *idx, *weight, *out;
    int32_t *routes; /* [ROWS][ACTIVE] */
    uint16_t *result[PLACES];
    int32_t block;
    bool w8a8;
} rig;

static const size_t out_bytes = (size_t)ROWS * ACTIVE * HIDDEN * 2;

static uint8_t *random_bytes(size_t n, bool e4m3, uint8_t low, uint8_t span)
{
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++) {
        const uint8_t x = (uint8_t)dice_next(&rig.dice);
        bytes[i] = span ? (uint8_t)(low + x % span) : e4m3 && (x & 0x7F) == 0x7F ? x ^ 1 : x;
    }
    return bytes;
}

static void *send(const void *from, size_t bytes)
{
    void *to;
    MUST(rig.gpu->allocate(rig.gpu, (int64_t)bytes, &to, err));
    MUST(rig.gpu->upload(rig.gpu, to, from, (int64_t)bytes, err));
    MUST(rig.gpu->fence(rig.gpu, err));
    return to;
}

static struct weight_spec spec_of(enum weight_format format, int kind)
{
    const int32_t n = kind == 1 ? HIDDEN : INNER, k = kind == 1 ? INNER : HIDDEN;
    return (struct weight_spec){.name = "expert.weight", .format = format, .n = n, .k = k, .tile = 32, .k_splits = 1};
}

/* One expert's matrix in every place; `large`: some of its scales take two factors. */
static void make_weight(enum weight_format format, int kind, int e, bool large)
{
    struct weight_spec s = spec_of(format, kind);
    const size_t values = (size_t)s.n * (size_t)s.k;
    uint8_t *codes = random_bytes(format == WEIGHT_FP4 ? values / 2 : values, format == WEIGHT_FP8, 0, 0);
    uint8_t *scales = random_bytes(values, false, large ? 125 : 114, 8);
    float *floats = calloc((size_t)s.n, sizeof *floats);
    assert_non_null(floats);
    dice_f32(&rig.dice, floats, s.n, 0.01f);
    s.values = codes;
    s.scales = format == WEIGHT_INT8 ? (const void *)floats : scales;
    for (int place = 0; place < PLACES; place++) {
        s.on_host = place == HOST || (place == MIXED && e % 3 > 0);
        MUST(rig.gpu->prepare_weight(rig.gpu, &s, &rig.w[place][kind][e], err));
    }
    free(codes);
    free(scales);
    free(floats);
}

static void open_rig(enum weight_format format, int32_t block, bool large)
{
    struct expert_seating seating = {.seats = SEATS, .on_host = EXPERTS + EXPERTS * 2 / 3};
    struct op_limits limits;
    static struct model_plan plan;
    int64_t scratch;
    memset(&rig, 0, sizeof rig);
    rig.dice = (struct dice){.state = 7};
    rig.block = block;
    rig.w8a8 = format == WEIGHT_INT8;
    MUST(backend_cuda_open(NULL, NULL, &rig.gpu, err));
    plan.config.hidden_size = HIDDEN;
    limits = (struct op_limits){.plan = &plan, .max_rows = ROWS, .max_requests = 1, .max_positions = ROWS};
    MUST(rig.gpu->reserve(rig.gpu, &limits, &scratch, err));
    for (int kind = 0; kind < 3; kind++)
        seating.shape[kind] = spec_of(format, kind);
    MUST(rig.gpu->seat_experts(rig.gpu, &seating, err));
    for (int e = 0; e < EXPERTS; e++)
        for (int kind = 0; kind < 3; kind++)
            make_weight(format, kind, e, large && e % 2);
    uint8_t *x = random_bytes((size_t)ROWS * HIDDEN, !rig.w8a8, 0, 0), *scales = random_bytes((size_t)ROWS * HIDDEN, false, 112, 8);
    float *weight = calloc((size_t)ROWS * ACTIVE, sizeof *weight);
    rig.routes = calloc((size_t)ROWS * ACTIVE, sizeof *rig.routes);
    assert_true(weight && rig.routes);
    dice_f32(&rig.dice, weight, ROWS * ACTIVE, 1);
    if (rig.w8a8)
        dice_f32(&rig.dice, (float *)(void *)scales, ROWS, 0.02f);
    rig.x = send(x, (size_t)ROWS * HIDDEN);
    rig.scales = send(scales, (size_t)ROWS * HIDDEN);
    rig.weight = send(weight, (size_t)ROWS * ACTIVE * sizeof *weight);
    rig.idx = send(rig.routes, (size_t)ROWS * ACTIVE * sizeof *rig.routes);
    rig.out = send(calloc(1, out_bytes), out_bytes);
    for (int place = 0; place < PLACES; place++)
        assert_non_null(rig.result[place] = malloc(out_bytes));
    free(x);
    free(scales);
    free(weight);
}

static void close_rig(void)
{
    rig.gpu->close(rig.gpu);
    free(rig.routes);
    for (int place = 0; place < PLACES; place++)
        free(rig.result[place]);
}

/* Other experts for every row, all of a row different. */
static void route(void)
{
    for (int32_t row = 0; row < ROWS; row++)
        for (int k = 0; k < ACTIVE; k++) {
            int32_t *own = rig.routes + row * ACTIVE, e = (int32_t)(dice_next(&rig.dice) % EXPERTS);
            for (int j = 0; j < k; j++)
                if (own[j] == e) {
                    e = (e + 1) % EXPERTS;
                    j = -1;
                }
            own[k] = e;
        }
    MUST(rig.gpu->upload(rig.gpu, rig.idx, rig.routes, (int64_t)ROWS * ACTIVE * (int64_t)sizeof *rig.routes, err));
}

static void start(enum place place, int32_t rows)
{
    const struct op_expert op = {.rows = {NULL, rows},
                                 .x = {rig.w8a8 ? ACT_I8 : ACT_Q8, HIDDEN, rig.w8a8 ? HIDDEN : rig.block, rig.x, rig.scales},
                                 .idx = rig.idx,
                                 .weight = rig.weight,
                                 .experts = EXPERTS,
                                 .active = ACTIVE,
                                 .w1 = (const struct weight *const *)rig.w[place][0],
                                 .w2 = (const struct weight *const *)rig.w[place][1],
                                 .w3 = (const struct weight *const *)rig.w[place][2],
                                 .swiglu_limit = 7,
                                 .w8a8 = rig.w8a8,
                                 .out = rig.out};
    MUST(rig.gpu->expert(rig.gpu, &op, err));
}

static void fetch(enum place place)
{
    MUST(rig.gpu->download(rig.gpu, rig.result[place], rig.out, (int64_t)out_bytes, err));
    MUST(rig.gpu->fence(rig.gpu, err));
}

static void wipe(void)
{
    static uint8_t zeros[ROWS * ACTIVE * HIDDEN * 2];
    MUST(rig.gpu->upload(rig.gpu, rig.out, zeros, (int64_t)out_bytes, err));
}

static void compare(const char *what, enum place place, int32_t rows)
{
    const size_t bytes = (size_t)rows * ACTIVE * HIDDEN * 2;
    size_t other = 0;
    for (size_t i = 0; i < bytes / 2; i++)
        other += rig.result[place][i] != 0;
    assert_true(other > bytes / 4); /* it is no comparison of nothing */
    if (memcmp(rig.result[place], rig.result[DEVICE], bytes) != 0)
        fail_msg("%s: %d rows with experts %s are not those with experts on the device", what, rows,
                 place == HOST ? "in host memory" : "in either memory");
}

static void check_rows(const char *what, enum weight_format format, int32_t block, bool large)
{
    static const int32_t counts[] = {1, 8, 64, 1024, 1, 8, 3};
    open_rig(format, block, large);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int again = 0; again < 3; again++) {
            route();
            for (int place = 0; place < PLACES; place++) {
                wipe();
                start((enum place)place, counts[i]);
                fetch((enum place)place);
                compare(what, (enum place)place, counts[i]);
            }
        }
    struct backend_counts n;
    rig.gpu->count(rig.gpu, &n);
    assert_true(n.experts_found > 0 && n.experts_copied > 0 && n.expert_bytes % n.experts_copied == 0);
    close_rig();
}

static void where_experts_lie_changes_no_bit(void **state)
{
    (void)state;
    check_rows("FP4, blocks of 32", WEIGHT_FP4, 32, false);
    check_rows("FP4, blocks of 128", WEIGHT_FP4, 128, false);
    check_rows("FP4, large scales", WEIGHT_FP4, 32, true);
    check_rows("FP8, blocks of 32", WEIGHT_FP8, 32, false);
    check_rows("INT8", WEIGHT_INT8, 32, false);
}

/* A list of several layers, alike enough to be recorded, routed otherwise each time. */
static void a_recorded_list_works_with_any_routing(void **state)
{
    (void)state;
    enum { LAYERS = 10, TIMES = 6 };
    static const int32_t counts[] = {1, 8, 64};
    open_rig(WEIGHT_FP4, 32, false);
    for (int c = 0; c < 3; c++)
        for (int time = 0; time < TIMES; time++) {
            route();
            MUST(rig.gpu->fence(rig.gpu, err));
            wipe();
            start(DEVICE, counts[c]);
            fetch(DEVICE);
            for (int place = HOST; place < PLACES; place++) {
                wipe();
                for (int layer = 0; layer < LAYERS; layer++)
                    start((layer + 1) % 2 ? (enum place)place : HOST, counts[c]);
                start((enum place)place, counts[c]);
                fetch((enum place)place);
                compare("a list", (enum place)place, counts[c]);
            }
        }
    struct backend_counts n;
    rig.gpu->count(rig.gpu, &n);
    assert_true(n.graphs_recorded >= 6 && n.graphs_replayed >= 6 * (TIMES - 1));
    close_rig();
}

/* One row again and again needs no second copy while its experts keep their seats; visits are counted by expert. */
static void seats_are_kept_by_use(void **state)
{
    (void)state;
    struct backend_counts n;
    uint64_t uses[EXPERTS], all = 0;
    open_rig(WEIGHT_FP4, 32, false);
    route();
    for (int time = 0; time < 5; time++)
        start(HOST, 1);
    fetch(HOST);
    rig.gpu->count(rig.gpu, &n);
    assert_int_equal(n.experts_copied, ACTIVE);
    assert_int_equal(n.experts_found, 4 * ACTIVE);
    MUST(rig.gpu->expert_uses(rig.gpu, EXPERTS, (const struct weight *const *)rig.w[HOST][0], uses, err));
    for (int e = 0; e < EXPERTS; e++)
        all += uses[e];
    assert_int_equal(all, 5 * ACTIVE);
    for (int k = 0; k < ACTIVE; k++)
        assert_int_equal(uses[rig.routes[k]], 5);
    close_rig();
}

int main(void)
{
    if (!cuda_device_found())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_experts_lie_changes_no_bit),
        cmocka_unit_test(a_recorded_list_works_with_any_routing),
        cmocka_unit_test(seats_are_kept_by_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
