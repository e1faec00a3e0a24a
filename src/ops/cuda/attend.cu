#include "ops/cuda/device.cuh"

/* The attention core: v41-model.md 5.5, v4-model.md 5.4, 7.4; lists by runtime.md 3.3 and speculation.md 2.6. A block
 * of threads takes 16 heads of one row through the row's whole key list; all heads share the keys. Sums are binary64,
 * on the matrix unit, rounded where the reference rounds: the bits are the reference's. */

enum { THREADS = 256, WARPS = THREADS / WARP, HEADS = 16, MOST_SLOTS = 128, MOST_DIM = 512 };
enum { DIM_TILES = MOST_DIM / 8 / WARPS };

/* A row's key list: window_size window slots, then `more` slots of compressed rows (or of the draft block). */
struct key_list {
    int64_t row;
    int32_t request;
    int32_t window_first, window_count; /* positions; the slots behind them are empty */
    int32_t more, visible;
};

static __device__ struct key_list list_of(const struct op_attend &op, const struct step &step, int64_t row)
{
    struct key_list l;
    int32_t position = step.positions[row];
    l.row = row;
    l.request = step.batch_id[row];
    int32_t end = op.draft_block ? step.first_position[l.request] : position + 1;
    int32_t low = op.window_low && op.window_low[row] > 0 ? op.window_low[row] : 0;
    l.window_first = end - op.window_size > low ? end - op.window_size : low;
    l.window_count = end > l.window_first ? end - l.window_first : 0;
    l.visible = op.ratio > 0 ? (position + 1) / op.ratio : 0;
    l.more = 0;
    if (op.draft_block)
        l.more = step.first_row[l.request + 1] - step.first_row[l.request];
    else if (op.has_plane)
        l.more = op.selected ? op.selected_count[row] : l.visible;
    return l;
}

/* Where the key of a slot lies, and how; values NULL: the slot adds nothing. */
struct key_place {
    struct row_address at;
    enum row_format format;
};

static __device__ struct key_place fresh_row(const struct op_attend &op, int64_t row)
{
    struct key_place place = {{(uint8_t *)((const uint16_t *)op.fresh + row * op.head_dim), NULL}, ROW_BF16};
    return place;
}

static __device__ struct key_place key_at(const struct op_attend &op, const struct step &step, const struct key_list &l,
                                          int64_t slot)
{
    struct key_place nothing = {{NULL, NULL}, ROW_BF16}, place;
    if (slot < op.window_size) {
        int64_t q = l.window_first + slot;
        if (slot >= l.window_count)
            return nothing;
        if (!op.draft_block && q >= op.key_from[l.request])
            return fresh_row(op, step.first_row[l.request] + (q - step.first_position[l.request]));
        place.format = op.ring.format;
        return ring_find(op.ring, step, l.request, q, &place.at) ? place : nothing;
    }
    int64_t index = slot - op.window_size;
    if (op.draft_block)
        return fresh_row(op, step.first_row[l.request] + index);
    int64_t j = op.selected ? op.selected[l.row * op.selected_stride + index] : index;
    place.format = op.plane.format;
    return j >= 0 && j < l.visible && plane_find(op.plane, step, l.request, j, &place.at) ? place : nothing;
}

/* What a block holds in shared memory. Pitches are in elements and keep rows apart. */
struct shelf {
    uint16_t *q, *keys;                           /* [HEADS][pitch], [slots][pitch] */
    float *s, *p;                                 /* [HEADS][s_pitch]: scores, and bf(p) */
    struct key_place *place;                      /* [slots] */
    float *largest, *denominator, *shrink, *grow; /* [HEADS] */
    int pitch, s_pitch, dim, slots;               /* dim and slots rounded up to 16 */
};

static __host__ __device__ inline int up_16(int n) { return (n + 15) / 16 * 16; }

static __host__ __device__ inline size_t lay_shelf(int head_dim, int block, uint8_t *base, struct shelf *out)
{
    size_t used = 0;
    out->dim = up_16(head_dim);
    out->slots = up_16(block);
    out->pitch = out->dim + 16;
    out->s_pitch = out->slots + 4;
    out->q = (uint16_t *)(base + used);
    used += (size_t)HEADS * out->pitch * 2;
    out->keys = (uint16_t *)(base + used);
    used += (size_t)out->slots * out->pitch * 2;
    out->s = (float *)(base + used);
    used += (size_t)HEADS * out->s_pitch * 4;
    out->p = (float *)(base + used);
    used += (size_t)HEADS * out->s_pitch * 4;
    out->place = (struct key_place *)(base + used);
    used += (size_t)out->slots * sizeof(struct key_place);
    out->largest = (float *)(base + used);
    out->denominator = out->largest + HEADS;
    out->shrink = out->denominator + HEADS;
    out->grow = out->shrink + HEADS;
    return used + 4 * HEADS * sizeof(float);
}

