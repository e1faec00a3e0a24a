#include "ops/cuda/expert.cuh"
#include "ops/cuda/few.cuh"

/* The experts and their sum: v41-model.md 7.2, 7.3; v4-model.md 6.2, 7.4. */

enum { THREADS = 256 };

enum { SORT_THREADS = MOST_EXPERTS };

/* Sorts visits by expert and cuts them into items: one block, a thread an expert. The order inside an expert changes no
 * result. */
static __device__ void sort_visits(const struct expert_work &w)
{
    __shared__ int32_t count[MOST_EXPERTS], next[MOST_EXPERTS];
    int own = threadIdx.x;
    count[own] = 0;
    __syncthreads();
    for (int i = own; i < w.places; i += SORT_THREADS) {
        int32_t e = expert_of(w, row_of(w, i / w.routes) * w.routes + i % w.routes);
        if (e >= 0)
            atomicAdd(&count[e], 1);
    }
    __syncthreads();
    int32_t mine = count[own], cuts = (mine + w.item_size - 1) / w.item_size;
    unsigned long long all, before = sum_before((unsigned long long)cuts << 32 | (uint32_t)mine, &all);
    int32_t first = (int32_t)(uint32_t)before, item = (int32_t)(before >> 32);
    next[own] = first;
    for (int32_t done = 0; done < mine; done += w.item_size)
        w.items[item++] = {own, first + done, mine - done < w.item_size ? mine - done : w.item_size};
    if (own == 0)
        *w.item_count = (int32_t)(all >> 32);
    __syncthreads();
    for (int i = own; i < w.places; i += SORT_THREADS) {
        int64_t place = row_of(w, i / w.routes) * w.routes + i % w.routes;
        int32_t e = expert_of(w, place);
        if (e >= 0)
            w.visits[atomicAdd(&next[e], 1)] = {i / w.routes, (int32_t)place};
    }
}

static __device__ void widen_row(const struct expert_work &w, int64_t i)
{
    const struct activation &in = w.op.x;
    int64_t first = row_of(w, i) * in.cols;
    uint16_t *to = w.x + i * w.x_width;
    for (int64_t c = threadIdx.x; c < w.x_width; c += SORT_THREADS) {
        float v = c < in.cols ? e4m3_value(((const uint8_t *)in.codes)[first + c]) *
                                    e8m0_value(((const uint8_t *)in.scales)[(first + c) / in.block])
                              : 0.0f;
        to[order_of(w, c)] = bf16_bits(v);
    }
}

/* Block 0 sorts; the others bring a row each to bf16. */
static __global__ void __launch_bounds__(SORT_THREADS) begin_kernel(struct expert_work w)
{
    await_earlier();
    if (blockIdx.x == 0)
        sort_visits(w);
    else
        widen_row(w, blockIdx.x - 1);
}

qr_status expert_sort(struct backend *b, const struct expert_work *w, qr_error *err)
{
    LAUNCH("expert", begin_kernel, 1, SORT_THREADS, 0, *w);
    return QR_OK;
}

static __global__ void __launch_bounds__(SORT_THREADS) widen_kernel(struct expert_work w)
{
    await_earlier();
    widen_row(w, blockIdx.x);
}

/* Quantizes one block of a visit's h: a warp's work. */
static __device__ void quantize_block(const struct expert_work &w, int64_t visit, int block)
{
    const int size = w.op.x.block;
    const uint16_t *h = w.h + visit * w.inner + (int64_t)block * size;
    float largest = 0;
#pragma unroll 4
    for (int i = lane_of(); i < size; i += WARP)
        largest = larger_magnitude(largest, fresh_bf16(h + i));
    const uint8_t s = q8_scale(warp_largest(largest));
#pragma unroll 4
    for (int i = lane_of(); i < size; i += WARP)
        w.quantized[visit * w.h_width + order_of(w, (int64_t)block * size + i)] = on_q8_grid(fresh_bf16(h + i), s);
}

