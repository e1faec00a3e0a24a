#include "ops/cuda/expert.cuh"

/* The experts of many rows: items of up to TOKENS visits. */

struct wide_place {
    struct item item;
    int32_t tile; /* first tile of the unit */
    const struct expert_view *expert;
};

[[maybe_unused]] static __device__ inline struct item item_at(const struct expert_work &w, int i)
{
    return {fresh(&w.items[i].expert), fresh(&w.items[i].first), fresh(&w.items[i].count)};
}

/* The place of a unit, where `across` of them, of so many tiles each, make an item. */
[[maybe_unused]] static __device__ inline struct wide_place find_item(const struct expert_work &w, int unit, int across,
                                                                      int tiles)
{
    struct wide_place at;
    at.item = item_at(w, unit / across);
    at.tile = unit % across * tiles;
    at.expert = w.experts + at.item.expert;
    return at;
}

/* A unit is 64 inner columns: of w1 to the first warpgroup, of w3 to the second. */
template <int TOKENS> struct wide_up_work {
    enum { PACKED = 0, VARIES = 1 };
    const struct expert_work &w;
    typedef struct wide_place place;
    __device__ int rows(const place &at) const { return at.item.count; }
    __device__ int across() const { return (w.inner + SLAB_ROWS - 1) / SLAB_ROWS; }
    __device__ int units() const { return fresh(w.item_count) * across(); }
    __device__ const struct weight_view &shape() const { return w.up; }
    __device__ place find(int unit) const { return find_item(w, unit, across(), 2); }
    __device__ const struct weight_view &weight(const place &at, int t) const
    {
        return t < 2 ? at.expert->w1 : at.expert->w3;
    }
    __device__ const uint8_t *codes(const place &at, int t) const
    {
        return weight(at, t).values + last_of(w.up, at.tile + t % 2) * w.up.pitch;
    }
    __device__ const uint8_t *scales(const place &at, int t) const
    {
        return weight(at, t).scales + last_of(w.up, at.tile + t % 2) * w.up.scale_cols;
    }
    __device__ const uint8_t *row(const place &at, int token) const
    {
        const int32_t row = fresh(&w.visits[at.item.first + (token < at.item.count ? token : 0)].row);
        return (const uint8_t *)(const void *)(w.x + row * w.x_width);
    }
    __device__ void finish(const place &at, int first, const float *slab) const
    {
        enum { HALF = half_of(TOKENS) };
        for (int t = warp_of(); t < HALF && first + t < at.item.count; t += SUMMING / WARP) {
            const int64_t visit = at.item.first + first + t;
            const int32_t place = fresh(&w.visits[visit].place);
#pragma unroll
            for (int r = lane_of(); r < SLAB_ROWS; r += WARP) {
                const float *sum = slab + t * SLAB_PITCH + r;
                keep_h(w, visit, place, at.tile * TILE_ROWS + r, sum[0], sum[HALF * SLAB_PITCH]);
            }
        }
    }
};

