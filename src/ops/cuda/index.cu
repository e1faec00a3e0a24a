#include "ops/cuda/index_best.cuh"
#include "ops/cuda/product.cuh"
#include "ops/cuda/rowgrid.cuh"

/* The indexer: v41-model.md 6, v4-model.md 5.6, 7.4. */

enum { THREADS = 256, WARPS = THREADS / WARP };

/* ---- queries: rotation -> Hadamard -> grid, a warp for each head ---- */

static __global__ void index_query_kernel(struct op_index_query op, struct step step, struct rope_view rope)
{
    await_earlier();
    LAUNCHED_SHARED(double, shared, 8);
    __shared__ float table[2 * MAX_ROPE_PAIRS];
    int64_t row = row_at(op.rows, blockIdx.x);
    int h = blockIdx.y * WARPS + warp_of(), n = op.dim;
    double *sums = shared + warp_of() * n;
    float *q = (float *)(shared + WARPS * n) + warp_of() * n;
    bool w8a8 = op.grid == GRID_INT8;
    struct vector_target nowhere = {NULL, NULL};

    rope_table(rope, row, step.positions[row], table);
    if (h >= op.heads)
        return;
#pragma unroll 4
    for (int c = lane_of(); c < n; c += WARP)
        q[c] = act_value(op.in, row, (int64_t)h * n + c);
    __syncwarp();
    for (int i = lane_of(); i < rope.dim / 2; i += WARP)
        rope_turn_pair(rope, table, q, n, i, 1.0f);
    __syncwarp();
    for (int c = lane_of(); c < n; c += WARP)
        q[c] = round_bf16(q[c]);
    __syncwarp();
    if (op.hadamard)
        hadamard(q, n, w8a8, sums, lane_of(), WARP, [] { __syncwarp(); });
    if (w8a8) {
        float m = int8_multiplier(block_largest(q, n));
        for (int c = lane_of(); c < n; c += WARP)
            ((int8_t *)op.out.codes)[row * op.out.cols + (int64_t)h * n + c] = int8_code(q[c] * m);
        if (lane_of() == 0)
            ((float *)op.out.scales)[row * op.heads + h] = 1.0f / m;
    } else {
        for (int c = lane_of(); c < n; c += WARP)
            q[c] = round_bf16(q[c]);
        __syncwarp();
        if (op.grid == GRID_FP4_E8M0)
            grid_blocks(op.grid, q, n, n, nowhere, 0, 1);
        if (op.grid == GRID_FP8_ROW)
            round_fp8_block(q, n, vector_fp8_scale(block_largest(q, n)), NULL);
        __syncwarp();
        for (int c = lane_of(); c < n; c += WARP)
            ((uint16_t *)op.out.codes)[row * op.out.cols + (int64_t)h * n + c] = bf16_bits(q[c]);
    }
    if (lane_of() == 0) {
        float w = act_value(op.weights_in, row, h) * op.weight_factor;
        op.weights[row * op.heads + h] = op.round_weights ? round_bf16(w) : w;
    }
}

qr_status cuda_index_query(struct backend *b, const struct op_index_query *op, qr_error *err)
{
    struct rope_view rope;
    bool w8a8 = op->grid == GRID_INT8;
    bool grid =
        op->grid == GRID_NONE || op->grid == GRID_FP8_ROW || w8a8 || (op->grid == GRID_FP4_E8M0 && op->dim % 32 == 0);
    bool out = w8a8 ? op->out.format == ACT_I8 && op->out.block == op->dim : op->out.format == ACT_BF16;
    if (!act_is_float(op->in) || !act_is_float(op->weights_in) || !grid || !out || op->rope.dim > op->dim ||
        op->in.cols != op->heads * op->dim || op->out.cols != op->in.cols || op->weights_in.cols != op->heads ||
        !rope_view_of(&op->rope, &rope))
        return qr_fail(err, QR_BAD_ARGUMENT,
                       "index_query: %d heads of %d, formats %d to %d, %d columns to %d, %d weights, grid %d",
                       op->heads, op->dim, op->in.format, op->out.format, op->in.cols, op->out.cols,
                       op->weights_in.cols, op->grid);
    if (op->hadamard && (op->dim & (op->dim - 1)))
        return qr_fail(err, QR_BAD_ARGUMENT, "index_query: Hadamard of %d channels, wanted a power of two", op->dim);
    LAUNCH("index_query", index_query_kernel, dim3(op->rows.count, (op->heads + WARPS - 1) / WARPS), THREADS,
           (size_t)WARPS * op->dim * 12, *op, *op->step, rope);
    return QR_OK;
}

