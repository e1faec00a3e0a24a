#include "support/support.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"
#include "ops/cpu/kernels.h"

enum { ROWS = 5, N = 48, K = 512 };

static uint32_t random_state = 12345;

static uint32_t draw(void)
{
    random_state = random_state * 1664525 + 1013904223;
    return random_state >> 8;
}

static float draw_float(void) { return (float)(draw() % 2001) / 1000.0f - 1.0f; }

/* The sets that this machine has. */
static int sets(const struct cpu_kernels *out[3])
{
    const struct cpu_kernels *all[] = {kernels_portable(), kernels_avx2(), kernels_avx512()};
    int n = 0;
    for (int i = 0; i < 3; i++)
        if (all[i])
            out[n++] = all[i];
    return n;
}

static uint8_t draw_e4m3(void)
{
    uint8_t c = (uint8_t)draw();
    return (c & 0x7f) == 0x7f ? 0x38 : c;
}

struct matrix {
    uint8_t w[N * K * 4], scale[N * K / 32];
    double value[N][K];
    struct panel panel;
};

/* A weight of the given kind with its values in binary64. */
enum kind { FP8_32, FP8_128, FP4, BF16, F32, KINDS };

static void make_matrix(enum kind kind, struct matrix *m)
{
    m->panel = (struct panel){.n = N, .k = K, .w = m->w, .splits = 1, .split = {0, K}};
    for (int i = 0; i < N * K / 32; i++)
        m->scale[i] = (uint8_t)(118 + draw() % 12);
    for (int j = 0; j < N; j++) {
        for (int k = 0; k < K; k++) {
            const int tile = kind == FP8_128 ? 128 : 32;
            if (kind == FP8_32 || kind == FP8_128) {
                m->w[j * K + k] = draw_e4m3();
                m->value[j][k] = (double)e4m3_decode(m->w[j * K + k]) * e8m0_decode(m->scale[j / tile * (K / tile) + k / tile]);
            } else if (kind == FP4) {
                uint8_t *byte = &m->w[j * K / 2 + k / 2], code = draw() & 15;
                *byte = k % 2 ? (uint8_t)((*byte & 15) | code << 4) : code;
                m->value[j][k] = (double)e2m1_decode(code) * e8m0_decode(m->scale[j * (K / 32) + k / 32]);
            } else if (kind == BF16) {
                uint16_t x = bf16_encode(draw_float());
                memcpy(m->w + 2 * (j * K + k), &x, 2);
                m->value[j][k] = bf16_decode(x);
            } else {
                float x = draw_float();
                memcpy(m->w + 4 * (j * K + k), &x, 4);
                m->value[j][k] = x;
            }
        }
    }
    const int tile = kind == FP8_128 ? 128 : 32;
    m->panel.w_stride = kind == FP4 ? K / 2 : kind == BF16 ? 2 * K : kind == F32 ? 4 * K : K;
    m->panel.w_scale = m->scale;
    m->panel.scale_stride = K / tile;
    m->panel.scale_rows = kind == FP4 ? 1 : tile;
    m->panel.scale_block = tile;
    m->panel.a_block = kind == FP8_128 ? 128 : 32;
    m->panel.a_scale_stride = K / m->panel.a_block;
}

static void run(const struct cpu_kernels *set, enum kind kind, const struct panel *p)
{
    (kind == FP4 ? set->panel_fp4 : kind == BF16 ? set->panel_bf16 : kind == F32 ? set->panel_f32 : set->panel_fp8)(p);
}

static float exact(const struct cpu_kernels *set, enum kind kind, const struct panel *p, int r, int j)
{
    return (kind == FP4    ? set->exact_fp4
            : kind == BF16 ? set->exact_bf16
            : kind == F32  ? set->exact_f32
                           : set->exact_fp8)(p, r, j);
}

/* y[r][j] by the reference's rule: f64 sums of a block of one scale, each rounded to f32 and added in order; of a whole
 * split for unscaled activations. */
