#include "ops/cuda/expert.cuh"
#include "ops/cuda/wide_int8.cuh"

/* The experts of W8A8 (v4-model.md 7.3, 7.4): INT8, one scale a row; the routing weight comes after w2. */

enum { THREADS = 256 };

/* h and what its quantizer makes of it lie by the place in the list: row of the list, then route. */
struct int8_work {
    struct expert_work of;
    float *h;      /* [places][inner] */
    int8_t *codes; /* [places][inner] */
    float *scales; /* [places], times the routing weight */
};

/* f32(sum) sigma scale, as the reference adds it to 0. */
static __device__ inline float scaled(int32_t sum, float sigma, const struct weight_view &w, int64_t n)
{
    float y = 0;
    y += (float)sum * sigma;
    return y * __ldg((const float *)(const void *)w.scales + n);
}

static __device__ inline int64_t local_of(const struct expert_work &w, const struct visit &v)
{
    return (int64_t)v.row * w.routes + v.place % w.routes;
}

static __device__ inline float sigma_of_x(const struct expert_work &w, int64_t row)
{
    return fresh((const float *)w.op.x.scales + row);
}

/* ---- on the matrix unit ---- */

struct int8_place {
    struct item item;
    int32_t tile;
    const struct expert_view *expert;
};

static __device__ inline struct int8_place find_place(const struct expert_work &w, const struct visiting &v, int unit, int tiles)
{
    struct int8_place at;
    at.item = v.item_of(unit / tiles);
    at.tile = unit % tiles;
    at.expert = w.experts + at.item.expert;
    return at;
}

/* h of a tile of inner columns. FIRST: the experts are known before earlier kernels have ended. */
template <int TOKENS, bool FIRST> struct int8_up_work {
    enum { WEIGHTS_FIRST = FIRST, CODE_ORDER = 0 };
    typedef struct int8_place place;
    const struct int8_work &w;
    const struct visiting v;
    __device__ int tiles() const { return (w.of.inner + TILE_ROWS - 1) / TILE_ROWS; }
    __device__ int units() const { return v.items() * tiles(); }
    __device__ const struct weight_view &shape() const { return w.of.up; }
    __device__ place find(int unit) const { return find_place(w.of, v, unit, tiles()); }
    __device__ const struct weight_view &weight(const place &at, int r) const { return r ? at.expert->w3 : at.expert->w1; }
    __device__ int shift() const { return 0; }
    __device__ struct row_source row(const place &at, int token) const
    {
        const struct visit visit = v.visit_of(at.item.first + (token < at.item.count ? token : 0));
        return {(const uint8_t *)w.of.op.x.codes + (int64_t)(visit.place / w.of.routes) * w.of.op.x.cols, NULL};
    }
    __device__ void finish(const place &at, const struct tile_sums<TOKENS> *sums) const
    {
        for (int i = threadIdx.x; i < at.item.count * TILE_ROWS; i += PRODUCT_THREADS) {
            const int r = i % TILE_ROWS, n = i / TILE_ROWS, column = at.tile * TILE_ROWS + r;
            if (column >= w.of.inner)
                continue;
            const struct visit visit = v.visit_of(at.item.first + n);
            const float sigma = sigma_of_x(w.of, visit.place / w.of.routes);
            const float g = scaled(whole_sum<TOKENS>(sums[0], n, r, 0, SPLITS), sigma, at.expert->w1, column);
            const float u = scaled(whole_sum<TOKENS>(sums[1], n, r, 0, SPLITS), sigma, at.expert->w3, column);
            w.h[local_of(w.of, visit) * w.of.inner + column] = swiglu(g, u, w.of.op.swiglu_limit);
        }
    }
};

/* Places were sorted before the kernel in front of this one began: its weights are known from the start, but for those in
 * seats (expert.cu). */
