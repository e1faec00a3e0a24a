/* Every path of the CPU multiplies to the reference's bits, whatever is multiplied and whatever becomes of it: a sum near
 * a tie of bf16 is formed again as the reference forms it. Wide rows, so that f32 sums in another order would show. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "number/quantize.h"
#include "support/ops.h"

enum { ROWS = 70, N = 160, K = 2048, TILE = 128 };

static const char *const paths[] = {"portable", "avx2", "avx512"};

/* What is multiplied: rows, a weight, and the format of the result. */
struct kind {
    const char *name;
    enum act_format in;
    int32_t block;
    enum weight_format weight;
    int32_t splits;
    enum act_format out;
};

static const struct kind kinds[] = {
    {"Q8 by FP8", ACT_Q8, 128, WEIGHT_FP8, 1, ACT_BF16},   {"Q8 by FP8 in splits", ACT_Q8, 128, WEIGHT_FP8, 8, ACT_BF16},
    {"Q8 by FP4", ACT_Q8, 128, WEIGHT_FP4, 1, ACT_BF16},   {"Q8 in blocks of 32 by FP4", ACT_Q8, 32, WEIGHT_FP4, 1, ACT_BF16},
    {"BF16 by FP8", ACT_BF16, 0, WEIGHT_FP8, 1, ACT_BF16}, {"BF16 by FP8 in splits", ACT_BF16, 0, WEIGHT_FP8, 8, ACT_BF16},
    {"BF16 by BF16", ACT_BF16, 0, WEIGHT_BF16, 1, ACT_BF16}, {"BF16 by BF16, kept", ACT_BF16, 0, WEIGHT_BF16, 1, ACT_F32},
    {"F32 by F32, kept", ACT_F32, 0, WEIGHT_F32, 1, ACT_F32}, {"Q8 by FP8, kept", ACT_Q8, 128, WEIGHT_FP8, 1, ACT_F32},
};
enum { KINDS = sizeof kinds / sizeof *kinds, PATHS = sizeof paths / sizeof *paths };

struct matrices {
    float x[ROWS * K];
    uint16_t x16[ROWS * K];
    uint8_t x8[ROWS * K], x8_scale[ROWS * K / 32], w[N * K * 4], w_scale[N * K / 32];
};

static void make(const struct kind *k, struct matrices *m)
{
    struct dice d = {31};
    dice_f32(&d, m->x, ROWS * K, 1);
    dice_bf16(&d, m->x16, ROWS * K, 1);
    if (k->block)
        q8_quantize_f32(m->x, ROWS * K, k->block, m->x8, m->x8_scale);
    for (int i = 0; i < N * K / 32; i++)
        m->w_scale[i] = (uint8_t)(112 + dice_next(&d) % 12);
    if (k->weight == WEIGHT_F32)
        dice_f32(&d, (float *)(void *)m->w, N * K, 1);
    else if (k->weight == WEIGHT_BF16)
        dice_bf16(&d, (uint16_t *)(void *)m->w, N * K, 1);
    else
        for (int i = 0; i < N * K; i++) {
            m->w[i] = (uint8_t)(dice_next(&d) >> 8);
            if (k->weight == WEIGHT_FP8 && (m->w[i] & 0x7F) == 0x7F) /* no number */
                m->w[i] = 0;
        }
}

static void multiply(const char *path, const struct kind *k, struct matrices *m, void *out)
{
    struct ops o;
    ops_open(&o, path, 1);
    struct activation in = {.format = k->in, .cols = K, .block = k->block};
    in.codes = k->in == ACT_Q8 ? (void *)m->x8 : k->in == ACT_F32 ? (void *)m->x : (void *)m->x16;
    in.scales = k->block ? m->x8_scale : NULL;
    struct weight *w = ops_weight(&o, (struct weight_spec){.format = k->weight,
                                                           .n = N,
                                                           .k = K,
                                                           .tile = TILE,
                                                           .k_splits = k->splits,
                                                           .values = m->w,
                                                           .scales = m->w_scale});
    RUN(&o, linear, .rows = first_rows(ROWS), .in = in, .weight = w, .groups = 1,
        .out = {.format = k->out, .cols = N, .block = N, .codes = out});
    ops_close(&o);
}

static void every_path_multiplies_to_the_bits_of_the_reference(void **state)
{
    (void)state;
    static struct matrices m;
    static float want[ROWS * N], found[ROWS * N];
    for (int i = 0; i < KINDS; i++) {
        make(&kinds[i], &m);
        multiply("reference", &kinds[i], &m, want);
        for (int p = 0; p < PATHS; p++) {
            if (!backend_cpu_name(paths[p], NULL)) {
                printf("    %s: not on this processor\n", paths[p]);
                continue;
            }
            multiply(paths[p], &kinds[i], &m, found);
            const size_t bytes = (size_t)ROWS * N * (kinds[i].out == ACT_F32 ? 4 : 2);
            for (size_t b = 0; b < bytes; b++)
                if (((uint8_t *)found)[b] != ((uint8_t *)want)[b])
                    fail_msg("%s on %s: byte %zu differs", kinds[i].name, paths[p], b);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_path_multiplies_to_the_bits_of_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