/* h of a tile of inner columns. FIRST: the experts are known before earlier kernels have ended. */
template <int TOKENS, bool FIRST> struct up_work {
    enum { WEIGHTS_FIRST = FIRST, CODE_ORDER = 1 };
    const struct expert_work &w;
    const struct visiting v;
    struct place {
        struct item item;
        int32_t number, tile; /* number: of the item */
        const struct expert_view *expert;
    };
    __device__ int tiles() const { return (w.inner + TILE_ROWS - 1) / TILE_ROWS; }
    __device__ int units() const { return v.items() * tiles(); }
    __device__ const struct weight_view &shape() const { return w.up; }
    __device__ place find(int unit) const
    {
        place at;
        at.number = unit / tiles();
        at.item = v.item_of(at.number);
        at.tile = unit % tiles();
        at.expert = w.experts + at.item.expert;
        return at;
    }
    __device__ const struct weight_view &weight(const place &at, int r) const
    {
        return r ? at.expert->w3 : at.expert->w1;
    }
    __device__ int shift() const { return w.shift; }
    __device__ struct row_source row(const place &at, int token) const
    {
        struct visit visit = v.visit_of(at.item.first + (token < at.item.count ? token : 0));
        if (!w.direct)
            return {(const uint8_t *)(const void *)(w.x + visit.row * w.x_width), NULL};
        int64_t first = (int64_t)visit.place * w.op.x.cols;
        return {(const uint8_t *)w.op.x.codes + first, (const uint8_t *)w.op.x.scales + (first >> w.shift)};
    }
    __device__ void finish(const place &at, const struct tile_sums<TOKENS> *sums) const
    {
        for (int i = threadIdx.x; i < at.item.count * TILE_ROWS; i += PRODUCT_THREADS) {
            int r = i % TILE_ROWS, n = i / TILE_ROWS, column = at.tile * TILE_ROWS + r;
            int64_t visit = at.item.first + n;
            keep_h(w, visit, w.op.weight ? v.visit_of(visit).place : 0, column, sum_of<TOKENS>(sums[0], n, r),
                   sum_of<TOKENS>(sums[1], n, r)); /* a warp holds the 32 columns of one visit */
        }
        if (w.arrived)
            arrive(at);
    }
    /* The last of the tiles that share a block of the quantizer quantizes it. */
    __device__ void arrive(const place &at) const
    {
        __shared__ bool last;
        const int block = w.op.x.block, tiles_each = block / TILE_ROWS, of_block = at.tile / tiles_each;
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0)
            last = atomicInc(w.arrived + at.number * (w.inner / block) + of_block, tiles_each - 1) ==
                   (uint32_t)tiles_each - 1;
        __syncthreads();
        if (!last)
            return;
        __threadfence();
        for (int n = warp_of(); n < at.item.count; n += warps_of())
            quantize_block(w, at.item.first + n, of_block);
    }
};

/* The quantizer of h where its blocks are wider than a tile. */
static __global__ void quantize_h(struct expert_work w)
{
    await_earlier();
    for (int b = warp_of(); b < w.inner / w.op.x.block; b += warps_of())
        quantize_block(w, blockIdx.x, b);
    for (int64_t c = w.inner + threadIdx.x; c < w.h_width; c += THREADS)
        w.quantized[blockIdx.x * w.h_width + order_of(w, c)] = 0;
}

/* Places were sorted before the kernel in front of this one began: its weights are known from the start. Those in seats may
 * have changed since a multiprocessor's own cache saw them: they are waited for. */
template <int TOKENS> struct down_work {
    enum { WEIGHTS_FIRST = 1, CODE_ORDER = 1 };
    const struct expert_work &w;
    const struct visiting v;
    struct place {
        struct item item;
        int32_t tile;
        const struct expert_view *expert;
    };
    __device__ int tiles() const { return (w.hidden + TILE_ROWS - 1) / TILE_ROWS; }
    __device__ int units() const { return v.items() * tiles(); }
    __device__ const struct weight_view &shape() const { return w.down; }
    __device__ place find(int unit) const
    {
        place at;
        at.item = v.item_of(unit / tiles());
        at.tile = unit % tiles();
        at.expert = w.experts + at.item.expert;
        return at;
    }
    __device__ const struct weight_view &weight(const place &at, int) const { return at.expert->w2; }
    __device__ int shift() const { return 0; }
    __device__ struct row_source row(const place &at, int token) const
    {
        const int64_t visit = at.item.first + (token < at.item.count ? token : 0);
        return {(const uint8_t *)(const void *)(w.quantized + visit * w.h_width), NULL};
    }
    __device__ void finish(const place &at, const struct tile_sums<TOKENS> *sums) const
    {
        for (int i = threadIdx.x; i < at.item.count * TILE_ROWS; i += PRODUCT_THREADS) {
            int r = i % TILE_ROWS, n = i / TILE_ROWS, column = at.tile * TILE_ROWS + r;
            if (column < w.hidden)
                ((uint16_t *)w.op.out)[(int64_t)v.visit_of(at.item.first + n).place * w.hidden + column] =
                    bf16_bits(sum_of<TOKENS>(sums[0], n, r));
        }
    }
};

