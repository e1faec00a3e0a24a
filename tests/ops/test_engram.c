/* The Engram gate and injection (v41-model.md 8.7, vectors of 13.3). */
#include <math.h>
#include <string.h>

#include "number/bf16.h"
#include "support/golden.h"
#include "support/ops.h"

enum { M = 2, D = 16 };

/* A row whose d (before the gate) is `d` in every stream: x and k are all ones, so rho = 1 and sum g = d D^0.5. */
struct row {
    float x[M * D];
    uint16_t kv[(M + 1) * D], q_weight[M * D], k_weight[M * D];
};

static void make_row(struct row *r, float d)
{
    for (int i = 0; i < M * D; i++) {
        r->x[i] = 1;
        r->q_weight[i] = bf16_encode(d);
        r->k_weight[i] = bf16_encode(0.25f); /* sum of 16 g = 4 d, times 16^-0.5 */
    }
    for (int i = 0; i < (M + 1) * D; i++)
        r->kv[i] = bf16_encode(i < M * D ? 1.0f : 2.0f);
}

static void gate_equals_the_vectors_of_13_3(void **state)
{
    (void)state;
    static const float d[4] = {-0.25f, 0, 0x1p-30f, 4},
                       want[4] = {0.377540669f, 0.500250000f, 0.500250000f, 0.880797078f};
    struct ops o;
    struct one_request r;
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 1, 0);
    for (int i = 0; i < 4; i++) {
        struct row row;
        float gate[M];
        make_row(&row, d[i]);
        RUN(&o, engram, .rows = first_rows(1), .step = &r.step, .x = {ACT_F32, M, D, row.x}, .kv = row.kv,
            .q_weight = row.q_weight, .k_weight = row.k_weight, .gate_out = gate);
        for (int j = 0; j < M; j++) {
            assert_close("gate", &gate[j], &want[i], 1, 1e-7, 0, 0);
            for (int c = 0; c < D; c++)
                assert_true(row.x[j * D + c] == 1 + gate[j] * 2);
        }
    }
    one_request_free(&r);
    ops_close(&o);
}

/* The whole formula on random rows; the shared value is the last block of kv, the keys come first in stream order. */
static void injection_follows_its_formula(void **state)
{
    (void)state;
    struct ops o;
    struct one_request r;
    struct row row;
    uint16_t x[M * D], out[M * D];
    struct dice d = {91};
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 1, 0);
    dice_bf16(&d, x, M * D, 1);
    dice_bf16(&d, row.kv, (M + 1) * D, 1);
    dice_bf16(&d, row.q_weight, M * D, 1);
    dice_bf16(&d, row.k_weight, M * D, 1);
    memcpy(out, x, sizeof x);
    RUN(&o, engram, .rows = first_rows(1), .step = &r.step, .x = {ACT_BF16, M, D, out}, .kv = row.kv,
        .q_weight = row.q_weight, .k_weight = row.k_weight);
    for (int j = 0; j < M; j++) {
        double xx = 0, kk = 0, sum = 0;
        for (int c = 0; c < D; c++) {
            double a = bf16_decode(x[j * D + c]), k = bf16_decode(row.kv[j * D + c]);
            xx += a * a;
            kk += k * k;
            sum += a * k * (bf16_decode(row.q_weight[j * D + c]) * bf16_decode(row.k_weight[j * D + c]));
        }
        double v = sum / sqrt(xx / D + 1e-20) / sqrt(kk / D + 1e-20) / sqrt(D);
        double gate = 1 / (1 + exp(-copysign(sqrt(fmax(fabs(v), 1e-6)), v)));
        for (int c = 0; c < D; c++) {
            float found = bf16_decode(out[j * D + c]);
            float want = (float)(bf16_decode(x[j * D + c]) + gate * bf16_decode(row.kv[M * D + c]));
            assert_true(fabsf(found - want) <= fabsf(want) * 0x1p-8f + 1e-6f);
        }
    }
    one_request_free(&r);
    ops_close(&o);
}

static void image_rows_pass_unchanged(void **state)
{
    (void)state;
    struct ops o;
    struct one_request r;
    struct row row;
    const uint8_t mask[1] = {1};
    uint16_t x[M * D], before[M * D];
    float gate[M] = {7, 7};
    ops_open(&o, "reference", 1);
    one_request_make(&r, 0, 1, 0);
    r.step.image_mask = mask;
    make_row(&row, 1);
    for (int i = 0; i < M * D; i++)
        before[i] = x[i] = (uint16_t)(0x8000 | i); /* -0 and subnormals keep their bits */
    RUN(&o, engram, .rows = first_rows(1), .step = &r.step, .x = {ACT_BF16, M, D, x}, .kv = row.kv,
        .q_weight = row.q_weight, .k_weight = row.k_weight, .gate_out = gate);
    assert_memory_equal(x, before, sizeof x);
    assert_true(gate[0] == 0 && gate[1] == 0);
    one_request_free(&r);
    ops_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gate_equals_the_vectors_of_13_3),
        cmocka_unit_test(injection_follows_its_formula),
        cmocka_unit_test(image_rows_pass_unchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
