#include "ops/cuda/between.cuh"

/* What stands between two sub-blocks of a layer: the experts' sum, the streams' expansion, the next mix, the next input
 * (v41-model.md 4.4, 7.3; v4-model.md 3.3-3.5, 6.2, 7.4). M = streams, D = hidden. One kernel does them all where the
 * list has them in a row, and any of them alone; for other numbers of streams or columns each has a plain kernel. */

enum {
    THREADS = 256,
    DOT_THREADS = 512,
    ROW_THREADS = 1024,
    MAX_STREAMS = 16,
    MAX_MIX = (2 + MAX_STREAMS) * MAX_STREAMS
};

/* ---- the experts' sum ---- */

static __global__ void combine_kernel(struct op_combine op)
{
    await_earlier();
    __shared__ int order[MOST_ACTIVE];
    int64_t row = row_at(op.rows, blockIdx.x), d = op.hidden;
    order_experts(op, row, order, threadIdx.x, THREADS);
    __syncthreads();
    for (int64_t c = (int64_t)blockIdx.y * THREADS + threadIdx.x; c < d; c += (int64_t)gridDim.y * THREADS)
        ((uint16_t *)op.out)[row * d + c] = combined(op, row, c, order);
}

static qr_status check_combine(const struct op_combine *op, qr_error *err)
{
    if (op->active > MOST_ACTIVE)
        return qr_fail(err, QR_UNSUPPORTED, "combine: %d experts a row, wanted at most %d", op->active, MOST_ACTIVE);
    return QR_OK;
}

qr_status cuda_combine(struct backend *b, const struct op_combine *op, qr_error *err)
{
    qr_status st = check_combine(op, err);
    if (st != QR_OK)
        return st;
    LAUNCH("combine", combine_kernel,
           dim3(op->rows.count, op->rows.count <= 256 ? (op->hidden + THREADS - 1) / THREADS : 1), THREADS, 0, *op);
    return QR_OK;
}

/* ---- mixes ---- */

static __device__ float weight_value(const struct weight_view &w, bool f32, int64_t n, int64_t k)
{
    return f32 ? ((const float *)(const void *)(w.values + n * w.pitch))[k] : packed_bf16(w, n, k);
}

/* Softmax + eps, column step, then iterations - 1 times row and column step (4.4 steps 7 to 9). One thread. */
static __device__ void sinkhorn(float *c, int m, float eps, int iterations)
{
    for (int j = 0; j < m; j++) {
        float largest = c[j * m], sum = 0;
        for (int k = 1; k < m; k++)
            largest = fmaxf(largest, c[j * m + k]);
        for (int k = 0; k < m; k++)
            sum += c[j * m + k] = exp_of(c[j * m + k] - largest);
        for (int k = 0; k < m; k++)
            c[j * m + k] = c[j * m + k] / sum + eps;
    }
    for (int round = 0; round < iterations; round++) {
        for (int j = 0; round > 0 && j < m; j++) {
            float sum = 0;
            for (int k = 0; k < m; k++)
                sum += c[j * m + k];
            for (int k = 0; k < m; k++)
                c[j * m + k] /= sum + eps;
        }
        for (int k = 0; k < m; k++) {
            float sum = 0;
            for (int j = 0; j < m; j++)
                sum += c[j * m + k];
            for (int j = 0; j < m; j++)
                c[j * m + k] /= sum + eps;
        }
    }
}

/* The same for any number: it is one thread's. `comb`: room for m^2. */
static __device__ void finish_comb(const struct op_mhc_mix &op, int64_t row, const float *mix, float *comb)
{
    int m = op.x.count;
    for (int j = lane_of(); j < m; j += WARP)
        op.post[row * m + j] = 2.0f * sigmoid_of(mix[m + j] * op.scale[1] + op.base[m + j]);
    for (int i = lane_of(); i < m * m; i += WARP)
        comb[i] = mix[2 * m + i] * op.scale[2] + op.base[2 * m + i];
    __syncwarp();
    if (lane_of() == 0)
        sinkhorn(comb, m, op.hc_eps, op.iterations);
    __syncwarp();
    for (int i = lane_of(); i < m * m; i += WARP)
        op.comb[row * m * m + i] = comb[i];
}

/* One block for each output of fn and one more for the sum of squares: dots[row][n] and dots[row][outputs]. The last
 * block of a row to arrive (`arrived` counts, and is zero again afterwards) finishes it. */
