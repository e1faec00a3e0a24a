#include "ops/cuda/attend_unit.cuh"

/* Attention of any shape: first the scores of all blocks of keys side by side; then, head by head, what they are worth,
 * the blocks in their order; then, channel by channel, the values: the products of some blocks of keys side by side, added
 * in their order. Sums are binary64, on the matrix unit, rounded where the reference rounds: the bits are the reference's. */

enum { THREADS = 256, WARPS = THREADS / WARP, HEADS = 16, MOST_SLOTS = 128, MOST_DIM = 512 };

static inline int up_16(int n) { return (n + 15) / 16 * 16; }

/* Four bf16 of a row as binary64. */
static __device__ inline void widen_4(const uint16_t *p, double out[4])
{
    uint2 v = *(const uint2 *)(const void *)p;
    out[0] = (double)__uint_as_float(v.x << 16);
    out[1] = (double)__uint_as_float(v.x & 0xFFFF0000);
    out[2] = (double)__uint_as_float(v.y << 16);
    out[3] = (double)__uint_as_float(v.y & 0xFFFF0000);
}

/* ---- scores: a block of threads takes 16 heads and PIECE slots ---- */

enum { PIECE = 32 };

struct score_shelf {
    struct key_place places[PIECE];
    double half[PIECE / 8][WARP][4];
};

static size_t score_bytes(const struct attending *a)
{
    return sizeof(struct score_shelf) + (size_t)(HEADS + PIECE) * (size_t)(a->dim + 16) * 2;
}

/* s = scale (q k): two warps for each 8 slots, which take every other 16 channels. */
static __global__ void __launch_bounds__(THREADS) score_kernel(const __grid_constant__ struct attending a)
{
    await_earlier();
    LAUNCHED_SHARED(uint8_t, score_memory, 16);
    struct score_shelf &sh = *(struct score_shelf *)(void *)score_memory;
    const struct op_attend &op = a.op;
    const int pieces = (a.slots + PIECE - 1) / PIECE, block = blockIdx.x / pieces, from = blockIdx.x % pieces * PIECE;
    int pitch = a.dim + 16, first_head = blockIdx.y * HEADS, lane = lane_of(), group = lane / 4, column = lane % 4;
    uint16_t *q = (uint16_t *)(void *)(&sh + 1), *keys = q + HEADS * pitch;
    int64_t row = row_of(a, blockIdx.z), d = op.head_dim, first = (int64_t)block * op.block;
    struct key_list list = list_of(op, a.step, row);
    int64_t slots = (int64_t)op.window_size + list.more, own = block_at(a, blockIdx.z, block);
    if (first >= slots)
        return;

    for (int h = threadIdx.x / 16; h < HEADS; h += THREADS / 16) {
        struct key_place query = {{NULL, NULL}, ROW_BF16};
        if (first_head + h < op.heads)
            query.at.values = (uint8_t *)((const uint16_t *)op.q + (row * op.heads + first_head + h) * d);
        for (int c = threadIdx.x % 16 * 8; c < a.dim; c += 128)
            bring_channels(q + h * pitch + c, query, c, op.head_dim);
    }
    if (threadIdx.x < PIECE && from + threadIdx.x < (unsigned)a.slots) {
        int64_t i = from + threadIdx.x;
        struct key_place place = {{NULL, NULL}, ROW_BF16};
        if (i < op.block && first + i < slots)
            place = key_at(op, a.step, list, first + i);
        sh.places[threadIdx.x] = place;
        if (blockIdx.y == 0)
            a.places[own * a.slots + i] = place;
    }
    __syncthreads();
    for (int i = threadIdx.x / 8; i < PIECE && from + i < a.slots; i += THREADS / 8) {
        struct key_place place = sh.places[i];
#pragma unroll 8
        for (int c = threadIdx.x % 8 * 8; c < a.dim; c += 64)
            bring_channels(keys + i * pitch + c, place, c, op.head_dim);
    }
    close_stage();
    await_stages<0>();
    __syncthreads();

    const int tile = warp_of() / 2, half = warp_of() % 2;
    double s[4] = {0, 0, 0, 0};
    const uint16_t *high = q + group * pitch + 4 * column, *k = keys + (8 * tile + group) * pitch + 4 * column;
    if (from + 8 * tile < a.slots) {
#pragma unroll 4
        for (int c = 16 * half; c < a.dim; c += 32) {
            double x[4], y[4], key[4];
            widen_4(high + c, x);
            widen_4(high + 8 * pitch + c, y);
            widen_4(k + c, key);
            mma_f64(s, x, y, key);
        }
    }
#pragma unroll
    for (int e = 0; e < 4 && half; e++)
        sh.half[tile][lane][e] = s[e];
    __syncthreads();
    if (half || from + 8 * tile >= a.slots)
        return;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int slot = 8 * tile + 2 * column + e % 2, head = first_head + group + e / 2 * 8;
        a.scores[(own * a.heads + head) * a.slots + from + slot] =
            sh.places[slot].at.values ? (float)(s[e] + sh.half[tile][lane][e]) * op.scale : -INFINITY;
    }
}