template <int TOKENS> struct wide_down_work {
    enum { PACKED = 0, VARIES = 1 };
    const struct expert_work &w;
    typedef struct wide_place place;
    __device__ int rows(const place &at) const { return at.item.count; }
    __device__ int across() const { return (w.hidden + WIDE_ROWS - 1) / WIDE_ROWS; }
    __device__ int units() const { return fresh(w.item_count) * across(); }
    __device__ const struct weight_view &shape() const { return w.down; }
    __device__ place find(int unit) const { return find_item(w, unit, across(), WIDE_TILES); }
    __device__ const uint8_t *codes(const place &at, int t) const
    {
        return at.expert->w2.values + last_of(w.down, at.tile + t) * w.down.pitch;
    }
    __device__ const uint8_t *scales(const place &at, int t) const
    {
        return at.expert->w2.scales + last_of(w.down, at.tile + t) * w.down.scale_cols;
    }
    __device__ const uint8_t *row(const place &at, int token) const
    {
        const int64_t visit = at.item.first + (token < at.item.count ? token : 0);
        return (const uint8_t *)(const void *)(w.quantized + visit * w.h_width);
    }
    __device__ void finish(const place &at, int first, const float *slab) const
    {
        enum { HALF = half_of(TOKENS) };
        const int r = lane_of() * 4, column = at.tile * TILE_ROWS + r;
        slab += r / SLAB_ROWS * HALF * SLAB_PITCH + r % SLAB_ROWS;
        for (int t = warp_of(); t < HALF && first + t < at.item.count; t += SUMMING / WARP) {
            const int64_t place = fresh(&w.visits[at.item.first + first + t].place);
            const float4 y = *(const float4 *)(const void *)(slab + t * SLAB_PITCH);
            uint16_t *out = (uint16_t *)w.op.out + place * w.hidden + column;
            if (column + 4 <= w.hidden && w.hidden % 4 == 0 && (uintptr_t)w.op.out % 8 == 0) {
                store_4(out, y);
                continue;
            }
            const float value[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (column + i < w.hidden)
                    out[i] = bf16_bits(value[i]);
        }
    }
};

template <int FORMAT, int TOKENS>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) wide_up_kernel(const __grid_constant__ struct expert_work w)
{
    await_earlier();
    wide_tiles<FORMAT, TOKENS>(wide_up_work<TOKENS>{w});
}

template <int FORMAT, int TOKENS>
static __global__ void __launch_bounds__(WIDE_THREADS, 1) wide_down_kernel(const __grid_constant__ struct expert_work w)
{
    await_earlier();
    wide_tiles<FORMAT, TOKENS>(wide_down_work<TOKENS>{w});
}

static unsigned blocks_for(struct backend *b, const struct expert_work *w, int columns, int each)
{
    const int64_t units = (int64_t)w->most_items * ((columns + each - 1) / each), most = cuda_of(b)->processors;
    return (unsigned)(units < most ? units : most);
}

template <int FORMAT, int TOKENS>
static qr_status start_up(struct backend *b, const struct expert_work *w, qr_error *err)
{
    LAUNCH("expert", (wide_up_kernel<FORMAT, TOKENS>), blocks_for(b, w, w->inner, SLAB_ROWS), WIDE_THREADS,
           (wide_ring<FORMAT, TOKENS>::BYTES), *w);
    return QR_OK;
}

template <int FORMAT, int TOKENS>
static qr_status start_down(struct backend *b, const struct expert_work *w, qr_error *err)
{
    LAUNCH("expert", (wide_down_kernel<FORMAT, TOKENS>), blocks_for(b, w, w->hidden, WIDE_ROWS), WIDE_THREADS,
           (wide_ring<FORMAT, TOKENS>::BYTES), *w);
    return QR_OK;
}

template <int FORMAT> static qr_status choose_up(struct backend *b, const struct expert_work *w, qr_error *err)
{
    return w->item_size == 32   ? start_up<FORMAT, 32>(b, w, err)
           : w->item_size == 64 ? start_up<FORMAT, 64>(b, w, err)
                                : start_up<FORMAT, 128>(b, w, err);
}

template <int FORMAT> static qr_status choose_down(struct backend *b, const struct expert_work *w, qr_error *err)
{
    return w->item_size == 32   ? start_down<FORMAT, 32>(b, w, err)
           : w->item_size == 64 ? start_down<FORMAT, 64>(b, w, err)
                                : start_down<FORMAT, 128>(b, w, err);
}

qr_status expert_wide_up(struct backend *b, const struct expert_work *w, enum weight_format format, qr_error *err)
{
    return format == WEIGHT_FP8 ? choose_up<WEIGHT_FP8>(b, w, err) : choose_up<WEIGHT_FP4>(b, w, err);
}

qr_status expert_wide_down(struct backend *b, const struct expert_work *w, enum weight_format format, qr_error *err)
{
    return format == WEIGHT_FP8 ? choose_down<WEIGHT_FP8>(b, w, err) : choose_down<WEIGHT_FP4>(b, w, err);
}
