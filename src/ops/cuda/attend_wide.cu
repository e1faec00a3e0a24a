#include "ops/cuda/attend_unit.cuh"
#include "ops/cuda/wide.cuh"

/* Many rows, on Hopper's matrix unit: a block of threads takes 64 heads of a row. One warpgroup finds and brings the keys,
 * two multiply: of a block's scores each takes one half of the channels, gives the other the sums of 32 keys and says what
 * its own 32 are worth; then each adds to its half of the values. Queries, keys and probabilities lie as the unit's
 * 128-byte swizzle wants them: pieces of 16 bytes of row r at place piece ^ r % 8, 64 columns in a row of 128 bytes. */

enum { HEADS = 64, ROW_BYTES = 128, GROUP_BYTES = 64 * ROW_BYTES /* 64 rows of 64 columns */, GROUPS = UNIT_DIM / 64 };
enum { RING = 2, TILE_BYTES = GROUPS * GROUP_BYTES, SUMMED = 2 * WARPGROUP, BRINGING = WARPGROUP };

struct wide_shelf {
    uint64_t full[RING], free[RING];
    uint32_t valid[RING][2]; /* slots that hold a key */
    float most[2][HEADS], sum[2][HEADS];
    float2 turn[MAX_ROPE_PAIRS];
    struct key_place places[2][UNIT_KEYS];
};
enum { KEYS_AT = TILE_BYTES, P_AT = KEYS_AT + RING * TILE_BYTES, PARTS_AT = P_AT + GROUP_BYTES, SHELF_AT = PARTS_AT + 2 * GROUP_BYTES };
enum { ATTEND_BYTES = SHELF_AT + sizeof(struct wide_shelf) + 1024 };

#ifdef WGMMA_TARGET

/* ---- products: both operands from shared memory ---- */

/* The low word of a descriptor, `stride` bytes from one 64 columns to the next where columns are not what is summed. */
static __device__ inline uint32_t operand_at(uint32_t at, uint32_t stride) { return at >> 4 | stride >> 4 << 16; }

/* ---- what the threads of a block share ---- */

struct wide_row {
    const struct attending &a;
    uint8_t *base;
    uint32_t at;
    struct wide_shelf &sh;
    int64_t row;
    int first_head, blocks;
    __device__ uint32_t keys(int slot) const { return at + KEYS_AT + (uint32_t)(slot * TILE_BYTES); }
    __device__ uint32_t full(int slot) const { return shared_address(&sh.full[slot]); }
    __device__ uint32_t free(int slot) const { return shared_address(&sh.free[slot]); }
};

/* ---- bringing keys: a warpgroup ---- */

static __device__ inline void bring_keys(const struct wide_row &r, const struct key_list &list, int thread)
{
    const struct op_attend &op = r.a.op;
    const int64_t slots = (int64_t)op.window_size + list.more;
    const int piece = thread % 8;
    auto find = [&](int block) {
        const int64_t slot = (int64_t)block * UNIT_KEYS + thread;
        struct key_place place = {{NULL, NULL}, ROW_BF16};
        if (thread < UNIT_KEYS && slot < slots)
            place = key_at(op, r.a.step, list, slot);
        return place;
    };
    struct key_place place = find(0);
    ring_place<RING> to = {0, 1};
    for (int block = 0; block < r.blocks; block++) {
        barrier_await(r.free(to.slot), to.parity);
        if (thread < UNIT_KEYS) {
            r.sh.places[block % 2][thread] = place;
            const uint32_t valid = __ballot_sync(ALL_LANES, place.at.values != NULL);
            if (thread % WARP == 0)
                r.sh.valid[to.slot][thread / WARP] = valid;
        }
        meet<2, BRINGING>();
#pragma unroll 1
        for (int key = thread / 8; key < UNIT_KEYS; key += BRINGING / 8) {
            const struct key_place from = r.sh.places[block % 2][key];
            uint8_t *own = r.base + KEYS_AT + to.slot * TILE_BYTES + key * ROW_BYTES + (piece ^ key % 8) * 16;
            if (is_plain(from))
#pragma unroll
                for (int g = 0; g < GROUPS; g++)
                    copy_16(shared_address(own + g * GROUP_BYTES), from.at.values + g * ROW_BYTES + piece * 16);
            else
#pragma unroll 1
                for (int g = 0; g < GROUPS; g++)
                    *(uint4 *)(void *)(own + g * GROUP_BYTES) = key_channels(from, g * 64 + piece * 8, UNIT_DIM);
        }
        close_stage();
        if (block + 1 < r.blocks)
            place = find(block + 1);
        await_stages<0>();
        show_stores();
        barrier_arrive(r.full(to.slot));
        to.next();
    }
}