/* ---- scores ---- */

/* A band of rows of a selection. */
struct scoring {
    struct op_index_select op;
    struct step step;
    int32_t offset;     /* of the band in a list without an index */
    int32_t heads, dim; /* rounded up to 16 */
    bool pooled;        /* scores are those of the pool's rows alone */
    int64_t stride;     /* scores of a row: as many as the block table, or the pool, can hold */
    float *scores;      /* [rows][stride] */
    int64_t block_stride;
    float *block_scores; /* [rows][block_stride] */
    struct rounds rounds, block_rounds;
};

static __device__ int64_t row_of(const struct scoring &s, int64_t i)
{
    return row_at(s.op.rows, i) + (s.op.rows.index ? 0 : s.offset);
}

static __device__ int visible_of(const struct scoring &s, int64_t row)
{
    return (s.step.positions[row] + 1) / s.op.ratio;
}

/* Scores stand in places. A reader of a pool has row i of block j of its pool in place j * block_size + i. */
static __device__ int places_of(const struct scoring &s, int64_t row)
{
    int n = s.pooled ? s.op.candidate_count[row] * s.op.block_size : visible_of(s, row);
    return n < s.stride ? n : (int)s.stride;
}
static __device__ int row_in_place(const struct scoring &s, int64_t row, int place)
{
    if (!s.pooled)
        return place;
    const int32_t *pool = s.op.candidates + row * s.op.topk_blocks;
    return pool[place / s.op.block_size] * s.op.block_size + place % s.op.block_size;
}