template <int TOKENS> struct int8_down_work {
    enum { WEIGHTS_FIRST = 1, CODE_ORDER = 0 };
    typedef struct int8_place place;
    const struct int8_work &w;
    const struct visiting v;
    __device__ int tiles() const { return (w.of.hidden + TILE_ROWS - 1) / TILE_ROWS; }
    __device__ int units() const { return v.items() * tiles(); }
    __device__ const struct weight_view &shape() const { return w.of.down; }
    __device__ place find(int unit) const { return find_place(w.of, v, unit, tiles()); }
    __device__ const struct weight_view &weight(const place &at, int) const { return at.expert->w2; }
    __device__ int shift() const { return 0; }
    __device__ struct row_source row(const place &at, int token) const
    {
        const struct visit visit = v.visit_of(at.item.first + (token < at.item.count ? token : 0));
        return {(const uint8_t *)w.codes + local_of(w.of, visit) * w.of.inner, NULL};
    }
    __device__ void finish(const place &at, const struct tile_sums<TOKENS> *sums) const
    {
        for (int i = threadIdx.x; i < at.item.count * TILE_ROWS; i += PRODUCT_THREADS) {
            const int r = i % TILE_ROWS, n = i / TILE_ROWS, column = at.tile * TILE_ROWS + r;
            if (column >= w.of.hidden)
                continue;
            const struct visit visit = v.visit_of(at.item.first + n);
            ((uint16_t *)w.of.op.out)[(int64_t)visit.place * w.of.hidden + column] =
                bf16_bits(scaled(whole_sum<TOKENS>(sums[0], n, r, 0, SPLITS), fresh(w.scales + local_of(w.of, visit)),
                                 at.expert->w2, column));
        }
    }
};

/* FIRST: one expert for every row. */
template <int TOKENS, bool FIRST>
static __global__ void __launch_bounds__(PRODUCT_THREADS, (product_residents<TOKENS, 2, WEIGHT_INT8>()))
    int8_up(const __grid_constant__ struct int8_work w)
{
    __shared__ struct few_places few;
    if (!FIRST)
        await_earlier();
    if (w.of.few)
        sort_few(w.of, few);
    stream_tiles<WEIGHT_INT8, 2, TOKENS, false, false>(int8_up_work<TOKENS, FIRST>{w, {w.of, &few}});
}

template <int TOKENS>
static __global__ void __launch_bounds__(PRODUCT_THREADS, (product_residents<TOKENS, 1, WEIGHT_INT8>()))
    int8_down(const __grid_constant__ struct int8_work w)
{
    __shared__ struct few_places few;
    if (w.of.few)
        sort_few(w.of, few);
    const int8_down_work<TOKENS> work = {w, {w.of, &few}};
    if (begins_in_seat<WEIGHT_INT8, blocks<WEIGHT_INT8>::STAGES - 1>(w.of, work.v, work.tiles()))
        await_earlier();
    stream_tiles<WEIGHT_INT8, 1, TOKENS, false, false>(work);
}

template <int TOKENS> static qr_status start_up(struct backend *b, const struct int8_work *w, qr_error *err)
{
    const unsigned grid = expert_blocks(b, &w->of, w->of.inner, product_residents<TOKENS, 2, WEIGHT_INT8>());
    const size_t shared = product_shared<TOKENS, 2, WEIGHT_INT8>();
    if (w->of.direct)
        LAUNCH("expert", (int8_up<TOKENS, true>), grid, PRODUCT_THREADS, shared, *w);
    else
        LAUNCH("expert", (int8_up<TOKENS, false>), grid, PRODUCT_THREADS, shared, *w);
    return QR_OK;
}

template <int TOKENS> static qr_status start_down(struct backend *b, const struct int8_work *w, qr_error *err)
{
    LAUNCH("expert", int8_down<TOKENS>, expert_blocks(b, &w->of, w->of.hidden, product_residents<TOKENS, 1, WEIGHT_INT8>()),
           PRODUCT_THREADS, (product_shared<TOKENS, 1, WEIGHT_INT8>()), *w);
    return QR_OK;
}

/* ---- of many rows ---- */

/* What both products share; a place is that of a unit. */
struct int8_wide_work {
    enum { PACKED = 0, VARIES = 0, SEVERAL = 0 };
    typedef struct int8_place place;
    const struct int8_work &w;
    __device__ int scales() const { return 1; }
    __device__ float sigma(const place &, int, int) const { return 0; }
    __device__ struct visit visit_of(int64_t i) const
    {
        return {fresh(&w.of.visits[i].row), fresh(&w.of.visits[i].place)};
    }
    /* A visit of the unit's item; its first where there is none. */
    __device__ struct visit visit_of(const place &at, int token) const
    {
        return visit_of((int64_t)at.item.first + (token < at.item.count ? token : 0));
    }
    __device__ place find_unit(int unit, int across, int tiles) const
    {
        const struct item *item = w.of.items + unit / across;
        place at;
        at.item = {fresh(&item->expert), fresh(&item->first), fresh(&item->count)};
        at.tile = unit % across * tiles;
        at.expert = w.of.experts + at.item.expert;
        return at;
    }
};