static __device__ inline uint32_t pair_at(const uint16_t *p) { return *(const uint32_t *)(const void *)p; }

/* Keys of slots [first, first + n) as bf16, exact; zeros in empty slots and beyond n. Two channels at a time. */
static __device__ void load_keys(const struct op_attend &op, const struct step &step, const struct key_list &l,
                                 const struct shelf &sh, int64_t first, int n)
{
    for (int i = threadIdx.x; i < sh.slots; i += THREADS)
        sh.place[i] = i < n ? key_at(op, step, l, first + i) : key_place{{NULL, NULL}, ROW_BF16};
    __syncthreads();
    for (int i = warp_of(); i < sh.slots; i += WARPS) {
        struct key_place place = sh.place[i];
        for (int c = 2 * lane_of(); c < sh.dim; c += 2 * WARP) {
            uint32_t pair = 0;
            if (place.at.values && c < op.head_dim) {
                if (place.format == ROW_BF16)
                    pair = pair_at((const uint16_t *)(const void *)place.at.values + c);
                else
                    pair = bf16_bits(container_value(place.format, place.at, c)) |
                           (uint32_t)bf16_bits(container_value(place.format, place.at, c + 1)) << 16;
            }
            *(uint32_t *)(void *)(sh.keys + i * sh.pitch + c) = pair;
        }
    }
    __syncthreads();
}

/* Four bf16 of a row as binary64. */
static __device__ inline void widen_4(const uint16_t *p, double out[4])
{
    uint2 v = *(const uint2 *)(const void *)p;
    out[0] = (double)__uint_as_float(v.x << 16);
    out[1] = (double)__uint_as_float(v.x & 0xFFFF0000);
    out[2] = (double)__uint_as_float(v.y << 16);
    out[3] = (double)__uint_as_float(v.y & 0xFFFF0000);
}

/* s = scale (q k): a warp for each 8 slots. */
static __device__ void scores(const struct op_attend &op, const struct shelf &sh)
{
    int group = lane_of() / 4, column = lane_of() % 4, pair = column * 2;
    for (int tile = warp_of(); tile < sh.slots / 8; tile += WARPS) {
        double d[4] = {0, 0, 0, 0};
        const uint16_t *q = sh.q + group * sh.pitch + 4 * column,
                       *k = sh.keys + (8 * tile + group) * sh.pitch + 4 * column;
        for (int c = 0; c < sh.dim; c += 16) {
            double a[4], b[4], key[4];
            widen_4(q + c, a);
            widen_4(q + 8 * sh.pitch + c, b);
            widen_4(k + c, key);
            mma_f64(d, a, b, key);
        }
        sh.s[group * sh.s_pitch + 8 * tile + pair] = (float)d[0] * op.scale;
        sh.s[group * sh.s_pitch + 8 * tile + pair + 1] = (float)d[1] * op.scale;
        sh.s[(group + 8) * sh.s_pitch + 8 * tile + pair] = (float)d[2] * op.scale;
        sh.s[(group + 8) * sh.s_pitch + 8 * tile + pair + 1] = (float)d[3] * op.scale;
    }
    __syncthreads();
}

/* Probabilities of the block and how the running sums change; a warp for two heads.
 * Reference: M' = max(M, s); l = l exp(M - M') + sum p, p unrounded; o = o exp(M - M') + sum bf(p) v.
 * W8A8: the tile is a softmax of its own, then both sides are rescaled to the common maximum. */
static __device__ void probabilities(const struct op_attend &op, const struct shelf &sh)
{
    for (int h = warp_of(); h < HEADS; h += WARPS) {
        float old = sh.largest[h], tile = op.w8a8 ? -1e20f : old;
        for (int i = lane_of(); i < sh.slots; i += WARP)
            if (sh.place[i].at.values)
                tile = fmaxf(tile, sh.s[h * sh.s_pitch + i]);
        tile = warp_max(tile);
        double sum = 0;
        for (int i = lane_of(); i < sh.slots; i += WARP) {
            float p = sh.place[i].at.values ? exp_of(sh.s[h * sh.s_pitch + i] - tile) : 0.0f;
            sum += (double)p;
            sh.p[h * sh.s_pitch + i] = round_bf16(p);
        }
        sum = warp_sum(sum);
        if (lane_of() == 0) {
            float largest = fmaxf(old, tile), shrink = exp_of(old - largest),
                  grow = op.w8a8 ? exp_of(tile - largest) : 1.0f;
            sh.denominator[h] = sh.denominator[h] * shrink + (float)sum * grow;
            sh.largest[h] = largest;
            sh.shrink[h] = shrink;
            sh.grow[h] = grow;
        }
    }
    __syncthreads();
}