/* Q8: one expert for every row. */
template <int FORMAT, int TOKENS, bool LARGE, bool Q8>
static __global__ void __launch_bounds__(PRODUCT_THREADS, (form_residents<FORMAT, TOKENS, 2, LARGE>()))
    up_kernel(const __grid_constant__ struct expert_work w)
{
    __shared__ struct few_places few;
    if (!Q8)
        await_earlier();
    if (w.few)
        sort_few(w, few);
    stream_form<FORMAT, 2, TOKENS, LARGE, Q8>(up_work<TOKENS, Q8>{w, {w, &few}});
}

template <int FORMAT, int TOKENS, bool LARGE>
static __global__ void __launch_bounds__(PRODUCT_THREADS, (form_residents<FORMAT, TOKENS, 1, LARGE>()))
    down_kernel(const __grid_constant__ struct expert_work w)
{
    __shared__ struct few_places few;
    if (w.few)
        sort_few(w, few);
    const down_work<TOKENS> work = {w, {w, &few}};
    if (begins_in_seat<FORMAT, form_ahead<FORMAT, TOKENS, LARGE>()>(w, work.v, work.tiles()))
        await_earlier();
    stream_form<FORMAT, 1, TOKENS, LARGE, false>(work);
}

template <int FORMAT, int TOKENS, bool LARGE, bool Q8>
static qr_status start_up(struct backend *b, const struct expert_work *w, qr_error *err)
{
    LAUNCH("expert", (up_kernel<FORMAT, TOKENS, LARGE, Q8>),
           expert_blocks(b, w, w->inner, form_residents<FORMAT, TOKENS, 2, LARGE>()), PRODUCT_THREADS,
           (form_shared<FORMAT, TOKENS, 2, LARGE>()), *w);
    return QR_OK;
}

template <int FORMAT, int TOKENS, bool LARGE>
static qr_status start_down(struct backend *b, const struct expert_work *w, qr_error *err)
{
    LAUNCH("expert", (down_kernel<FORMAT, TOKENS, LARGE>),
           expert_blocks(b, w, w->hidden, form_residents<FORMAT, TOKENS, 1, LARGE>()), PRODUCT_THREADS,
           (form_shared<FORMAT, TOKENS, 1, LARGE>()), *w);
    return QR_OK;
}

/* How many visits a block takes together changes no bit. */
template <int FORMAT> static qr_status choose_up(struct backend *b, const struct expert_work *w, qr_error *err)
{
    if (w->direct)
        return w->item_size == TILE_TOKENS ? start_up<WEIGHT_FP8, 1, false, true>(b, w, err)
                                           : start_up<WEIGHT_FP8, 2, false, true>(b, w, err);
    if (w->up.large_scales)
        return start_up<FORMAT, 2, true, false>(b, w, err);
    return w->item_size == TILE_TOKENS       ? start_up<FORMAT, 1, false, false>(b, w, err)
           : w->item_size == 2 * TILE_TOKENS ? start_up<FORMAT, 2, false, false>(b, w, err)
                                             : start_up<FORMAT, 4, false, false>(b, w, err);
}

template <int FORMAT> static qr_status choose_down(struct backend *b, const struct expert_work *w, qr_error *err)
{
    if (w->down.large_scales)
        return start_down<FORMAT, 2, true>(b, w, err);
    return w->item_size == TILE_TOKENS       ? start_down<FORMAT, 1, false>(b, w, err)
           : w->item_size == 2 * TILE_TOKENS ? start_down<FORMAT, 2, false>(b, w, err)
                                             : start_down<FORMAT, 4, false>(b, w, err);
}