/* A unit is 64 inner columns: of w1 to the first warpgroup, of w3 to the second. */
template <int TOKENS> struct int8_wide_up : int8_wide_work {
    __device__ int across() const { return (w.of.inner + SLAB_ROWS - 1) / SLAB_ROWS; }
    __device__ int units() const { return fresh(w.of.item_count) * across(); }
    __device__ const struct weight_view &shape() const { return w.of.up; }
    __device__ place find(int unit) const { return find_unit(unit, across(), 2); }
    __device__ const uint8_t *codes(const place &at, int t) const
    {
        return (t < 2 ? at.expert->w1 : at.expert->w3).values + last_of(w.of.up, at.tile + t % 2) * w.of.up.pitch;
    }
    __device__ const uint8_t *row(const place &at, int token) const
    {
        return (const uint8_t *)w.of.op.x.codes + (int64_t)(visit_of(at, token).place / w.of.routes) * w.of.op.x.cols;
    }
    __device__ void finish(const place &at, int first, const float *slab) const
    {
        enum { HALF = half_of(TOKENS) };
        for (int t = warp_of(); t < HALF && first + t < at.item.count; t += SUMMING / WARP) {
            const struct visit visit = visit_of(at, first + t);
            const float sigma = sigma_of_x(w.of, visit.place / w.of.routes);
            float *h = w.h + local_of(w.of, visit) * w.of.inner;
#pragma unroll
            for (int r = lane_of(); r < SLAB_ROWS; r += WARP) {
                const int column = at.tile * TILE_ROWS + r;
                const float *sum = slab + t * SLAB_PITCH + r;
                if (column < w.of.inner)
                    h[column] = swiglu(scaled(__float_as_int(sum[0]), sigma, at.expert->w1, column),
                                       scaled(__float_as_int(sum[HALF * SLAB_PITCH]), sigma, at.expert->w3, column),
                                       w.of.op.swiglu_limit);
            }
        }
    }
};

template <int TOKENS> struct int8_wide_down : int8_wide_work {
    __device__ int across() const { return (w.of.hidden + WIDE_ROWS - 1) / WIDE_ROWS; }
    __device__ int units() const { return fresh(w.of.item_count) * across(); }
    __device__ const struct weight_view &shape() const { return w.of.down; }
    __device__ place find(int unit) const { return find_unit(unit, across(), WIDE_TILES); }
    __device__ const uint8_t *codes(const place &at, int t) const
    {
        return at.expert->w2.values + last_of(w.of.down, at.tile + t) * w.of.down.pitch;
    }
    __device__ const uint8_t *row(const place &at, int token) const
    {
        return (const uint8_t *)w.codes + local_of(w.of, visit_of(at, token)) * w.of.inner;
    }
    __device__ void finish(const place &at, int first, const float *slab) const
    {
        enum { HALF = half_of(TOKENS) };
        for (int t = warp_of(); t < HALF && first + t < at.item.count; t += SUMMING / WARP) {
            const struct visit visit = visit_of(at, first + t);
            const float sigma = fresh(w.scales + local_of(w.of, visit));
            uint16_t *out = (uint16_t *)w.of.op.out + (int64_t)visit.place * w.of.hidden;
#pragma unroll
            for (int r = lane_of(); r < WIDE_ROWS; r += WARP) {
                const int column = at.tile * TILE_ROWS + r;
                const float sum = slab[(r / SLAB_ROWS * HALF + t) * SLAB_PITCH + r % SLAB_ROWS];
                if (column < w.of.hidden)
                    out[column] = bf16_bits(scaled(__float_as_int(sum), sigma, at.expert->w2, column));
            }
        }
    }
};

template <int TOKENS>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) wide_up_kernel(const __grid_constant__ struct int8_work w)
{
    await_earlier();
    wide_int8_tiles<TOKENS>(int8_wide_up<TOKENS>{{w}});
}

template <int TOKENS>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) wide_down_kernel(const __grid_constant__ struct int8_work w)
{
    await_earlier();
    wide_int8_tiles<TOKENS>(int8_wide_down<TOKENS>{{w}});
}

static unsigned wide_blocks(struct backend *b, const struct expert_work *w, int columns, int each)
{
    const int64_t units = (int64_t)w->most_items * ((columns + each - 1) / each), most = cuda_of(b)->processors;
    return (unsigned)(units < most ? units : most);
}

template <int TOKENS> static qr_status start_wide_up(struct backend *b, const struct int8_work *w, qr_error *err)
{
    LAUNCH("expert", wide_up_kernel<TOKENS>, wide_blocks(b, &w->of, w->of.inner, SLAB_ROWS), WIDE_THREADS,
           (wide_ring<WEIGHT_INT8, TOKENS>::BYTES), *w);
    return QR_OK;
}