/* ---- summing: two warpgroups ---- */

static __device__ inline void bring_queries(const struct wide_row &r)
{
    const struct op_attend &op = r.a.op;
    const int piece = threadIdx.x % 8;
    for (int head = threadIdx.x / 8; head < HEADS; head += SUMMED / 8) {
        const uint16_t *from = (const uint16_t *)op.q + (r.row * op.heads + r.first_head + head) * UNIT_DIM + piece * 8;
        uint8_t *own = r.base + head * ROW_BYTES + (piece ^ head % 8) * 16;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            if (r.first_head + head < op.heads)
                copy_16(shared_address(own + g * GROUP_BYTES), from + g * 64);
            else
                *(uint4 *)(void *)(own + g * GROUP_BYTES) = make_uint4(0, 0, 0, 0);
    }
    close_stage();
    await_stages<0>();
    show_stores();
    meet<1, SUMMED>();
}

/* What a lane holds: of two heads, 8 apart, their state and its half of the values. */
struct wide_state {
    float o[2][64], largest[2], denominator[2];
};

/* The scores of a warpgroup's 32 keys of a block: x[4 n + 2 r + e] of head r, key 8 n + 2 column + e. */
static __device__ inline void score_block(const struct wide_row &r, int slot, int group, float (&x)[16])
{
    float s[32];
    const uint32_t first = (uint32_t)(group * (GROUPS / 2) * GROUP_BYTES);
    const uint32_t q = operand_at(r.at + first, 16), k = operand_at(r.keys(slot) + first, 16);
    unit_begin();
#pragma unroll
    for (int c = 0; c < UNIT_HALF / UNIT_STEP; c++) {
        const uint32_t on = (uint32_t)(c / 4 * GROUP_BYTES + c % 4 * UNIT_STEP * 2) >> 4;
        multiply_scores(s, q + on, k + on, c > 0);
    }
    unit_close();
    unit_await<0>();
    settle(s);
    float4 *parts = (float4 *)(void *)(r.base + PARTS_AT);
    const int thread = threadIdx.x % WARPGROUP;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int n = 4 * i;
        parts[(group * 4 + i) * WARPGROUP + thread] = group ? make_float4(s[n], s[n + 1], s[n + 2], s[n + 3])
                                                            : make_float4(s[n + 16], s[n + 17], s[n + 18], s[n + 19]);
    }
    meet<1, SUMMED>();
    const uint32_t valid = r.sh.valid[slot][group] >> threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float4 other = parts[((group ^ 1) * 4 + i) * WARPGROUP + thread];
        const float part[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[4 * i + e] = valid >> (8 * i + e % 2) & 1 ? ((group ? s[16 + 4 * i + e] : s[4 * i + e]) + part[e]) * r.a.op.scale : -INFINITY;
    }
}

