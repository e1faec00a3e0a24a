#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/scalar.h"

/* round(w (x rsqrt(mean x^2 + eps))), then times smooth; one rounding, to out's format (v41-model.md 4.2). */
static void norm_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_norm *op = job->op;
    int64_t row = row_at(&op->rows, i), parts = at_least_one(op->parts), n = op->in.cols / parts;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *x = take_floats(&scratch, n), *w = take_floats(&scratch, n);

    if (op->weight_f32)
        act_load(&(struct activation){.format = ACT_F32, .cols = (int32_t)n, .codes = (void *)op->weight}, 0, 0, n, w);
    else
        bf16_load(op->weight, n, w);

    for (int64_t part = 0; part < parts; part++) {
        act_load(&op->in, row, part * n, n, x);
        float inverse = rsqrt(mean_square(x, n) + op->eps);
        for (int64_t c = 0; c < n; c++)
            x[c] = w[c] * (x[c] * inverse);
        for (int64_t c = 0; op->smooth && c < n; c++)
            x[c] *= op->smooth[c];
        if (op->out.format == ACT_BF16)
            bf16_round_all(x, n);
        if (op->out.codes)
            act_store(&op->out, row, part * n, x, n);
        if (op->quantized.codes)
            act_quantize(&op->quantized, row, part * n, x, n);
    }
}

qr_status reference_norm(struct backend *b, const struct op_norm *op, qr_error *err)
{
    if (!act_is_float(&op->in) || !act_is_float(&op->out) || op->in.cols % at_least_one(op->parts))
        return qr_fail(err, QR_BAD_ARGUMENT, "norm: formats %d to %d, %d columns in %d parts", op->in.format,
                       op->out.format, op->in.cols, at_least_one(op->parts));
    qr_status st = cpu_need((struct cpu_backend *)b, "norm", 2 * piece_bytes(op->in.cols, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, norm_row);
}

static void quantize_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_quantize *op = job->op;
    int64_t row = row_at(&op->rows, i);
    float *x = cpu_scratch(job->cpu, thread);
    act_load(&op->in, row, 0, op->in.cols, x);
    act_quantize(&op->out, row, 0, x, op->in.cols);
}

qr_status reference_quantize(struct backend *b, const struct op_quantize *op, qr_error *err)
{
    if (!act_is_float(&op->in) || act_is_float(&op->out) || op->out.block < 1 || op->in.cols % op->out.block ||
        op->in.cols != op->out.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "quantize: formats %d to %d, %d columns to %d in blocks of %d",
                       op->in.format, op->out.format, op->in.cols, op->out.cols, op->out.block);
    qr_status st = cpu_need((struct cpu_backend *)b, "quantize", piece_bytes(op->in.cols, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, quantize_row);
}
