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
    int64_t stride;     /* scores of a row: as many as the block table can hold */
    float *scores;      /* [rows][stride] */
    int64_t block_stride;
    float *block_scores; /* [rows][block_stride] */
};

static __device__ int64_t row_of(const struct scoring &s, int64_t i)
{
    return row_at(s.op.rows, i) + (s.op.rows.index ? 0 : s.offset);
}

static __device__ int visible_of(const struct scoring &s, int64_t row)
{
    return (s.step.positions[row] + 1) / s.op.ratio;
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
        pair[i / 2] |= (uint32_t)(op.mode == SCORE_INT8 ? bf16_bits((float)((const int8_t *)op.query.codes)[at + i])
                                                        : bf16[i])
                       << 16 * (i % 2);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* Eight channels from c on of an index key as bf16, zeros behind its end: as container_value gives them, but read at
 * once. */
static __device__ uint4 index_channels(enum row_format format, const struct row_address &at, int c, int dim)
{
    uint32_t pair[4] = {0, 0, 0, 0};
    const bool whole = c + 8 <= dim, fp4 = format == ROW_INDEX_FP4;
    if (whole && format == ROW_BF16 && (uintptr_t)at.values % 16 == 0)
        return *(const uint4 *)(const void *)((const uint16_t *)(const void *)at.values + c);
    if (whole && (fp4 || format == ROW_INDEX_FP8) && (uintptr_t)at.values % 8 == 0) {
        uint2 codes = fp4 ? make_uint2(*(const uint32_t *)(const void *)(at.values + c / 2), 0)
                          : *(const uint2 *)(const void *)(at.values + c);
        float scale = fp4 ? e8m0_value(at.scales[c / 32]) : load_f32(at.scales);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float x = fp4 ? e2m1_value(codes.x >> 4 * i & 15) : e4m3_value((i < 4 ? codes.x : codes.y) >> i % 4 * 8 & 255);
            pair[i / 2] |= (uint32_t)bf16_bits(x * scale) << 16 * (i % 2);
        }
        return make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
    for (int i = 0; i < 8 && c + i < dim; i++)
        pair[i / 2] |= (uint32_t)bf16_bits(container_value(format, at, c + i)) << 16 * (i % 2);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* A warp takes 8 keys: heads are the M operand of the instruction, keys its N operand; heads are added in binary64.
 * F32:  sum_h w_h max(0, q_h k)                                      (v41-model.md 6.2, mode P)
 * BF16: bf(sum_h bf(bf(max(0, bf(q_h k))) w_h))                      (mode R; v4-model.md 5.6 step 4)
 * INT8: (sum_h max(0, f32(q_h k) sigma_h) w_h) sigma of the key      (v4-model.md 7.4) */
static __global__ void score_kernel(struct scoring s)
{
    await_earlier();
    LAUNCHED_SHARED(uint16_t, shared_q, 16);
    const struct op_index_select &op = s.op;
    int pitch = s.dim + 8, group = lane_of() / 4, pair = lane_of() % 4 * 2;
    float *w = (float *)(void *)(shared_q + s.heads * pitch), *sigma = w + s.heads;
    uint16_t *key = (uint16_t *)(void *)(sigma + s.heads) + warp_of() * 8 * pitch;
    int64_t row = row_of(s, blockIdx.y);
    int request = s.step.batch_id[row], visible = visible_of(s, row);
    float *scores = s.scores + blockIdx.y * s.stride, *trace = op.scores ? op.scores + row * op.score_stride : NULL;

    const int eights = s.dim / 8;
    for (int i = threadIdx.x; i < s.heads * eights; i += THREADS) {
        int h = i / eights, c = i % eights * 8;
        uint4 bits = make_uint4(0, 0, 0, 0);
        if (h < op.heads)
            bits = query_channels(op, row, h, c);
        *(uint4 *)(void *)(shared_q + h * pitch + c) = bits;
    }
    for (int h = threadIdx.x; h < s.heads; h += THREADS) {
        w[h] = h < op.heads ? op.weights[row * op.heads + h] : 0.0f;
        sigma[h] = op.mode == SCORE_INT8 && h < op.heads ? ((const float *)op.query.scales)[row * op.heads + h] : 0.0f;
    }
    __syncthreads();

    for (int first = (blockIdx.x * WARPS + warp_of()) * 8; first < visible; first += gridDim.x * WARPS * 8) {
        float key_scale = 1.0f; /* of key `group`'s row, held by its four lanes */
        struct row_address at;
        int t = first + group;
        bool there =
            t < visible && (!op.use_candidates || in_pool(s, row, t)) && plane_find(op.plane, s.step, request, t, &at);
        if (there && op.mode == SCORE_INT8)
            key_scale = load_f32(at.scales);
#pragma unroll 4
        for (int c = lane_of() % 4 * 8; c < s.dim; c += 32)
            *(uint4 *)(void *)(key + group * pitch + c) =
                there ? index_channels(op.plane.format, at, c, op.dim) : make_uint4(0, 0, 0, 0);
        __syncwarp();

        double even = 0, odd = 0;
        for (int h = 0; h < s.heads; h += 16) {
            float d[4] = {0, 0, 0, 0};
            const uint16_t *q = shared_q + (h + group) * pitch + pair, *k = key + group * pitch + pair;
            for (int c = 0; c < s.dim; c += 16)
                mma(d, pair_at(q + c), pair_at(q + 8 * pitch + c), pair_at(q + c + 8), pair_at(q + 8 * pitch + c + 8),
                    pair_at(k + c), pair_at(k + c + 8));
            even += (double)score_term(op.mode, d[0], w[h + group], sigma[h + group]);
            odd += (double)score_term(op.mode, d[1], w[h + group], sigma[h + group]);
            even += (double)score_term(op.mode, d[2], w[h + group + 8], sigma[h + group + 8]);
            odd += (double)score_term(op.mode, d[3], w[h + group + 8], sigma[h + group + 8]);
        }
        for (int o = 4; o < WARP; o *= 2) {
            even += __shfl_xor_sync(ALL_LANES, even, o);
            odd += __shfl_xor_sync(ALL_LANES, odd, o);
        }
        /* lane i < 8 writes key i: its sum is with lane i / 2, its scale and whether it is there with lane 4 i */
        float even_score = (float)__shfl_sync(ALL_LANES, even, lane_of() / 2 % 4);
        float odd_score = (float)__shfl_sync(ALL_LANES, odd, lane_of() / 2 % 4);
        float scale = __shfl_sync(ALL_LANES, key_scale, 4 * (lane_of() % 8));
        bool found = __shfl_sync(ALL_LANES, there, 4 * (lane_of() % 8));
        t = first + lane_of();
        if (lane_of() < 8 && t < visible) {
            float score = lane_of() % 2 ? odd_score : even_score;
            score = op.mode == SCORE_BF16 ? round_bf16(score) : score * scale;
            score = found ? score : -INFINITY;
            if (t < s.stride)
                scores[t] = score;
            if (trace)
                trace[t] = score;
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

/* ---- the best of a row ---- */

enum { SELECT_THREADS = 512, SELECT_WARPS = SELECT_THREADS / WARP, MOST_SORTED = 8192 };

/* A number that orders as the score does; 0 for what is never kept (-inf, NaN). Zeros of both signs are equal. */
static __device__ uint32_t order_of(float score)
{
    if (!(score > -INFINITY))
        return 0;
    uint32_t bits = __float_as_uint(score + 0.0f);
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

/* Of counts by digit, the digit at which the sum from the largest down, and `above`, reaches k (0: it does not), and the
 * sum before it: a warp's work, a lane for eight digits. */
static __device__ void find_digit(const int *count, int above, int k, int *digit, int *better)
{
    const int first = 255 - 8 * lane_of();
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += count[first - i];
    int before = sum;
#pragma unroll
    for (int o = 1; o < WARP; o *= 2) {
        int other = __shfl_up_sync(ALL_LANES, before, o);
        before += lane_of() >= o ? other : 0;
    }
    before += above - sum;
    uint32_t reached = __ballot_sync(ALL_LANES, before + sum >= k);
    if (lane_of() != (reached ? __ffs(reached) - 1 : WARP - 1))
        return;
    int at = first;
    while (at > 0 && before + count[at] < k)
        before += count[at--];
    *digit = at;
    *better = before;
}

enum { MOST_HELD = 8192 };

/* The orders of a row's scores; the first of them are held in shared memory. */
struct ordered_scores {
    const float *scores;
    uint32_t *held;
    int n;
    __device__ uint32_t at(int i) const { return i < MOST_HELD ? held[i] : order_of(scores[i]); }
};

static __device__ struct ordered_scores hold_scores(const float *scores, int n)
{
    LAUNCHED_SHARED(uint32_t, held_scores, 8);
#pragma unroll 4
    for (int i = threadIdx.x; i < n && i < MOST_HELD; i += SELECT_THREADS)
        held_scores[i] = order_of(fresh(scores + i));
    __syncthreads();
    return {scores, held_scores, n};
}

static size_t held_bytes(int64_t n) { return (size_t)((n < MOST_HELD ? n : (int64_t)MOST_HELD) + 1) / 2 * 8; }

/* The order of the k-th best, and how many are better: by eight bits at a time. Fewer than k: 0 and their number. */
static __device__ void threshold(const struct ordered_scores &scores, int k, uint32_t *order, int *better)
{
    const int n = scores.n;
    __shared__ int count[256], digit_found, better_found;
    uint32_t prefix = 0;
    int above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += SELECT_THREADS)
            count[i] = 0;
        __syncthreads();
        for (int first = warp_of() * WARP; first < n; first += SELECT_THREADS) {
            int i = first + lane_of();
            uint32_t o = i < n ? scores.at(i) : 0;
            bool counts = o && (shift == 24 || o >> (shift + 8) == prefix >> (shift + 8));
            int digit = counts ? (int)(o >> shift & 255) : -1;
            uint32_t same = __match_any_sync(ALL_LANES, digit); /* many are alike: one lane adds for all */
            if (counts && (same & ((1u << lane_of()) - 1)) == 0)
                atomicAdd(&count[digit], __popc(same));
        }
        __syncthreads();
        if (warp_of() == 0)
            find_digit(count, above, k, &digit_found, &better_found);
        __syncthreads();
        prefix |= (uint32_t)digit_found << shift;
        above = better_found;
        __syncthreads();
    }
    *order = prefix;
    *better = above;
}

/* Sorts count 64-bit numbers in shared memory, largest first; room for the next power of two. A thread keeps what it
 * compares with others of its warp. */
static __device__ void sort_falling(unsigned long long *key, int count)
{
    int size = 1;
    while (size < count)
        size *= 2;
    for (int i = count + threadIdx.x; i < size; i += SELECT_THREADS)
        key[i] = 0;
    __syncthreads();
    for (int length = 2; length <= size; length *= 2) {
        int gap = length / 2;
        for (; gap >= WARP; gap /= 2) {
            for (int i = threadIdx.x; i < size; i += SELECT_THREADS) {
                int other = i ^ gap;
                bool falling = (i & length) == 0;
                if (other > i && (key[i] < key[other]) == falling) {
                    unsigned long long moved = key[i];
                    key[i] = key[other];
                    key[other] = moved;
                }
            }
            __syncthreads();
        }
        for (int first = warp_of() * WARP; first < size; first += SELECT_THREADS) {
            const int i = first + lane_of();
            unsigned long long own = i < size ? key[i] : 0;
            for (int g = gap; g > 0; g /= 2) {
                unsigned long long other = __shfl_xor_sync(ALL_LANES, own, g);
                bool larger = (i & length) == 0 ? (i & g) == 0 : (i & g) != 0; /* whether this place wants it */
                own = larger == (other > own) ? other : own;
            }
            if (i < size)
                key[i] = own;
        }
        __syncthreads();
    }
}

/* Keeps the k best of n, equal ones by the smaller id; ids ascending, or by falling score. Returns how many. */
static __device__ int keep_best(const struct ordered_scores &scores, int k, bool by_score, int32_t *out)
{
    const int n = scores.n;
    unsigned long long *sorted =
        (unsigned long long *)(void *)(scores.held + ((n < MOST_HELD ? n : (int)MOST_HELD) + 1) / 2 * 2);
    __shared__ int better_in[SELECT_WARPS], equal_in[SELECT_WARPS];
    uint32_t order;
    int better, done_better = 0, done_equal = 0, kept;
    threshold(scores, k, &order, &better);
    int wanted = k - better; /* of the equal ones, by id */

    for (int first = 0; first < n; first += SELECT_THREADS) {
        int id = first + threadIdx.x;
        uint32_t o = id < n ? scores.at(id) : 0;
        bool is_better = o > order, is_equal = o != 0 && o == order;
        uint32_t betters = __ballot_sync(ALL_LANES, is_better), equals = __ballot_sync(ALL_LANES, is_equal);
        uint32_t before = (1u << lane_of()) - 1;
        if (lane_of() == 0) {
            better_in[warp_of()] = __popc(betters);
            equal_in[warp_of()] = __popc(equals);
        }
        __syncthreads();
        int b = done_better + __popc(betters & before), e = done_equal + __popc(equals & before);
        for (int i = 0; i < SELECT_WARPS; i++) {
            if (i < warp_of()) {
                b += better_in[i];
                e += equal_in[i];
            }
            done_better += better_in[i];
            done_equal += equal_in[i];
        }
        int place = b + (e < wanted ? e : wanted);
        if (is_better || (is_equal && e < wanted)) {
            if (by_score)
                sorted[place] = (unsigned long long)o << 32 | (uint32_t)~id;
            else
                out[place] = id;
        }
        __syncthreads();
    }
    kept = done_better + (done_equal < wanted ? done_equal : wanted);
    if (by_score) {
        sort_falling(sorted, kept);
        for (int i = threadIdx.x; i < kept; i += SELECT_THREADS)
            out[i] = (int32_t) ~(uint32_t)sorted[i];
    }
    return kept;
}

static __global__ void __launch_bounds__(SELECT_THREADS) select_kernel(struct scoring s)
{
    await_earlier();
    int64_t row = row_of(s, blockIdx.x);
    int visible = visible_of(s, row), n = visible < s.stride ? visible : (int)s.stride;
    int kept = keep_best(hold_scores(s.scores + blockIdx.x * s.stride, n), s.op.topk, s.op.order == SELECTION_BY_SCORE,
                         s.op.selected + row * s.op.topk);
    if (threadIdx.x == 0)
        s.op.selected_count[row] = kept;
}

static __global__ void __launch_bounds__(SELECT_THREADS) select_blocks_kernel(struct scoring s)
{
    await_earlier();
    int64_t row = row_of(s, blockIdx.x);
    int visible = visible_of(s, row), n = visible < s.stride ? visible : (int)s.stride;
    int kept = keep_best(
        hold_scores(s.block_scores + blockIdx.x * s.block_stride, (n + s.op.block_size - 1) / s.op.block_size),
        s.op.topk_blocks, false, s.op.candidates + row * s.op.topk_blocks);
    if (threadIdx.x == 0)
        s.op.candidate_count[row] = kept;
}

static qr_status run_band(struct backend *b, const struct scoring *s, qr_error *err)
{
    size_t shared = (size_t)s->heads * (s->dim + 8) * 2 + (size_t)s->heads * 8 + (size_t)WARPS * 8 * (s->dim + 8) * 2;
    int64_t tiles = (s->stride + WARPS * 8 - 1) / (WARPS * 8);
    dim3 grid((unsigned)(tiles < 512 ? tiles : 512), s->op.rows.count);
    LAUNCH("index_select", score_kernel, grid, THREADS, shared, *s);
    if (s->op.make_candidates) {
        dim3 blocks((unsigned)((s->block_stride + THREADS - 1) / THREADS), s->op.rows.count);
        LAUNCH("index_select", block_kernel, blocks, THREADS, 0, *s);
        LAUNCH("index_select", select_blocks_kernel, s->op.rows.count, SELECT_THREADS,
               held_bytes(s->block_stride), *s);
    }
    size_t sorted = 1;
    while (sorted < (size_t)s->op.topk)
        sorted *= 2;
    LAUNCH("index_select", select_kernel, s->op.rows.count, SELECT_THREADS,
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
    s.block_stride = op->make_candidates ? (s.stride + op->block_size - 1) / op->block_size : 0;
    int64_t most = cuda_of(b)->score_band / ((s.stride + s.block_stride) * 4);
    if (most < 1)
        return qr_fail(err, QR_UNSUPPORTED, "index_select: scores of %lld rows are more than its scratch holds",
                       (long long)s.stride);
    for (int64_t first = 0; first < op->rows.count; first += most) {
        int64_t count = op->rows.count - first < most ? op->rows.count - first : most;
        s.op.rows.index = op->rows.index ? op->rows.index + first : NULL;
        s.op.rows.count = (int32_t)count;
        s.offset = (int32_t)first;
        s.scores = (float *)(void *)cuda_of(b)->scratch;
        s.block_scores = s.scores + count * s.stride;
        qr_status st = run_band(b, &s, err);
        if (st != QR_OK)
            return st;
    }
    return QR_OK;
}
