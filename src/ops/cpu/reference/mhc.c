#include "ops/cpu/reference/activation.h"
#include "ops/cpu/reference/product.h"
#include "ops/cpu/reference/reference.h"
#include "ops/cpu/reference/scalar.h"

/* The residual streams: v41-model.md 4.1, 4.4, 10.2; v4-model.md 3.1, 3.3-3.5, 6.3, 7.4. M = streams, D = hidden. */

enum { MAX_STREAMS = 16 };

static void embed_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_embed *op = job->op;
    int64_t row = row_at(&op->rows, i);
    float *e = cpu_scratch(job->cpu, thread);
    weight_row_f32(op->weight, op->step->token_ids[row], e);
    for (int32_t j = 0; j < op->out.count; j++)
        stream_store(&op->out, row, j, e);
}

qr_status reference_embed(struct backend *b, const struct op_embed *op, qr_error *err)
{
    const struct weight_spec *w = &op->weight->spec;
    if ((w->format != WEIGHT_BF16 && w->format != WEIGHT_F32) || w->k != op->out.hidden)
        return qr_fail(err, QR_BAD_ARGUMENT, "embed: weight %s of format %d, %d columns, wanted bf16 or f32 and %d",
                       w->name, w->format, w->k, op->out.hidden);
    for (int64_t i = 0; i < op->rows.count; i++) {
        int32_t token = op->step->token_ids[row_at(&op->rows, i)];
        if (token < 0 || token >= w->n)
            return qr_fail(err, QR_BAD_ARGUMENT, "embed: token %d, wanted 0 to %d", token, w->n - 1);
    }
    qr_status st = cpu_need((struct cpu_backend *)b, "embed", piece_bytes(op->out.hidden, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, embed_row);
}

/* C[j][.] <- softmax + eps, then column step, then iterations - 1 times row and column step (4.4 steps 7 to 9). */
static void sinkhorn(float *c, int32_t m, float eps, int32_t iterations)
{
    for (int32_t j = 0; j < m; j++) {
        float largest = c[j * m], sum = 0;
        for (int32_t k = 1; k < m; k++)
            largest = fmaxf(largest, c[j * m + k]);
        for (int32_t k = 0; k < m; k++)
            sum += c[j * m + k] = expf(c[j * m + k] - largest);
        for (int32_t k = 0; k < m; k++)
            c[j * m + k] = c[j * m + k] / sum + eps;
    }
    for (int32_t round = 0; round < iterations; round++) {
        for (int32_t j = 0; round > 0 && j < m; j++) {
            float sum = 0;
            for (int32_t k = 0; k < m; k++)
                sum += c[j * m + k];
            for (int32_t k = 0; k < m; k++)
                c[j * m + k] /= sum + eps;
        }
        for (int32_t k = 0; k < m; k++) {
            float sum = 0;
            for (int32_t j = 0; j < m; j++)
                sum += c[j * m + k];
            for (int32_t j = 0; j < m; j++)
                c[j * m + k] /= sum + eps;
        }
    }
}

/* m = (fn v) rsqrt(mean v^2 + eps); pre = sigmoid(m scale0 + base) + hc_eps; post = 2 sigmoid(m scale1 + base);
 * comb = sinkhorn(m scale2 + base). All f32. */
static void mix_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_mhc_mix *op = job->op;
    int64_t row = row_at(&op->rows, i), all = (int64_t)op->x.count * op->x.hidden;
    int32_t m = op->x.count;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *v = take_floats(&scratch, all), *f = take_floats(&scratch, all);
    float mix[(2 + MAX_STREAMS) * MAX_STREAMS];

    for (int32_t j = 0; j < m; j++)
        stream_load(&op->x, row, j, v + (int64_t)j * op->x.hidden);
    float inverse = rsqrt(mean_square(v, all) + op->norm_eps);
    for (int32_t n = 0; n < op->fn->spec.n; n++) {
        weight_row_f32(op->fn, n, f);
        mix[n] = job->cpu->dot(f, v, (int32_t)all) * inverse;
    }

    for (int32_t j = 0; j < m; j++)
        op->pre[row * m + j] = sigmoid(mix[j] * op->scale[0] + op->base[j]) + op->hc_eps;
    if (op->head_only)
        return;
    for (int32_t j = 0; j < m; j++)
        op->post[row * m + j] = 2.0f * sigmoid(mix[m + j] * op->scale[1] + op->base[m + j]);
    float *comb = op->comb + row * m * m;
    for (int32_t jk = 0; jk < m * m; jk++)
        comb[jk] = mix[2 * m + jk] * op->scale[2] + op->base[2 * m + jk];
    sinkhorn(comb, m, op->hc_eps, op->iterations);
}

