/* route.cuh: what the router's kernels share: a score, and a row's choice. */
#ifndef QR_OPS_CUDA_ROUTE_CUH
#define QR_OPS_CUDA_ROUTE_CUH

#include "ops/cuda/product.cuh"

/* softplus(z) = max(z, 0) + log1p(exp(-|z|)), rounded once: keeps its digits far below zero. */
static __device__ float softplus(float z) { return (float)(fmax((double)z, 0.0) + log1p(exp(-fabs((double)z)))); }

/* The best of what the lanes bring, the same for all: larger choice first, equal ones by the smaller expert; -1 none. Among
 * choices that are no numbers it is the first lane's. */
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
    return __shfl_sync(ALL_LANES, e, 0);
}

enum { OWN = MOST_EXPERTS / WARP };

/* A row's choice by a warp: score + bias, the best taken one by one; then the weights. */
static __device__ void choose(const struct op_route &op, const struct step &step, int64_t row, const float *score,
                              int32_t *trouble)
{
    const bool image = op.bias_image && step.image_mask && step.image_mask[row];
    const float *bias = image ? op.bias_image : op.bias;
    int32_t *idx = op.idx + row * op.active;
    float choice[OWN]; /* of experts lane, lane + 32, ... */
    uint32_t taken = 0;
#pragma unroll
    for (int n = 0; n < OWN; n++) {
        const int e = lane_of() + n * WARP;
        choice[n] = e < op.experts ? __ldcg(score + e) : 0.0f;
        if (bias && e < op.experts)
            choice[n] += bias[e];
        taken |= (uint32_t)(e >= op.experts) << n;
    }
    double sum = 0;
    for (int k = 0; k < op.active; k++) {
        int best = -1;
        if (op.table) {
            best = op.table[(int64_t)step.token_ids[row] * op.active + k];
            if (best < 0 || best >= op.experts) {
                report_trouble(trouble, TROUBLE_EXPERT, best);
                best = 0;
            }
        } else {
            float largest = 0;
#pragma unroll
            for (int n = 0; n < OWN; n++)
                if (!(taken >> n & 1) && (best < 0 || choice[n] > largest)) {
                    largest = choice[n];
                    best = lane_of() + n * WARP;
                }
            best = best_of(largest, best);
        }
        if (best % WARP == lane_of())
            taken |= 1u << best / WARP;
        if (lane_of() == 0)
            idx[k] = best;
        sum += (double)__ldcg(score + best);
    }
    float denominator = (float)sum + op.denominator_eps;
    __syncwarp();
    for (int k = lane_of(); k < op.active; k += WARP) {
        float w = __ldcg(score + idx[k]);
        if (op.normalise)
            w /= denominator;
        op.weight[row * op.active + k] = w * op.scaling;
    }
}

/* Many rows: the same bits as the kernel for few. */
bool route_is_many(const struct op_route *op);
qr_status route_many(struct backend *b, const struct op_route *op, float *scores, int64_t room, qr_error *err);

#endif