/* o = o shrink + (sum_i bf(p_i) v_i) grow: a warp for every eighth tile of 8 channels. */
static __device__ void add_values(const struct shelf &sh, float o[DIM_TILES][4])
{
    int group = lane_of() / 4, column = lane_of() % 4;
    float shrink_a = sh.shrink[group], shrink_b = sh.shrink[group + 8], grow_a = sh.grow[group],
          grow_b = sh.grow[group + 8];
    double d[DIM_TILES][4] = {};
    for (int k = 0; k < sh.slots; k += 16) {
        double a[4], b[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            a[j] = (double)sh.p[group * sh.s_pitch + k + column + 4 * j];
            b[j] = (double)sh.p[(group + 8) * sh.s_pitch + k + column + 4 * j];
        }
#pragma unroll
        for (int i = 0; i < DIM_TILES; i++) {
            int tile = i * WARPS + warp_of();
            double v[4];
            if (8 * tile >= sh.dim)
                break;
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = (double)bf16_value(sh.keys[(k + column + 4 * j) * sh.pitch + 8 * tile + group]);
            mma_f64(d[i], a, b, v);
        }
    }
#pragma unroll
    for (int i = 0; i < DIM_TILES; i++) {
        o[i][0] = o[i][0] * shrink_a + (float)d[i][0] * grow_a;
        o[i][1] = o[i][1] * shrink_a + (float)d[i][1] * grow_a;
        o[i][2] = o[i][2] * shrink_b + (float)d[i][2] * grow_b;
        o[i][3] = o[i][3] * shrink_b + (float)d[i][3] * grow_b;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) attend_kernel(struct op_attend op, struct step step)
{
    extern __shared__ __align__(16) uint8_t shared[];
    struct shelf sh;
    int64_t row = row_at(op.rows, blockIdx.y), d = op.head_dim;
    int first_head = blockIdx.x * HEADS, group = lane_of() / 4, pair = lane_of() % 4 * 2;
    float o[DIM_TILES][4] = {};

    lay_shelf(op.head_dim, op.block, shared, &sh);
    struct key_list list = list_of(op, step, row);
    for (int i = threadIdx.x; i < HEADS * sh.dim; i += THREADS) {
        int h = i / sh.dim, c = i % sh.dim;
        bool there = first_head + h < op.heads && c < d;
        sh.q[h * sh.pitch + c] = there ? ((const uint16_t *)op.q)[(row * op.heads + first_head + h) * d + c] : 0;
    }
    for (int h = threadIdx.x; h < HEADS; h += THREADS) {
        sh.largest[h] = op.w8a8 ? -1e20f : -1e30f;
        sh.denominator[h] = 0;
    }

    int64_t slots = (int64_t)op.window_size + list.more;
    for (int64_t first = 0; first < slots; first += op.block) {
        load_keys(op, step, list, sh, first, (int)(slots - first < op.block ? slots - first : op.block));
        scores(op, sh);
        probabilities(op, sh);
        add_values(sh, o);
    }

    for (int h = threadIdx.x; h < HEADS && first_head + h < op.heads; h += THREADS) /* the sink: denominator alone */
        sh.denominator[h] += exp_of(op.sinks[first_head + h] - sh.largest[h]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < DIM_TILES; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int h = group + e / 2 * 8, c = (i * WARPS + warp_of()) * 8 + pair + e % 2;
            if (first_head + h < op.heads && c < d)
                act_store(op.out, row, (first_head + h) * d + c, o[i][e] / sh.denominator[h]);
        }
}

qr_status cuda_attend(struct backend *b, const struct op_attend *op, qr_error *err)
{
    if (!act_is_float(op->out) || op->out.cols != op->heads * op->head_dim || op->block < 1 || op->window_size < 1)
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "attend: output format %d, %d columns, %d heads of %d, window %d, blocks of %d", op->out.format,
                       op->out.cols, op->heads, op->head_dim, op->window_size, op->block);
    if (op->selected && (!op->selected_count || !op->has_plane))
        return qr_fail(err, QR_BAD_ARGUMENT, "attend: a selection without %s",
                       op->has_plane ? "its counts" : "a plane of rows");
    if (op->head_dim > MOST_DIM || op->head_dim % 2 || op->block > MOST_SLOTS)
        return qr_fail(err, QR_UNSUPPORTED, "attend: heads of %d, blocks of %d, wanted at most %d (even) and %d",
                       op->head_dim, op->block, MOST_DIM, MOST_SLOTS);
    struct shelf sh;
    size_t shared = lay_shelf(op->head_dim, op->block, NULL, &sh);
    LAUNCH("attend", attend_kernel, dim3((op->heads + HEADS - 1) / HEADS, op->rows.count), THREADS, shared, *op,
           *op->step);
    return QR_OK;
}
