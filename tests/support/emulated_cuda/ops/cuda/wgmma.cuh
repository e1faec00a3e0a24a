/* wgmma.cuh: src/ops/cuda/wgmma.cuh for a processor. A warp of a warpgroup has its own 16 of the 64 rows of A, so it
 * multiplies for itself: when its group is waited for, with what shared memory holds then; under another order than 0
 * sometimes at once. */
#ifndef QR_TESTS_EMULATED_WGMMA_CUH
#define QR_TESTS_EMULATED_WGMMA_CUH

#include "ops/cuda/ptx.cuh"

#define WGMMA_TARGET 1

template <int COUNT> static inline void give_registers() {}
template <int COUNT> static inline void take_registers() {}
static inline void unit_begin() {}
template <int N> static inline void settle(float (&)[N]) {}
template <int N> static inline void settle(int32_t (&)[N]) {}
template <int N> static inline void hold_operands(const uint32_t (&)[N]) {}

static inline uint32_t rows_at(uint32_t at) { return at >> 4 | 1u << 16; }
enum { ROWS_HIGH = 1 << 30 | 1024 >> 4 };

/* ---- operands in shared memory, by the low word of their descriptor ---- */

/* 16 bytes of eight rows of 128 in 1024, which the swizzle has moved within their row. */
static inline void *emulated_piece(uint32_t at) { return emulated_shared_at(at ^ (at >> 7 & 7) << 4, 16); }

/* Terms of `rows` rows, 32 bytes of each, which lie beside each other. */
template <typename Term, int TERMS> static inline void emulated_take_rows(Term (*out)[TERMS], int rows, uint32_t word)
{
    static_assert(TERMS * sizeof(Term) == 32, "");
    const uint32_t first = (word & 0x3FFF) << 4;
    for (int r = 0; r < rows; r++)
        for (uint32_t half = 0; half < 2; half++)
            memcpy((uint8_t *)out[r] + 16 * half,
                   emulated_piece(first + (uint32_t)(r / 8 * 1024 + r % 8 * 128) + 16 * half), 16);
}
/* Eight columns from `column` on of 16 terms that are rows of 64 columns; the word says how far 64 columns further on
 * are. */
static inline void emulated_take_columns(uint16_t (*out)[16], int column, uint32_t word)
{
    const uint32_t first = (word & 0x3FFF) << 4, stride = (word >> 16 & 0x3FFF) << 4;
    for (int k = 0; k < 16; k++) {
        uint16_t piece[8];
        memcpy(piece,
               emulated_piece(first + (uint32_t)(column / 64) * stride +
                              (uint32_t)(k / 8 * 1024 + k % 8 * 128 + column % 64 * 2)),
               16);
        for (int j = 0; j < 8; j++)
            out[j][k] = piece[j];
    }
}

/* ---- products ---- */

struct emulated_unit_product {
    void *d;
    uint32_t a[4], heads, rows; /* heads: the word of A in shared memory */
};
enum emulated_unit_kind { UNIT_REGISTERS, UNIT_SHARED, UNIT_COLUMNS };

/* N: columns. */
template <typename Sum, typename Term, int N, bool ADD, int KIND>
static void emulated_unit_multiply(void *brought[EMULATED_WARP])
{
    enum { TERMS = 32 / sizeof(Term), EACH = 4 / sizeof(Term) };
    typedef emulated_unit_product product;
    const auto *one = (const product *)brought[0];
    Term a[16][TERMS], b[8][TERMS];
    for (int i = 0; i < WARP; i++) {
        const auto *p = (const product *)brought[i];
        if (p->rows != one->rows || p->heads != one->heads)
            emulated_fail("multiplies with another descriptor than its warp");
        for (int r = 0; r < 4; r++)
            memcpy(&a[i / 4 + r % 2 * 8][i % 4 * EACH + r / 2 * (TERMS / 2)], &p->a[r], 4);
    }
    if (KIND != UNIT_REGISTERS) {
        const uint32_t own = (uint32_t)(emulated_now->number / WARP % 4) * 2 * 1024 >> 4; /* the warp's 16 rows */
        emulated_take_rows(a, 16, one->heads + own);
    }
    for (int n = 0; n < N; n += 8) {
        Sum c[16][8] = {};
        if constexpr (KIND == UNIT_COLUMNS)
            emulated_take_columns(b, n, one->rows);
        else
            emulated_take_rows(b, 8, one->rows + (uint32_t)(n / 8 * 1024 >> 4));
        for (int i = 0; ADD && i < WARP; i++)
            emulated_take_sums(c, (Sum *)((const product *)brought[i])->d + n / 2, i);
        emulated_multiply(c, a, b);
        for (int i = 0; i < WARP; i++)
            emulated_put_sums(c, (Sum *)((const product *)brought[i])->d + n / 2, i);
    }
}

