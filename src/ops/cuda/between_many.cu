#include <stddef.h>

#include "ops/cuda/between.cuh"

/* Many rows: a block of threads takes PART columns of the four streams, as between_kernel does, but of one row after the
 * other, so that the mix's weights stay where they are multiplied and rows are asked for ahead. A second kernel finishes
 * the rows. A lane adds what it adds there, in that order: the bits are the same. */

enum { STRIP_THREADS = WORKERS, TOGETHER = 4 /* rows */, AHEAD = 3 /* times as many in shared memory */ };
enum { STRIP_ACTIVE = 6, MANY_ROWS = 128 /* as measured */, OWN_PIECES = 2 };

/* What a row's part takes from memory. */
template <bool BF16> struct alignas(16) strip_row {
    uint8_t x[FOUR][PART * (BF16 ? 2 : 4)];
    uint16_t routed[STRIP_ACTIVE][PART], y[PART]; /* y: what is expanded, or the shared expert's output */
    float post[FOUR], comb[FOUR * FOUR];
    int32_t idx[STRIP_ACTIVE];
    int64_t number;
};

template <bool BF16> struct strip_shelf {
    struct strip_row<BF16> row[AHEAD][TOGETHER];
    double2 value[TOGETHER][FOUR][2][WARP]; /* of a lane's four columns: the first two, then the others */
    double comb[TOGETHER][FOUR * FOUR];
    int order[TOGETHER][STRIP_ACTIVE];
};

/* A piece of a row as a thread copies it; size 0: none. */
struct piece {
    const uint8_t *from; /* of row 0 */
    int32_t stride, to, size;
};

static __device__ inline struct piece piece_from(const void *from, int64_t offset, int64_t stride, size_t to, int size)
{
    struct piece p = {(const uint8_t *)from + offset, (int32_t)stride, (int32_t)to, size};
    return p;
}

template <bool BF16> static __device__ inline struct piece piece_of(const struct between &a, int64_t column, int i)
{
    typedef struct strip_row<BF16> place;
    enum { BYTES = BF16 ? 2 : 4, X_PIECES = PART * BYTES / 16, PIECES = PART * 2 / 16 };
    const int64_t d = a.x.hidden;
    const int active = a.has_combine ? a.combine.active : 0, x_at = i % X_PIECES * 16;
    if (i < FOUR * X_PIECES)
        return piece_from(a.x.data, (i / X_PIECES * d + column) * BYTES + x_at, FOUR * d * BYTES,
                          offsetof(place, x) + i * 16, 16);
    i -= FOUR * X_PIECES;
    if (!a.has_expand)
        return piece_from(NULL, 0, 0, 0, 0);
    if (i < 1)
        return piece_from(a.expand.post, 0, FOUR * 4, offsetof(place, post), 16);
    if (i < 1 + FOUR)
        return piece_from(a.expand.comb, (i - 1) * 16, FOUR * FOUR * 4, offsetof(place, comb) + (i - 1) * 16, 16);
    i -= 1 + FOUR;
    const int at = i % PIECES * 16, which = i / PIECES - 1, left = i - (active + 1) * PIECES;
    if (which < 0)
        return piece_from(a.has_combine ? a.combine.shared : a.expand.y, column * 2 + at, d * 2, offsetof(place, y) + at, 16);
    if (which < active)
        return piece_from(a.combine.routed, (which * d + column) * 2 + at, active * d * 2,
                          offsetof(place, routed) + which * PART * 2 + at, 16);
    if (left < active)
        return piece_from(a.combine.idx, left * 4, active * 4, offsetof(place, idx) + left * 4, 4);
    return piece_from(NULL, 0, 0, 0, 0);
}

template <bool BF16> static __device__ inline float stream_of(const struct strip_row<BF16> &from, int stream, int column)
{
    return BF16 ? bf16_value(((const uint16_t *)(const void *)from.x[stream])[column])
                : ((const float *)(const void *)from.x[stream])[column];
}