/* What they are worth, into shared memory as an operand; the state but for the values; returns by how much these shrink. */
static __device__ inline float2 weigh_block(const struct wide_row &r, int group, float (&x)[16], struct wide_state &st)
{
    const int lane = lane_of(), column = lane % 4, head = threadIdx.x % WARPGROUP / WARP * 16 + lane / 4;
    float shrink[2], p[2][8];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < 4; n++)
            most = fmaxf(most, fmaxf(x[4 * n + 2 * h], x[4 * n + 2 * h + 1]));
        most = quad_max(most);
        if (column == 0)
            r.sh.most[group][head + 8 * h] = most;
    }
    meet<1, SUMMED>();
    uint8_t *to = r.base + P_AT + head * ROW_BYTES + column * 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float before = st.largest[h], after = fmaxf(before, fmaxf(r.sh.most[0][head + 8 * h], r.sh.most[1][head + 8 * h]));
        shrink[h] = worth(before, after);
        st.largest[h] = after;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            p[h][2 * n] = worth(x[4 * n + 2 * h], after);
            p[h][2 * n + 1] = worth(x[4 * n + 2 * h + 1], after);
            *(uint32_t *)(void *)(to + h * 8 * ROW_BYTES + ((4 * group + n) ^ head % 8) * 16) = pack_pair(p[h][2 * n], p[h][2 * n + 1]);
        }
        const float sum = half_sum(p[h]);
        if (column == 0)
            r.sh.sum[group][head + 8 * h] = sum;
    }
    show_stores();
    meet<1, SUMMED>();
#pragma unroll
    for (int h = 0; h < 2; h++)
        st.denominator[h] = st.denominator[h] * shrink[h] + (r.sh.sum[0][head + 8 * h] + r.sh.sum[1][head + 8 * h]);
    return make_float2(shrink[0], shrink[1]);
}

static __device__ inline void add_values(const struct wide_row &r, int slot, int group, float2 shrink, struct wide_state &st)
{
    if (__any_sync(ALL_LANES, shrink.x != 1.0f || shrink.y != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 128; i++)
            st.o[i / 64][i % 64] *= i % 4 / 2 ? shrink.y : shrink.x;
    }
    const uint32_t p = operand_at(r.at + P_AT, 16);
    const uint32_t keys = operand_at(r.keys(slot) + (uint32_t)(group * (GROUPS / 2) * GROUP_BYTES), GROUP_BYTES);
    unit_begin();
#pragma unroll
    for (int j = 0; j < UNIT_KEYS / UNIT_STEP; j++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            multiply_values(st.o[h], p + (j * UNIT_STEP * 2 >> 4), keys + ((h * 2 * GROUP_BYTES + j * UNIT_STEP * ROW_BYTES) >> 4));
    unit_close();
    unit_await<0>();
    settle(st.o[0]);
    settle(st.o[1]);
}

/* Divides, turns back and writes, by way of where the queries were. */
static __device__ inline void write_values(const struct wide_row &r, const struct rope_view &rope, int group, struct wide_state &st)
{
    const struct op_attend &op = r.a.op;
    const int lane = lane_of(), column = lane % 4, head = threadIdx.x % WARPGROUP / WARP * 16 + lane / 4;
    const bool turns = r.a.turned.codes;
    const int plain = turns ? UNIT_DIM - rope.dim : (int)UNIT_DIM;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int mine = r.first_head + head + 8 * h;
        const float inverse = inverse_of(st.denominator[h], mine < op.heads ? op.sinks[mine] : 0, st.largest[h]);
        uint8_t *to = r.base + (head + 8 * h) * ROW_BYTES + column * 4;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const int c = group * UNIT_HALF + 8 * i + 2 * column;
            const float even = st.o[i / 16][i % 16 * 4 + 2 * h] * inverse, odd = st.o[i / 16][i % 16 * 4 + 2 * h + 1] * inverse;
            const float2 turn = c >= plain ? r.sh.turn[(c - plain) / 2] : make_float2(1, 0);
            *(uint32_t *)(void *)(to + (c / 64) * GROUP_BYTES + ((i % 8) ^ head % 8) * 16) =
                finished_pair(c >= plain, op.out.format == ACT_BF16, even, odd, turn);
        }
    }
    meet<1, SUMMED>();
    uint16_t *out = (uint16_t *)(turns ? r.a.turned : op.out).codes + (r.row * op.heads + r.first_head) * UNIT_DIM;
    const int heads = min((int)HEADS, op.heads - r.first_head);
    for (int i = threadIdx.x; i < heads * (UNIT_DIM / 8); i += SUMMED) {
        const int own = i / (UNIT_DIM / 8), piece = i % (UNIT_DIM / 8);
        *(uint4 *)(void *)(out + own * UNIT_DIM + piece * 8) =
            *(const uint4 *)(const void *)(r.base + piece / 8 * GROUP_BYTES + own * ROW_BYTES + (piece % 8 ^ own % 8) * 16);
    }
}

