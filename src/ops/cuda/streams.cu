#include "ops/cuda/product.cuh"

/* Into and out of the residual streams: v41-model.md 4.1, 8.7, 10.2; v4-model.md 3.1, 6.3. M = streams, D = hidden. */

enum { THREADS = 256 };

static __device__ float weight_value(const struct weight_view &w, bool f32, int64_t n, int64_t k)
{
    return f32 ? ((const float *)(const void *)(w.values + n * w.pitch))[k] : packed_bf16(w, n, k);
}

static __global__ void embed_kernel(struct op_embed op, struct step step, struct weight_view w, bool f32,
                                    int32_t *trouble)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x);
    int32_t token = step.token_ids[row];
    bool known = token >= 0 && token < w.n;
    if (!known && threadIdx.x == 0)
        report_trouble(trouble, TROUBLE_TOKEN, token);
    for (int c = threadIdx.x; c < op.out.hidden; c += THREADS) {
        float e = known ? weight_value(w, f32, token, c) : 0.0f;
        for (int j = 0; j < op.out.count; j++)
            stream_store(op.out, (row * op.out.count + j) * op.out.hidden + c, e);
    }
}

qr_status cuda_embed(struct backend *b, const struct op_embed *op, qr_error *err)
{
    const struct weight_spec *w = &op->weight->spec;
    if ((w->format != WEIGHT_BF16 && w->format != WEIGHT_F32) || w->k != op->out.hidden)
        return qr_fail(err, QR_BAD_ARGUMENT, "embed: weight %s of format %d, %d columns, wanted bf16 or f32 and %d",
                       w->name, w->format, w->k, op->out.hidden);
    LAUNCH("embed", embed_kernel, op->rows.count, THREADS, 0, *op, *op->step, op->weight->view, w->format == WEIGHT_F32,
           cuda_of(b)->trouble);
    return QR_OK;
}

static __global__ void mean_kernel(struct op_stream_mean op)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x);
    int m = op.x.count, d = op.x.hidden;
    for (int c = threadIdx.x; c < d; c += THREADS) {
        float sum = stream_value(op.x, row * m * d + c);
        for (int j = 1; j < m; j++)
            sum += stream_value(op.x, (row * m + j) * d + c);
        act_store(op.out, row, op.column + c, sum / (float)m);
    }
}

qr_status cuda_stream_mean(struct backend *b, const struct op_stream_mean *op, qr_error *err)
{
    if (op->column < 0 || op->column + op->x.hidden > op->out.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "stream_mean: columns %d to %d of a row of %d", op->column,
                       op->column + op->x.hidden, op->out.cols);
    LAUNCH("stream_mean", mean_kernel, op->rows.count, THREADS, 0, *op);
    return QR_OK;
}

static __global__ void stream_add_kernel(struct op_stream_add op)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.x);
    int m = op.out.count, d = op.out.hidden;
    for (int c = threadIdx.x; c < d; c += THREADS)
        for (int j = 0; j < m; j++)
            stream_store(op.out, (row * m + j) * d + c,
                         act_value(op.e, row, c) + act_value(op.h, row, (int64_t)j * d + c));
}

qr_status cuda_stream_add(struct backend *b, const struct op_stream_add *op, qr_error *err)
{
    if (!act_is_float(op->e) || !act_is_float(op->h) || op->e.cols != op->out.hidden ||
        op->h.cols != op->out.count * op->out.hidden)
        return qr_fail(err, QR_BAD_ARGUMENT, "stream_add: rows of %d and %d columns, wanted %d and %d", op->e.cols,
                       op->h.cols, op->out.hidden, op->out.count * op->out.hidden);
    LAUNCH("stream_add", stream_add_kernel, op->rows.count, THREADS, 0, *op);
    return QR_OK;
}

/* ---- Engram: gate and injection (v41-model.md 8.7) ---- */

#define ENGRAM_EPS 1e-20f

/* One block for each stream of a row. rho = rsqrt(mean x^2 + eps) rsqrt(mean k^2 + eps); d = (sum x g k) rho D^-0.5
 * with g = q_weight k_weight; gate = sigmoid(copysign(sqrt(max(|d|, 1e-6)), d)). */
static __global__ void engram_kernel(struct op_engram op, struct step step)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.y);
    int j = blockIdx.x, m = op.x.count, d = op.x.hidden;
    const uint16_t *key = (const uint16_t *)op.kv + (row * (m + 1) + j) * d;
    const uint16_t *value = (const uint16_t *)op.kv + (row * (m + 1) + m) * d;
    int64_t first = (row * m + j) * d;
    float gate = 0;

    if (!(step.image_mask && step.image_mask[row])) {
        double dot = 0, xx = 0, kk = 0;
        for (int c = threadIdx.x; c < d; c += THREADS) {
            float g = bf16_value(((const uint16_t *)op.q_weight)[(int64_t)j * d + c]) *
                      bf16_value(((const uint16_t *)op.k_weight)[(int64_t)j * d + c]);
            float x = stream_value(op.x, first + c), k = bf16_value(key[c]);
            dot += (double)x * (double)g * (double)k;
            xx += (double)x * x;
            kk += (double)k * k;
        }
        dot = block_sum(dot);
        float rho = rsqrt_of((float)(block_sum(xx) / (double)d) + ENGRAM_EPS) *
                    rsqrt_of((float)(block_sum(kk) / (double)d) + ENGRAM_EPS);
        float s = (float)dot * rho * (float)(1.0 / sqrt((double)d));
        gate = sigmoid_of(copysignf(sqrtf(fmaxf(fabsf(s), 1e-6f)), s));
        for (int c = threadIdx.x; c < d; c += THREADS)
            stream_store(op.x, first + c, stream_value(op.x, first + c) + gate * bf16_value(value[c]));
    }
    if (op.gate_out && threadIdx.x == 0)
        op.gate_out[row * m + j] = gate;
}

qr_status cuda_engram(struct backend *b, const struct op_engram *op, qr_error *err)
{
    LAUNCH("engram", engram_kernel, dim3(op->x.count, op->rows.count), THREADS, 0, *op, *op->step);
    return QR_OK;
}
