#include "tools/synth_values.h"

#include <math.h>
#include <string.h>

#include <xxhash.h>

#include "number/bf16.h"
#include "number/e2m1.h"
#include "number/e4m3.h"
#include "number/e8m0.h"

enum { FP8_DEVIATION = 64, FP4_DEVIATION = 2 };

/* The x below which a standard normal number falls with probability p. */
static double normal_quantile(double p)
{
    double low = -8, high = 8;
    for (int i = 0; i < 50; i++) {
        double middle = (low + high) / 2;
        *(erfc(-middle / sqrt(2)) / 2 < p ? &low : &high) = middle;
    }
    return low;
}

void synth_values_init(struct synth_values *v, uint64_t seed)
{
    uint8_t nibble[16];
    v->seed = seed;
    for (int i = 0; i < 4096; i++)
        v->normal[i] = (float)normal_quantile((i + 0.5) / 4096);
    for (int i = 0; i < 256; i++)
        v->fp8[i] = e4m3_encode(FP8_DEVIATION * (float)normal_quantile((i + 0.5) / 256));
    for (int i = 0; i < 16; i++)
        nibble[i] = e2m1_encode(FP4_DEVIATION * (float)normal_quantile((i + 0.5) / 16));
    for (int i = 0; i < 256; i++)
        v->fp4[i] = e2m1_pack(nibble[i & 15], nibble[i >> 4]);
}

/* The i-th 64-bit word of a stream (splitmix64). */
static uint64_t word(uint64_t stream, uint64_t i)
{
    uint64_t z = stream + (i + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* Mean and deviation of a BF16 or F32 tensor by its role. */
static void choose_spread(struct synth_tensor *t, const struct tensor_spec *spec)
{
    const char *name = spec->name;
    bool matrix = spec->rank >= 2;
    int64_t columns = spec->rank ? spec->shape[spec->rank - 1] : 1;
    t->mean = 0;
    t->deviation = matrix ? 1 / sqrtf((float)columns) : 1;
    if ((!matrix && ends_with(name, ".weight")) || ends_with(name, "engram.q_weight") ||
        ends_with(name, "engram.k_weight") || strstr(name, "norm") || (strstr(name, "hc_") && ends_with(name, "_scale"))) {
        t->mean = 1;
        t->deviation = 0.1f;
    } else if (strstr(name, "embed.weight") || ends_with(name, ".ape")) {
        t->deviation = 1;
    } else if (ends_with(name, "head.weight")) {
        t->deviation *= 2;
    } else if (strstr(name, "hc_") && ends_with(name, "_base")) {
        t->deviation = 0.5f;
    } else if (strstr(name, "bias")) {
        t->deviation = 0.1f;
    }
}

/* The scale that turns codes of the table's deviation into weights of deviation 1 / sqrt(columns); table rows of
 * Engram, which are looked up and not multiplied, into values of deviation 1. */
static uint8_t choose_scale(const struct qr_config *c, const struct tensor_spec *spec, const struct tensor_spec *weight)
{
    bool fp4 = weight && weight->dtype == DTYPE_I8;
    double columns = weight ? (double)weight->shape[1] * (fp4 ? 2 : 1) : (double)spec->shape[1] * c->fp8_block;
    double deviation = fp4 ? FP4_DEVIATION : FP8_DEVIATION;
    if (weight && strstr(weight->name, "engram.embed."))
        columns = 1;
    return (uint8_t)(E8M0_BIAS + (int)ceil(-log2(deviation * sqrt(columns))));
}

void synth_tensor_init(struct synth_tensor *t, const struct synth_values *values, const struct qr_config *config,
                       const struct tensor_spec *spec, const struct tensor_spec *weight)
{
    *t = (struct synth_tensor){.values = values,
                               .stream = XXH3_64bits_withSeed(spec->name, strlen(spec->name), values->seed),
                               .dtype = spec->dtype};
    if (spec->dtype == DTYPE_BF16 || spec->dtype == DTYPE_F32)
        choose_spread(t, spec);
    if (spec->dtype == DTYPE_F8_E8M0)
        t->scale = choose_scale(config, spec, weight);
    if (spec->dtype == DTYPE_I64) {
        t->row = (int32_t)spec->shape[1];
        t->choices = config->n_routed_experts;
    }
}

static float normal_at(const struct synth_tensor *t, uint64_t i)
{
    return t->mean + t->deviation * t->values->normal[word(t->stream, i / 4) >> (16 * (i % 4)) & 4095];
}

/* Bytes through a table: codes of FP8 or pairs of FP4. `at` and `size` but for the end are multiples of 8. */
static void fill_codes(const struct synth_tensor *t, const uint8_t *table, uint64_t at, uint64_t size, uint8_t *out)
{
    for (uint64_t i = 0; i < size; i += 8) {
        uint64_t bits = word(t->stream, (at + i) / 8);
        for (uint64_t b = 0; b < 8 && i + b < size; b++)
            out[i + b] = table[bits >> (8 * b) & 255];
    }
}

static void fill_scales(const struct synth_tensor *t, uint64_t at, uint64_t size, uint8_t *out)
{
    for (uint64_t i = 0; i < size; i++)
        out[i] = (uint8_t)(t->scale - (word(t->stream, (at + i) / 64) >> ((at + i) % 64) & 1));
}

/* Element i of rows of distinct numbers: the row starts somewhere and goes on by a step without a common divisor. */
static int64_t choice_at(const struct synth_tensor *t, uint64_t i)
{
    uint64_t bits = word(t->stream, i / (uint64_t)t->row), n = (uint64_t)t->choices;
    uint64_t start = (bits & 0xFFFFFFFF) % n, step = (bits >> 32) % n, a, b;
    for (;; step = (step + 1) % n) {
        for (a = n, b = step; b;) {
            uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            break;
    }
    return (int64_t)((start + i % (uint64_t)t->row * step) % n);
}

void synth_tensor_fill(const struct synth_tensor *t, uint64_t at, uint64_t size, void *out)
{
    uint64_t first = at / dtype_size(t->dtype), count = size / dtype_size(t->dtype);
    switch (t->dtype) {
    case DTYPE_F8_E4M3:
        fill_codes(t, t->values->fp8, at, size, out);
        break;
    case DTYPE_I8:
        fill_codes(t, t->values->fp4, at, size, out);
        break;
    case DTYPE_F8_E8M0:
        fill_scales(t, at, size, out);
        break;
    case DTYPE_BF16:
        for (uint64_t i = 0; i < count; i++)
            ((uint16_t *)out)[i] = bf16_encode(normal_at(t, first + i));
        break;
    case DTYPE_F32:
        for (uint64_t i = 0; i < count; i++)
            ((float *)out)[i] = normal_at(t, first + i);
        break;
    case DTYPE_I64:
        for (uint64_t i = 0; i < count; i++)
            ((int64_t *)out)[i] = choice_at(t, first + i);
        break;
    default:
        memset(out, 0, size);
        break;
    }
}