/* Bytes of scratch that one row of the list takes. */
static int64_t row_bytes(const struct expert_work *w)
{
    const int64_t h = w->quantized_up ? 0 : 2 * (int64_t)w->inner;
    return w->x_width * 2 +
           w->routes * (h + 2 * w->h_width + (int64_t)sizeof(struct visit) + (int64_t)sizeof(struct item)) + 64;
}

static void place_work(struct expert_work *w, int64_t rows, uint8_t *scratch)
{
    int64_t places = rows * w->routes;
    w->item_count = (int32_t *)expert_carve(&scratch, 4);
    w->visits = (struct visit *)expert_carve(&scratch, places * (int64_t)sizeof *w->visits);
    w->items = (struct item *)expert_carve(&scratch, places * (int64_t)sizeof *w->items);
    w->x = (uint16_t *)expert_carve(&scratch, rows * w->x_width * 2);
    w->h = (uint16_t *)expert_carve(&scratch, w->quantized_up ? 0 : places * w->inner * 2);
    w->quantized = (uint16_t *)expert_carve(&scratch, places * w->h_width * 2);
}

/* The shape that all experts share; a large scale in one of them counts for all. */
static struct weight_view shape_of(const struct op_expert *op, const struct weight *const *w)
{
    struct weight_view shape = {.values = NULL};
    for (int32_t e = 0; e < op->experts; e++) {
        if (!w[e])
            continue;
        bool large = shape.large_scales || w[e]->view.large_scales;
        shape = w[e]->view;
        shape.large_scales = large;
    }
    return shape;
}

bool cuda_expert_is_aside(const struct op_expert *op) { return !op->idx && op->rows.count <= SIDE_ROWS; }

/* Few places of experts that take bf16 rows without a second factor. */
static bool is_few(const struct op_expert *op)
{
    const struct activation *x = &op->x;
    return op->idx && op->rows.count * (int64_t)op->active <= MOST_FEW && x->cols % BLOCK_COLUMNS == 0 &&
           x->block % 8 == 0 && (uintptr_t)x->codes % 8 == 0 && !shape_of(op, op->w1).large_scales &&
           !shape_of(op, op->w2).large_scales && !shape_of(op, op->w3).large_scales;
}

bool cuda_routes_experts(const struct op_route *op, const struct op_expert *experts)
{
    return experts->idx == op->idx && op->idx && experts->active == op->active && experts->x.format == ACT_Q8 &&
           !experts->w8a8 && experts->rows.index == op->rows.index && experts->rows.count == op->rows.count &&
           is_few(experts);
}

uint16_t *cuda_expert_rows(struct backend *b, const struct op_expert *op)
{
    struct expert_work w = {};
    w.routes = op->active;
    place_work(&w, op->rows.count, cuda_of(b)->scratch);
    return w.x;
}

/* Whether there are so many visits of an expert that wgmma pays. */
static bool is_wide(struct backend *b, const struct expert_work *w, int64_t each)
{
    return cuda_of(b)->has_wgmma && each > TILE_TOKENS && w->op.x.cols % STAGE_COLUMNS == 0 &&
           w->inner % STAGE_COLUMNS == 0 && !w->up.large_scales && !w->down.large_scales && !w->widened;
}