/* The four streams' values of a column, as expanded() of between.cu gives them. */
template <bool BF16>
static __device__ inline void expand_column(const struct between &a, const struct strip_row<BF16> &from, int column, int64_t c,
                                            const int *order, const double *comb, float out[FOUR])
{
    float x[FOUR];
#pragma unroll
    for (int j = 0; j < FOUR; j++)
        out[j] = x[j] = stream_of<BF16>(from, j, column);
    if (!a.has_expand)
        return;
    uint16_t bits = from.y[column];
    if (a.has_combine) {
        float y = a.combine.w8a8 ? bf16_value(bits) : 0.0f;
        for (int n = 0; n < a.combine.active; n++)
            y += bf16_value(from.routed[order[n]][column]);
        bits = bf16_bits(a.combine.w8a8 ? y : y + bf16_value(bits));
        ((uint16_t *)a.combine.out)[from.number * a.x.hidden + c] = bits;
    }
    float sum[FOUR];
#pragma unroll
    for (int k = 0; k < FOUR; k++)
        sum[k] = from.comb[k] * x[0];
#pragma unroll
    for (int j = 1; j < FOUR; j++) /* plus_product: the product of two f32 is exact, so it may be fused */
#pragma unroll
        for (int k = 0; k < FOUR; k++)
            sum[k] = (float)fma(comb[j * FOUR + k], (double)x[j], (double)sum[k]);
#pragma unroll
    for (int k = 0; k < FOUR; k++) {
        const float y = from.post[k] * bf16_value(bits) + sum[k];
        out[k] = BF16 ? round_bf16(y) : y;
        stream_store(a.x, (from.number * FOUR + k) * a.x.hidden + c, out[k]);
    }
}

/* Four columns of a row times four of a weight; products of two f32 are exact, so they may be fused. */
static __device__ inline double four_products(const double w[4], double2 p, double2 q)
{
    return fma(w[0], p.x, w[1] * p.y) + fma(w[2], q.x, w[3] * q.y);
}

template <bool BF16>
static __global__ void __launch_bounds__(STRIP_THREADS, 1) strip_kernel(const __grid_constant__ struct between a, int32_t each)
{
    enum { ROW_THREADS = STRIP_THREADS / TOGETHER, LANES = WARP / (TOGETHER * DOTS_EACH) };
    LAUNCHED_SHARED(uint8_t, strip_memory, 16);
    struct strip_shelf<BF16> &sh = *(struct strip_shelf<BF16> *)(void *)strip_memory;
    const int lane = lane_of(), warp = warp_of(), dots = a.outputs + 1, h = threadIdx.x / ROW_THREADS, own = threadIdx.x % ROW_THREADS;
    const int64_t all = (int64_t)FOUR * a.x.hidden, column = (int64_t)blockIdx.x * PART;
    const int first = blockIdx.y * each, count = min(each, a.rows.count - first), groups = (count + TOGETHER - 1) / TOGETHER;
    const int active = a.has_combine ? a.combine.active : 0;
    const bool squares = a.has_mix && warp == a.outputs % WORKER_WARPS;

    double fn[DOTS_EACH][FOUR][4]; /* a weight's values need no earlier kernel */
#pragma unroll
    for (int i = 0; i < DOTS_EACH; i++)
#pragma unroll
        for (int j = 0; j < FOUR; j++)
            if (a.has_mix && warp + i * WORKER_WARPS < a.outputs) {
                const float4 w = __ldg((const float4 *)(const void *)(a.fn + (warp + i * WORKER_WARPS) * all + (int64_t)j * a.x.hidden +
                                                                      column + 4 * lane));
                fn[i][j][0] = (double)w.x, fn[i][j][1] = (double)w.y, fn[i][j][2] = (double)w.z, fn[i][j][3] = (double)w.w;
            }
    struct piece piece[OWN_PIECES];
#pragma unroll
    for (int e = 0; e < OWN_PIECES; e++)
        piece[e] = piece_of<BF16>(a, column, own + e * ROW_THREADS);
    await_earlier();

    auto row_of = [&](int group) {
        return row_at(a.rows, first + min(TOGETHER * group + h, count - 1)) + (a.rows.index ? 0 : a.offset);
    };
    int64_t next = row_of(0); /* this thread's row of the group to be asked for */
    auto ask = [&](int group) {
        struct strip_row<BF16> &to = sh.row[group % AHEAD][h];
#pragma unroll
        for (int e = 0; e < OWN_PIECES && group < groups; e++) {
            const uint32_t at = shared_address(&to) + (uint32_t)piece[e].to;
            if (piece[e].size == 16)
                copy_16(at, piece[e].from + next * piece[e].stride);
            else if (piece[e].size == 4)
                copy_4(at, piece[e].from + next * piece[e].stride);
        }
        if (own == 0)
            to.number = next;
        close_stage();
        next = row_of(group + 1);
    };
    for (int group = 0; group < AHEAD - 1; group++)
        ask(group);
#pragma unroll 1
    for (int group = 0; group < groups; group++) {
        await_stages<AHEAD - 2>();
        __syncthreads();
        ask(group + AHEAD - 1);
        const struct strip_row<BF16> *from = sh.row[group % AHEAD];
        const int here = min((int)TOGETHER, count - TOGETHER * group);
        if (own < active) {
            const int32_t *idx = from[h].idx;
            int at = 0;
            for (int other = 0; other < active; other++)
                at += idx[other] < idx[own] || (idx[other] == idx[own] && other < own);
            sh.order[h][a.combine.w8a8 ? own : at] = own;
        }
        if (a.has_expand && own >= WARP && own < WARP + FOUR * FOUR)
            sh.comb[h][own - WARP] = (double)from[h].comb[own - WARP];
        __syncthreads();
        if (h < here) {
            float v[FOUR];
            expand_column<BF16>(a, from[h], own, column + own, sh.order[h], sh.comb[h], v);
#pragma unroll
            for (int k = 0; k < FOUR; k++)
                ((double *)(void *)&sh.value[h][k][own % 4 / 2][own / 4])[own % 2] = (double)v[k];
        }
        if (!a.has_mix)
            continue;
        __syncthreads();
        double sum[TOGETHER * DOTS_EACH] = {};
#pragma unroll
        for (int r = 0; r < TOGETHER; r++)
#pragma unroll
            for (int j = 0; j < FOUR; j++) {
                const double2 p = sh.value[r][j][0][lane], q = sh.value[r][j][1][lane];
#pragma unroll
                for (int i = 0; i < DOTS_EACH; i++)
                    if (warp + i * WORKER_WARPS < a.outputs)
                        sum[r * DOTS_EACH + i] += four_products(fn[i][j], p, q);
                if (squares) { /* the place behind the last output is no output's */
                    const double v[4] = {p.x, p.y, q.x, q.y}, s = four_products(v, p, q);
#pragma unroll
                    for (int i = 0; i < DOTS_EACH; i++)
                        sum[r * DOTS_EACH + i] += i == a.outputs / WORKER_WARPS ? s : 0.0;
                }
            }
        const double mine = warp_sums(sum);
        const int place = lane / LANES, r = place / DOTS_EACH, n = warp + place % DOTS_EACH * WORKER_WARPS;
        if (lane % LANES == 0 && r < here && n < dots)
            a.parts[((int64_t)(first + TOGETHER * group + r) * gridDim.x + blockIdx.x) * dots + n] = mine;
    }
}
template <bool BF16>
static __global__ void __launch_bounds__(PASS_THREADS, 2) finish_kernel(const __grid_constant__ struct between a, int32_t parts)
{
    LAUNCHED_SHARED(float, u, 16);
    __shared__ float mix[MOST_DOTS], pre[FOUR];
    __shared__ double part[WORKER_WARPS];
    await_earlier();
    const int64_t row = row_at(a.rows, blockIdx.x) + (a.rows.index ? 0 : a.offset);
    finish_row<BF16>(a, row, blockIdx.x, parts, u, mix, pre, part);
}