static __global__ void __launch_bounds__(DOT_THREADS)
    mix_kernel(struct op_mhc_mix op, int32_t offset, struct weight_view fn, bool f32, bool wide, float *dots,
               uint32_t *arrived)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.y) + (op.rows.index ? 0 : offset), n = blockIdx.x;
    int all = op.x.count * op.x.hidden;
    bool bf16 = op.x.format == ACT_BF16, squares = n == fn.n;
    const uint8_t *w = fn.values + n * fn.pitch;
    double sum = 0;
    if (wide) {
#pragma unroll 8
        for (int c = 4 * threadIdx.x; c < all; c += 4 * DOT_THREADS) {
            float4 x = load_four(bf16, op.x.data, row * all + c), v = squares ? x : load_four(false, w, c);
            sum += ((double)v.x * x.x + (double)v.y * x.y) + ((double)v.z * x.z + (double)v.w * x.w);
        }
    } else {
        for (int c = threadIdx.x; c < all; c += DOT_THREADS) {
            float x = stream_value(op.x, row * all + c);
            sum += (double)(squares ? x : weight_value(fn, f32, n, c)) * x;
        }
    }
    __shared__ bool last;
    float *dot = dots + (int64_t)blockIdx.y * (fn.n + 1);
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        dot[n] = squares ? (float)(sum / (double)all) : (float)sum;
        __threadfence();
        last = atomicInc(arrived + blockIdx.y, (uint32_t)fn.n) == (uint32_t)fn.n;
        __threadfence();
    }
    __syncthreads();
    if (!last || warp_of() != 0)
        return;
    __shared__ float mix[MAX_MIX], comb[MAX_STREAMS * MAX_STREAMS];
    float inverse = rsqrt_of(__ldcg(dot + fn.n) + op.norm_eps);
    for (int i = lane_of(); i < fn.n; i += WARP)
        mix[i] = __ldcg(dot + i) * inverse;
    __syncwarp();
    for (int j = lane_of(); j < op.x.count; j += WARP)
        op.pre[row * op.x.count + j] = pre_of(op, mix, j);
    if (!op.head_only)
        op.x.count == 4 ? finish_comb_4(op, row, mix) : finish_comb(op, row, mix, comb);
}

/* ---- plain: the next input, the expansion ---- */

static __global__ void __launch_bounds__(ROW_THREADS) collapse_kernel(struct op_collapse op)
{
    await_earlier();
    LAUNCHED_SHARED(float, u, 4);
    int64_t row = row_at(op.rows, blockIdx.x);
    int m = op.x.count, d = op.x.hidden;
    const float *pre = op.pre + row * m;
    int64_t first = row * m * d;

    for (int c = threadIdx.x; c < d; c += ROW_THREADS) {
        float sum = pre[0] * stream_value(op.x, first + c);
        if (op.pairwise)
            sum = (sum + pre[1] * stream_value(op.x, first + d + c)) +
                  (pre[2] * stream_value(op.x, first + 2 * (int64_t)d + c) +
                   pre[3] * stream_value(op.x, first + 3 * (int64_t)d + c));
        else
            for (int j = 1; j < m; j++)
                sum += pre[j] * stream_value(op.x, first + (int64_t)j * d + c);
        u[c] = round_bf16(sum);
    }
    __syncthreads();
    for (int c = threadIdx.x; op.collapsed.codes && c < d; c += ROW_THREADS)
        act_store(op.collapsed, row, c, u[c]);
    if (!op.norm)
        return;
    float inverse = rsqrt_of(block_mean_square(u, d) + op.norm_eps);
    for (int c = threadIdx.x; c < d; c += ROW_THREADS) {
        float w = bf16_value(((const uint16_t *)op.norm)[c]);
        u[c] = op.inverse ? u[c] * w : round_bf16(w * (u[c] * inverse));
        if (op.normed.codes)
            act_store(op.normed, row, c, u[c]);
    }
    if (op.inverse && threadIdx.x == 0)
        op.inverse[row] = inverse;
    __syncthreads();
    if (op.quantized.codes)
        quantize_row(op.quantized, row, 0, u, d, op.inverse ? inverse : 1.0f);
}