/* How a band of rows is computed; few rows are brought to bf16. */
static qr_status begin_band(struct backend *b, struct expert_work *w, enum weight_format up, qr_error *err)
{
    int64_t each;
    each = w->places / w->op.experts;
    w->item_size = (each > 3 * TILE_TOKENS ? 4 : each > TILE_TOKENS ? 2 : 1) * TILE_TOKENS;
    bool fits = product_shared<4, 2, WEIGHT_FP8>() <= cuda_of(b)->most_shared;
    if (w->up.large_scales || w->down.large_scales || (w->item_size > 2 * TILE_TOKENS && !fits))
        w->item_size = 2 * TILE_TOKENS;
    w->wide = is_wide(b, w, each);
    if (w->wide)
        w->item_size = each > 48 ? 128 : each > 24 ? 64 : 32; /* half of 128 costs what 64 do */
    w->most_items = w->places / w->item_size + w->op.experts;
    w->most_items = w->most_items < w->places ? w->most_items : w->places;
    w->direct = !w->wide && !w->op.idx && up == WEIGHT_FP8 && w->item_size <= 2 * TILE_TOKENS && !w->up.large_scales &&
                w->shift > 0 && (uintptr_t)w->op.x.codes % 8 == 0 && w->op.x.cols % BLOCK_COLUMNS == 0;
    const int64_t counters = w->most_items * (w->inner / w->op.x.block);
    const bool whole = w->op.x.block % TILE_ROWS == 0 && w->inner % BLOCK_COLUMNS == 0;
    w->arrived = NULL;
    if (!w->wide && !w->quantized_up && whole && counters <= MOST_ARRIVED)
        w->arrived = cuda_of(b)->arrived + (cuda_expert_is_aside(&w->op) ? MOST_ARRIVED : 0);
    w->few = !w->wide && !w->direct && is_few(&w->op);
    if (w->few && !w->widened)
        LAUNCH("expert", widen_kernel, w->rows.count, SORT_THREADS, 0, *w);
    return QR_OK;
}

static qr_status run_round(struct backend *b, struct expert_work *w, enum weight_format up, enum weight_format down,
                           qr_error *err)
{
    TRY(expert_fetch(b, w, err));
    if (!w->direct && !w->few) /* rows are brought to bf16 once */
        LAUNCH("expert", begin_kernel, w->seating.nth == 0 ? w->rows.count + 1 : 1, SORT_THREADS, 0, *w);
    qr_status st = w->wide            ? expert_wide_up(b, w, up, err)
                   : up == WEIGHT_FP8 ? choose_up<WEIGHT_FP8>(b, w, err)
                                      : choose_up<WEIGHT_FP4>(b, w, err);
    if (st != QR_OK)
        return st;
    if (!w->quantized_up && !w->arrived)
        LAUNCH("expert", quantize_h, w->places, THREADS, 0, *w);
    return w->wide              ? expert_wide_down(b, w, down, err)
           : down == WEIGHT_FP8 ? choose_down<WEIGHT_FP8>(b, w, err)
                                : choose_down<WEIGHT_FP4>(b, w, err);
}

static qr_status run_band(struct backend *b, struct expert_work *w, const struct expert_table *table, enum weight_format up,
                          enum weight_format down, qr_error *err)
{
    int32_t rounds;
    w->places = w->rows.count * w->routes;
    w->seating = seating_of(cuda_of(b), &w->op, table, w->places, &rounds);
    TRY(begin_band(b, w, up, err));
    for (; w->seating.nth < rounds; w->seating.nth++)
        TRY(run_round(b, w, up, down, err));
    return QR_OK;
}