qr_status reference_mhc_mix(struct backend *b, const struct op_mhc_mix *op, qr_error *err)
{
    const struct weight_spec *fn = &op->fn->spec;
    int32_t m = op->x.count, wanted = op->head_only ? m : (2 + m) * m;
    if (m < 1 || m > MAX_STREAMS || fn->n != wanted || fn->k != m * op->x.hidden ||
        (fn->format != WEIGHT_F32 && fn->format != WEIGHT_BF16))
        return qr_fail(err, QR_BAD_ARGUMENT, "mhc_mix: weight %s of format %d [%d][%d], wanted f32 [%d][%d]", fn->name,
                       fn->format, fn->n, fn->k, wanted, m * op->x.hidden);
    qr_status st = cpu_need((struct cpu_backend *)b, "mhc_mix", 2 * piece_bytes(fn->k, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, mix_row);
}

/* u = sum_j pre_j x_j, f32, streams in order; pairwise: (0 + 1) + (2 + 3). Not yet rounded. `x` has room for M * D. */
static void collapse(const struct op_collapse *op, int64_t row, float *x, float *u)
{
    int32_t m = op->x.count, d = op->x.hidden;
    const float *pre = op->pre + row * m;
    for (int32_t j = 0; j < m; j++)
        stream_load(&op->x, row, j, x + (int64_t)j * d);
    for (int32_t c = 0; c < d; c++) {
        const float *at = x + c;
        if (op->pairwise) {
            u[c] = (at[0] * pre[0] + at[d] * pre[1]) + (at[2 * d] * pre[2] + at[3 * d] * pre[3]);
            continue;
        }
        float sum = pre[0] * at[0];
        for (int32_t j = 1; j < m; j++)
            sum += pre[j] * at[(int64_t)j * d];
        u[c] = sum;
    }
}

static void collapse_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_collapse *op = job->op;
    int64_t row = row_at(&op->rows, i), d = op->x.hidden;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *u = take_floats(&scratch, d), *x = take_floats(&scratch, d * op->x.count);

    collapse(op, row, x, u);
    bf16_round_all(u, d);
    if (op->collapsed.codes)
        act_store(&op->collapsed, row, 0, u, d);
    if (!op->norm)
        return;

    float *w = x;
    float inverse = rsqrt(mean_square(u, d) + op->norm_eps);
    bf16_load(op->norm, d, w);
    for (int64_t c = 0; c < d;
         c++) /* deferred: xg = u w, and the row's factor travels beside it (v4-model.md 7.4 gate) */
        u[c] = op->inverse ? u[c] * w[c] : bf16_round(w[c] * (u[c] * inverse));
    if (op->normed.codes)
        act_store(&op->normed, row, 0, u, d);
    if (op->quantized.codes)
        act_quantize(&op->quantized, row, 0, u, d);
    if (!op->inverse)
        return;
    op->inverse[row] = inverse;
    if (op->quantized.codes)
        ((float *)op->quantized.scales)[row] *= inverse;
}

