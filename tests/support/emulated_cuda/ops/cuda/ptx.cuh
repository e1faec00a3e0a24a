/* ptx.cuh: src/ops/cuda/ptx.cuh for a processor: what each of its instructions does. */
#ifndef QR_TESTS_EMULATED_PTX_CUH
#define QR_TESTS_EMULATED_PTX_CUH

#include "emulated.h"

enum { WARP = 32 };
#define ALL_LANES 0xFFFFFFFFu

#define LAUNCHED_SHARED(type, name, alignment) type *const name = (type *)(void *)emulated_shared

/* ---- starting: earlier kernels have ended ---- */

static inline void await_earlier(void) {}
static inline void await_alone(void) {}

/* ---- loads ---- */

static inline int32_t fresh(const int32_t *p) { return __ldg(p); }
static inline float fresh(const float *p) { return __ldg(p); }
static inline uint16_t fresh(const uint16_t *p) { return __ldg(p); }
static inline int kept(int x) { return x; }

/* ---- shared memory ---- */

static inline uint32_t shared_address(const void *p) { return emulated_address(p); }
static inline void copy_16(uint32_t to, const void *from) { emulated_copy(to, from, 16); }
static inline void copy_4(uint32_t to, const void *from) { emulated_copy(to, from, 4); }
static inline void close_stage() { emulated_close_stage(); }
template <int OPEN> static inline void await_stages() { emulated_await_stages(OPEN); }

template <typename T> static inline T emulated_load(uint32_t at)
{
    T x;
    memcpy(&x, emulated_shared_at(at, sizeof x), sizeof x);
    return x;
}
static inline uint4 shared_16(uint32_t at) { return emulated_load<uint4>(at); }
static inline uint32_t shared_4(uint32_t at) { return emulated_load<uint32_t>(at); }
template <int FIRST> static inline void shared_16(uint32_t at, uint32_t *word)
{
    const uint4 x = emulated_load<uint4>(at + FIRST);
    word[0] = x.x, word[1] = x.y, word[2] = x.z, word[3] = x.w;
}
template <int FIRST> static inline void shared_8(uint32_t at, uint32_t *word)
{
    const uint2 x = emulated_load<uint2>(at + FIRST);
    word[0] = x.x, word[1] = x.y;
}
template <int FIRST> static inline uint32_t shared_2(uint32_t at) { return emulated_load<uint16_t>(at + FIRST); }

struct emulated_matrices {
    uint32_t at, *out;
};
template <bool TURNED> static void emulated_load_matrices(void *brought[EMULATED_WARP])
{
    for (int m = 0; m < 4; m++) {
        uint16_t x[8][8];
        for (int r = 0; r < 8; r++)
            memcpy(x[r], emulated_shared_at(((emulated_matrices *)brought[8 * m + r])->at, 16), 16);
        for (int i = 0; i < WARP; i++) {
            const int g = i / 4, t = i % 4 * 2;
            ((emulated_matrices *)brought[i])->out[m] =
                TURNED ? x[t][g] | (uint32_t)x[t + 1][g] << 16 : x[g][t] | (uint32_t)x[g][t + 1] << 16;
        }
    }
}
static inline void load_fragments(uint32_t out[4], uint32_t at)
{
    emulated_matrices m = {at, out};
    emulated_warp_meet(ALL_LANES, emulated_load_matrices<false>, &m, "ldmatrix");
}
static inline void load_turned(uint32_t out[4], uint32_t at)
{
    emulated_matrices m = {at, out};
    emulated_warp_meet(ALL_LANES, emulated_load_matrices<true>, &m, "ldmatrix");
}

/* ---- barriers ---- */

template <int NUMBER, int THREADS> static inline void meet() { emulated_block_meet(NUMBER, THREADS); }

static inline void barrier_make(uint32_t at, uint32_t arrivals) { emulated_barrier_make(at, arrivals); }
static inline void barrier_arrive(uint32_t at) { emulated_barrier_arrive(at, 0); }
template <int OFFSET> static inline void barrier_arrive(uint32_t at) { emulated_barrier_arrive(at + OFFSET, 0); }
static inline void barrier_expect(uint32_t at, uint32_t bytes) { emulated_barrier_arrive(at, bytes); }
static inline void barrier_await(uint32_t at, uint32_t parity) { emulated_barrier_await(at, parity); }
static inline void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    emulated_bulk_copy(to, from, bytes, barrier);
}
static inline void show_stores() {}

/* ---- numbers ---- */