bool between_is_many(const struct between *a)
{
    const bool routed = !a->has_combine || (a->combine.active <= STRIP_ACTIVE && is_wide(a->combine.routed) && is_wide(a->combine.shared));
    const bool expands = !a->has_expand || (is_wide(a->expand.post) && is_wide(a->expand.comb) && is_wide(a->expand.y));
    return a->rows.count >= MANY_ROWS && (a->has_mix || a->has_expand) && routed && expands;
}

template <bool BF16> static qr_status start_many(struct backend *b, const struct between *a, qr_error *err)
{
    const int parts = a->x.hidden / PART, strips = cuda_of(b)->processors / parts > 1 ? cuda_of(b)->processors / parts : 1;
    const int each = ((a->rows.count + strips - 1) / strips + TOGETHER - 1) / TOGETHER * TOGETHER;
    LAUNCH("streams", strip_kernel<BF16>, dim3(parts, (a->rows.count + each - 1) / each), STRIP_THREADS,
           sizeof(struct strip_shelf<BF16>), *a, each);
    if (a->has_mix || a->has_collapse)
        LAUNCH("streams", finish_kernel<BF16>, a->rows.count, PASS_THREADS, (size_t)a->x.hidden * 6, *a, parts);
    return QR_OK;
}

qr_status between_many(struct backend *b, const struct between *a, qr_error *err)
{
    return a->x.format == ACT_BF16 ? start_many<true>(b, a, err) : start_many<false>(b, a, err);
}
