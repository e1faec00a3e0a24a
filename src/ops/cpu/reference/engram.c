#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/scalar.h"

/* Gate and injection (v41-model.md 8.7). */

#define ENGRAM_EPS 1e-20f

/* sigmoid(copysign(sqrt(max(|d|, 1e-6)), d)): 0.5 is never met. */
static float gate_of(float d) { return sigmoid(copysignf(sqrtf(fmaxf(fabsf(d), 1e-6f)), d)); }

/* rho = rsqrt(mean x^2 + eps) rsqrt(mean k^2 + eps); d = (sum x g k) rho D^-0.5 with g = q_weight k_weight. */
static float gate_input(const float *x, const float *k, const uint16_t *q_weight, const uint16_t *k_weight, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++) {
        float g = bf16_decode(q_weight[c]) * bf16_decode(k_weight[c]);
        sum += (double)x[c] * (double)g * (double)k[c];
    }
    float rho = rsqrt(mean_square(x, n) + ENGRAM_EPS) * rsqrt(mean_square(k, n) + ENGRAM_EPS);
    return (float)sum * rho * (float)(1.0 / sqrt((double)n));
}

static void engram_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_engram *op = job->op;
    int64_t row = row_at(&op->rows, i), d = op->x.hidden;
    int32_t m = op->x.count;
    bool image = op->step->image_mask && op->step->image_mask[row];
    const uint16_t *kv = (const uint16_t *)op->kv + row * (m + 1) * d;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *x = take_floats(&scratch, d), *k = take_floats(&scratch, d), *value = take_floats(&scratch, d);

    bf16_load(kv + m * d, d, value);
    for (int32_t j = 0; j < m; j++) {
        float gate = 0;
        if (!image) {
            stream_load(&op->x, row, j, x);
            bf16_load(kv + j * d, d, k);
            gate = gate_of(
                gate_input(x, k, (const uint16_t *)op->q_weight + j * d, (const uint16_t *)op->k_weight + j * d, d));
            for (int64_t c = 0; c < d; c++)
                x[c] = x[c] + gate * value[c];
            stream_store(&op->x, row, j, x);
        }
        if (op->gate_out)
            op->gate_out[row * m + j] = gate;
    }
}

qr_status reference_engram(struct backend *b, const struct op_engram *op, qr_error *err)
{
    qr_status st = cpu_need((struct cpu_backend *)b, "engram", 3 * piece_bytes(op->x.hidden, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, engram_row);
}