static inline float emulated_from_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }
/* To the nearest, ties to even. */
static inline uint32_t emulated_to_bf16(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return x != x ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

/* The product of two bf16 is exact in f32 but below its normal numbers, where a sticky last bit stands for what is
 * lost. */
static inline uint32_t emulated_multiply_bf16(uint32_t a, uint32_t b)
{
    const float x = emulated_from_bf16(a), y = emulated_from_bf16(b), product = x * y;
    const double whole = (double)x * (double)y;
    if ((double)product == whole || product != product)
        return emulated_to_bf16(product);
    const float cut = fabs((double)product) > fabs(whole) ? nextafterf(product, 0) : product;
    return emulated_to_bf16(__uint_as_float(__float_as_uint(cut) | 1));
}
static inline uint32_t multiply_pair(uint32_t a, uint32_t b)
{
    return emulated_multiply_bf16(a & 0xFFFF, b & 0xFFFF) | emulated_multiply_bf16(a >> 16, b >> 16) << 16;
}
static inline uint32_t pack_pair(float low, float high) { return emulated_to_bf16(low) | emulated_to_bf16(high) << 16; }

/* ---- the matrix unit ---- */

/* Rows of a lane's operands and sums: g and g + 8; its first column: 2 t. */
template <typename Sum> static inline void emulated_take_sums(Sum c[16][8], const Sum *of, int lane)
{
    for (int e = 0; e < 4; e++)
        c[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2] = of[e];
}
template <typename Sum> static inline void emulated_put_sums(const Sum c[16][8], Sum *of, int lane)
{
    for (int e = 0; e < 4; e++)
        of[e] = c[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2];
}

struct emulated_product_f64 {
    double *c;
    const double *a, *b, *x;
};
static inline void emulated_multiply_f64(void *brought[EMULATED_WARP])
{
    double a[16][16], b[8][16], c[16][8];
    for (int i = 0; i < WARP; i++) {
        const auto *p = (const emulated_product_f64 *)brought[i];
        for (int j = 0; j < 4; j++) {
            a[i / 4][i % 4 + 4 * j] = p->a[j];
            a[i / 4 + 8][i % 4 + 4 * j] = p->b[j];
            b[i / 4][i % 4 + 4 * j] = p->x[j];
        }
        emulated_take_sums(c, p->c, i);
    }
    emulated_mma_f64(c, a, b);
    for (int i = 0; i < WARP; i++)
        emulated_put_sums(c, ((const emulated_product_f64 *)brought[i])->c, i);
}
static inline void mma_f64(double c[4], const double a[4], const double b[4], const double x[4])
{
    emulated_product_f64 p = {c, a, b, x};
    emulated_warp_meet(ALL_LANES, emulated_multiply_f64, &p, "mma.sync of f64");
}

/* BYTES: of a term, 2: bf16, 1: INT8. Each word holds 4 / BYTES terms. */
template <typename Sum> struct emulated_product {
    Sum *c;
    uint32_t a[4], b[2];
};
static inline void emulated_multiply(float c[16][8], const uint16_t a[16][16], const uint16_t b[8][16])
{
    emulated_mma_bf16(c, a, b);
}
static inline void emulated_multiply(int32_t c[16][8], const int8_t a[16][32], const int8_t b[8][32])
{
    emulated_mma_int8(c, a, b);
}

template <typename Sum, typename Term> static void emulated_multiply_all(void *brought[EMULATED_WARP])
{
    enum { TERMS = 32 / sizeof(Term), EACH = 4 / sizeof(Term) };
    Term a[16][TERMS], b[8][TERMS];
    Sum c[16][8];
    for (int i = 0; i < WARP; i++) {
        const auto *p = (const emulated_product<Sum> *)brought[i];
        const int g = i / 4, t = i % 4 * EACH;
        memcpy(&a[g][t], &p->a[0], 4);
        memcpy(&a[g + 8][t], &p->a[1], 4);
        memcpy(&a[g][t + TERMS / 2], &p->a[2], 4);
        memcpy(&a[g + 8][t + TERMS / 2], &p->a[3], 4);
        memcpy(&b[g][t], &p->b[0], 4);
        memcpy(&b[g][t + TERMS / 2], &p->b[1], 4);
        emulated_take_sums(c, p->c, i);
    }
    emulated_multiply(c, a, b);
    for (int i = 0; i < WARP; i++)
        emulated_put_sums(c, ((const emulated_product<Sum> *)brought[i])->c, i);
}
static inline void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    emulated_product<float> p = {c, {a0, a1, a2, a3}, {b0, b1}};
    emulated_warp_meet(ALL_LANES, emulated_multiply_all<float, uint16_t>, &p, "mma.sync of bf16");
}
static inline void mma_int8(int32_t c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    emulated_product<int32_t> p = {c, {a0, a1, a2, a3}, {b0, b1}};
    emulated_warp_meet(ALL_LANES, emulated_multiply_all<int32_t, int8_t>, &p, "mma.sync of INT8");
}

#endif