/* ---- what scores are worth: a block of threads for each head of a row ---- */

enum { EACH = 2 /* blocks of keys that a warp takes together */, SOFTENED = EACH * WARPS, MOST_OWN = MOST_SLOTS / WARP };

/* Probabilities, block by block, and how the running sums change.
 * Reference: M' = max(M, s); l = l exp(M - M') + sum p, p unrounded; o = o exp(M - M') + sum bf(p) v.
 * W8A8: the block is a softmax of its own, then both sides are rescaled to the common maximum. */
static __global__ void __launch_bounds__(THREADS) soften_kernel(const __grid_constant__ struct attending a)
{
    await_earlier();
    __shared__ float own_largest[SOFTENED], shrink[SOFTENED], grow[SOFTENED], sum[SOFTENED];
    const struct op_attend &op = a.op;
    const int head = blockIdx.x, lane = lane_of(), mine = warp_of() * EACH;
    const int64_t row = row_of(a, blockIdx.y);
    const struct key_list list = list_of(op, a.step, row);
    const int blocks = (int)((op.window_size + list.more + op.block - 1) / op.block);
    float largest = op.w8a8 ? -1e20f : -1e30f, denominator = 0;

    for (int first = 0; first < blocks; first += SOFTENED) {
        float s[EACH][MOST_OWN];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int block = first + mine + e;
            const float *from = a.scores + (block_at(a, blockIdx.y, block) * a.heads + head) * a.slots;
#pragma unroll
            for (int n = 0; n < MOST_OWN; n++)
                s[e][n] = block < blocks && lane + n * WARP < a.slots ? from[lane + n * WARP] : -INFINITY;
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            float most = s[e][0];
#pragma unroll
            for (int n = 1; n < MOST_OWN; n++)
                most = fmaxf(most, s[e][n]);
            most = warp_max(most);
            if (lane == 0)
                own_largest[mine + e] = most;
        }
        __syncthreads();
        float base[EACH] = {}, before = largest; /* every thread walks the whole line of maxima */
#pragma unroll
        for (int t = 0; t < SOFTENED; t++) {
            float most = fmaxf(own_largest[t], op.w8a8 ? -1e20f : before), after = fmaxf(before, most);
#pragma unroll
            for (int e = 0; e < EACH; e++)
                if (t == mine + e) {
                    base[e] = most;
                    if (lane == 0) {
                        shrink[t] = exp_of(before - after);
                        grow[t] = op.w8a8 ? exp_of(most - after) : 1.0f;
                    }
                }
            before = after;
        }
        largest = before;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int block = first + mine + e;
            uint16_t *to = a.p + (block_at(a, blockIdx.y, block) * a.heads + head) * a.slots;
            double all = 0;
#pragma unroll
            for (int n = 0; n < MOST_OWN; n++)
                if (block < blocks && lane + n * WARP < a.slots) {
                    float x = s[e][n] == -INFINITY ? 0.0f : exp_of(s[e][n] - base[e]);
                    all += (double)x;
                    to[lane + n * WARP] = bf16_bits(x);
                }
            all = warp_sum(all);
            if (lane == 0) {
                sum[mine + e] = (float)all;
                if (block < blocks)
                    a.factors[block_at(a, blockIdx.y, block) * a.heads + head] = make_float2(shrink[mine + e], grow[mine + e]);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0)
            for (int t = 0; t < SOFTENED && first + t < blocks; t++)
                denominator = denominator * shrink[t] + sum[t] * grow[t];
        __syncthreads();
    }
    if (threadIdx.x == 0) /* the sink: denominator alone */
        a.denominators[(int64_t)blockIdx.y * a.heads + head] =
            denominator + (head < op.heads ? exp_of(op.sinks[head] - largest) : 1.0f);
}

