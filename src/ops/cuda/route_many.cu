#include "ops/cuda/route.cuh"

/* The router of many rows: a block of threads takes 16 rows and 16 experts, a warp 4 and 8 of them. Its lane l sums the
 * columns that thread l of a warp of route_kernel sums, one of that kernel's four warps after the other, in binary64 as
 * there: the bits are the same. */

enum { MANY_THREADS = 256, ROWS = 16, EXPERTS = 16, TILE = ROWS + EXPERTS, WARP_ROWS = 4, WARP_EXPERTS = 8, PAIRS = WARP_ROWS * WARP_EXPERTS };
enum { QUARTERS = 4 /* warps of route_kernel */, CHUNK = 4 * WARP, STRIDE = QUARTERS * CHUNK, EACH = TILE * WARP / MANY_THREADS };
enum { CHOOSE_THREADS = 256, MANY_ROWS = 128 /* as measured */ };

/* The values of a chunk of 128 columns: a lane's first two of a row, then its last two. */
struct chunk {
    double2 value[TILE][2][WARP];
};

struct many {
    struct op_route op;
    struct weight_view gate;
    bool f32;
    int32_t offset;
    float *scores; /* [rows][experts] */
};

static __device__ inline int64_t row_of(const struct many &m, int64_t i)
{
    return row_at(m.op.rows, i) + (m.op.rows.index ? 0 : m.offset);
}

static __global__ void __launch_bounds__(MANY_THREADS, 2) many_scores(const __grid_constant__ struct many m)
{
    await_earlier();
    LAUNCHED_SHARED(uint8_t, chunk_memory, 16);
    struct chunk *chunks = (struct chunk *)(void *)chunk_memory;
    const struct op_route &op = m.op;
    const int n = op.x.cols, lane = lane_of(), warp = warp_of(), steps = n / STRIDE;
    const int64_t first_row = (int64_t)blockIdx.y * ROWS;
    const int first_expert = blockIdx.x * EXPERTS, own_row = warp % 4 * WARP_ROWS, own_expert = ROWS + warp / 4 * WARP_EXPERTS;
    const bool bf16 = op.x.format == ACT_BF16;

    /* warp w brings rows w, w + 16, ... of the tile */
    float4 next[EACH];
    auto ask = [&](int i) {
        const int c = i % steps * STRIDE + i / steps * CHUNK + 4 * lane;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int r = warp + k * (MANY_THREADS / WARP);
            if (r < ROWS) {
                const int64_t row = row_of(m, min(first_row + r, (int64_t)op.rows.count - 1));
                next[k] = load_four(bf16, op.x.codes, row * n + c);
            } else {
                const int e = min(first_expert + r - (int)ROWS, op.experts - 1);
                next[k] = m.f32 ? load_four(false, m.gate.values + e * m.gate.pitch, c)
                                : load_four(true, packed_bf16_at(m.gate, e, c), 0);
            }
        }
    };
    auto put = [&](int i) {
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int r = warp + k * (MANY_THREADS / WARP);
            chunks[i % 2].value[r][0][lane] = make_double2((double)next[k].x, (double)next[k].y);
            chunks[i % 2].value[r][1][lane] = make_double2((double)next[k].z, (double)next[k].w);
        }
    };

    double total = 0, sum[PAIRS] = {}; /* total: of the pair whose number is the lane's */
    ask(0);
    put(0);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < QUARTERS * steps; i++) {
        const struct chunk &c = chunks[i % 2];
        if (i + 1 < QUARTERS * steps)
            ask(i + 1);
        double2 x[WARP_ROWS][2];
#pragma unroll
        for (int r = 0; r < WARP_ROWS; r++) {
            x[r][0] = c.value[own_row + r][0][lane];
            x[r][1] = c.value[own_row + r][1][lane];
        }
#pragma unroll
        for (int e = 0; e < WARP_EXPERTS; e++) {
            const double2 v = c.value[own_expert + e][0][lane], w = c.value[own_expert + e][1][lane];
#pragma unroll
            for (int r = 0; r < WARP_ROWS; r++) /* products of two f32 are exact, so they may be fused */
                sum[r * WARP_EXPERTS + e] += fma(v.x, x[r][0].x, v.y * x[r][0].y) + fma(w.x, x[r][1].x, w.y * x[r][1].y);
        }
        if (i + 1 < QUARTERS * steps)
            put(i + 1);
        if (i % steps == steps - 1) {
            total += warp_sums(sum);
#pragma unroll
            for (int p = 0; p < PAIRS; p++)
                sum[p] = 0;
        }
        __syncthreads();
    }

    const int64_t i = first_row + own_row + lane / WARP_EXPERTS;
    const int e = first_expert + own_expert - ROWS + lane % WARP_EXPERTS;
    if (i >= op.rows.count || e >= op.experts)
        return;
    float logit = (float)total;
    if (op.x_scale)
        logit *= op.x_scale[row_of(m, i)];
    m.scores[i * op.experts + e] = sqrtf(softplus(logit));
}

/* A warp for each row. */
static __global__ void __launch_bounds__(CHOOSE_THREADS)
    choose_kernel(const __grid_constant__ struct many m, const __grid_constant__ struct step step, int32_t *trouble)
{
    await_earlier();
    const int64_t i = (int64_t)blockIdx.x * (CHOOSE_THREADS / WARP) + warp_of();
    if (i < m.op.rows.count)
        choose(m.op, step, row_of(m, i), m.scores + i * m.op.experts, trouble);
}

bool route_is_many(const struct op_route *op)
{
    return op->rows.count >= MANY_ROWS && op->x.cols % STRIDE == 0 && is_wide(op->x.codes);
}

qr_status route_many(struct backend *b, const struct op_route *op, float *scores, int64_t room, qr_error *err)
{
    struct many m = {*op, op->gate->view, op->gate->spec.format == WEIGHT_F32, 0, scores};
    const int64_t fit = room / (op->experts * 4), most = fit < 65535 ? fit : 65535;
    for (int64_t first = 0; first < op->rows.count; first += most) {
        m.op.rows.index = op->rows.index ? op->rows.index + first : NULL;
        m.op.rows.count = (int32_t)(op->rows.count - first < most ? op->rows.count - first : most);
        m.offset = (int32_t)first;
        LAUNCH("route", many_scores, dim3((op->experts + EXPERTS - 1) / EXPERTS, (m.op.rows.count + ROWS - 1) / ROWS),
               MANY_THREADS, 2 * sizeof(struct chunk), m);
        LAUNCH("route", choose_kernel, (m.op.rows.count + CHOOSE_THREADS / WARP - 1) / (CHOOSE_THREADS / WARP), CHOOSE_THREADS,
               0, m, *op->step, cuda_of(b)->trouble);
    }
    return QR_OK;
}