/* Whether row t is one of a block in the row's pool. */
static __device__ bool in_pool(const struct scoring &s, int64_t row, int t)
{
    const int32_t *pool = s.op.candidates + row * s.op.topk_blocks;
    int low = 0, high = s.op.candidate_count[row], block = t / s.op.block_size;
    while (low < high) {
        int middle = (low + high) / 2;
        if (pool[middle] < block)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s.op.candidate_count[row] && pool[low] == block;
}

static __device__ inline uint32_t pair_at(const uint16_t *p) { return *(const uint32_t *)(const void *)p; }

static __device__ inline float score_term(enum score_mode mode, float d, float w, float sigma)
{
    if (mode == SCORE_BF16)
        return round_bf16(fmaxf(round_bf16(d), 0.0f) * w);
    return fmaxf(mode == SCORE_INT8 ? d * sigma : d, 0.0f) * w;
}

/* Eight channels from c on of a head of the query as bf16, zeros behind its end. */
static __device__ uint4 query_channels(const struct op_index_select &op, int64_t row, int h, int c)
{
    int64_t at = row * op.query.cols + (int64_t)h * op.dim + c;
    const uint16_t *bf16 = (const uint16_t *)op.query.codes + at;
    uint32_t pair[4] = {0, 0, 0, 0};
    if (op.mode != SCORE_INT8 && c + 8 <= op.dim && (uintptr_t)bf16 % 16 == 0)
        return *(const uint4 *)(const void *)bf16;
    for (int i = 0; i < 8 && c + i < op.dim; i++)
        pair[i / 2] |=
            (uint32_t)(op.mode == SCORE_INT8 ? bf16_bits((float)((const int8_t *)op.query.codes)[at + i]) : bf16[i])
            << 16 * (i % 2);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* Two pairs of bf16 of the four E2M1 codes in the lower half of x: their bytes are looked up, signs set by hand. */
static __device__ inline uint2 e2m1_pairs(uint32_t x)
{
    const uint32_t high = __byte_perm(0x3F3F3F00, 0x40404040, x & 0x7777), twice = __byte_perm(x, 0, 0x1100);
    const uint32_t low = __byte_perm(0xC0800000, 0xC0804000, x & 0x7777);
    const uint32_t top = high | (twice << 4 & 0x00800080) | (twice & 0x80008000);
    return make_uint2(__byte_perm(low, top, 0x5140), __byte_perm(low, top, 0x7362));
}

/* Eight E2M1 codes times a scale byte, as bf16: exact. */
static __device__ inline uint4 e2m1_channels(uint32_t codes, uint32_t scale_byte)
{
    const uint32_t scale = (__float_as_uint(e8m0_value(scale_byte)) >> 16) * 0x00010001;
    const uint2 a = e2m1_pairs(codes), b = e2m1_pairs(codes >> 16);
    return make_uint4(multiply_pair(a.x, scale), multiply_pair(a.y, scale), multiply_pair(b.x, scale),
                      multiply_pair(b.y, scale));
}

static __device__ inline uint4 e4m3_channels(uint2 codes, float scale)
{
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t two = (i < 2 ? codes.x : codes.y) >> i % 2 * 16;
        pair[i] = pack_pair(e4m3_value(two & 255) * scale, e4m3_value(two >> 8 & 255) * scale);
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* Eight channels from c on of an index key as bf16, zeros behind its end. */
static __device__ uint4 index_channels(enum row_format format, const struct row_address &at, int c, int dim)
{
    uint32_t pair[4] = {0, 0, 0, 0};
    if (c + 8 <= dim) {
        if (format == ROW_BF16 && (uintptr_t)at.values % 16 == 0)
            return *(const uint4 *)(const void *)((const uint16_t *)(const void *)at.values + c);
        if (format == ROW_INDEX_FP4 && (uintptr_t)at.values % 4 == 0)
            return e2m1_channels(*(const uint32_t *)(const void *)(at.values + c / 2), at.scales[c / 32]);
        if (format == ROW_INDEX_FP8 && (uintptr_t)at.values % 8 == 0)
            return e4m3_channels(*(const uint2 *)(const void *)(at.values + c), load_f32(at.scales));
    }
    for (int i = 0; i < 8 && c + i < dim; i++)
        pair[i / 2] |= (uint32_t)bf16_bits(container_value(format, at, c + i)) << 16 * (i % 2);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* A lane's 32 channels of a key of 128, on their way: four lanes hold one. */
struct quick_key {
    uint4 codes[2];
    float scale; /* E8M0: its byte */
};
static __device__ inline bool is_quick(enum row_format format, const struct row_address &at)
{
    return (format == ROW_INDEX_FP4 || format == ROW_INDEX_FP8) && (uintptr_t)at.values % 16 == 0;
}
static __device__ inline void ask_quick(struct quick_key &k, enum row_format format, const struct row_address &at,
                                        int part)
{
    if (format == ROW_INDEX_FP4) {
        k.codes[0] = *(const uint4 *)(const void *)(at.values + 16 * part);
        k.scale = __uint_as_float((uint32_t)at.scales[part]);
    } else {
        k.codes[0] = *(const uint4 *)(const void *)(at.values + 32 * part);
        k.codes[1] = *(const uint4 *)(const void *)(at.values + 32 * part + 16);
        k.scale = load_f32(at.scales);
    }
}
static __device__ inline void put_quick(const struct quick_key &k, enum row_format format, uint16_t *to)
{
    uint4 *out = (uint4 *)(void *)to;
    if (format == ROW_INDEX_FP4) {
        const uint32_t byte = __float_as_uint(k.scale);
        out[0] = e2m1_channels(k.codes[0].x, byte);
        out[1] = e2m1_channels(k.codes[0].y, byte);
        out[2] = e2m1_channels(k.codes[0].z, byte);
        out[3] = e2m1_channels(k.codes[0].w, byte);
    } else {
        out[0] = e4m3_channels(make_uint2(k.codes[0].x, k.codes[0].y), k.scale);
        out[1] = e4m3_channels(make_uint2(k.codes[0].z, k.codes[0].w), k.scale);
        out[2] = e4m3_channels(make_uint2(k.codes[1].x, k.codes[1].y), k.scale);
        out[3] = e4m3_channels(make_uint2(k.codes[1].z, k.codes[1].w), k.scale);
    }
}

/* A warp takes 8 keys a tile of the instruction: heads are its M operand, keys its N operand; heads are added in
 * binary64. DIM: channels, when they are known (0: not); keys are in registers then, for all heads.
 * F32:  sum_h w_h max(0, q_h k)                                      (v41-model.md 6.2, mode P)
 * BF16: bf(sum_h bf(bf(max(0, bf(q_h k))) w_h))                      (mode R; v4-model.md 5.6 step 4)
 * INT8: (sum_h max(0, f32(q_h k) sigma_h) w_h) sigma of the key      (v4-model.md 7.4) */
enum { QUICK_DIM = 128, SCORE_THREADS = 128, SCORE_WARPS = SCORE_THREADS / WARP };
template <int DIM> struct score_tile {
    enum { TILES = DIM ? 2 : 1, KEYS = 8 * TILES };
};

template <int DIM> static __global__ void __launch_bounds__(SCORE_THREADS, 6) score_kernel(struct scoring s)
{
    enum { TILES = score_tile<DIM>::TILES, KEYS = score_tile<DIM>::KEYS, STEPS = DIM / 16 };
    await_earlier();
    LAUNCHED_SHARED(uint16_t, shared_q, 16);
    const struct op_index_select &op = s.op;
    const int dim = DIM ? DIM : s.dim, pitch = dim + 8, eights = dim / 8, group = lane_of() / 4,
              pair = lane_of() % 4 * 2;
    float *w = (float *)(void *)(shared_q + s.heads * pitch), *sigma = w + s.heads;
    uint16_t *key = (uint16_t *)(void *)(sigma + s.heads) + warp_of() * KEYS * pitch;
    int64_t row = row_of(s, blockIdx.y);
    int request = s.step.batch_id[row], visible = visible_of(s, row), n = s.pooled ? places_of(s, row) : visible;
    float *scores = s.scores + blockIdx.y * s.stride, *trace = op.scores ? op.scores + row * op.score_stride : NULL;
    /* of the matrices that make an A fragment: rows g of heads h and h + 8, channels c and c + 8 */
    const uint32_t q_at = (uint32_t)__cvta_generic_to_shared(shared_q + lane_of() % 16 * pitch + lane_of() / 16 * 8);

    if ((int64_t)blockIdx.x * SCORE_WARPS * KEYS >= n)
        return;
    for (int i = threadIdx.x; i < s.heads * eights; i += SCORE_THREADS) {
        int h = i / eights, c = i % eights * 8;
        uint4 bits = make_uint4(0, 0, 0, 0);
        if (h < op.heads)
            bits = query_channels(op, row, h, c);
        *(uint4 *)(void *)(shared_q + h * pitch + c) = bits;
    }
    for (int h = threadIdx.x; h < s.heads; h += SCORE_THREADS) {
        w[h] = h < op.heads ? op.weights[row * op.heads + h] : 0.0f;
        sigma[h] = op.mode == SCORE_INT8 && h < op.heads ? ((const float *)op.query.scales)[row * op.heads + h] : 0.0f;
    }
    __syncthreads();

    for (int first = (blockIdx.x * SCORE_WARPS + warp_of()) * KEYS; first < n;
         first += gridDim.x * SCORE_WARPS * KEYS) {
        float key_scale[TILES]; /* of key `group`'s row, held by its four lanes */
        bool there[TILES];
        struct row_address at[TILES];
        struct quick_key quick[TILES];
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            int place = first + 8 * j + group, t = place < n ? row_in_place(s, row, place) : visible;
            there[j] = t < visible && (s.pooled || !op.use_candidates || in_pool(s, row, t)) &&
                       plane_find(op.plane, s.step, request, t, &at[j]);
            key_scale[j] = there[j] && op.mode == SCORE_INT8 ? load_f32(at[j].scales) : 1.0f;
            if (DIM && there[j] && is_quick(op.plane.format, at[j]))
                ask_quick(quick[j], op.plane.format, at[j], lane_of() % 4);
        }
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            uint16_t *to = key + (8 * j + group) * pitch;
            if (DIM && there[j] && is_quick(op.plane.format, at[j]))
                put_quick(quick[j], op.plane.format, to + lane_of() % 4 * 32);
            else
#pragma unroll 1
                for (int c = lane_of() % 4 * 8; c < dim; c += 32)
                    *(uint4 *)(void *)(to + c) =
                        there[j] ? index_channels(op.plane.format, at[j], c, op.dim) : make_uint4(0, 0, 0, 0);
        }
        __syncwarp();

        uint32_t known[TILES][DIM ? STEPS : 1][2];
        const uint16_t *k = key + group * pitch + pair;
        if constexpr (DIM != 0) {
#pragma unroll
            for (int j = 0; j < TILES; j++)
#pragma unroll
                for (int c = 0; c < STEPS; c++) {
                    known[j][c][0] = pair_at(k + 8 * j * pitch + 16 * c);
                    known[j][c][1] = pair_at(k + 8 * j * pitch + 16 * c + 8);
                }
        }
        double even[TILES] = {}, odd[TILES] = {};
        for (int h = 0; h < s.heads; h += 16) {
            float d[TILES][4] = {};
            const uint32_t q = q_at + (uint32_t)(h * pitch * 2);
            if constexpr (DIM != 0) {
#pragma unroll
                for (int c = 0; c < STEPS; c++) {
                    uint32_t a[4];
                    load_fragments(a, q + 32 * c);
#pragma unroll
                    for (int j = 0; j < TILES; j++)
                        mma(d[j], a[0], a[1], a[2], a[3], known[j][c][0], known[j][c][1]);
                }
            } else {
                for (int c = 0; c < dim; c += 16) {
                    uint32_t a[4];
                    load_fragments(a, q + 2 * c);
                    mma(d[0], a[0], a[1], a[2], a[3], pair_at(k + c), pair_at(k + c + 8));
                }
            }
            const float w0 = w[h + group], w1 = w[h + group + 8], s0 = sigma[h + group], s1 = sigma[h + group + 8];
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                even[j] += (double)score_term(op.mode, d[j][0], w0, s0);
                odd[j] += (double)score_term(op.mode, d[j][1], w0, s0);
                even[j] += (double)score_term(op.mode, d[j][2], w1, s1);
                odd[j] += (double)score_term(op.mode, d[j][3], w1, s1);
            }
        }
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            for (int o = 4; o < WARP; o *= 2) {
                even[j] += __shfl_xor_sync(ALL_LANES, even[j], o);
                odd[j] += __shfl_xor_sync(ALL_LANES, odd[j], o);
            }
            /* lane i < 8 writes key i: its sum is with lane i / 2, its scale and whether it is there with lane 4 i */
            float even_score = (float)__shfl_sync(ALL_LANES, even[j], lane_of() / 2 % 4);
            float odd_score = (float)__shfl_sync(ALL_LANES, odd[j], lane_of() / 2 % 4);
            float scale = __shfl_sync(ALL_LANES, key_scale[j], 4 * (lane_of() % 8));
            bool found = __shfl_sync(ALL_LANES, there[j], 4 * (lane_of() % 8));
            int place = first + 8 * j + lane_of();
            if (lane_of() < 8 && place < n) {
                float score = lane_of() % 2 ? odd_score : even_score;
                score = op.mode == SCORE_BF16 ? round_bf16(score) : score * scale;
                score = found ? score : -INFINITY;
                if (place < s.stride)
                    scores[place] = score;
                if (trace)
                    trace[place] = score;
            }
        }
        __syncwarp();
    }
}