template <int TOKENS> static qr_status start_wide_down(struct backend *b, const struct int8_work *w, qr_error *err)
{
    LAUNCH("expert", wide_down_kernel<TOKENS>, wide_blocks(b, &w->of, w->of.hidden, WIDE_ROWS), WIDE_THREADS,
           (wide_ring<WEIGHT_INT8, TOKENS>::BYTES), *w);
    return QR_OK;
}

/* ---- as many rows as there are ---- */

static qr_status choose_up(struct backend *b, const struct int8_work *w, qr_error *err)
{
    if (w->of.wide)
        return w->of.item_size == 32   ? start_wide_up<32>(b, w, err)
               : w->of.item_size == 64 ? start_wide_up<64>(b, w, err)
                                       : start_wide_up<128>(b, w, err);
    return w->of.item_size == TILE_TOKENS       ? start_up<1>(b, w, err)
           : w->of.item_size == 2 * TILE_TOKENS ? start_up<2>(b, w, err)
                                                : start_up<4>(b, w, err);
}

static qr_status choose_down(struct backend *b, const struct int8_work *w, qr_error *err)
{
    if (w->of.wide)
        return w->of.item_size == 32   ? start_wide_down<32>(b, w, err)
               : w->of.item_size == 64 ? start_wide_down<64>(b, w, err)
                                       : start_wide_down<128>(b, w, err);
    return w->of.item_size == TILE_TOKENS       ? start_down<1>(b, w, err)
           : w->of.item_size == 2 * TILE_TOKENS ? start_down<2>(b, w, err)
                                                : start_down<4>(b, w, err);
}

/* ---- h, and any shape ---- */

static __device__ int64_t place_of(const struct expert_work &w, int64_t i, int32_t *expert)
{
    const int64_t place = row_of(w, (int32_t)(i / w.routes)) * w.routes + i % w.routes;
    *expert = expert_of(w, place);
    return place;
}

static __global__ void quantize_kernel(struct int8_work w)
{
    await_earlier();
    const int64_t i = blockIdx.x, inner = w.of.inner;
    int32_t e;
    const int64_t place = place_of(w.of, i, &e);
    if (e < 0)
        return;
    struct activation a = {ACT_I8, w.of.inner, w.of.inner, w.codes, w.scales};
    quantize_row(a, i, 0, w.h + i * inner, w.of.inner, w.of.op.weight ? w.of.op.weight[place] : 1.0f);
}

/* The sum of a row of codes times row n of a weight: a warp's work, in every lane. */
static __device__ int32_t plain_sum(const int8_t *x, const struct weight_view &w, int64_t n)
{
    int32_t sum = 0;
    for (int k = lane_of(); k < w.k; k += WARP)
        sum += x[k] * *packed_int8_at(w, n, k);
    return __reduce_add_sync(ALL_LANES, sum);
}

static __global__ void plain_up(struct int8_work w)
{
    await_earlier();
    const int64_t i = blockIdx.y, n = (int64_t)blockIdx.x * (THREADS / WARP) + warp_of();
    int32_t e;
    const int64_t row = place_of(w.of, i, &e) / w.of.routes;
    if (n >= w.of.inner || e < 0)
        return;
    const int8_t *x = (const int8_t *)w.of.op.x.codes + row * w.of.op.x.cols;
    const struct expert_view &expert = w.of.experts[e];
    const float sigma = sigma_of_x(w.of, row);
    const float g = scaled(plain_sum(x, expert.w1, n), sigma, expert.w1, n);
    const float u = scaled(plain_sum(x, expert.w3, n), sigma, expert.w3, n);
    if (lane_of() == 0)
        w.h[i * w.of.inner + n] = swiglu(g, u, w.of.op.swiglu_limit);
}

static __global__ void plain_down(struct int8_work w)
{
    await_earlier();
    const int64_t i = blockIdx.y, n = (int64_t)blockIdx.x * (THREADS / WARP) + warp_of();
    int32_t e;
    const int64_t place = place_of(w.of, i, &e);
    if (n >= w.of.hidden || e < 0)
        return;
    const struct weight_view &w2 = w.of.experts[e].w2;
    const float y = scaled(plain_sum(w.codes + i * w.of.inner, w2, n), w.scales[i], w2, n);
    if (lane_of() == 0)
        ((uint16_t *)w.of.op.out)[place * w.of.hidden + n] = bf16_bits(y);
}

/* ---- the operator ---- */