/* ---- values: a block of threads takes 16 heads and 32 channels, a warp for each block of keys ---- */

enum { CHANNELS = 32, KEY_PITCH = CHANNELS + 8 };

static size_t value_bytes(const struct attending *a, int tiles)
{
    return (size_t)tiles * ((size_t)a->slots * KEY_PITCH * 2 + (size_t)HEADS * (size_t)(a->slots + 8) * 2 +
                            HEADS * CHANNELS * 4);
}

/* TILES: blocks of keys taken together; how many changes no bit. Of more warps than that the others only keep sums. */
template <int TILES> static __host__ __device__ constexpr int value_threads()
{
    return (TILES < WARPS ? (int)WARPS : TILES) * WARP;
}

template <int TILES>
static __global__ void __launch_bounds__(value_threads<TILES>(), 1)
    value_kernel(const __grid_constant__ struct attending a, const __grid_constant__ struct rope_view rope)
{
    await_earlier();
    LAUNCHED_SHARED(uint8_t, value_memory, 16);
    const struct op_attend &op = a.op;
    const int first_channel = blockIdx.x * CHANNELS, first_head = blockIdx.y * HEADS, p_pitch = a.slots + 8;
    const int lane = lane_of(), warp = warp_of(), group = lane / 4, column = lane % 4;
    uint16_t *keys = (uint16_t *)(void *)value_memory + warp * a.slots * KEY_PITCH;
    uint16_t *p = (uint16_t *)(void *)value_memory + TILES * a.slots * KEY_PITCH + warp * HEADS * p_pitch;
    float *sums = (float *)(void *)((uint16_t *)(void *)value_memory + TILES * (a.slots * KEY_PITCH + HEADS * p_pitch));
    int64_t row = row_of(a, blockIdx.z), d = op.head_dim;
    struct key_list list = list_of(op, a.step, row);
    const int blocks = (int)((op.window_size + list.more + op.block - 1) / op.block);

    auto bring_block = [&](int block) {
        if (block < blocks && warp < TILES) {
            const struct key_place *places = a.places + block_at(a, blockIdx.z, block) * a.slots;
            const uint16_t *from = a.p + (block_at(a, blockIdx.z, block) * a.heads + first_head) * a.slots;
#pragma unroll 8
            for (int i = lane / 4; i < a.slots; i += WARP / 4)
                bring_channels(keys + i * KEY_PITCH + column * 8, places[i], first_channel + column * 8, op.head_dim);
            const int eights = a.slots / 8;
#pragma unroll 4
            for (int i = lane; i < HEADS * eights; i += WARP)
                copy_16(shared_address(p + i / eights * p_pitch + i % eights * 8), from + i * 8);
        }
        close_stage();
    };

    /* of the sums that this thread keeps */
    const int head = threadIdx.x / 16 % HEADS, pair = threadIdx.x % 16 * 2;
    const bool keeps = threadIdx.x < HEADS * 16;
    float o[2] = {0, 0};
    bring_block(warp);
    for (int first = 0; first < blocks; first += TILES) {
        double v[CHANNELS / 8][4] = {};
        await_stages<0>();
        __syncwarp();
        for (int k = 0; k < a.slots && warp < TILES && first + warp < blocks; k += 16) {
            double x[4], y[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[j] = (double)bf16_value(p[group * p_pitch + k + column + 4 * j]);
                y[j] = (double)bf16_value(p[(group + 8) * p_pitch + k + column + 4 * j]);
            }
#pragma unroll
            for (int n = 0; n < CHANNELS / 8; n++) {
                double key[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    key[j] = (double)bf16_value(keys[(k + column + 4 * j) * KEY_PITCH + 8 * n + group]);
                mma_f64(v[n], x, y, key);
            }
        }
        __syncwarp();
        bring_block(first + TILES + warp);
#pragma unroll
        for (int n = 0; n < CHANNELS / 8 && warp < TILES; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums[(warp * HEADS + group + e / 2 * 8) * CHANNELS + 8 * n + 2 * column + e % 2] = (float)v[n][e];
        __syncthreads();
        const float2 *factors = a.factors + block_at(a, blockIdx.z, first) * a.heads + first_head + head;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            if (first + t >= blocks || !keeps)
                break;
            float2 f = factors[t * a.heads];
            const float *sum = sums + (t * HEADS + head) * CHANNELS + pair;
            o[0] = o[0] * f.x + sum[0] * f.y;
            o[1] = o[1] * f.x + sum[1] * f.y;
        }
        __syncthreads();
    }

    const int c = first_channel + pair;
    if (!keeps || first_head + head >= op.heads || c >= d)
        return;
    float denominator = a.denominators[(int64_t)blockIdx.z * a.heads + first_head + head];
    int64_t at = (first_head + head) * d + c;
    o[0] = o[0] / denominator;
    o[1] = o[1] / denominator;
    if (!a.turned.codes) {
        act_store(op.out, row, at, o[0]);
        act_store(op.out, row, at + 1, o[1]);
        return;
    }
    if (op.out.format == ACT_BF16) {
        o[0] = round_bf16(o[0]);
        o[1] = round_bf16(o[1]);
    }
    if (c >= d - rope.dim) {
        float2 turn = rope_turn(rope, row, a.step.positions[row], (c - ((int)d - rope.dim)) / 2);
        float even = o[0], odd = o[1], s = -1.0f * turn.y;
        o[0] = even * turn.x - odd * s;
        o[1] = even * s + odd * turn.x;
    }
    act_store(a.turned, row, at, o[0]);
    act_store(a.turned, row, at + 1, o[1]);
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

/* Bytes of scratch that a row takes, and where the pieces of `rows` rows stand. */
static int64_t row_bytes(const struct attending *a)
{
    int64_t each = (int64_t)a->heads * a->slots * 6 + a->slots * (int64_t)sizeof *a->places +
                   a->heads * (int64_t)sizeof *a->factors;
    return a->blocks * each + (int64_t)a->heads * 4;
}

static void place_work(struct attending *a, int64_t rows, uint8_t *at)
{
    const int64_t blocks = rows * a->blocks;
    a->places = (struct key_place *)(void *)at;
    at += blocks * a->slots * (int64_t)sizeof *a->places;
    a->scores = (float *)(void *)at;
    at += blocks * a->heads * a->slots * 4;
    a->p = (uint16_t *)(void *)at;
    at += blocks * a->heads * a->slots * 2;
    a->factors = (float2 *)(void *)at;
    at += blocks * a->heads * (int64_t)sizeof *a->factors;
    a->denominators = (float *)(void *)at;
}

/* Whether released heads go to the matrix unit in bf16: by the model's shape alone. */
static bool takes_unit(struct backend *b, const struct attending *a)
{
    const struct activation *out = a->turned.codes ? &a->turned : &a->op.out;
    return cuda_of(b)->has_wgmma && !a->op.w8a8 && a->op.head_dim == UNIT_DIM && a->op.block == UNIT_KEYS &&
           out->format == ACT_BF16 && is_wide(a->op.q) && is_wide(out->codes);
}

static qr_status run_attend(struct backend *b, const struct op_attend *op, const struct op_unrotate *turn,
                            qr_error *err)
{
    struct attending a = {.op = *op, .step = *op->step};
    struct rope_view rope = {};
    if (turn) {
        a.turned = turn->out;
        if (!rope_view_of(&turn->rope, &rope))
            return qr_fail(err, QR_UNSUPPORTED, "unrotate: %d rotated channels, wanted at most %d", turn->rope.dim,
                           2 * MAX_ROPE_PAIRS);
    }
    a.heads = up_16(op->heads);
    a.slots = up_16(op->block);
    a.dim = up_16(op->head_dim);
    a.blocks = (int32_t)((most_slots(op) + op->block - 1) / op->block);
    if (takes_unit(b, &a))
        return op->rows.count > FEW_ROWS ? attend_wide(b, &a, &rope, err) : attend_few(b, &a, &rope, err);
    int64_t most = SCRATCH_BYTES / row_bytes(&a);
    if (most < 1)
        return qr_fail(err, QR_UNSUPPORTED, "attend: scores of %lld blocks of keys are more than its scratch holds",
                       (long long)a.blocks);
    most = most < 32768 ? most : 32768;
    for (int64_t first = 0; first < op->rows.count; first += most) {
        int64_t count = op->rows.count - first < most ? op->rows.count - first : most;
        const int pieces = (a.slots + PIECE - 1) / PIECE;
        a.op.rows.index = op->rows.index ? op->rows.index + first : NULL;
        a.op.rows.count = (int32_t)count;
        a.offset = (int32_t)first;
        place_work(&a, count, cuda_of(b)->scratch);
        LAUNCH("attend", score_kernel, dim3(a.blocks * pieces, a.heads / HEADS, (unsigned)count), THREADS,
               score_bytes(&a), a);
        LAUNCH("attend", soften_kernel, dim3(a.heads, (unsigned)count), THREADS, 0, a);
        const dim3 grid((op->head_dim + CHANNELS - 1) / CHANNELS, a.heads / HEADS, (unsigned)count);
        const size_t room = cuda_of(b)->most_shared;
        if (a.blocks > WARPS && value_bytes(&a, 2 * WARPS) <= room)
            LAUNCH("attend", value_kernel<2 * WARPS>, grid, 2 * THREADS, value_bytes(&a, 2 * WARPS), a, rope);
        else if (value_bytes(&a, WARPS) <= room)
            LAUNCH("attend", value_kernel<WARPS>, grid, THREADS, value_bytes(&a, WARPS), a, rope);
        else
            LAUNCH("attend", value_kernel<WARPS / 2>, grid, THREADS, value_bytes(&a, WARPS / 2), a, rope);
    }
    return QR_OK;
}

static qr_status check_attend(const struct op_attend *op, qr_error *err)
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
    return QR_OK;
}

qr_status cuda_attend(struct backend *b, const struct op_attend *op, qr_error *err)
{
    qr_status st = check_attend(op, err);
    return st == QR_OK ? run_attend(b, op, NULL, err) : st;
}

bool cuda_attend_turns(const struct op_attend *op, const struct op_unrotate *turn)
{
    return turn->in.codes == op->out.codes && turn->in.format == op->out.format && turn->rows.index == op->rows.index &&
           turn->rows.count == op->rows.count && turn->heads == op->heads && turn->head_dim == op->head_dim &&
           turn->out.format == ACT_BF16 && turn->out.cols == op->out.cols && turn->in.cols == op->out.cols &&
           turn->rope.dim >= 0 && turn->rope.dim % 2 == 0 && turn->rope.dim <= turn->head_dim &&
           turn->rope.dim <= 2 * MAX_ROPE_PAIRS;
}

qr_status cuda_attend_turned(struct backend *b, const struct op_attend *op, const struct op_unrotate *turn,
                             qr_error *err)
{
    qr_status st = check_attend(op, err);
    return st == QR_OK ? run_attend(b, op, turn, err) : st;
}
