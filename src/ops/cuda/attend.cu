#include "ops/cuda/device.cuh"

/* The attention core: v41-model.md 5.5, v4-model.md 5.4, 7.4; lists by runtime.md 3.3 and speculation.md 2.6. First the
 * scores of all blocks of keys side by side, then, channel by channel, each row's blocks in their order. Sums are
 * binary64, on the matrix unit, rounded where the reference rounds: the bits are the reference's. */

enum { THREADS = 256, WARPS = THREADS / WARP, HEADS = 16, MOST_SLOTS = 128, MOST_DIM = 512 };

static inline int up_16(int n) { return (n + 15) / 16 * 16; }

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

/* Four bf16 of a row as binary64. */
static __device__ inline void widen_4(const uint16_t *p, double out[4])
{
    uint2 v = *(const uint2 *)(const void *)p;
    out[0] = (double)__uint_as_float(v.x << 16);
    out[1] = (double)__uint_as_float(v.x & 0xFFFF0000);
    out[2] = (double)__uint_as_float(v.y << 16);
    out[3] = (double)__uint_as_float(v.y & 0xFFFF0000);
}

/* Eight channels from c on as bf16, exact; zeros behind the end and in an empty slot. */
static __device__ uint4 key_channels(const struct key_place &place, int c, int head_dim)
{
    uint32_t pair[4] = {0, 0, 0, 0};
    if (!place.at.values || c >= head_dim)
        return make_uint4(0, 0, 0, 0);
    if (place.format == ROW_BF16 && c + 8 <= head_dim && (uintptr_t)place.at.values % 16 == 0)
        return *(const uint4 *)(const void *)((const uint16_t *)(const void *)place.at.values + c);
    for (int i = 0; i < 8 && c + i < head_dim; i++)
        pair[i / 2] |= (uint32_t)bf16_bits(container_value(place.format, place.at, c + i)) << 16 * (i % 2);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* What both kernels know. Scores of a row: [key block][heads rounded up][slots of a block], -inf in empty slots. */
struct attending {
    struct op_attend op;
    struct step step;
    float *scores;
    int32_t offset, blocks, heads, slots, dim; /* heads, slots and dim rounded up to 16; blocks: the most of a row */
};

static __device__ int64_t row_of(const struct attending &a, int i)
{
    return row_at(a.op.rows, i) + (a.op.rows.index ? 0 : a.offset);
}

static __device__ float *scores_of(const struct attending &a, int row, int block, int head)
{
    return a.scores + (((int64_t)row * a.blocks + block) * a.heads + head) * a.slots;
}

/* ---- scores: a block of threads takes 16 heads and one block of keys ---- */

static size_t score_bytes(const struct attending *a)
{
    return (size_t)(HEADS + a->slots) * (size_t)(a->dim + 16) * 2 + (size_t)a->slots;
}

/* s = scale (q k): a warp for each 8 slots. */
static __global__ void __launch_bounds__(THREADS) score_kernel(const __grid_constant__ struct attending a)
{
    await_earlier();
    extern __shared__ __align__(16) uint16_t shared[];
    const struct op_attend &op = a.op;
    int pitch = a.dim + 16, first_head = blockIdx.y * HEADS, lane = lane_of(), group = lane / 4, column = lane % 4;
    uint16_t *q = shared, *keys = shared + HEADS * pitch;
    bool *filled = (bool *)(void *)(keys + a.slots * pitch);
    int64_t row = row_of(a, blockIdx.z), d = op.head_dim, first = (int64_t)blockIdx.x * op.block;
    struct key_list list = list_of(op, a.step, row);
    int64_t slots = (int64_t)op.window_size + list.more;
    if (first >= slots)
        return;

    for (int h = threadIdx.x / 16; h < HEADS; h += THREADS / 16) {
        struct key_place own = {{NULL, NULL}, ROW_BF16};
        if (first_head + h < op.heads)
            own.at.values = (uint8_t *)((const uint16_t *)op.q + (row * op.heads + first_head + h) * d);
        for (int c = threadIdx.x % 16 * 8; c < a.dim; c += 128)
            *(uint4 *)(void *)(q + h * pitch + c) = key_channels(own, c, op.head_dim);
    }
    for (int i = threadIdx.x / 4; i < a.slots; i += THREADS / 4) {
        struct key_place place = {{NULL, NULL}, ROW_BF16};
        if (i < op.block && first + i < slots)
            place = key_at(op, a.step, list, first + i);
        filled[i] = place.at.values != NULL;
#pragma unroll 8
        for (int c = threadIdx.x % 4 * 8; c < a.dim; c += 32)
            *(uint4 *)(void *)(keys + i * pitch + c) = key_channels(place, c, op.head_dim);
    }
    __syncthreads();

    for (int tile = warp_of(); tile < a.slots / 8; tile += WARPS) {
        double s[2][4] = {}; /* two sums, so that one does not wait for the other */
        const uint16_t *high = q + group * pitch + 4 * column, *k = keys + (8 * tile + group) * pitch + 4 * column;
#pragma unroll 2
        for (int c = 0; c < a.dim; c += 32) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                double x[4], y[4], key[4];
                if (c + 16 * half >= a.dim)
                    break;
                widen_4(high + c + 16 * half, x);
                widen_4(high + 8 * pitch + c + 16 * half, y);
                widen_4(k + c + 16 * half, key);
                mma_f64(s[half], x, y, key);
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int slot = 8 * tile + 2 * column + e % 2;
            scores_of(a, blockIdx.z, blockIdx.x, first_head + group + e / 2 * 8)[slot] =
                filled[slot] ? (float)(s[0][e] + s[1][e]) * op.scale : -INFINITY;
        }
    }
}