static bool is_matrix(const struct expert_work *w)
{
    return w->hidden % BLOCK_COLUMNS == 0 && w->inner % BLOCK_COLUMNS == 0 && (uintptr_t)w->op.x.codes % 4 == 0;
}

static qr_status plain_round(struct backend *b, const struct int8_work *w, qr_error *err)
{
    const int32_t warps = THREADS / WARP;
    const unsigned places = (unsigned)w->of.places;
    LAUNCH("expert", plain_up, dim3((w->of.inner + warps - 1) / warps, places), THREADS, 0, *w);
    LAUNCH("expert", quantize_kernel, places, THREADS, 0, *w);
    LAUNCH("expert", plain_down, dim3((w->of.hidden + warps - 1) / warps, places), THREADS, 0, *w);
    return QR_OK;
}

static qr_status matrix_round(struct backend *b, const struct int8_work *w, qr_error *err)
{
    if (!w->of.direct && !w->of.few)
        TRY(expert_sort(b, &w->of, err));
    TRY(choose_up(b, w, err));
    LAUNCH("expert", quantize_kernel, w->of.places, THREADS, 0, *w);
    return choose_down(b, w, err);
}

/* How a band of rows is computed on the matrix unit. */
static void plan_band(struct backend *b, struct expert_work *of)
{
    const int64_t each = of->places / of->op.experts;
    const bool fits = product_shared<4, 2, WEIGHT_INT8>() <= cuda_of(b)->most_shared;
    of->wide = cuda_of(b)->has_wgmma && each > TILE_TOKENS && of->hidden % INT8_COLUMNS == 0 && of->inner % INT8_COLUMNS == 0 &&
               (uintptr_t)of->op.x.codes % 16 == 0;
    of->item_size = of->wide ? (each > 64 ? 128 : each > 24 ? 64 : 32)
                             : (each > 2 * TILE_TOKENS && fits ? 4 : each > TILE_TOKENS ? 2 : 1) * TILE_TOKENS;
    of->most_items = of->places / of->item_size + of->op.experts;
    of->most_items = of->most_items < of->places ? of->most_items : of->places;
    of->direct = !of->wide && !of->op.idx;
    of->few = !of->wide && !of->direct && of->places <= MOST_FEW;
}

/* Where a band of rows stands in scratch. */
static void place_band(struct int8_work *w, uint8_t *at)
{
    struct expert_work *of = &w->of;
    of->item_count = (int32_t *)expert_carve(&at, 4);
    of->visits = (struct visit *)expert_carve(&at, of->places * (int64_t)sizeof *of->visits);
    of->items = (struct item *)expert_carve(&at, of->places * (int64_t)sizeof *of->items);
    w->h = (float *)expert_carve(&at, (int64_t)of->places * of->inner * 4);
    w->codes = (int8_t *)expert_carve(&at, (int64_t)of->places * of->inner);
    w->scales = (float *)expert_carve(&at, (int64_t)of->places * 4);
}

qr_status expert_int8(struct backend *b, const struct expert_work *whole, const struct expert_table *table, qr_error *err)
{
    struct int8_work w = {.of = *whole};
    struct expert_work *of = &w.of;
    int32_t rounds;
    const struct row_list rows = of->op.rows;
    const bool aside = cuda_expert_is_aside(&of->op);
    const int64_t row_bytes = of->routes * (5 * (int64_t)of->inner + 4 + (int64_t)(sizeof(struct visit) + sizeof(struct item)));
    const int64_t most = ((aside ? (int64_t)SIDE_BYTES : (int64_t)SCRATCH_BYTES) - 4096) / row_bytes;
    if (most < 1)
        return qr_fail(err, QR_UNSUPPORTED, "expert: a row of %lld bytes is more than its scratch holds", (long long)row_bytes);
    for (int64_t first = 0; first < rows.count; first += most) {
        const int64_t count = rows.count - first < most ? rows.count - first : most;
        of->rows.index = rows.index ? rows.index + first : NULL;
        of->rows.count = (int32_t)count;
        of->offset = (int32_t)first;
        of->places = (int32_t)(count * of->routes);
        place_band(&w, aside ? cuda_of(b)->side : cuda_of(b)->scratch);
        of->seating = seating_of(cuda_of(b), &of->op, table, of->places, &rounds);
        plan_band(b, of);
        for (; of->seating.nth < rounds; of->seating.nth++) {
            TRY(expert_fetch(b, of, err));
            TRY(is_matrix(of) ? matrix_round(b, &w, err) : plain_round(b, &w, err));
        }
    }
    return QR_OK;
}
