#include "ops/cuda/attend_unit.cuh"

/* Few rows: the scores of 16 heads and 32 keys are a block of threads' work, then the values of 16 heads and 64 channels,
 * so that one row occupies as much of the device as it can. */

enum { THREADS = 256, HEADS = 16 };

/* ---- scores ---- */

enum { PIECE = 32, PIECES = UNIT_KEYS / PIECE, PITCH = UNIT_DIM + 8 };

struct score_shelf {
    struct key_place places[PIECE];
    float half[PIECE / 8][WARP][4];
    uint16_t q[HEADS * PITCH], keys[PIECE * PITCH];
};

/* Scores of 16 heads and 8 keys as the lanes have them, and behind them those of the next 8 keys. */
static __device__ inline float4 *scores_of(const struct attending &a, int row, int block, int head_group)
{
    const int64_t group = block_at(a, row, block) * (a.heads / HEADS) + head_group;
    return (float4 *)(void *)a.scores + group * (UNIT_KEYS / 8) * WARP;
}

/* Two warps for each 8 keys, half of the channels each. */
static __global__ void __launch_bounds__(THREADS) few_scores(const __grid_constant__ struct attending a)
{
    await_earlier();
    LAUNCHED_SHARED(uint8_t, score_memory, 16);
    struct score_shelf &sh = *(struct score_shelf *)(void *)score_memory;
    const struct op_attend &op = a.op;
    const int block = blockIdx.x / PIECES, from = blockIdx.x % PIECES * PIECE, first_head = blockIdx.y * HEADS;
    const int64_t row = row_of(a, blockIdx.z), first = (int64_t)block * UNIT_KEYS + from;
    const struct key_list list = list_of(op, a.step, row);
    const int64_t slots = (int64_t)op.window_size + list.more;
    if ((int64_t)block * UNIT_KEYS >= slots)
        return;

    for (int h = threadIdx.x / 16; h < HEADS; h += THREADS / 16) {
        struct key_place query = {{NULL, NULL}, ROW_BF16};
        if (first_head + h < op.heads)
            query.at.values = (uint8_t *)((const uint16_t *)op.q + (row * op.heads + first_head + h) * UNIT_DIM);
        for (int c = threadIdx.x % 16 * 8; c < UNIT_DIM; c += 128)
            bring_channels(sh.q + h * PITCH + c, query, c, UNIT_DIM);
    }
    if (threadIdx.x < PIECE) {
        struct key_place place = {{NULL, NULL}, ROW_BF16};
        if (first + threadIdx.x < slots)
            place = key_at(op, a.step, list, first + threadIdx.x);
        sh.places[threadIdx.x] = place;
        if (blockIdx.y == 0)
            a.places[block_at(a, blockIdx.z, block) * UNIT_KEYS + from + threadIdx.x] = place;
    }
    __syncthreads();
    {
        const int i = threadIdx.x / 8;
        const struct key_place place = sh.places[i];
#pragma unroll 8
        for (int c = threadIdx.x % 8 * 8; c < UNIT_DIM; c += 64)
            bring_channels(sh.keys + i * PITCH + c, place, c, UNIT_DIM);
    }
    close_stage();
    await_stages<0>();
    __syncthreads();

    const int tile = warp_of() / 2, half = warp_of() % 2, lane = lane_of();
    const uint32_t q = shared_address(sh.q + lane % 16 * PITCH + half * UNIT_HALF + lane / 16 * 8);
    const uint32_t key = shared_address(sh.keys + (8 * tile + lane % 8) * PITCH + half * UNIT_HALF + lane / 8 * 8);
    float s[4] = {0, 0, 0, 0};
#pragma unroll
    for (int c = 0; c < UNIT_HALF; c += 2 * UNIT_STEP) {
        uint32_t x[4], y[4], k[4];
        load_fragments(x, q + 2 * c);
        load_fragments(y, q + 2 * (c + UNIT_STEP));
        load_fragments(k, key + 2 * c);
        mma(s, x[0], x[1], x[2], x[3], k[0], k[1]);
        mma(s, y[0], y[1], y[2], y[3], k[2], k[3]);
    }
    if (half)
        *(float4 *)(void *)sh.half[tile][lane] = make_float4(s[0], s[1], s[2], s[3]);
    __syncthreads();
    if (half)
        return;
#pragma unroll
    for (int e = 0; e < 4; e++)
        s[e] = sh.places[8 * tile + lane % 4 * 2 + e % 2].at.values ? (s[e] + sh.half[tile][lane][e]) * op.scale : -INFINITY;
    scores_of(a, blockIdx.z, block, blockIdx.y)[(from / 8 + tile) * WARP + lane] = make_float4(s[0], s[1], s[2], s[3]);
}