/* The largest score of each block of rows; the newest visible block always counts (6.4). */
static __global__ void block_kernel(struct scoring s)
{
    await_earlier();
    int64_t row = row_of(s, blockIdx.y);
    int visible = visible_of(s, row), size = s.op.block_size, block = blockIdx.x * THREADS + threadIdx.x;
    const float *scores = s.scores + blockIdx.y * s.stride;
    if ((int64_t)block * size >= visible || block >= s.block_stride)
        return;
    float largest = -INFINITY;
    for (int t = block * size; t < (block + 1) * size && t < visible && t < s.stride; t++)
        largest = fmaxf(largest, scores[t]);
    if (block == (visible - 1) / size)
        largest = INFINITY;
    s.block_scores[blockIdx.y * s.block_stride + block] = largest;
}

/* ---- the choice ---- */

static __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(struct scoring s)
{
    await_earlier();
    int64_t row = row_of(s, blockIdx.y);
    int32_t *out = s.op.selected + row * s.op.topk;
    int kept = choose(s.rounds, blockIdx.y, s.scores + blockIdx.y * s.stride, places_of(s, row), blockIdx.x, s.op.topk,
                      s.op.order == SELECTION_BY_SCORE, s.op.mode == SCORE_BF16, out);
    if (kept < 0)
        return;
    if (s.pooled) {
        __syncthreads();
        for (int i = threadIdx.x; i < kept; i += SELECT_THREADS)
            out[i] = row_in_place(s, row, out[i]);
    }
    if (threadIdx.x == 0)
        s.op.selected_count[row] = kept;
}