/* ---- values: a block of threads takes 16 heads and 64 channels through a row's whole list ---- */

enum { CHANNELS = 8 * WARPS, KEY_PITCH = CHANNELS + 16, P_PITCH = MOST_SLOTS + 4, AHEAD = MOST_SLOTS / (THREADS / 4) };

struct value_shelf {
    uint16_t keys[2][MOST_SLOTS][KEY_PITCH];
    float p[2][HEADS][P_PITCH];
    float shrink[2][HEADS], grow[2][HEADS], denominator[HEADS];
};

/* Probabilities of a block and how the running sums of head h change; a warp's work.
 * Reference: M' = max(M, s); l = l exp(M - M') + sum p, p unrounded; o = o exp(M - M') + sum bf(p) v.
 * W8A8: the tile is a softmax of its own, then both sides are rescaled to the common maximum. */
static __device__ void probabilities(const struct attending &a, const float *s, float *p, float *largest,
                                     float *denominator, float *shrink, float *grow)
{
    float old = *largest, tile = a.op.w8a8 ? -1e20f : old;
    double sum = 0;
    for (int i = lane_of(); i < a.slots; i += WARP)
        tile = fmaxf(tile, s[i]);
    tile = warp_max(tile);
    for (int i = lane_of(); i < a.slots; i += WARP) {
        float x = s[i] == -INFINITY ? 0.0f : exp_of(s[i] - tile);
        sum += (double)x;
        p[i] = round_bf16(x);
    }
    sum = warp_sum(sum);
    *largest = fmaxf(old, tile);
    *shrink = exp_of(old - *largest);
    *grow = a.op.w8a8 ? exp_of(tile - *largest) : 1.0f;
    *denominator = *denominator * *shrink + (float)sum * *grow;
}