/* x[k] <- post_k y + sum_j comb[j][k] x[j]: the sum over j first, in order, then the product is added. */
static __global__ void expand_kernel(struct op_expand op)
{
    await_earlier();
    int64_t row = row_at(op.rows, blockIdx.y);
    int m = op.x.count, d = op.x.hidden, c = blockIdx.x * THREADS + threadIdx.x;
    const float *post = op.post + row * m, *comb = op.comb + row * m * m;
    float x[MAX_STREAMS];

    if (c >= d)
        return;
    float y = bf16_value(((const uint16_t *)op.y)[row * d + c]);
#pragma unroll
    for (int j = 0; j < MAX_STREAMS; j++)
        if (j < m)
            x[j] = stream_value(op.x, (row * m + j) * d + c);
    for (int k = 0; k < m; k++) {
        float sum = comb[k] * x[0];
#pragma unroll
        for (int j = 1; j < MAX_STREAMS; j++)
            if (j < m)
                sum = plus_product(sum, comb[j * m + k], x[j]);
        stream_store(op.x, (row * m + k) * d + c, post[k] * y + sum);
    }
}

qr_status cuda_expand(struct backend *b, const struct op_expand *op, qr_error *err)
{
    if (op->x.count < 1 || op->x.count > MAX_STREAMS)
        return qr_fail(err, QR_BAD_ARGUMENT, "expand: %d streams, wanted 1 to %d", op->x.count, MAX_STREAMS);
    LAUNCH("expand", expand_kernel, dim3((op->x.hidden + THREADS - 1) / THREADS, op->rows.count), THREADS, 0, *op);
    return QR_OK;
}

/* ---- all in one ---- */

/* The four streams' values of this thread's column, as later kernels read them. */
template <bool BF16>
static __device__ float expanded(const struct between &a, int64_t row, int stream, int64_t c, const int *order)
{
    const int64_t d = a.x.hidden, first = row * FOUR * d + c;
    auto value = [&](int64_t i) {
        return BF16 ? bf16_value(((const uint16_t *)a.x.data)[i]) : ((const float *)a.x.data)[i];
    };
    if (!a.has_expand)
        return value(first + stream * d);
    const float *post = a.expand.post + row * FOUR, *comb = a.expand.comb + row * FOUR * FOUR + stream;
    float x[FOUR];
#pragma unroll
    for (int j = 0; j < FOUR; j++)
        x[j] = value(first + j * d);
    uint16_t bits = a.has_combine ? combined(a.combine, row, c, order) : ((const uint16_t *)a.expand.y)[row * d + c];
    if (a.has_combine && stream == 0)
        ((uint16_t *)a.combine.out)[row * d + c] = bits;
    float sum = comb[0] * x[0];
#pragma unroll
    for (int j = 1; j < FOUR; j++)
        sum = plus_product(sum, comb[j * FOUR], x[j]);
    float y = post[stream] * bf16_value(bits) + sum;
    return BF16 ? round_bf16(y) : y;
}