static __global__ void __launch_bounds__(SELECT_THREADS) select_blocks_kernel(struct scoring s)
{
    await_earlier();
    int64_t row = row_of(s, blockIdx.y);
    int visible = visible_of(s, row), n = visible < s.stride ? visible : (int)s.stride;
    int kept = choose(s.block_rounds, blockIdx.y, s.block_scores + blockIdx.y * s.block_stride,
                      (n + s.op.block_size - 1) / s.op.block_size, blockIdx.x, s.op.topk_blocks, false,
                      s.op.mode == SCORE_BF16, s.op.candidates + row * s.op.topk_blocks);
    if (kept >= 0 && threadIdx.x == 0)
        s.op.candidate_count[row] = kept;
}

template <int DIM> static qr_status run_scores(struct backend *b, const struct scoring *s, qr_error *err)
{
    enum { KEYS = score_tile<DIM>::KEYS };
    size_t shared =
        (size_t)s->heads * (s->dim + 8) * 2 + (size_t)s->heads * 8 + (size_t)SCORE_WARPS * KEYS * (s->dim + 8) * 2;
    int64_t tiles = (s->stride + SCORE_WARPS * KEYS - 1) / (SCORE_WARPS * KEYS);
    dim3 grid((unsigned)(tiles < 1024 ? tiles : 1024), s->op.rows.count);
    LAUNCH("index_select", score_kernel<DIM>, grid, SCORE_THREADS, shared, *s);
    return QR_OK;
}