static __global__ void __launch_bounds__(THREADS) value_kernel(const __grid_constant__ struct attending a)
{
    await_earlier();
    extern __shared__ __align__(16) uint8_t value_memory[];
    struct value_shelf &sh = *(struct value_shelf *)(void *)value_memory;
    const struct op_attend &op = a.op;
    int first_channel = blockIdx.x * CHANNELS, first_head = blockIdx.y * HEADS;
    int lane = lane_of(), warp = warp_of(), group = lane / 4, column = lane % 4;
    int64_t row = row_of(a, blockIdx.z), d = op.head_dim;
    struct key_list list = list_of(op, a.step, row);
    int64_t slots = (int64_t)op.window_size + list.more;
    float largest[2], denominator[2] = {0, 0}, o[4] = {0, 0, 0, 0}; /* of the warp's heads; of its 8 channels */
    largest[0] = largest[1] = op.w8a8 ? -1e20f : -1e30f;

    /* keys are asked for a block ahead, and where they are one more */
    uint4 next[AHEAD][2];
    struct key_place place[AHEAD];
    auto find_block = [&](int64_t first) {
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            int i = threadIdx.x / 4 + n * (THREADS / 4);
            place[n] = {{NULL, NULL}, ROW_BF16};
            if (i < op.block && first + i < slots)
                place[n] = key_at(op, a.step, list, first + i);
        }
    };
    auto fetch_block = [&]() {
#pragma unroll
        for (int n = 0; n < AHEAD; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                next[n][half] = key_channels(place[n], first_channel + threadIdx.x % 4 * 8 + 32 * half, op.head_dim);
    };
    find_block(0);
    fetch_block();
    find_block(op.block);
    for (int block = 0; block * (int64_t)op.block < slots; block++) {
        int side = block % 2;
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            int i = threadIdx.x / 4 + n * (THREADS / 4);
#pragma unroll
            for (int half = 0; half < 2 && i < a.slots; half++)
                *(uint4 *)(void *)(&sh.keys[side][i][threadIdx.x % 4 * 8 + 32 * half]) = next[n][half];
        }
        fetch_block();
        find_block((block + 2) * (int64_t)op.block);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int h = warp + WARPS * i;
            float shrink, grow;
            probabilities(a, scores_of(a, blockIdx.z, block, first_head + h), sh.p[side][h], &largest[i],
                          &denominator[i], &shrink, &grow);
            if (lane == 0) {
                sh.shrink[side][h] = shrink;
                sh.grow[side][h] = grow;
            }
        }
        __syncthreads();
        double v[4] = {0, 0, 0, 0};
        for (int k = 0; k < a.slots; k += 16) {
            double x[4], y[4], key[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int slot = k + column + 4 * j;
                x[j] = (double)sh.p[side][group][slot];
                y[j] = (double)sh.p[side][group + 8][slot];
                key[j] = (double)bf16_value(sh.keys[side][slot][8 * warp + group]);
            }
            mma_f64(v, x, y, key);
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            o[e] = o[e] * sh.shrink[side][group + e / 2 * 8] + (float)v[e] * sh.grow[side][group + e / 2 * 8];
    }

#pragma unroll
    for (int i = 0; i < 2; i++) { /* the sink: denominator alone */
        int h = first_head + warp + WARPS * i;
        if (lane == 0)
            sh.denominator[warp + WARPS * i] =
                denominator[i] + (h < op.heads ? exp_of(op.sinks[h] - largest[i]) : 1.0f);
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int h = group + e / 2 * 8, c = first_channel + 8 * warp + 2 * column + e % 2;
        if (first_head + h < op.heads && c < d)
            act_store(op.out, row, (first_head + h) * d + c, o[e] / sh.denominator[h]);
    }
}

/* The most slots of a row's list. */
static int64_t most_slots(const struct op_attend *op)
{
    if (op->draft_block)
        return op->window_size + op->step->rows;
    if (!op->has_plane)
        return op->window_size;
    return op->window_size +
           (op->selected ? (int64_t)op->selected_stride : (int64_t)op->step->block_stride * op->plane.rows_per_block);
}

static qr_status run_attend(struct backend *b, const struct op_attend *op, qr_error *err)
{
    struct attending a = {.op = *op, .step = *op->step, .scores = (float *)(void *)cuda_of(b)->scratch};
    a.heads = up_16(op->heads);
    a.slots = up_16(op->block);
    a.dim = up_16(op->head_dim);
    a.blocks = (int32_t)((most_slots(op) + op->block - 1) / op->block);
    int64_t row_bytes = (int64_t)a.blocks * a.heads * a.slots * 4, most = SCRATCH_BYTES / row_bytes;
    if (most < 1)
        return qr_fail(err, QR_UNSUPPORTED, "attend: scores of %lld blocks of keys are more than its scratch holds",
                       (long long)a.blocks);
    most = most < 32768 ? most : 32768;
    for (int64_t first = 0; first < op->rows.count; first += most) {
        int64_t count = op->rows.count - first < most ? op->rows.count - first : most;
        a.op.rows.index = op->rows.index ? op->rows.index + first : NULL;
        a.op.rows.count = (int32_t)count;
        a.offset = (int32_t)first;
        LAUNCH("attend", score_kernel, dim3(a.blocks, a.heads / HEADS, (unsigned)count), THREADS, score_bytes(&a), a);
        LAUNCH("attend", value_kernel, dim3((op->head_dim + CHANNELS - 1) / CHANNELS, a.heads / HEADS, (unsigned)count),
               THREADS, sizeof(struct value_shelf), a);
    }
    return QR_OK;
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
    return run_attend(b, op, err);
}