template <bool BF16>
static __global__ void __launch_bounds__(PASS_THREADS, 2) between_kernel(const __grid_constant__ struct between a)
{
    LAUNCHED_SHARED(float, u, 16);
    __shared__ __align__(16) float x[FOUR][PART];
    __shared__ float mix[MOST_DOTS], pre[FOUR];
    __shared__ double part[WORKER_WARPS];
    __shared__ int order[MOST_ACTIVE];
    __shared__ bool last;
    const int worker = (int)threadIdx.x - WARP, warp = worker / WARP, lane = lane_of(), d = a.x.hidden;
    const int64_t all = (int64_t)FOUR * d, column = (int64_t)blockIdx.x * PART;
    const int dots = a.outputs + 1;
    float4 fn[DOTS_EACH][FOUR]; /* a weight's values need no earlier kernel */
    if (a.has_mix && worker >= 0) {
#pragma unroll
        for (int i = 0; i < DOTS_EACH; i++)
#pragma unroll
            for (int j = 0; j < FOUR; j++)
                if (warp + i * WORKER_WARPS < a.outputs)
                    fn[i][j] = __ldg((const float4 *)(const void *)(a.fn + (warp + i * WORKER_WARPS) * all + (int64_t)j * d +
                                                                    column + 4 * lane));
    }
    await_earlier();
    const int64_t row = row_at(a.rows, blockIdx.y) + (a.rows.index ? 0 : a.offset);

    if (a.has_combine && worker >= 0)
        order_experts(a.combine, row, order, worker, WORKERS);
    __syncthreads();
    if (worker >= 0 && (a.has_mix || a.has_expand)) {
        int stream = worker / PART;
        int64_t c = column + worker % PART;
        float v = expanded<BF16>(a, row, stream, c, order);
        x[stream][worker % PART] = v;
    }
    __syncthreads(); /* every thread has read its column */
    if (worker >= 0 && a.has_expand)
        stream_store(a.x, row * all + (int64_t)(worker / PART) * d + column + worker % PART, x[worker / PART][worker % PART]);
    if (a.has_mix && worker >= 0) {
        double *to = a.parts + ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * dots;
#pragma unroll
        for (int i = 0; i < DOTS_EACH; i++) {
            const int n = warp + i * WORKER_WARPS;
            double sum = 0;
            if (n >= dots)
                break;
#pragma unroll
            for (int j = 0; j < FOUR; j++) {
                float4 v = *(const float4 *)(const void *)&x[j][4 * lane], w = n < a.outputs ? fn[i][j] : v;
                sum += ((double)w.x * v.x + (double)w.y * v.y) + ((double)w.z * v.z + (double)w.w * v.w);
            }
            sum = warp_sum(sum);
            if (lane == 0)
                to[n] = sum;
        }
    }
    if (!a.has_mix && !a.has_collapse)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = gridDim.x == 1 || atomicInc(a.arrived + blockIdx.y, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();

    finish_row<BF16>(a, row, blockIdx.y, (int)gridDim.x, u, mix, pre, part);
}

/* Whether the kernel above does these streams. */
static bool is_plain_four(const struct streams *x)
{
    return x->count == FOUR && x->hidden % PART == 0 && x->hidden <= 64 * PART && is_wide(x->data);
}

/* Whether its rows and weight can be taken four columns at once. */
static bool is_plain_collapse(const struct op_collapse *op)
{
    return is_plain_four(&op->x) && is_wide(op->norm) && is_wide(op->collapsed.codes) && is_wide(op->normed.codes) &&
           is_wide(op->quantized.codes);
}

static qr_status start_between(struct backend *b, struct between *a, qr_error *err)
{
    const struct row_list rows = a->rows;
    const unsigned parts = a->has_mix || a->has_expand ? a->x.hidden / PART : 1;
    a->parts = (double *)(void *)cuda_of(b)->scratch;
    a->arrived = cuda_of(b)->arrived;
    for (int32_t first = 0; first < rows.count; first += MOST_ARRIVED) {
        a->rows.index = rows.index ? rows.index + first : NULL;
        a->rows.count = rows.count - first < MOST_ARRIVED ? rows.count - first : MOST_ARRIVED;
        a->offset = first;
        if (between_is_many(a)) {
            qr_status st = between_many(b, a, err);
            if (st != QR_OK)
                return st;
            continue;
        }
        const dim3 grid(parts, a->rows.count);
        const size_t shared = (size_t)a->x.hidden * 6;
        if (a->x.format == ACT_BF16)
            LAUNCH("streams", between_kernel<true>, grid, PASS_THREADS, shared, *a);
        else
            LAUNCH("streams", between_kernel<false>, grid, PASS_THREADS, shared, *a);
    }
    return QR_OK;
}

static qr_status check_mix(const struct op_mhc_mix *op, qr_error *err)
{
    const struct weight_spec *fn = &op->fn->spec;
    int32_t m = op->x.count, wanted = op->head_only ? m : (2 + m) * m;
    if (m < 1 || m > MAX_STREAMS || fn->n != wanted || fn->k != m * op->x.hidden ||
        (fn->format != WEIGHT_F32 && fn->format != WEIGHT_BF16))
        return qr_fail(err, QR_BAD_ARGUMENT, "mhc_mix: weight %s of format %d [%d][%d], wanted f32 [%d][%d]", fn->name,
                       fn->format, fn->n, fn->k, wanted, m * op->x.hidden);
    return QR_OK;
}

qr_status cuda_mhc_mix(struct backend *b, const struct op_mhc_mix *op, qr_error *err)
{
    const struct weight_spec *fn = &op->fn->spec;
    qr_status st = check_mix(op, err);
    if (st != QR_OK)
        return st;
    if (is_plain_four(&op->x) && fn->format == WEIGHT_F32) {
        struct between a = {};
        a.has_mix = true;
        a.mix = *op;
        a.x = op->x;
        a.rows = op->rows;
        a.outputs = fn->n;
        a.fn = (const float *)(const void *)op->fn->view.values;
        return start_between(b, &a, err);
    }
    float *dots = (float *)(void *)cuda_of(b)->scratch;
    bool f32 = fn->format == WEIGHT_F32, wide = f32 && fn->k % 4 == 0 && is_wide(op->x.data);
    struct op_mhc_mix band = *op;
    for (int32_t first = 0; first < op->rows.count; first += MOST_ARRIVED) {
        int32_t count = op->rows.count - first < MOST_ARRIVED ? op->rows.count - first : MOST_ARRIVED;
        band.rows.index = op->rows.index ? op->rows.index + first : NULL;
        band.rows.count = count;
        LAUNCH("mhc_mix", mix_kernel, dim3(fn->n + 1, count), DOT_THREADS, 0, band, first, op->fn->view, f32, wide,
               dots, cuda_of(b)->arrived);
    }
    return QR_OK;
}

static qr_status check_collapse(const struct op_collapse *op, qr_error *err)
{
    int32_t d = op->x.hidden;
    if (op->x.count < 1 || (op->pairwise && op->x.count != 4))
        return qr_fail(err, QR_BAD_ARGUMENT, "collapse: %d streams%s", op->x.count, op->pairwise ? ", wanted 4" : "");
    if (op->inverse && op->quantized.codes && (op->quantized.format != ACT_I8 || op->quantized.block != d))
        return qr_fail(err, QR_BAD_ARGUMENT, "collapse: a deferred norm quantizes to int8 by row only");
    return QR_OK;
}

qr_status cuda_collapse(struct backend *b, const struct op_collapse *op, qr_error *err)
{
    int32_t d = op->x.hidden;
    qr_status st = check_collapse(op, err);
    if (st != QR_OK)
        return st;
    if (is_plain_collapse(op)) {
        struct between a = {};
        a.has_collapse = true;
        a.collapse = *op;
        a.x = op->x;
        a.rows = op->rows;
        return start_between(b, &a, err);
    }
    LAUNCH("collapse", collapse_kernel, op->rows.count, ROW_THREADS, (size_t)d * 4, *op);
    return QR_OK;
}

/* ---- in a row ---- */

static bool same_rows(struct row_list a, struct row_list b) { return a.index == b.index && a.count == b.count; }

static bool same_streams(const struct streams *a, const struct streams *b)
{
    return a->data == b->data && a->format == b->format && a->count == b->count && a->hidden == b->hidden;
}

bool cuda_goes_between(enum between_step step, const void *op, enum between_step next_step, const void *next_op)
{
    const struct op_combine *combine = (const struct op_combine *)op;
    const struct op_expand *expand = (const struct op_expand *)(step == BETWEEN_EXPAND ? op : next_op);
    const struct op_mhc_mix *mix = (const struct op_mhc_mix *)(step == BETWEEN_MIX ? op : next_op);
    const struct op_collapse *collapse = (const struct op_collapse *)next_op;
    if (step == BETWEEN_COMBINE && next_step == BETWEEN_EXPAND)
        return combine->out == expand->y && same_rows(combine->rows, expand->rows) && is_plain_four(&expand->x) &&
               combine->hidden == expand->x.hidden;
    if (step == BETWEEN_EXPAND && next_step == BETWEEN_MIX)
        return same_streams(&expand->x, &mix->x) && same_rows(expand->rows, mix->rows) && is_plain_four(&mix->x) &&
               mix->fn->spec.format == WEIGHT_F32;
    if (step == BETWEEN_MIX && next_step == BETWEEN_COLLAPSE)
        return same_streams(&mix->x, &collapse->x) && same_rows(mix->rows, collapse->rows) && is_plain_collapse(collapse) &&
               mix->fn->spec.format == WEIGHT_F32;
    return false;
}

qr_status cuda_between(struct backend *b, const struct op_combine *combine, const struct op_expand *expand,
                       const struct op_mhc_mix *mix, const struct op_collapse *collapse, qr_error *err)
{
    struct between a = {};
    qr_status st = combine ? check_combine(combine, err) : QR_OK;
    if (st == QR_OK && mix)
        st = check_mix(mix, err);
    if (st == QR_OK && collapse)
        st = check_collapse(collapse, err);
    if (st != QR_OK)
        return st;
    a.x = expand ? expand->x : mix->x;
    a.rows = expand ? expand->rows : mix->rows;
    if ((a.has_combine = combine != NULL))
        a.combine = *combine;
    if ((a.has_expand = expand != NULL))
        a.expand = *expand;
    if ((a.has_collapse = collapse != NULL))
        a.collapse = *collapse;
    if ((a.has_mix = mix != NULL)) {
        a.mix = *mix;
        a.outputs = mix->fn->spec.n;
        a.fn = (const float *)(const void *)mix->fn->view.values;
    }
    return start_between(b, &a, err);
}