static qr_status run_band(struct backend *b, const struct scoring *s, qr_error *err)
{
    qr_status st = s->op.dim == QUICK_DIM ? run_scores<QUICK_DIM>(b, s, err) : run_scores<0>(b, s, err);
    if (st != QR_OK)
        return st;
    if (s->op.make_candidates) {
        dim3 blocks((unsigned)((s->block_stride + THREADS - 1) / THREADS), s->op.rows.count);
        LAUNCH("index_select", block_kernel, blocks, THREADS, 0, *s);
        LAUNCH("index_select", select_blocks_kernel,
               dim3(parts_of(&s->block_rounds, s->block_stride), s->op.rows.count), SELECT_THREADS,
               held_bytes(s->block_stride), *s);
    }
    size_t sorted = 1;
    while (sorted < (size_t)s->op.topk)
        sorted *= 2;
    LAUNCH("index_select", select_kernel, dim3(parts_of(&s->rounds, s->stride), s->op.rows.count), SELECT_THREADS,
           held_bytes(s->stride) + (s->op.order == SELECTION_BY_SCORE ? sorted * 8 : 0), *s);
    return QR_OK;
}

qr_status cuda_index_select(struct backend *b, const struct op_index_select *op, qr_error *err)
{
    bool int8 = op->mode == SCORE_INT8;
    if (int8 != (op->plane.format == ROW_INDEX_INT8) || int8 != (op->query.format == ACT_I8) ||
        (!int8 && op->query.format != ACT_BF16) || op->query.cols != op->heads * op->dim)
        return qr_fail(err, QR_BAD_ARGUMENT, "index_select: query format %d, %d columns, row format %d, score mode %d",
                       op->query.format, op->query.cols, op->plane.format, op->mode);
    if ((op->make_candidates || op->use_candidates) && (op->block_size < 1 || op->topk_blocks < 1))
        return qr_fail(err, QR_BAD_ARGUMENT, "index_select: a pool of %d blocks of %d rows", op->topk_blocks,
                       op->block_size);
    if (op->topk < 1 || op->ratio < 1)
        return qr_fail(err, QR_BAD_ARGUMENT, "index_select: top %d of rows of ratio %d", op->topk, op->ratio);
    if (op->order == SELECTION_BY_SCORE && op->topk > MOST_SORTED)
        return qr_fail(err, QR_UNSUPPORTED, "index_select: top %d by score, wanted at most %d", op->topk, MOST_SORTED);
    if (op->rows.count == 0)
        return QR_OK;

    struct scoring s = {.op = *op, .step = *op->step};
    s.heads = (op->heads + 15) / 16 * 16;
    s.dim = (op->dim + 15) / 16 * 16;
    s.stride = (int64_t)op->step->block_stride * op->plane.rows_per_block;
    s.pooled = op->use_candidates && !op->make_candidates && !op->scores;
    if (s.pooled && s.stride > (int64_t)op->topk_blocks * op->block_size)
        s.stride = (int64_t)op->topk_blocks * op->block_size;
    s.block_stride = op->make_candidates ? (s.stride + op->block_size - 1) / op->block_size : 0;
    s.rounds = rounds_of(s.stride, op->topk);
    s.block_rounds = rounds_of(s.block_stride, op->topk_blocks);
    int64_t lists =
        s.rounds.list_stride > s.block_rounds.list_stride ? s.rounds.list_stride : s.block_rounds.list_stride;
    int64_t most = cuda_of(b)->score_band / ((s.stride + s.block_stride + lists) * 4);
    int32_t counters = s.rounds.counters > s.block_rounds.counters ? s.rounds.counters : s.block_rounds.counters;
    if (counters && most > MOST_ARRIVED / counters)
        most = MOST_ARRIVED / counters;
    if (most < 1)
        return qr_fail(err, QR_UNSUPPORTED, "index_select: scores of %lld rows are more than its scratch holds",
                       (long long)s.stride);
    s.rounds.arrived = s.block_rounds.arrived = cuda_of(b)->arrived;
    for (int64_t first = 0; first < op->rows.count; first += most) {
        int64_t count = op->rows.count - first < most ? op->rows.count - first : most;
        s.op.rows.index = op->rows.index ? op->rows.index + first : NULL;
        s.op.rows.count = (int32_t)count;
        s.offset = (int32_t)first;
        s.scores = (float *)(void *)cuda_of(b)->scratch;
        s.block_scores = s.scores + count * s.stride;
        s.rounds.lists = s.block_rounds.lists = (int32_t *)(void *)(s.block_scores + count * s.block_stride);
        qr_status st = run_band(b, &s, err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}