qr_status reference_collapse(struct backend *b, const struct op_collapse *op, qr_error *err)
{
    int64_t d = op->x.hidden;
    if (op->x.count < 1 || (op->pairwise && op->x.count != 4))
        return qr_fail(err, QR_BAD_ARGUMENT, "collapse: %d streams%s", op->x.count, op->pairwise ? ", wanted 4" : "");
    if (op->inverse && op->quantized.codes && (op->quantized.format != ACT_I8 || op->quantized.block != d))
        return qr_fail(err, QR_BAD_ARGUMENT, "collapse: a deferred norm quantizes to int8 by row only");
    qr_status st = cpu_need((struct cpu_backend *)b, "collapse",
                            piece_bytes(d, sizeof(float)) + piece_bytes(d * op->x.count, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, collapse_row);
}

/* x[k] <- post_k y + sum_j comb[j][k] x[j]: the sum over j first, in order, its products added without a rounding of their
 * own (as golden/ops4 04 shows to the bit), then the product with y is added. */
static void expand_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_expand *op = job->op;
    int64_t row = row_at(&op->rows, i), d = op->x.hidden;
    int32_t m = op->x.count;
    const float *post = op->post + row * m, *comb = op->comb + row * m * m;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *y = take_floats(&scratch, d), *out = take_floats(&scratch, d), *x = take_floats(&scratch, d * m);

    bf16_load((const uint16_t *)op->y + row * d, d, y);
    for (int32_t j = 0; j < m; j++)
        stream_load(&op->x, row, j, x + j * d);
    for (int32_t k = 0; k < m; k++) {
        for (int64_t c = 0; c < d; c++) {
            float sum = comb[k] * x[c];
            for (int32_t j = 1; j < m; j++)
                sum = (float)((double)comb[j * m + k] * (double)x[j * d + c] + (double)sum);
            out[c] = post[k] * y[c] + sum;
        }
        stream_store(&op->x, row, k, out);
    }
}

qr_status reference_expand(struct backend *b, const struct op_expand *op, qr_error *err)
{
    int64_t d = op->x.hidden;
    qr_status st = cpu_need((struct cpu_backend *)b, "expand",
                            2 * piece_bytes(d, sizeof(float)) + piece_bytes(d * op->x.count, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, expand_row);
}

static void mean_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_stream_mean *op = job->op;
    int64_t row = row_at(&op->rows, i), d = op->x.hidden;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *sum = take_floats(&scratch, d), *x = take_floats(&scratch, d);

    stream_load(&op->x, row, 0, sum);
    for (int32_t j = 1; j < op->x.count; j++) {
        stream_load(&op->x, row, j, x);
        for (int64_t c = 0; c < d; c++)
            sum[c] += x[c];
    }
    for (int64_t c = 0; c < d; c++)
        sum[c] /= (float)op->x.count;
    act_store(&op->out, row, op->column, sum, d);
}

qr_status reference_stream_mean(struct backend *b, const struct op_stream_mean *op, qr_error *err)
{
    if (op->column < 0 || op->column + op->x.hidden > op->out.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "stream_mean: columns %d to %d of a row of %d", op->column,
                       op->column + op->x.hidden, op->out.cols);
    qr_status st = cpu_need((struct cpu_backend *)b, "stream_mean", 2 * piece_bytes(op->x.hidden, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, mean_row);
}

static void stream_add_row(void *user, int64_t i, int thread)
{
    const struct job *job = user;
    const struct op_stream_add *op = job->op;
    int64_t row = row_at(&op->rows, i), d = op->out.hidden;
    struct pieces scratch = {cpu_scratch(job->cpu, thread)};
    float *e = take_floats(&scratch, d), *h = take_floats(&scratch, d);

    act_load(&op->e, row, 0, d, e);
    for (int32_t j = 0; j < op->out.count; j++) {
        act_load(&op->h, row, j * d, d, h);
        for (int64_t c = 0; c < d; c++)
            h[c] = e[c] + h[c];
        stream_store(&op->out, row, j, h);
    }
}

qr_status reference_stream_add(struct backend *b, const struct op_stream_add *op, qr_error *err)
{
    if (!act_is_float(&op->e) || !act_is_float(&op->h) || op->e.cols != op->out.hidden ||
        op->h.cols != op->out.count * op->out.hidden)
        return qr_fail(err, QR_BAD_ARGUMENT, "stream_add: rows of %d and %d columns, wanted %d and %d", op->e.cols,
                       op->h.cols, op->out.hidden, op->out.count * op->out.hidden);
    qr_status st = cpu_need((struct cpu_backend *)b, "stream_add", 2 * piece_bytes(op->out.hidden, sizeof(float)), err);
    return st != QR_OK ? st : cpu_run(b, op, op->rows.count, stream_add_row);
}
