/* expert.cuh: what the kernels of the experts share. */
#ifndef QR_OPS_CUDA_EXPERT_CUH
#define QR_OPS_CUDA_EXPERT_CUH

#include "ops/cuda/seats.h"
#include "ops/cuda/wide.cuh"

/* One row on its way through one expert: `row` counts the rows of the list, `place` those of idx, weight and out. */
struct visit {
    int32_t row, place;
};
/* Visits of one expert that a block takes together. */
struct item {
    int32_t expert, first, count;
};

/* A step's work and where it stands in scratch. */
struct expert_work {
    struct op_expert op;
    const struct expert_view *experts;
    struct row_list rows;
    int32_t offset, routes, places, hidden, inner;
    int32_t item_size, most_items;
    struct weight_view up, down; /* the shapes of w1 and w3, and of w2 */
    bool quantized_up;           /* h is quantized where it is made: a tile is a block of the quantizer, */
    uint32_t *arrived;           /* or the last of its tiles to come does it: [items][blocks] zeros; NULL: a kernel does */
    bool direct;                 /* one expert for every row: nothing is sorted, the product widens the rows */
    bool few;                    /* so few places that each block of threads sorts them for itself */
    bool widened;                /* few: the router has brought the rows to bf16 */
    bool wide;                   /* so many that wgmma multiplies them (wide.cuh) */
    int32_t shift;               /* a scale of x is for 2^shift columns */
    int64_t x_width, h_width;    /* columns of rows of x and of quantized h */
    uint16_t *x, *h, *quantized;
    struct visit *visits;
    struct item *items;
    int32_t *item_count, *trouble;
    struct seating seating;
};

static __device__ inline int64_t row_of(const struct expert_work &w, int32_t i)
{
    return w.rows.index ? fresh(w.rows.index + i) : i + w.offset;
}

/* Sums over the threads before this one, for two numbers packed into one; the total in *all. The block synchronizes before
 * the next. */
static __device__ inline unsigned long long sum_before(unsigned long long x, unsigned long long *all)
{
    __shared__ unsigned long long warp_total[WARP];
    unsigned long long sum = x;
    for (int o = 1; o < WARP; o *= 2) {
        unsigned long long other = __shfl_up_sync(ALL_LANES, sum, o);
        sum += lane_of() >= o ? other : 0;
    }
    if (lane_of() == WARP - 1)
        warp_total[warp_of()] = sum;
    __syncthreads();
    unsigned long long before = 0, total = 0;
    for (int w = 0; w < warps_of(); w++) {
        before += w < warp_of() ? warp_total[w] : 0;
        total += warp_total[w];
    }
    *all = total;
    return before + sum - x;
}

/* The order in which products take columns (product.cuh, wide.cuh): where column c stands in a row of x or of quantized
 * h. */
static __device__ inline int64_t order_of(const struct expert_work &w, int64_t c)
{
    if (w.wide)
        return unit_order(true, c);
    const int in = (int)(c % 4);
    return c - in + (in == 1 ? 2 : in == 2 ? 1 : in);
}

/* u = clamp(u, -limit, limit); g = min(g, limit); silu(g) u, f32. A limit of 0 clamps nothing. */
static __device__ inline float swiglu(float g, float u, float limit)
{
    if (limit > 0) {
        u = u < -limit ? -limit : u > limit ? limit : u; /* a NaN passes */
        g = g > limit ? limit : g;
    }
    return g * sigmoid_of(g) * u;
}

/* What w2's quantizer leaves of a value, as bf16: exact. */
static __device__ inline uint16_t on_q8_grid(float h, uint8_t scale)
{
    return bf16_bits(e4m3_value(e4m3_code(h * e8m0_inverse(scale))) * e8m0_value(scale));
}

/* h = bf(swiglu(bf(g), bf(u)) omega) of a visit's column: kept, or, where a warp holds a block of w2's quantizer, what
 * that leaves of it. */
static __device__ inline void keep_h(const struct expert_work &w, int64_t visit, int32_t place, int column, float g,
                                     float u)
{
    float h = swiglu(round_bf16(g), round_bf16(u), w.op.swiglu_limit);
    if (w.op.weight)
        h *= w.op.weight[place];
    h = column < w.inner ? round_bf16(h) : 0.0f;
    if (w.quantized_up) {
        uint8_t s = q8_scale(warp_largest(larger_magnitude(0, h)));
        w.quantized[visit * w.h_width + order_of(w, column)] = on_q8_grid(h, s);
    } else if (column < w.inner) {
        w.h[visit * w.inner + column] = bf16_bits(h);
    }
}

/* What the kernels of `places` places need of experts in host memory; *rounds: in how many rounds they are computed, seats
 * being fewer than experts. */
struct seating seating_of(const struct cuda_backend *cuda, const struct op_expert *op, const struct expert_table *table,
                          int64_t places, int32_t *rounds);
/* Seats the experts of w's places that belong to its round, before they are multiplied; counts visits in the first. */
qr_status expert_fetch(struct backend *b, const struct expert_work *w, qr_error *err);

/* The two products of work that is wide. */
qr_status expert_wide_up(struct backend *b, const struct expert_work *w, enum weight_format format, qr_error *err);
qr_status expert_wide_down(struct backend *b, const struct expert_work *w, enum weight_format format, qr_error *err);

#endif