static float by_the_rule(const struct matrix *m, enum kind kind, int r, int j)
{
    const struct panel *p = &m->panel;
    const bool scaled = kind < BF16 && p->a_block != PANEL_UNSCALED;
    const int group = !scaled ? K : p->scale_block < p->a_block ? p->scale_block : p->a_block;
    float y = 0;
    for (int s = 0; s < p->splits; s++) {
        float sum = 0;
        for (int k = p->split[s]; k < p->split[s + 1]; k += group) {
            const int end = k + group < p->split[s + 1] ? k + group : p->split[s + 1];
            double part = 0;
            for (int i = k; i < end; i++)
                part += (double)p->a[r * p->a_stride + i] * m->value[j][i];
            sum += (float)part * (scaled ? p->a_scale[r * p->a_scale_stride + k / p->a_block] : 1);
        }
        y += sum;
    }
    return y;
}

static void every_set_multiplies_as_binary64_does_and_a_row_keeps_its_bits_in_a_batch(void **state)
{
    static struct matrix m;
    static float a[ROWS][K], scale[ROWS][K / 32], y[ROWS][N], alone[N], scratch[ROWS * KERNEL_LANES],
        size[ROWS * N], size_alone[N];
    const struct cpu_kernels *set[3];
    const int n = sets(set);
    (void)state;
    for (int s = 0; s < n; s++) {
        for (enum kind kind = 0; kind < KINDS; kind++) {
            for (int splits = 1; splits <= 8; splits *= 8) {
                make_matrix(kind, &m);
                for (int r = 0; r < ROWS; r++)
                    for (int k = 0; k < K; k++) {
                        a[r][k] = kind >= BF16 ? draw_float() : e4m3_decode(draw_e4m3());
                        scale[r][k / 32] = ldexpf(1, (int)(draw() % 5) - 9);
                    }
                if (kind == FP8_128 && splits == 8)
                    continue; /* four blocks only */
                m.panel.splits = splits;
                for (int i = 0; i <= splits; i++)
                    m.panel.split[i] = K / splits * i;
                m.panel.a = &a[0][0];
                m.panel.a_stride = K;
                m.panel.a_scale = &scale[0][0];
                m.panel.a_scale_stride = K / 32;
                m.panel.rows = ROWS;
                const int32_t a_block = m.panel.a_block;
                m.panel.y = &y[0][0];
                m.panel.y_stride = m.panel.size_stride = N;
                m.panel.size = size;
                m.panel.scratch = scratch;
                run(set[s], kind, &m.panel);
                for (int r = 0; r < ROWS; r++) {
                    for (int j = 0; j < N; j++) {
                        double want = 0, sum = 0;
                        for (int k = 0; k < K; k++) {
                            double x = (double)a[r][k] * m.value[j][k] *
                                       (kind >= BF16 ? 1 : (double)scale[r][k / m.panel.a_block]);
                            want += x;
                            sum += fabs(x);
                        }
                        assert_true(fabs(y[r][j] - want) <= 1e-6 * sum);
                        assert_true(fabsf(y[r][j]) <= size[r * N + j] * 1.000001f && size[r * N + j] <= sum * 1.000001);
                        assert_true(fabs(y[r][j] - want) <= 0x1p-21 * size[r * N + j]);
                        assert_int_equal(f32_bits(exact(set[s], kind, &m.panel, r, j)),
                                         f32_bits(by_the_rule(&m, kind, r, j)));
                        struct panel plain = m.panel;
                        plain.a_block = PANEL_UNSCALED;
                        m.panel.a_block = PANEL_UNSCALED;
                        assert_int_equal(f32_bits(exact(set[s], kind, &plain, r, j)),
                                         f32_bits(by_the_rule(&m, kind, r, j)));
                        m.panel.a_block = a_block;
                    }
                    struct panel one = m.panel;
                    one.rows = 1;
                    one.a = a[r];
                    one.a_scale = scale[r];
                    one.first = 16;
                    one.n = 7;
                    one.y = alone;
                    one.size = size_alone;
                    run(set[s], kind, &one);
                    assert_memory_equal(alone, &y[r][16], 7 * sizeof(float));
                }
            }
        }
    }
}

