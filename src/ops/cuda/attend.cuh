/* attend.cuh: what the kernels of the attention core share: v41-model.md 5.5, v4-model.md 5.4, 7.4; a row's list of keys
 * by runtime.md 3.3 and speculation.md 2.6, and where a key lies. */
#ifndef QR_OPS_CUDA_ATTEND_CUH
#define QR_OPS_CUDA_ATTEND_CUH

#include "ops/cuda/product.cuh"

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

/* ---- keys as bf16, which holds every main row exactly ---- */

/* Eight E2M1 codes, the lower half of a byte first, times their E4M3 scale. */
static __device__ inline uint4 from_fp4(uint32_t codes, uint32_t scale)
{
    const uint32_t factor = bf16_bits(e4m3_value(scale)) * 0x00010001u, one = power_pair(127 + 126);
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t x = codes >> 8 * i;
        pair[i] = (x & 7) << 6 | (x & 8) << 12 | (x & 0x70) << 18 | (x & 0x80) << 24;
        pair[i] = multiply_pair(multiply_pair(pair[i], one), factor);
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* Whether one of four E4M3 codes is no number. */
static __device__ inline bool holds_nan(uint32_t codes) { return __vcmpeq4(codes & 0x7F7F7F7F, 0x7F7F7F7F) != 0; }

/* Eight E4M3 codes, none of them a NaN, times their power of two. */
static __device__ inline uint4 from_fp8(uint2 codes, uint32_t scale)
{
    const uint32_t factor = bf16_bits(e8m0_value(scale)) * 0x00010001u, one = power_pair(127 + 120);
    uint32_t pair[4];
    place_e4m3(codes.x, pair); /* bytes 0 and 2, 1 and 3 */
    place_e4m3(codes.y, pair + 2);
    const uint32_t order[4] = {__byte_perm(pair[0], pair[1], 0x5410), __byte_perm(pair[0], pair[1], 0x7632),
                               __byte_perm(pair[2], pair[3], 0x5410), __byte_perm(pair[2], pair[3], 0x7632)};
#pragma unroll
    for (int i = 0; i < 4; i++)
        pair[i] = multiply_pair(multiply_pair(order[i], one), factor);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* Whether its channels can be copied as they are. */
static __device__ inline bool is_plain(const struct key_place &place)
{
    return place.at.values && place.format == ROW_BF16 && (uintptr_t)place.at.values % 16 == 0;
}

/* Eight channels from c on as bf16, exact; zeros behind the end and in an empty slot. */
static __device__ uint4 key_channels(const struct key_place &place, int c, int head_dim)
{
    const uint8_t *values = place.at.values;
    uint32_t pair[4] = {0, 0, 0, 0};
    if (!values || c >= head_dim)
        return make_uint4(0, 0, 0, 0);
    if (c + 8 <= head_dim && (uintptr_t)values % 16 == 0) {
        if (place.format == ROW_BF16)
            return *(const uint4 *)(const void *)(values + 2 * c);
        if (place.format == ROW_FP4_E4M3)
            return from_fp4(*(const uint32_t *)(const void *)(values + c / 2), place.at.scales[c / 16]);
        const bool fp8 = place.format == ROW_FP8_E8M0;
        const uint2 codes = fp8 ? *(const uint2 *)(const void *)(values + c) : make_uint2(0, 0);
        if (fp8 && !holds_nan(codes.x) && !holds_nan(codes.y))
            return from_fp8(codes, place.at.scales[c / 32]);
    }
#pragma unroll 1
    for (int i = 0; i < 8 && c + i < head_dim; i++)
        pair[i / 2] |= (uint32_t)bf16_bits(container_value(place.format, place.at, c + i)) << 16 * (i % 2);
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* What the kernels know. A row's keys stand in blocks of op.block slots, rounded up to 16. */
struct attending {
    struct op_attend op;
    struct step step;
    int32_t offset, blocks, heads, slots, dim; /* heads, slots and dim rounded up to 16; blocks: the most of a row */
    struct key_place *places;                  /* [row][block][slot] */
    float *scores;                             /* [row][block][head][slot], -inf in empty slots */
    uint16_t *p;                               /* the same: probabilities, bf16 */
    float2 *factors;                           /* [row][block][head]: of the sums so far, and of the block's own */
    float *denominators;                       /* [row][head] */
    struct activation turned;                  /* op_unrotate's output, codes NULL: not wanted */
};

static __device__ int64_t row_of(const struct attending &a, int i)
{
    return row_at(a.op.rows, i) + (a.op.rows.index ? 0 : a.offset);
}

static __device__ int64_t block_at(const struct attending &a, int row, int block)
{
    return (int64_t)row * a.blocks + block;
}

/* Eight channels of a key into shared memory; the copy is awaited with the thread's others. */
static __device__ void bring_channels(uint16_t *to, const struct key_place &place, int c, int head_dim)
{
    if (is_plain(place) && c + 8 <= head_dim)
        copy_16(shared_address(to), (const uint16_t *)(const void *)place.at.values + c);
    else
        *(uint4 *)(void *)to = key_channels(place, c, head_dim);
}

/* Attention with heads of UNIT_DIM channels, on the matrix unit in bf16: attend_unit.cuh. */
enum { FEW_ROWS = 8 }; /* as measured; more go to attend_wide, which gives the same bits */
qr_status attend_few(struct backend *b, const struct attending *a, const struct rope_view *rope, qr_error *err);
qr_status attend_wide(struct backend *b, const struct attending *a, const struct rope_view *rope, qr_error *err);

#endif
