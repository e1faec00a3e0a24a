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

/* The view of a place's expert; -1 when there is none, or none in this round. */
static __device__ inline int32_t expert_at(const struct op_expert &op, const struct expert_view *experts,
                                    const struct seating &seating, int64_t place, int32_t *trouble)
{
    int32_t e = op.idx ? fresh(op.idx + place) : 0;
    bool known = e >= 0 && e < op.experts;
    if (known && seating.books && (e = fresh(seating.books->turn + e)) < 0)
        return -1;
    if (known && experts[e].w1.values && experts[e].w2.values && experts[e].w3.values)
        return e;
    report_trouble(trouble, known ? TROUBLE_UNPREPARED : TROUBLE_EXPERT, e);
    return -1;
}

static __device__ inline int32_t expert_of(const struct expert_work &w, int64_t place)
{
    return expert_at(w.op, w.experts, w.seating, place, w.trouble);
}

/* ---- visits and items, as kernels find them ---- */

enum { MOST_FEW = 64 };

/* Few places, sorted by a block of threads for itself. */
struct few_places {
    struct visit visits[MOST_FEW];
    struct item items[MOST_FEW];
    int32_t expert[MOST_FEW];
    uint32_t begins[MOST_FEW / 32]; /* visits that begin an item */
};

/* Visits by expert, then by place. */
static __device__ inline void sort_few(const struct expert_work &w, struct few_places &few)
{
    const int i = threadIdx.x;
    int32_t place = 0, own = -1, at = 0, rank = 0, all = 0;
    if (i < w.places) {
        place = (int32_t)(row_of(w, i / w.routes) * w.routes + i % w.routes);
        few.expert[i] = own = expert_of(w, place);
    }
    if (i < MOST_FEW / 32)
        few.begins[i] = 0;
    __syncthreads();
    if (own >= 0) {
#pragma unroll 8
        for (int j = 0; j < w.places; j++) {
            const int32_t e = few.expert[j];
            at += (e >= 0 && e < own) || (e == own && j < i);
            rank += e == own && j < i;
            all += e == own;
        }
        few.visits[at] = {i / w.routes, place};
        if (rank % w.item_size == 0)
            atomicOr(&few.begins[at / 32], 1u << at % 32);
    }
    __syncthreads();
    if (own >= 0 && rank % w.item_size == 0) {
        int32_t n = __popc(few.begins[0] & (at < 32 ? (1u << at) - 1 : ALL_LANES)) +
                    (at < 32 ? 0 : __popc(few.begins[1] & ((1u << at % 32) - 1)));
        few.items[n] = {own, at, all - rank < w.item_size ? all - rank : w.item_size};
    }
    __syncthreads();
}

/* The work of a kernel; `sorted`: that of few places. It can be read before await_earlier by a kernel behind one that has
 * waited for who made it. */
struct visiting {
    const struct expert_work &w;
    const struct few_places *sorted;
    __device__ int items() const
    {
        if (w.direct)
            return (w.places + w.item_size - 1) / w.item_size;
        return w.few ? __popc(sorted->begins[0]) + __popc(sorted->begins[1]) : fresh(w.item_count);
    }
    __device__ struct item item_of(int i) const
    {
        if (w.few)
            return sorted->items[i];
        if (!w.direct)
            return {fresh(&w.items[i].expert), fresh(&w.items[i].first), fresh(&w.items[i].count)};
        int32_t first = i * w.item_size, left = w.places - first;
        return {0, first, left < w.item_size ? left : w.item_size};
    }
    __device__ struct visit visit_of(int64_t i) const
    {
        if (w.few)
            return sorted->visits[i];
        if (!w.direct)
            return {fresh(&w.visits[i].row), fresh(&w.visits[i].place)};
        return {(int32_t)i, (int32_t)row_of(w, (int32_t)i)};
    }
};

/* Whether a block of threads may ask for w2 in a seat before it waits: for those of its first units, of `tiles` an item, as
 * far as its ring goes, AHEAD blocks. */
template <int FORMAT, int AHEAD>
static __device__ inline bool begins_in_seat(const struct expert_work &w, const struct visiting &v, int tiles)
{
    if (!w.seating.books || fresh(&w.seating.books->seated) == 0)
        return false;
    const int together = FORMAT == WEIGHT_FP8 ? w.down.tile / BLOCK_COLUMNS : 1;
    const int each = w.down.k / BLOCK_COLUMNS / together / SPLITS * together; /* a warp has as many blocks of a unit or more */
    if (!w.few || each < AHEAD)
        return true;
    const int unit = blockIdx.x;
    return unit < v.items() * tiles && v.item_of(unit / tiles).expert >= w.op.experts;
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

/* Blocks of threads for the items' units, of which so many are resident on a multiprocessor. */
static inline unsigned expert_blocks(struct backend *b, const struct expert_work *w, int columns, int residents)
{
    int64_t units = (int64_t)w->most_items * ((columns + TILE_ROWS - 1) / TILE_ROWS);
    int64_t most = (int64_t)cuda_of(b)->processors * residents;
    return (unsigned)(units < most ? units : most);
}

static inline void *expert_carve(uint8_t **at, int64_t bytes)
{
    void *piece = *at;
    *at += (bytes + 255) / 256 * 256;
    return piece;
}

/* Sorts the places of work that is not few into visits and items. */
qr_status expert_sort(struct backend *b, const struct expert_work *w, qr_error *err);
/* W8A8; w: all but the rows, what stands in scratch, and how it is cut. */
qr_status expert_int8(struct backend *b, const struct expert_work *w, const struct expert_table *table, qr_error *err);

/* The two products of work that is wide. */
qr_status expert_wide_up(struct backend *b, const struct expert_work *w, enum weight_format format, qr_error *err);
qr_status expert_wide_down(struct backend *b, const struct expert_work *w, enum weight_format format, qr_error *err);

#endif