/* ---- values ---- */

enum { TILES = 12 /* blocks of keys taken together, a warp each */, VALUE_THREADS = TILES * WARP, CHANNELS = 64 };

struct value_shelf {
    uint8_t keys[TILES][UNIT_KEYS * CHANNELS * 2]; /* 128 bytes a key, its 16-byte pieces at place piece ^ key % 8 */
    uint4 p[TILES][UNIT_KEYS / UNIT_STEP][WARP];   /* as the lanes take them */
    float most[TILES][HEADS], shrink[TILES][HEADS], sum[TILES][HEADS];
    float largest[HEADS], denominator[HEADS];
};

static __device__ inline void bring_slices(const struct attending &a, struct value_shelf &sh, int first, int blocks, int channel)
{
    const int keys = min(TILES, blocks - first) * UNIT_KEYS, c = threadIdx.x % 8;
    const struct key_place *places = a.places + block_at(a, blockIdx.z, first) * UNIT_KEYS;
#pragma unroll 4
    for (int i = threadIdx.x / 8; i < keys; i += VALUE_THREADS / 8)
        bring_channels((uint16_t *)(void *)(sh.keys[0] + i * CHANNELS * 2 + (c ^ i % 8) * 16), places[i], channel + 8 * c, UNIT_DIM);
    close_stage();
}

/* What the scores of a warp's block are worth, given the largest ones of all blocks taken together. */
static __device__ inline void weigh(struct value_shelf &sh, int t, int lane, const float4 s[UNIT_KEYS / 8])
{
    const int head = lane / 4;
    float before[2], after[2], p[2][UNIT_KEYS / 4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        before[r] = sh.largest[head + 8 * r];
        for (int i = 0; i < t; i++)
            before[r] = fmaxf(before[r], sh.most[i][head + 8 * r]);
        after[r] = fmaxf(before[r], sh.most[t][head + 8 * r]);
    }
#pragma unroll
    for (int n = 0; n < UNIT_KEYS / 8; n++) {
        p[0][2 * n] = worth(s[n].x, after[0]);
        p[0][2 * n + 1] = worth(s[n].y, after[0]);
        p[1][2 * n] = worth(s[n].z, after[1]);
        p[1][2 * n + 1] = worth(s[n].w, after[1]);
    }
#pragma unroll
    for (int j = 0; j < UNIT_KEYS / UNIT_STEP; j++)
        sh.p[t][j][lane] = make_uint4(pack_pair(p[0][4 * j], p[0][4 * j + 1]), pack_pair(p[1][4 * j], p[1][4 * j + 1]),
                                      pack_pair(p[0][4 * j + 2], p[0][4 * j + 3]), pack_pair(p[1][4 * j + 2], p[1][4 * j + 3]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float sum = half_sum(p[r]) + half_sum(p[r] + 8);
        if (lane % 4 == 0) {
            sh.sum[t][head + 8 * r] = sum;
            sh.shrink[t][head + 8 * r] = worth(before[r], after[r]);
        }
    }
}

static __global__ void __launch_bounds__(VALUE_THREADS, 1)
    few_values(const __grid_constant__ struct attending a, const __grid_constant__ struct rope_view rope)
{
    await_earlier();
    LAUNCHED_SHARED(uint8_t, value_memory, 16);
    struct value_shelf &sh = *(struct value_shelf *)(void *)value_memory;
    const struct op_attend &op = a.op;
    const int channel = blockIdx.x * CHANNELS, first_head = blockIdx.y * HEADS, lane = lane_of(), warp = warp_of();
    const int64_t row = row_of(a, blockIdx.z);
    const struct key_list list = list_of(op, a.step, row);
    const int blocks = (int)((op.window_size + list.more + UNIT_KEYS - 1) / UNIT_KEYS);
    const bool sums = warp < CHANNELS / 8;

    if (threadIdx.x < HEADS) {
        sh.largest[threadIdx.x] = -1e30f;
        sh.denominator[threadIdx.x] = 0;
    }
    float o[4] = {0, 0, 0, 0};
    for (int first = 0; first < blocks; first += TILES) {
        const int tiles = min((int)TILES, blocks - first);
        bring_slices(a, sh, first, blocks, channel);
        float4 s[UNIT_KEYS / 8];
        if (warp < tiles) {
            const float4 *from = scores_of(a, blockIdx.z, first + warp, blockIdx.y);
#pragma unroll
            for (int n = 0; n < UNIT_KEYS / 8; n++)
                s[n] = from[n * WARP + lane];
            float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
            for (int n = 0; n < UNIT_KEYS / 8; n++) {
                most[0] = fmaxf(most[0], fmaxf(s[n].x, s[n].y));
                most[1] = fmaxf(most[1], fmaxf(s[n].z, s[n].w));
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                most[r] = quad_max(most[r]);
                if (lane % 4 == 0)
                    sh.most[warp][lane / 4 + 8 * r] = most[r];
            }
        }
        __syncthreads();
        if (warp < tiles)
            weigh(sh, warp, lane, s);
        await_stages<0>();
        __syncthreads();
        if (threadIdx.x < HEADS) {
            float largest = sh.largest[threadIdx.x], denominator = sh.denominator[threadIdx.x];
            for (int t = 0; t < tiles; t++) {
                largest = fmaxf(largest, sh.most[t][threadIdx.x]);
                denominator = denominator * sh.shrink[t][threadIdx.x] + sh.sum[t][threadIdx.x];
            }
            sh.largest[threadIdx.x] = largest;
            sh.denominator[threadIdx.x] = denominator;
        }
        for (int t = 0; t < tiles && sums; t++) {
            const uint32_t keys = shared_address(sh.keys[t] + lane * CHANNELS * 2 + (warp ^ lane % 8) * 16);
            uint32_t v[2][4];
            load_turned(v[0], keys);
            load_turned(v[1], keys + WARP * CHANNELS * 2);
            const float f[2] = {sh.shrink[t][lane / 4], sh.shrink[t][lane / 4 + 8]};
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[e] = o[e] * f[e / 2];
#pragma unroll
            for (int j = 0; j < UNIT_KEYS / UNIT_STEP; j++) {
                const uint4 p = sh.p[t][j][lane];
                mma(o, p.x, p.y, p.z, p.w, v[j / 2][j % 2 * 2], v[j / 2][j % 2 * 2 + 1]);
            }
        }
        __syncthreads();
    }

    if (!sums)
        return;
    const struct activation &out = a.turned.codes ? a.turned : op.out;
    const int c = channel + 8 * warp + lane % 4 * 2, plain = UNIT_DIM - rope.dim;
    const bool turns = a.turned.codes && c >= plain;
    const float2 turn = turns ? rope_turn(rope, row, a.step.positions[row], (c - plain) / 2) : make_float2(1, 0);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int head = first_head + lane / 4 + 8 * r;
        if (head >= op.heads)
            continue;
        const float inverse = inverse_of(sh.denominator[head - first_head], op.sinks[head], sh.largest[head - first_head]);
        *(uint32_t *)(void *)((uint16_t *)out.codes + (row * op.heads + head) * UNIT_DIM + c) =
            finished_pair(turns, op.out.format == ACT_BF16, o[2 * r] * inverse, o[2 * r + 1] * inverse, turn);
    }
}