static qr_status matrix_expert(struct backend *b, const struct op_expert *op, struct expert_work *w,
                               const struct expert_table *table, const struct weight *w1, const struct weight *w2, qr_error *err)
{
    enum weight_format up = w1->spec.format, down = w2->spec.format;
    w->x_width = row_width(w1);
    w->h_width = row_width(w2);
    w->up = shape_of(op, op->w1);
    w->up.large_scales |= shape_of(op, op->w3).large_scales;
    w->down = shape_of(op, op->w2);
    w->quantized_up = op->x.block == TILE_ROWS;
    w->shift = op->x.block == 32 ? 5 : op->x.block == 64 ? 6 : op->x.block == 128 ? 7 : 0;
    const bool aside = cuda_expert_is_aside(op);
    int64_t most = ((aside ? (int64_t)SIDE_BYTES : (int64_t)SCRATCH_BYTES) - 4096) / row_bytes(w);
    if (most < 1)
        return qr_fail(err, QR_UNSUPPORTED, "expert: a row of %lld bytes is more than its scratch holds",
                       (long long)row_bytes(w));
    for (int64_t first = 0; first < op->rows.count; first += most) {
        int64_t count = op->rows.count - first < most ? op->rows.count - first : most;
        w->rows.index = op->rows.index ? op->rows.index + first : NULL;
        w->rows.count = (int32_t)count;
        w->offset = (int32_t)first;
        place_work(w, count, aside ? cuda_of(b)->side : cuda_of(b)->scratch);
        qr_status st = run_band(b, w, table, up, down, err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}

/* ---- checks ---- */

static bool is_prepared(const struct op_expert *op, int32_t e) { return op->w1[e] && op->w2[e] && op->w3[e]; }

static qr_status check_expert(const struct op_expert *op, int32_t e, int32_t first, qr_error *err)
{
    const struct weight *w1 = op->w1[e], *w2 = op->w2[e], *w3 = op->w3[e];
    if (w1->spec.k != op->x.cols || w3->spec.k != op->x.cols || w1->spec.n != w3->spec.n || w2->spec.k != w1->spec.n)
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: %s [%d][%d] and %s [%d][%d] do not fit %d columns", w1->spec.name,
                       w1->spec.n, w1->spec.k, w2->spec.name, w2->spec.n, w2->spec.k, op->x.cols);
    if (w1->spec.n != op->w1[first]->spec.n || w2->spec.n != op->w2[first]->spec.n ||
        w1->spec.format != op->w1[first]->spec.format || w3->spec.format != w1->spec.format ||
        w2->spec.format != op->w2[first]->spec.format || w1->spec.tile != op->w1[first]->spec.tile ||
        w2->spec.tile != op->w2[first]->spec.tile)
        return qr_fail(err, QR_UNSUPPORTED, "expert: %s differs in shape or format from the first expert",
                       w1->spec.name);
    bool int8 = w1->spec.format == WEIGHT_INT8 && w2->spec.format == WEIGHT_INT8;
    bool q8 = (w1->spec.format == WEIGHT_FP8 || w1->spec.format == WEIGHT_FP4) &&
              (w2->spec.format == WEIGHT_FP8 || w2->spec.format == WEIGHT_FP4);
    if (op->w8a8 ? !int8 : !q8)
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: weight %s: no product of %s with its format", w1->spec.name,
                       op->w8a8 ? "I8" : "Q8");
    return QR_OK;
}

static qr_status run_expert(struct backend *b, const struct op_expert *op, bool widened, qr_error *err)
{
    bool format = op->w8a8 ? op->x.format == ACT_I8 : op->x.format == ACT_Q8;
    if (!format || (op->w8a8 && op->x.block != op->x.cols))
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: input format %d in blocks of %d", op->x.format, op->x.block);
    int32_t model = 0; /* an expert that is there: all have its shape */
    while (model < op->experts && !is_prepared(op, model))
        model++;
    if (model == op->experts)
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: none of %d experts is prepared", op->experts);
    for (int32_t e = model; e < op->experts; e++) {
        qr_status st = is_prepared(op, e) ? check_expert(op, e, model, err) : QR_OK;
        if (st != QR_OK)
            return st;
    }
    if (op->rows.count == 0)
        return QR_OK;
    struct expert_work w = {.op = *op};
    w.widened = widened;
    const struct expert_table *table = cuda_expert_table(cuda_of(b), op->experts, op->w1, op->w2, op->w3, err);
    if (!table)
        return err ? err->status : QR_INTERNAL;
    w.experts = table->device;
    w.routes = op->idx ? op->active : 1;
    w.hidden = op->w2[model]->spec.n;
    w.inner = op->w1[model]->spec.n;
    w.up = op->w1[model]->view;
    w.down = op->w2[model]->view;
    w.trouble = cuda_of(b)->trouble;
    if (!op->w8a8 && (w.inner % op->x.block || op->x.cols % op->x.block))
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: blocks of %d do not divide %d and %d columns", op->x.block,
                       op->x.cols, w.inner);
    return op->w8a8 ? expert_int8(b, &w, table, err)
                    : matrix_expert(b, op, &w, table, op->w1[model], op->w2[model], err);
}

qr_status cuda_expert(struct backend *b, const struct op_expert *op, qr_error *err)
{
    return run_expert(b, op, false, err);
}

qr_status cuda_expert_widened(struct backend *b, const struct op_expert *op, qr_error *err)
{
    return run_expert(b, op, true, err);
}
