#include "ops/cuda/product.cuh"

/* The experts and their sum: v41-model.md 7.2, 7.3; v4-model.md 6.2, 7.4. */

enum { THREADS = 256 };

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
    int64_t x_width, h_width; /* columns of arranged rows */
    uint16_t *x, *h, *arranged;
    struct visit *visits;
    struct item *items;
    int32_t *item_count, *trouble;
};

static __device__ int64_t row_of(const struct expert_work &w, int32_t i)
{
    return row_at(w.rows, i) + (w.rows.index ? 0 : w.offset);
}

/* The expert of a place; -1 when there is none. */
static __device__ int32_t expert_at(const struct op_expert &op, const struct expert_view *experts, int64_t place,
                                    int32_t *trouble)
{
    int32_t e = op.idx ? op.idx[place] : 0;
    bool known = e >= 0 && e < op.experts;
    if (known && experts[e].w1.values && experts[e].w2.values && experts[e].w3.values)
        return e;
    report_trouble(trouble, known ? TROUBLE_UNPREPARED : TROUBLE_EXPERT, e);
    return -1;
}

static __device__ int32_t expert_of(const struct expert_work &w, int64_t place)
{
    return expert_at(w.op, w.experts, place, w.trouble);
}

/* Sorts visits by expert and cuts them into items: one block. The order inside an expert changes no result. */
static __global__ void sort_visits(struct expert_work w)
{
    __shared__ int32_t count[MOST_EXPERTS], next[MOST_EXPERTS];
    for (int e = threadIdx.x; e < w.op.experts; e += blockDim.x)
        count[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < w.places; i += blockDim.x) {
        int32_t e = expert_of(w, row_of(w, i / w.routes) * w.routes + i % w.routes);
        if (e >= 0)
            atomicAdd(&count[e], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t first = 0, items = 0;
        for (int e = 0; e < w.op.experts; e++) {
            next[e] = first;
            for (int32_t done = 0; done < count[e]; done += w.item_size) {
                int32_t n = count[e] - done < w.item_size ? count[e] - done : w.item_size;
                w.items[items++] = (struct item){e, first + done, n};
            }
            first += count[e];
        }
        *w.item_count = items;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < w.places; i += blockDim.x) {
        int64_t place = row_of(w, i / w.routes) * w.routes + i % w.routes;
        int32_t e = expert_of(w, place);
        if (e >= 0)
            w.visits[atomicAdd(&next[e], 1)] = (struct visit){i / w.routes, (int32_t)place};
    }
}

static __global__ void arrange_rows(struct expert_work w, enum weight_format format)
{
    const struct activation &in = w.op.x;
    int64_t first = row_of(w, blockIdx.x) * in.cols;
    uint16_t *to = w.x + blockIdx.x * w.x_width;
    for (int64_t c = threadIdx.x; c < w.x_width; c += THREADS) {
        float v = c < in.cols ? e4m3_value(((const uint8_t *)in.codes)[first + c]) *
                                    e8m0_value(((const uint8_t *)in.scales)[(first + c) / in.block])
                              : 0.0f;
        to[arranged_column(format, c)] = bf16_bits(v);
    }
}

/* u = clamp(u, -limit, limit); g = min(g, limit); silu(g) u, f32. A limit of 0 clamps nothing. */
static __device__ float swiglu(float g, float u, float limit)
{
    if (limit > 0) {
        u = fminf(fmaxf(u, -limit), limit);
        g = fminf(g, limit);
    }
    return g * sigmoid_of(g) * u;
}

/* h = bf(swiglu(bf(w1 x), bf(w3 x)) omega) of a tile of inner columns. */
template <int FORMAT, int TOKENS>
static __global__ void __launch_bounds__(PRODUCT_THREADS) up_kernel(struct expert_work w)
{
    __shared__ struct tile_sums<TOKENS> sums[2];
    if ((int)blockIdx.y >= *w.item_count)
        return;
    struct item item = w.items[blockIdx.y];
    const struct expert_view &expert = w.experts[item.expert];
    int first = blockIdx.x * TILE_ROWS, from, to;
    const uint16_t *x[TOKENS];

#pragma unroll
    for (int j = 0; j < TOKENS; j++) {
        int v = j * TILE_TOKENS + lane_of() / 4;
        x[j] = w.x + w.visits[item.first + (v < item.count ? v : item.count - 1)].row * w.x_width;
    }
    {
        float acc[TOKENS][4] = {};
        split_of<FORMAT>(expert.w1, warp_of(), &from, &to);
        accumulate<FORMAT, TOKENS>(expert.w1, first, w.inner, from, to, x, acc);
        put_sums<TOKENS>(sums[0], acc);
    }
    {
        float acc[TOKENS][4] = {};
        accumulate<FORMAT, TOKENS>(expert.w3, first, w.inner, from, to, x, acc);
        put_sums<TOKENS>(sums[1], acc);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * TILE_TOKENS * TILE_ROWS; i += PRODUCT_THREADS) {
        int r = i % TILE_ROWS, v = i / TILE_ROWS;
        if (v >= item.count || first + r >= w.inner)
            continue;
        float g = round_bf16(sum_of<TOKENS>(sums[0], expert.w1.row_parallel, v, r));
        float u = round_bf16(sum_of<TOKENS>(sums[1], expert.w3.row_parallel, v, r));
        float h = swiglu(g, u, w.op.swiglu_limit);
        if (w.op.weight)
            h *= w.op.weight[w.visits[item.first + v].place];
        w.h[(int64_t)(item.first + v) * w.inner + first + r] = bf16_bits(h);
    }
}

/* What w2's quantizer leaves of h, as bf16 in the order of w2: exact. */
static __global__ void quantize_h(struct expert_work w, enum weight_format format, int32_t block)
{
    const uint16_t *h = w.h + (int64_t)blockIdx.x * w.inner;
    uint16_t *to = w.arranged + blockIdx.x * w.h_width;
    for (int b = warp_of(); b < w.inner / block; b += warps_of()) {
        float largest = 0;
        for (int i = lane_of(); i < block; i += WARP)
            largest = fmaxf(largest, fabsf(bf16_value(h[b * block + i])));
        float s = e8m0_value(q8_scale(warp_max(largest)));
        for (int i = lane_of(); i < block; i += WARP) {
            int c = b * block + i;
            to[arranged_column(format, c)] = bf16_bits(e4m3_value(e4m3_code(bf16_value(h[c]) / s)) * s);
        }
    }
    for (int64_t c = w.inner + threadIdx.x; c < w.h_width; c += THREADS)
        to[arranged_column(format, c)] = 0;
}

template <int FORMAT, int TOKENS>
static __global__ void __launch_bounds__(PRODUCT_THREADS) down_kernel(struct expert_work w)
{
    __shared__ struct tile_sums<TOKENS> sums;
    if ((int)blockIdx.y >= *w.item_count)
        return;
    struct item item = w.items[blockIdx.y];
    const struct weight_view &w2 = w.experts[item.expert].w2;
    int first = blockIdx.x * TILE_ROWS, from, to;
    const uint16_t *x[TOKENS];
    float acc[TOKENS][4] = {};

#pragma unroll
    for (int j = 0; j < TOKENS; j++) {
        int v = j * TILE_TOKENS + lane_of() / 4;
        x[j] = w.arranged + (int64_t)(item.first + (v < item.count ? v : item.count - 1)) * w.h_width;
    }
    split_of<FORMAT>(w2, warp_of(), &from, &to);
    accumulate<FORMAT, TOKENS>(w2, first, w.hidden, from, to, x, acc);
    put_sums<TOKENS>(sums, acc);
    __syncthreads();
    for (int i = threadIdx.x; i < TOKENS * TILE_TOKENS * TILE_ROWS; i += PRODUCT_THREADS) {
        int r = i % TILE_ROWS, v = i / TILE_ROWS;
        if (v < item.count && first + r < w.hidden)
            ((uint16_t *)w.op.out)[(int64_t)w.visits[item.first + v].place * w.hidden + first + r] =
                bf16_bits(sum_of<TOKENS>(sums, w2.row_parallel, v, r));
    }
}

template <int FORMAT> static qr_status start_up(struct backend *b, const struct expert_work *w, qr_error *err)
{
    dim3 grid((w->inner + TILE_ROWS - 1) / TILE_ROWS, w->most_items);
    if (w->item_size == TILE_TOKENS)
        LAUNCH("expert", (up_kernel<FORMAT, 1>), grid, PRODUCT_THREADS, 0, *w);
    else
        LAUNCH("expert", (up_kernel<FORMAT, 2>), grid, PRODUCT_THREADS, 0, *w);
    return QR_OK;
}

template <int FORMAT> static qr_status start_down(struct backend *b, const struct expert_work *w, qr_error *err)
{
    dim3 grid((w->hidden + TILE_ROWS - 1) / TILE_ROWS, w->most_items);
    if (w->item_size == TILE_TOKENS)
        LAUNCH("expert", (down_kernel<FORMAT, 1>), grid, PRODUCT_THREADS, 0, *w);
    else
        LAUNCH("expert", (down_kernel<FORMAT, 2>), grid, PRODUCT_THREADS, 0, *w);
    return QR_OK;
}

/* Bytes of scratch that one row of the list takes. */
static int64_t row_bytes(const struct expert_work *w)
{
    return w->x_width * 2 +
           w->routes *
               (2 * (int64_t)w->inner + 2 * w->h_width + (int64_t)sizeof(struct visit) + (int64_t)sizeof(struct item)) +
           64;
}

static void *carve(uint8_t **at, int64_t bytes)
{
    void *piece = *at;
    *at += (bytes + 255) / 256 * 256;
    return piece;
}

static void place_work(struct expert_work *w, int64_t rows, uint8_t *scratch)
{
    int64_t places = rows * w->routes;
    w->item_count = (int32_t *)carve(&scratch, 4);
    w->visits = (struct visit *)carve(&scratch, places * (int64_t)sizeof *w->visits);
    w->items = (struct item *)carve(&scratch, places * (int64_t)sizeof *w->items);
    w->x = (uint16_t *)carve(&scratch, rows * w->x_width * 2);
    w->h = (uint16_t *)carve(&scratch, places * w->inner * 2);
    w->arranged = (uint16_t *)carve(&scratch, places * w->h_width * 2);
}

static qr_status run_band(struct backend *b, struct expert_work *w, enum weight_format up, enum weight_format down,
                          qr_error *err)
{
    w->places = w->rows.count * w->routes;
    w->item_size = w->places > 16 * w->op.experts ? 2 * TILE_TOKENS : TILE_TOKENS;
    w->most_items = w->places / w->item_size + w->op.experts;
    w->most_items = w->most_items < w->places ? w->most_items : w->places;
    LAUNCH("expert", sort_visits, 1, 512, 0, *w);
    LAUNCH("expert", arrange_rows, w->rows.count, THREADS, 0, *w, up);
    qr_status st = up == WEIGHT_FP8 ? start_up<WEIGHT_FP8>(b, w, err) : start_up<WEIGHT_FP4>(b, w, err);
    if (st != QR_OK)
        return st;
    LAUNCH("expert", quantize_h, w->places, THREADS, 0, *w, down, w->op.x.block);
    return down == WEIGHT_FP8 ? start_down<WEIGHT_FP8>(b, w, err) : start_down<WEIGHT_FP4>(b, w, err);
}

static qr_status matrix_expert(struct backend *b, const struct op_expert *op, struct expert_work *w,
                               const struct weight *w1, const struct weight *w2, qr_error *err)
{
    enum weight_format up = w1->spec.format, down = w2->spec.format;
    w->x_width = arranged_columns(w1);
    w->h_width = arranged_columns(w2);
    int64_t most = (SCRATCH_BYTES - 4096) / row_bytes(w);
    if (most < 1)
        return qr_fail(err, QR_UNSUPPORTED, "expert: a row of %lld bytes is more than its scratch holds",
                       (long long)row_bytes(w));
    for (int64_t first = 0; first < op->rows.count; first += most) {
        int64_t count = op->rows.count - first < most ? op->rows.count - first : most;
        w->rows.index = op->rows.index ? op->rows.index + first : NULL;
        w->rows.count = (int32_t)count;
        w->offset = (int32_t)first;
        place_work(w, count, cuda_of(b)->scratch);
        qr_status st = run_band(b, w, up, down, err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}

/* ---- w8a8: INT8, one scale a row; the routing weight comes after w2 ---- */

struct int8_work {
    struct op_expert op;
    const struct expert_view *experts;
    struct row_list rows;
    int32_t offset, routes, hidden, inner;
    float *h;      /* [places][inner] */
    int8_t *codes; /* [places][inner] */
    float *scales; /* [places] */
    int32_t *trouble;
};

static __device__ float int8_dot(const int8_t *x, const struct weight_view &w, int64_t n, float scale)
{
    const int8_t *row = (const int8_t *)w.values + n * w.pitch;
    int sum = 0;
    for (int k = lane_of(); k < w.k; k += WARP)
        sum += x[k] * row[k];
    sum = __reduce_add_sync(ALL_LANES, sum);
    return (float)sum * scale * ((const float *)(const void *)w.scales)[n];
}

static __device__ int64_t int8_place(const struct int8_work &w, int64_t i, int32_t *expert)
{
    int64_t place = (row_at(w.rows, i / w.routes) + (w.rows.index ? 0 : w.offset)) * w.routes + i % w.routes;
    *expert = expert_at(w.op, w.experts, place, w.trouble);
    return place;
}

static __global__ void int8_up(struct int8_work w)
{
    int64_t i = blockIdx.y, n = (int64_t)blockIdx.x * (THREADS / WARP) + warp_of();
    int32_t e;
    int64_t row = int8_place(w, i, &e) / w.routes;
    if (n >= w.inner || e < 0)
        return;
    const int8_t *x = (const int8_t *)w.op.x.codes + row * w.op.x.cols;
    float scale = ((const float *)w.op.x.scales)[row];
    float g = int8_dot(x, w.experts[e].w1, n, scale), u = int8_dot(x, w.experts[e].w3, n, scale);
    if (lane_of() == 0)
        w.h[i * w.inner + n] = swiglu(g, u, w.op.swiglu_limit);
}

static __global__ void int8_quantize(struct int8_work w)
{
    int64_t i = blockIdx.x;
    int32_t e;
    int64_t place = int8_place(w, i, &e);
    struct activation a = {ACT_I8, w.inner, w.inner, w.codes, w.scales};
    quantize_row(a, i, 0, w.h + i * w.inner, w.inner, w.op.weight ? w.op.weight[place] : 1.0f);
}

static __global__ void int8_down(struct int8_work w)
{
    int64_t i = blockIdx.y, n = (int64_t)blockIdx.x * (THREADS / WARP) + warp_of();
    int32_t e;
    int64_t place = int8_place(w, i, &e);
    if (n >= w.hidden || e < 0)
        return;
    float y = int8_dot(w.codes + i * w.inner, w.experts[e].w2, n, w.scales[i]);
    if (lane_of() == 0)
        ((uint16_t *)w.op.out)[place * w.hidden + n] = bf16_bits(y);
}

static qr_status int8_expert(struct backend *b, const struct op_expert *op, const struct expert_work *shape,
                             qr_error *err)
{
    struct int8_work w = {.op = *op,
                          .experts = shape->experts,
                          .routes = shape->routes,
                          .hidden = shape->hidden,
                          .inner = shape->inner,
                          .trouble = shape->trouble};
    const int32_t warps = THREADS / WARP;
    int64_t most = (SCRATCH_BYTES - 4096) / (w.routes * (5 * (int64_t)w.inner + 4));
    for (int64_t first = 0; first < op->rows.count; first += most) {
        int64_t count = op->rows.count - first < most ? op->rows.count - first : most, places = count * w.routes;
        uint8_t *at = cuda_of(b)->scratch;
        w.rows.index = op->rows.index ? op->rows.index + first : NULL;
        w.rows.count = (int32_t)count;
        w.offset = (int32_t)first;
        w.h = (float *)carve(&at, places * w.inner * 4);
        w.scales = (float *)carve(&at, places * 4);
        w.codes = (int8_t *)carve(&at, places * w.inner);
        LAUNCH("expert", int8_up, dim3((w.inner + warps - 1) / warps, (unsigned)places), THREADS, 0, w);
        LAUNCH("expert", int8_quantize, (unsigned)places, THREADS, 0, w);
        LAUNCH("expert", int8_down, dim3((w.hidden + warps - 1) / warps, (unsigned)places), THREADS, 0, w);
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

qr_status cuda_expert(struct backend *b, const struct op_expert *op, qr_error *err)
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
    w.experts = cuda_expert_table(cuda_of(b), op->experts, op->w1, op->w2, op->w3, err);
    if (!w.experts)
        return err ? err->status : QR_INTERNAL;
    w.routes = op->idx ? op->active : 1;
    w.hidden = op->w2[model]->spec.n;
    w.inner = op->w1[model]->spec.n;
    w.trouble = cuda_of(b)->trouble;
    if (!op->w8a8 && (w.inner % op->x.block || op->x.cols % op->x.block))
        return qr_fail(err, QR_BAD_ARGUMENT, "expert: blocks of %d do not divide %d and %d columns", op->x.block,
                       op->x.cols, w.inner);
    return op->w8a8 ? int8_expert(b, op, &w, err) : matrix_expert(b, op, &w, op->w1[model], op->w2[model], err);
}

/* ---- the sum ---- */

enum { MOST_ACTIVE = 64 };

/* y = routed outputs in ascending expert id (equal ids by place), then the shared one; w8a8: shared first, then k
 * order. */
static __global__ void combine_kernel(struct op_combine op)
{
    __shared__ int order[MOST_ACTIVE];
    int64_t row = row_at(op.rows, blockIdx.x), d = op.hidden;
    const int32_t *idx = op.idx + row * op.active;
    for (int k = threadIdx.x; k < op.active; k += THREADS) {
        int at = 0;
        for (int other = 0; other < op.active; other++)
            at += idx[other] < idx[k] || (idx[other] == idx[k] && other < k);
        order[op.w8a8 ? k : at] = k;
    }
    __syncthreads();
    const uint16_t *routed = (const uint16_t *)op.routed + row * op.active * d;
    const uint16_t *shared = (const uint16_t *)op.shared + row * d;
    for (int64_t c = threadIdx.x; c < d; c += THREADS) {
        float y = op.w8a8 ? bf16_value(shared[c]) : 0.0f;
        for (int n = 0; n < op.active; n++)
            y += bf16_value(routed[order[n] * d + c]);
        if (!op.w8a8)
            y += bf16_value(shared[c]);
        ((uint16_t *)op.out)[row * d + c] = bf16_bits(y);
    }
}

qr_status cuda_combine(struct backend *b, const struct op_combine *op, qr_error *err)
{
    if (op->active > MOST_ACTIVE)
        return qr_fail(err, QR_UNSUPPORTED, "combine: %d experts a row, wanted at most %d", op->active, MOST_ACTIVE);
    LAUNCH("combine", combine_kernel, op->rows.count, THREADS, 0, *op);
    return QR_OK;
}