/* ---- starting them ---- */

static int64_t row_bytes(const struct attending *a)
{
    return a->blocks * (int64_t)UNIT_KEYS * (a->heads * 4 + (int64_t)sizeof *a->places);
}

qr_status attend_few(struct backend *b, const struct attending *all, const struct rope_view *rope, qr_error *err)
{
    struct attending a = *all;
    const int64_t most = SCRATCH_BYTES / row_bytes(&a);
    if (most < 1)
        return qr_fail(err, QR_UNSUPPORTED, "attend: scores of %lld blocks of keys are more than its scratch holds",
                       (long long)a.blocks);
    for (int64_t first = 0; first < all->op.rows.count; first += most) {
        const int64_t count = all->op.rows.count - first < most ? all->op.rows.count - first : most;
        a.op.rows.index = all->op.rows.index ? all->op.rows.index + first : NULL;
        a.op.rows.count = (int32_t)count;
        a.offset = (int32_t)first;
        a.scores = (float *)(void *)cuda_of(b)->scratch;
        a.places = (struct key_place *)(void *)(cuda_of(b)->scratch + count * a.blocks * UNIT_KEYS * a.heads * 4);
        LAUNCH("attend", few_scores, dim3(a.blocks * PIECES, a.heads / HEADS, (unsigned)count), THREADS,
               sizeof(struct score_shelf), a);
        LAUNCH("attend", few_values, dim3(UNIT_DIM / CHANNELS, a.heads / HEADS, (unsigned)count), VALUE_THREADS,
               sizeof(struct value_shelf), a, *rope);
    }
    return QR_OK;
}
