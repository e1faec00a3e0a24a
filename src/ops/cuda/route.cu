#include "ops/cuda/route.cuh"

/* The router: v41-model.md 7.1, v4-model.md 6.1, 7.4 gate. */

enum { THREADS = 128 };

/* Rows of codes that are brought to bf16 on the way, for the experts that come next (product.cuh); to NULL: none. */
struct widening {
    struct activation in;
    uint16_t *to; /* [rows][in.cols], in the order in which weights come */
};

static __device__ void widen_row(const struct widening &w, int64_t row, int64_t to_row)
{
    const uint8_t *codes = (const uint8_t *)w.in.codes + row * w.in.cols;
    const uint8_t *scales = (const uint8_t *)w.in.scales + row * (w.in.cols / w.in.block);
#pragma unroll 4
    for (int c = 8 * threadIdx.x; c < w.in.cols; c += 8 * THREADS)
        *(uint4 *)(void *)(w.to + to_row * w.in.cols + c) =
            widened(__ldg((const uint2 *)(const void *)(codes + c)), __ldg(scales + c / w.in.block));
}

/* A block for each expert: scores[i][e] = sqrt(softplus(x w_e)). The last one of a row to come (`arrived` counts, and is
 * zero again afterwards) chooses. One more block widens the row where that is wanted. */
static __global__ void __launch_bounds__(THREADS)
    route_kernel(struct op_route op, struct step step, struct weight_view gate, bool f32, bool wide, float *scores,
                 uint32_t *arrived, int32_t offset, struct widening widening, int32_t *trouble)
{
    await_earlier();
    __shared__ bool last;
    const int64_t row = row_at(op.rows, blockIdx.y) + (op.rows.index ? 0 : offset);
    int e = blockIdx.x, n = op.x.cols;
    if (e == op.experts) {
        widen_row(widening, row, blockIdx.y);
        return;
    }
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
    float logit = (float)block_sum(sum), *own = scores + (int64_t)blockIdx.y * op.experts;
    if (op.x_scale)
        logit *= op.x_scale[row];
    if (threadIdx.x == 0) {
        own[e] = sqrtf(softplus(logit));
        __threadfence();
        last = atomicInc(arrived + blockIdx.y, (uint32_t)op.experts - 1) == (uint32_t)op.experts - 1;
        __threadfence();
    }
    __syncthreads();
    if (last && warp_of() == 0)
        choose(op, step, row, own, trouble);
}

static qr_status check_route(const struct op_route *op, qr_error *err)
{
    const struct weight_spec *gate = &op->gate->spec;
    if (!act_is_float(op->x) || (gate->format != WEIGHT_BF16 && gate->format != WEIGHT_F32) || gate->n != op->experts ||
        gate->k != op->x.cols)
        return qr_fail(err, QR_BAD_ARGUMENT, "route: weight %s of format %d [%d][%d], wanted bf16 or f32 [%d][%d]",
                       gate->name, gate->format, gate->n, gate->k, op->experts, op->x.cols);
    if (op->active < 1 || op->active > op->experts)
        return qr_fail(err, QR_BAD_ARGUMENT, "route: %d of %d experts", op->active, op->experts);
    if (op->experts > MOST_EXPERTS)
        return qr_fail(err, QR_UNSUPPORTED, "route: %d experts, wanted at most %d", op->experts, MOST_EXPERTS);
    return QR_OK;
}

static qr_status start_route(struct backend *b, const struct op_route *op, const struct widening *widening, qr_error *err)
{
    const struct weight_spec *gate = &op->gate->spec;
    /* behind what the experts that come next take of it when few */
    float *scores = (float *)(void *)(cuda_of(b)->scratch + SCRATCH_BYTES / 2);
    const bool wide = gate->k % 4 == 0 && is_wide(op->x.codes);
    struct op_route band = *op;
    if (!widening->to && route_is_many(op))
        return route_many(b, op, scores, SCRATCH_BYTES / 2, err);
    for (int32_t first = 0; first < op->rows.count; first += MOST_ARRIVED) {
        band.rows.index = op->rows.index ? op->rows.index + first : NULL;
        band.rows.count = op->rows.count - first < MOST_ARRIVED ? op->rows.count - first : MOST_ARRIVED;
        LAUNCH("route", route_kernel, dim3(op->experts + (widening->to ? 1 : 0), band.rows.count), THREADS, 0, band,
               *op->step, op->gate->view, gate->format == WEIGHT_F32, wide, scores, cuda_of(b)->arrived, first,
               *widening, cuda_of(b)->trouble);
    }
    return QR_OK;
}

qr_status cuda_route(struct backend *b, const struct op_route *op, qr_error *err)
{
    const struct widening none = {};
    qr_status st = check_route(op, err);
    return st == QR_OK ? start_route(b, op, &none, err) : st;
}

qr_status cuda_route_experts(struct backend *b, const struct op_route *op, const struct op_expert *experts,
                             qr_error *err)
{
    const struct widening widening = {experts->x, cuda_expert_rows(b, experts)};
    qr_status st = check_route(op, err);
    if (st == QR_OK)
        st = start_route(b, op, &widening, err);
    return st == QR_OK ? cuda_expert_widened(b, experts, err) : st;
}