static __device__ inline void sum_row(const struct wide_row &r, const struct rope_view &rope)
{
    const int group = threadIdx.x / WARPGROUP;
    struct wide_state st;
#pragma unroll
    for (int i = 0; i < 128; i++)
        st.o[i / 64][i % 64] = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        st.largest[h] = -1e30f;
        st.denominator[h] = 0;
    }
    if (r.a.turned.codes && (int)threadIdx.x < rope.dim / 2)
        r.sh.turn[threadIdx.x] = rope_turn(rope, r.row, r.a.step.positions[r.row], threadIdx.x);
    bring_queries(r);
    ring_place<RING> at = {0, 0};
#pragma unroll 1
    for (int block = 0; block < r.blocks; block++) {
        float x[16];
        barrier_await(r.full(at.slot), at.parity);
        score_block(r, at.slot, group, x);
        const float2 shrink = weigh_block(r, group, x, st);
        add_values(r, at.slot, group, shrink, st);
        barrier_arrive(r.free(at.slot));
        at.next();
    }
    write_values(r, rope, group, st);
}

static __device__ inline void attend_row(const struct attending &a, const struct rope_view &rope)
{
    LAUNCHED_SHARED(uint8_t, attend_memory, 1024);
    const uint32_t start = shared_address(attend_memory), skip = (1024 - start % 1024) % 1024;
    uint8_t *base = attend_memory + skip;
    struct wide_shelf &sh = *(struct wide_shelf *)(void *)(base + SHELF_AT);
    if (threadIdx.x == 0)
        for (int i = 0; i < RING; i++) {
            barrier_make(shared_address(&sh.full[i]), BRINGING);
            barrier_make(shared_address(&sh.free[i]), SUMMED);
        }
    show_stores();
    await_earlier();
    const int64_t row = row_of(a, blockIdx.x);
    const struct key_list list = list_of(a.op, a.step, row);
    const int blocks = (int)((a.op.window_size + list.more + UNIT_KEYS - 1) / UNIT_KEYS);
    const struct wide_row r = {a, base, start + skip, sh, row, (int)blockIdx.y * HEADS, blocks};
    __syncthreads();
    if (threadIdx.x >= SUMMED) {
        give_registers<56>();
        bring_keys(r, list, (int)threadIdx.x - SUMMED);
    } else {
        take_registers<224>();
        sum_row(r, rope);
    }
}

#else
static __device__ inline void attend_row(const struct attending &, const struct rope_view &) {}
#endif

static __global__ void __launch_bounds__(SUMMED + BRINGING, 1)
    wide_attend(const __grid_constant__ struct attending a, const __grid_constant__ struct rope_view rope)
{
    attend_row(a, rope);
}

qr_status attend_wide(struct backend *b, const struct attending *all, const struct rope_view *rope, qr_error *err)
{
    LAUNCH("attend", wide_attend, dim3((unsigned)all->op.rows.count, (all->op.heads + HEADS - 1) / HEADS), SUMMED + BRINGING,
           ATTEND_BYTES, *all, *rope);
    return QR_OK;
}