/* ---- products under way, of a warp ---- */

enum { MOST_UNIT_PRODUCTS = 64 };
struct emulated_unit_queue {
    uint64_t block;
    uint32_t first, behind, group;
    struct {
        emulated_work *work;
        uint32_t group;
        emulated_unit_product lane[EMULATED_WARP];
    } product[MOST_UNIT_PRODUCTS]; /* a ring */
};

static inline emulated_unit_queue &emulated_own_queue()
{
    static emulated_unit_queue queues[32];
    emulated_unit_queue &q = queues[emulated_now->number / WARP];
    if (q.block != emulated_blocks) { /* what an earlier block left */
        q.block = emulated_blocks;
        q.first = q.behind = q.group = 0;
    }
    return q;
}

/* Makes those of groups before that one. */
static inline void emulated_unit_finish(emulated_unit_queue &q, uint32_t group)
{
    for (; q.first != q.behind && q.product[q.first % MOST_UNIT_PRODUCTS].group < group; q.first++) {
        auto &p = q.product[q.first % MOST_UNIT_PRODUCTS];
        void *brought[EMULATED_WARP];
        for (int i = 0; i < WARP; i++)
            brought[i] = &p.lane[i];
        p.work(brought);
    }
}

template <emulated_work *WORK> static void emulated_unit_start(void *brought[EMULATED_WARP])
{
    emulated_unit_queue &q = emulated_own_queue();
    if (q.behind - q.first == MOST_UNIT_PRODUCTS)
        emulated_fail("has %d products of wgmma under way", MOST_UNIT_PRODUCTS);
    auto &p = q.product[q.behind++ % MOST_UNIT_PRODUCTS];
    p.work = WORK;
    p.group = q.group;
    for (int i = 0; i < WARP; i++)
        p.lane[i] = *(const emulated_unit_product *)brought[i];
    if (emulated_choice(2))
        emulated_unit_finish(q, q.group + 1);
}

static inline void emulated_unit_close(void *[EMULATED_WARP]) { emulated_own_queue().group++; }
static inline void unit_close() { emulated_warp_meet(ALL_LANES, emulated_unit_close, NULL, "wgmma.commit_group"); }

template <int OPEN> static void emulated_unit_await(void *[EMULATED_WARP])
{
    emulated_unit_queue &q = emulated_own_queue();
    if (q.group > OPEN)
        emulated_unit_finish(q, q.group - OPEN);
}
template <int OPEN> static inline void unit_await()
{
    emulated_warp_meet(ALL_LANES, emulated_unit_await<OPEN>, NULL, "wgmma.wait_group");
}

template <emulated_work *WORK> static inline void emulated_unit_meet(const emulated_unit_product &p)
{
    emulated_warp_meet(ALL_LANES, emulated_unit_start<WORK>, (void *)&p, "wgmma");
}

template <bool ADD, int N> static inline void unit_multiply(float (&d)[N], const uint32_t *a, uint32_t rows)
{
    emulated_unit_meet<emulated_unit_multiply<float, uint16_t, 2 * N, ADD, UNIT_REGISTERS>>(
        {d, {a[0], a[1], a[2], a[3]}, 0, rows});
}
template <int N> static inline void unit_multiply(int32_t (&d)[N], const uint32_t (&a)[4], uint32_t rows)
{
    emulated_unit_meet<emulated_unit_multiply<int32_t, int8_t, 2 * N, true, UNIT_REGISTERS>>(
        {d, {a[0], a[1], a[2], a[3]}, 0, rows});
}
static inline void multiply_scores(float (&d)[32], uint32_t heads, uint32_t keys, bool add)
{
    const emulated_unit_product p = {d, {0, 0, 0, 0}, heads, keys};
    if (add)
        emulated_unit_meet<emulated_unit_multiply<float, uint16_t, 64, true, UNIT_SHARED>>(p);
    else
        emulated_unit_meet<emulated_unit_multiply<float, uint16_t, 64, false, UNIT_SHARED>>(p);
}
static inline void multiply_values(float (&d)[64], uint32_t probabilities, uint32_t keys)
{
    emulated_unit_meet<emulated_unit_multiply<float, uint16_t, 128, true, UNIT_COLUMNS>>(
        {d, {0, 0, 0, 0}, probabilities, keys});
}

#endif