static void every_set_decodes_every_code_exactly(void **state)
{
    const struct cpu_kernels *set[3];
    const int n = sets(set);
    uint8_t code[256], pairs[16];
    float y[256];
    (void)state;
    for (int i = 0; i < 256; i++)
        code[i] = (uint8_t)i;
    for (int i = 0; i < 16; i++)
        pairs[i] = (uint8_t)(i | (15 - i) << 4);
    for (int s = 0; s < n; s++) {
        set[s]->decode_fp8(code, y, 256);
        for (int i = 0; i < 256; i++) /* a damaged weight must not pass for a number */
            assert_true(isnan(e4m3_decode(code[i])) ? isnan(y[i]) : f32_bits(y[i]) == f32_bits(e4m3_decode(code[i])));
        set[s]->decode_fp4(pairs, y, 32);
        for (int i = 0; i < 32; i++)
            assert_int_equal(f32_bits(y[i]), f32_bits(e2m1_decode(e2m1_at(pairs, i))));
    }
}

static void every_set_gives_the_same_integer_sum(void **state)
{
    const struct cpu_kernels *set[3];
    const int n = sets(set);
    int8_t a[200], w[200];
    (void)state;
    for (int k = 0; k < 200; k++) {
        a[k] = (int8_t)(draw() % 255 - 127);
        w[k] = (int8_t)(draw() % 255 - 127);
    }
    for (int k = 1; k <= 200; k++) {
        int32_t want = 0;
        for (int i = 0; i < k; i++)
            want += a[i] * w[i];
        for (int s = 0; s < n; s++)
            assert_int_equal(set[s]->dot_i8(a, w, k), want);
    }
}

/* bf16 in, so every product is exact: a head or key in a group of any size has the bits of the sum in one go. */
static void every_set_attends_with_the_bits_of_binary64(void **state)
{
    enum { HEADS = 7, COUNT = 13, STRIDE = 200 };
    static double q[HEADS * STRIDE], keys[COUNT * STRIDE], p[HEADS * COUNT];
    static float score[HEADS * COUNT], o[HEADS * STRIDE], plain[STRIDE];
    const struct cpu_kernels *set[3];
    const int sets_here = sets(set);
    (void)state;
    for (int n = 1; n <= 192; n += n < 40 ? 1 : 19) {
        for (int i = 0; i < HEADS * STRIDE; i++)
            q[i] = bf16_round(draw_float());
        for (int i = 0; i < COUNT * STRIDE; i++)
            keys[i] = bf16_round(draw_float());
        for (int i = 0; i < HEADS * COUNT; i++)
            p[i] = bf16_round(fabsf(draw_float()));
        for (int s = 0; s < sets_here; s++) {
            set[s]->scores(q, HEADS, keys, COUNT, STRIDE, n, score, COUNT);
            set[s]->weigh(p, COUNT, HEADS, keys, COUNT, STRIDE, n, o);
            for (int h = 0; h < HEADS; h++) {
                for (int i = 0; i < COUNT; i++) {
                    double sum = 0;
                    for (int c = 0; c < n; c++)
                        sum += q[h * n + c] * keys[i * STRIDE + c];
                    assert_true(score[h * COUNT + i] == (float)sum);
                }
                for (int c = 0; c < n; c++) {
                    double sum = 0;
                    for (int i = 0; i < COUNT; i++)
                        sum += p[h * COUNT + i] * keys[i * STRIDE + c];
                    assert_true(o[h * n + c] == (float)sum);
                }
            }
            for (int c = 0; c < n; c++)
                plain[c] = (float)keys[c];
            set[s]->widen(plain, q, n);
            assert_memory_equal(q, keys, (size_t)n * sizeof *q);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_set_multiplies_as_binary64_does_and_a_row_keeps_its_bits_in_a_batch),
        cmocka_unit_test(every_set_decodes_every_code_exactly),
        cmocka_unit_test(every_set_gives_the_same_integer_sum),
        cmocka_unit_test(every_set_attends_with_the_bits_of_binary64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
