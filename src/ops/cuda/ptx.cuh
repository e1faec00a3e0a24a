/* ptx.cuh: every instruction that kernels name themselves, as functions of a name and nothing more; those of wgmma are in
 * wgmma.cuh. tests/support/emulated_cuda has a header of the same name with what each of them does, for a processor. */
#ifndef QR_OPS_CUDA_PTX_CUH
#define QR_OPS_CUDA_PTX_CUH

#include <stdint.h>

enum { WARP = 32 };
#define ALL_LANES 0xFFFFFFFFu

/* Shared memory of a size that the launch says: a declaration of a function. */
#define LAUNCHED_SHARED(type, name, alignment) extern __shared__ __align__(alignment) type name[]

/* ---- starting ---- */

/* Every kernel begins with this, or does before it only what needs no earlier kernel: where the device can, a kernel is
 * started while the one before it ends, and waits here until that is done; then the next may be started. */
static __device__ inline void await_earlier(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/* The same of a kernel that lets the next one start when it has ended itself. */
static __device__ inline void await_alone(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* ---- loads ---- */

/* Loads that no store of the kernel stands in the way of, so that several are in flight, past the multiprocessor's own
 * cache, which before await_earlier may still hold an earlier step's. What they load this kernel writes only behind
 * them. */
static __device__ inline int32_t fresh(const int32_t *p)
{
    int32_t x;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(x) : "l"(p));
    return x;
}
static __device__ inline float fresh(const float *p)
{
    float x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(p));
    return x;
}
static __device__ inline uint16_t fresh(const uint16_t *p)
{
    uint16_t x;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(x) : "l"(p));
    return x;
}

/* A number that the compiler keeps instead of making it again. */
static __device__ inline int kept(int x)
{
    int y;
    asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* ---- shared memory ---- */

static __device__ inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Copies of a thread, in stages: await_stages waits until at most OPEN of those closed are under way. */
static __device__ inline void copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
static __device__ inline void copy_4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from));
}
static __device__ inline void close_stage() { asm volatile("cp.async.commit_group;"); }
template <int OPEN> static __device__ inline void await_stages()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN));
}

static __device__ inline uint4 shared_16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}
static __device__ inline uint32_t shared_4(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}
/* Words at an address in shared memory, FIRST bytes further on. */
template <int FIRST> static __device__ inline void shared_16(uint32_t at, uint32_t *word)
{
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4+%5];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(at), "n"(FIRST));
}
template <int FIRST> static __device__ inline void shared_8(uint32_t at, uint32_t *word)
{
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2+%3];" : "=r"(word[0]), "=r"(word[1]) : "r"(at), "n"(FIRST));
}
template <int FIRST> static __device__ inline uint32_t shared_2(uint32_t at)
{
    uint16_t pair;
    asm volatile("ld.shared.u16 %0, [%1+%2];" : "=h"(pair) : "r"(at), "n"(FIRST));
    return pair;
}

/* Four matrices of 8 rows of 16 bytes, whose addresses lanes 8 m .. 8 m + 7 bring, as operands; load_turned: transposed. */
static __device__ inline void load_fragments(uint32_t out[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at));
}
static __device__ inline void load_turned(uint32_t out[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at));
}

/* ---- barriers ---- */

/* Threads of a named barrier. */
template <int NUMBER, int THREADS> static __device__ inline void meet()
{
    asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}

/* So many arrivals end a phase. */
static __device__ inline void barrier_make(uint32_t at, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
static __device__ inline void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
/* The barrier OFFSET bytes further on. */
template <int OFFSET> static __device__ inline void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0+%1];" ::"r"(at), "n"(OFFSET) : "memory");
}
/* Arrives, and has the phase wait for so many bytes of bulk_copy. */
static __device__ inline void barrier_expect(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
/* Waits until the phase of that parity has ended. */
static __device__ inline void barrier_await(uint32_t at, uint32_t parity)
{
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\nbra again;\nover:\n}" ::"r"(at),
                 "r"(parity)
                 : "memory");
}
/* One thread's copy of 16 bytes or more, on 16 bytes, which the barrier counts. */
static __device__ inline void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
/* What ordinary stores wrote, for the matrix unit to read. */
static __device__ inline void show_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- numbers ---- */

/* a * b for pairs of bf16. */
static __device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(0x80008000u));
    return y;
}

/* Two as bf16, the first in the lower half. */
static __device__ inline uint32_t pack_pair(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* ---- the matrix unit ---- */

/* c += A B in binary64 for 16 rows, 8 columns and 16 terms. Lane 4 g + t brings a: row g and b: row g + 8 of A, x:
 * column g of B, each at its terms 4 t .. 4 t + 3 (any four, the same for all three); it keeps columns 2 t and 2 t + 1
 * of row g (c[0], c[1]) and row g + 8. */
static __device__ inline void mma_f64(double c[4], const double a[4], const double b[4], const double x[4])
{
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, "
                 "{%12,%13,%14,%15}, {%0,%1,%2,%3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0]), "d"(b[0]), "d"(a[1]), "d"(b[1]), "d"(a[2]), "d"(b[2]), "d"(a[3]), "d"(b[3]), "d"(x[0]),
                   "d"(x[1]), "d"(x[2]), "d"(x[3]));
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+d"(c[0]), "+d"(c[1])
                     : "d"(a[i]), "d"(x[i]));
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                     : "+d"(c[2]), "+d"(c[3])
                     : "d"(b[i]), "d"(x[i]));
    }
#endif
}

/* c += A B for 16 rows, 8 columns and 16 terms of bf16: lane 4 g + t brings terms 2 t, 2 t + 1 of rows g (a0) and g + 8 (a1), and
 * those 8 on (a2, a3), and the same of column g of B (b0, b1); it keeps c as mma_f64 says. */
static __device__ inline void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                  uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* The same for 32 terms of INT8: 4 t .. 4 t + 3, and those 16 on. */
static __device__ inline void mma_int8(int32_t c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                       uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

#endif
