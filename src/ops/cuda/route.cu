#include "ops/cuda/product.cuh"

/* The router: v41-model.md 7.1, v4-model.md 6.1, 7.4 gate. */

enum { THREADS = 128 };

/* softplus(z) = max(z, 0) + log1p(exp(-|z|)), rounded once: keeps its digits far below zero. */
static __device__ float softplus(float z) { return (float)(fmax((double)z, 0.0) + log1p(exp(-fabs((double)z)))); }

/* A block for each expert: scores[i][e] = sqrt(softplus(x w_e)). */
static __global__ void __launch_bounds__(THREADS)
    score_kernel(struct op_route op, struct weight_view gate, bool f32, bool wide, float *scores)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.y);
    int e = blockIdx.x, n = op.x.cols;
    const uint8_t *w = gate.values + e * gate.pitch;
    bool bf16 = op.x.format == ACT_BF16;
    double sum = 0;
    if (wide) {
#pragma unroll 4
        for (int c = 4 * threadIdx.x; c < n; c += 4 * THREADS) {
            float4 x = load_four(bf16, op.x.codes, row * n + c), v;
            if (f32)
                v = load_four(false, w, c);
            else
                v = load_four(true, packed_bf16_at(gate, e, c), 0);
            sum += ((double)v.x * x.x + (double)v.y * x.y) + ((double)v.z * x.z + (double)v.w * x.w);
        }
    } else {
        for (int c = threadIdx.x; c < n; c += THREADS)
            sum +=
                (double)act_value(op.x, row, c) * (f32 ? ((const float *)(const void *)w)[c] : packed_bf16(gate, e, c));
    }
    float logit = (float)block_sum(sum);
    if (op.x_scale)
        logit *= op.x_scale[row];
    if (threadIdx.x == 0)
        scores[(int64_t)blockIdx.y * op.experts + e] = sqrtf(softplus(logit));
}

/* The best of what the lanes bring: larger choice first, equal ones by the smaller expert; -1 none. */
static __device__ int best_of(float choice, int e)
{
    for (int o = WARP / 2; o > 0; o /= 2) {
        float other = __shfl_xor_sync(ALL_LANES, choice, o);
        int other_e = __shfl_xor_sync(ALL_LANES, e, o);
        if (other_e >= 0 && (e < 0 || other > choice || (other == choice && other_e < e))) {
            choice = other;
            e = other_e;
        }
    }
    return e;
}

/* One warp a row: choice[e] = score + bias, the best taken one by one; then the weights. */
static __global__ void choose_kernel(struct op_route op, struct step step, const float *scores, int32_t *trouble)
{
    await_earlier();
    extern __shared__ float choice[];
    int64_t row = row_at(op.rows, blockIdx.x);
    const float *score = scores + (int64_t)blockIdx.x * op.experts;
    int32_t *idx = op.idx + row * op.active;
    bool image = op.bias_image && step.image_mask && step.image_mask[row];
    const float *bias = image ? op.bias_image : op.bias;

    /* taken ones are marked in the second half */
    float *taken = choice + op.experts;
    for (int e = threadIdx.x; e < op.experts; e += WARP) {
        choice[e] = bias ? score[e] + bias[e] : score[e];
        taken[e] = 0;
    }
    __syncwarp();
    for (int k = 0; k < op.active; k++) {
        int best = -1;
        if (op.table) {
            best = op.table[(int64_t)step.token_ids[row] * op.active + k];
            if (best < 0 || best >= op.experts) {
                report_trouble(trouble, TROUBLE_EXPERT, best);
                best = 0;
            }
        } else {
            for (int e = threadIdx.x; e < op.experts; e += WARP)
                if (taken[e] == 0 && (best < 0 || choice[e] > choice[best]))
                    best = e;
            best = best_of(best < 0 ? 0 : choice[best], best);
        }
        if (threadIdx.x == 0) {
            idx[k] = best;
            taken[best] = 1;
        }
        __syncwarp();
    }
    if (threadIdx.x != 0)
        return;
    double sum = 0;
    for (int k = 0; k < op.active; k++)
        sum += (double)score[idx[k]];
    float denominator = (float)sum + op.denominator_eps;
    for (int k = 0; k < op.active; k++) {
        float w = score[idx[k]];
        if (op.normalise)
            w /= denominator;
        op.weight[row * op.active + k] = w * op.scaling;
    }
}

qr_status cuda_route(struct backend *b, const struct op_route *op, qr_error *err)
{
    const struct weight_spec *gate = &op->gate->spec;
    if (!act_is_float(op->x) || (gate->format != WEIGHT_BF16 && gate->format != WEIGHT_F32) || gate->n != op->experts ||
        gate->k != op->x.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "route: weight %s of format %d [%d][%d], wanted bf16 or f32 [%d][%d]",
                       gate->name, gate->format, gate->n, gate->k, op->experts, op->x.cols);
    if (op->active < 1 || op->active > op->experts)
        return qr_fail(err, QR_BAD_ARGUMENT, "route: %d of %d experts", op->active, op->experts);
    if ((int64_t)op->rows.count * op->experts * 4 > SCRATCH_BYTES)
        return qr_fail(err, QR_BAD_ARGUMENT, "route: %d rows are more than its scratch holds", op->rows.count);
    float *scores = (float *)(void *)cuda_of(b)->scratch;
    bool wide = gate->k % 4 == 0 && is_wide(op->x.codes);
    LAUNCH("route", score_kernel, dim3(op->experts, op->rows.count), THREADS, 0, *op, op->gate->view,
           gate->format == WEIGHT_F32, wide, scores);
    LAUNCH("route", choose_kernel, op->rows.count, WARP, (size_t)op->experts * 8, *op, *op->step, scores,
           cuda_of(b)->trouble);
    return QR_OK;
}
